#!/bin/bash
# Configures a preset and builds it in build/PRESET. Prints errors, and what the build leaves out.
#
#   scripts/build.sh PRESET [target…]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: scripts/build.sh PRESET [target…]}
shift
targets=()
[ $# -eq 0 ] || targets=(--target "$@")
mkdir -p "build/$preset"
log=build/$preset/configure.log

if ! cmake --preset "$preset" >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
echo "build: preset $preset into build/$preset"
log=build/$preset/build.log
if ! cmake --build --preset "$preset" -j"$(nproc)" "${targets[@]}" >"$log" 2>&1; then
    grep -E -A6 'error|Error ' "$log" | head -n 60 >&2 || tail -n 40 "$log" >&2
    echo "build: failed; full log: $log" >&2
    exit 1
fi
cat "build/$preset/left_out.txt"
