#!/bin/bash
# Tests that scripts/check_style.sh reads every kind of text file. Plants a long line in a file of each
# kind.
set -euo pipefail
source=${1:?check_style_files.sh SOURCE}
folder=$(mktemp -d /tmp/check_style_files.XXXXXX)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

mkdir -p common cli fmoe kernels measure server tests worker scripts deploy/debian/server .ci
cp "$source"/scripts/{check_style.sh,banned_phrases.txt} scripts/
files=(common/a.c common/a.h kernels/a.hip tests/a.cc scripts/a.sh tests/a.py server/a.js server/a.css
    tests/a.mjs a.sql README.md a.cmake CMakeLists.txt Makefile .ci/run deploy/a.yaml deploy/a.yml
    deploy/a.service deploy/a.timer deploy/a.conf deploy/a.sbatch deploy/Containerfile
    deploy/debian/server/postinst)
for file in "${files[@]}"; do
    printf '%0120d\n' 0 >"$file"
done
scripts/check_style.sh >report 2>&1 && { echo "check_style.sh finds nothing"; exit 1; }
failed=0
for file in "${files[@]}"; do
    grep -qF "./$file:1: 120 columns" report || {
        echo "check_style.sh does not read $file"
        failed=1
    }
done
exit $failed
