#!/bin/bash
# Builds the fuzzers with clang and sanitizers and runs them, one per core, starting from the saved inputs.
# Then prints the share of each parser's lines that the saved inputs cover. A share below 90 % is a failure.
# New inputs are stored in build/fuzz/inputs. An input that crashes a parser is named and stored there, too;
# add it to tests/fuzz.
#
#   scripts/fuzz.sh [SECONDS [NAME…]]     SECONDS: time per fuzzer (default: 30); 0: measure coverage only
#                                         NAME: wire, shape, csv, … (default: all fuzzers)
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

# Runs a fuzzer, starting from the saved inputs and the inputs found by earlier runs.
fuzz() {
    local name=$1 log=$inputs/$1.log
    mkdir -p "$inputs/$name"
    if LLVM_PROFILE_FILE=/dev/null "build/fuzz/tests/fuzz_$name" -max_total_time="$seconds" -max_len=4096 \
        -timeout=60 -dict=tests/fuzz/numbers.dict -artifact_prefix="$inputs/$name." \
        "$inputs/$name" "tests/fuzz/fuzz_$name" \
        </dev/null >"$log" 2>&1; then
        grep -E '^Done ' "$log" | sed "s/^/fuzz: $name: /"
    else
        echo "fuzz: $name crashed:" >&2
        grep -E 'ERROR|SUMMARY|check failed|#[0-9]+ .* in |Test unit written' "$log" | head -n 20 >&2
        return 1
    fi
}

# Prints the share of the parser's lines that the saved inputs cover.
reach() {
    local name=$1 program=build/fuzz/tests/fuzz_$1 raw=$inputs/$1.profraw data=$inputs/$1.profdata share files
    if ! LLVM_PROFILE_FILE=$raw "$program" -runs=0 -artifact_prefix="$inputs/$name." "tests/fuzz/fuzz_$name" \
        </dev/null >"$inputs/$name.log" 2>&1; then
        echo "fuzz: $name crashes on a saved input; see $inputs/$name.log" >&2
        return 1
    fi
    llvm-profdata merge -o "$data" "$raw"
    mapfile -t files <"$program.parses"
    share=$(llvm-cov report "$program" -instr-profile="$data" "${files[@]}" 2>/dev/null |
        awk '$1 == "TOTAL" { print $10 }')
    echo "fuzz: $name: ${share:-0 %} of the lines of ${files[*]}"
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
        echo "fuzz: $name: tests/fuzz/fuzz_$name must cover at least $LEAST % of the lines" >&2
        status=1
    }
done
exit $status
