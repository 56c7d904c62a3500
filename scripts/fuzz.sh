#!/bin/bash
# Builds the fuzzers (clang, AddressSanitizer, UndefinedBehaviorSanitizer) and runs each for a while from the saved inputs. What they
# learn stays in build/fuzz/inputs; an input that breaks something is named and kept there, and belongs into tests/fuzz.
#
#   scripts/fuzz.sh [SECONDS [NAME…]]     30 s each; all, or the ones named: wire shape csv manifest
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}
[ $# -eq 0 ] || shift
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do
        name=${source##*/fuzz_}
        names+=("${name%.c}")
    done
fi

scripts/setup.sh >&2
scripts/build.sh fuzz "${names[@]/#/fuzz_}" >&2
status=0
for name in "${names[@]}"; do
    inputs=build/fuzz/inputs/$name
    log=$inputs.log
    mkdir -p "$inputs"
    if "build/fuzz/tests/fuzz_$name" -max_total_time="$seconds" -max_len=4096 -artifact_prefix="$inputs." \
        "$inputs" "tests/fuzz/fuzz_$name" </dev/null >"$log" 2>&1; then
        grep -E '^Done ' "$log" | sed "s/^/fuzz: $name: /"
    else
        echo "fuzz: $name breaks:" >&2
        grep -E 'ERROR|SUMMARY|does not hold|#[0-9]+ .* in |Test unit written' "$log" | head -n 20 >&2
        status=1
    fi
done
exit $status
