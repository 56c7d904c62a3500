#!/bin/bash
# Installs missing packages, configures and builds a preset, and runs its tests. The last lines list each
# skipped test with the reason.
#
#   scripts/test.sh PRESET [TEST_PRESET [ctest options…]]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: scripts/test.sh PRESET [TEST_PRESET]}
shift
tests=$preset
if [ $# -gt 0 ]; then
    tests=$1
    shift
fi

scripts/setup.sh
scripts/build.sh "$preset"
report=$PWD/build/$preset/tests-$tests.xml
status=0
ctest --preset "$tests" --output-junit "$report" "$@" </dev/null || status=$?
scripts/list_skips.py "$report"
exit $status
