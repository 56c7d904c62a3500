#!/bin/bash
# Installs what is missing, configures and builds a preset, runs its tests. Ends with ctest's summary.
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
exec ctest --preset "$tests" "$@" </dev/null
