#!/bin/bash
# Builds the fuzzers (clang, AddressSanitizer, UndefinedBehaviorSanitizer), runs each for a while from the saved inputs, as many side by
# side as there are cores, and prints how many of its parser's lines the saved inputs reach: below 90 of 100 is a failure. What they learn
# stays in build/fuzz/inputs; an input that breaks something is named and kept there, and belongs into tests/fuzz.
#
#   scripts/fuzz.sh [SECONDS [NAME…]]     30 s each; all, or the ones named: wire shape csv …; 0 s: the lines only
set -euo pipefail
cd "$(dirname "$0")/.."
LEAST=90
seconds=${1:-30}
[ $# -eq 0 ] || shift
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do
        name=${source##*/fuzz_}
        names+=("${name%.c}")
    done
fi

scripts/setup.sh --with-fuzzers >&2
scripts/build.sh fuzz "${names[@]/#/fuzz_}" >&2
inputs=build/fuzz/inputs
mkdir -p "$inputs"

# Goes on from the saved inputs and from what was learned before.
fuzz() {
    local name=$1 log=$inputs/$1.log
    mkdir -p "$inputs/$name"
    if LLVM_PROFILE_FILE=/dev/null "build/fuzz/tests/fuzz_$name" -max_total_time="$seconds" -max_len=4096 -timeout=60 \
        -artifact_prefix="$inputs/$name." "$inputs/$name" "tests/fuzz/fuzz_$name" </dev/null >"$log" 2>&1; then
        grep -E '^Done ' "$log" | sed "s/^/fuzz: $name: /"
    else
        echo "fuzz: $name breaks:" >&2
        grep -E 'ERROR|SUMMARY|does not hold|#[0-9]+ .* in |Test unit written' "$log" | head -n 20 >&2
        return 1
    fi
}

# Share of the parser's lines that the saved inputs run.
reach() {
    local name=$1 program=build/fuzz/tests/fuzz_$1 raw=$inputs/$1.profraw data=$inputs/$1.profdata share files
    if ! LLVM_PROFILE_FILE=$raw "$program" -runs=0 -artifact_prefix="$inputs/$name." "tests/fuzz/fuzz_$name" </dev/null >"$inputs/$name.log" 2>&1; then
        echo "fuzz: $name breaks at a saved input: $inputs/$name.log" >&2
        return 1
    fi
    llvm-profdata merge -o "$data" "$raw"
    mapfile -t files <"$program.parses"
    share=$(llvm-cov report "$program" -instr-profile="$data" "${files[@]}" 2>/dev/null | awk '$1 == "TOTAL" { print $10 }')
    echo "fuzz: $name: ${share:-none} of the lines of ${files[*]}"
    awk -v share="${share%\%}" -v least="$LEAST" 'BEGIN { exit !(share + 0 >= least) }'
}

status=0
if [ "$seconds" != 0 ]; then
    jobs=() cores=$(nproc)
    for i in "${!names[@]}"; do
        [ "$i" -lt "$cores" ] || wait "${jobs[i - cores]}" || status=1
        fuzz "${names[i]}" &
        jobs[i]=$!
    done
    for ((i = ${#names[@]} > cores ? ${#names[@]} - cores : 0; i < ${#names[@]}; i++)); do
        wait "${jobs[i]}" || status=1
    done
fi
for name in "${names[@]}"; do
    reach "$name" || {
        echo "fuzz: $name: at least $LEAST of 100 lines have to be reached by tests/fuzz/fuzz_$name" >&2
        status=1
    }
done
exit $status
