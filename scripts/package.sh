#!/bin/bash
# Builds the Debian packages moefarm-server, moefarm-worker, moefarm-cli and libfmoe-dev, and lists them.
# dpkg-shlibdeps finds their dependencies.
#
#   scripts/package.sh [FOLDER]     default: build/packages
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/packages}

scripts/setup.sh
scripts/build.sh release programs
mkdir -p "$out"
out=$(realpath "$out")
log=build/release/package.log
rm -f "$out"/moefarm-*.deb "$out"/libfmoe-*.deb
if ! cpack --config build/release/CPackConfig.cmake -B "$out" >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    exit 1
fi
rm -rf "$out/_CPack_Packages"
ls "$out"/*.deb
cat build/release/left_out.txt
