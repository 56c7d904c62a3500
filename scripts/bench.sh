#!/bin/bash
# Builds and runs the benchmarks. Standard output has one figure per line: name value unit.
# Prints the name of each benchmark that is missing or fails on standard error; the exit status is then 1.
#
#   scripts/bench.sh [NAME…]     default: commit crashers aa move farm compare libfmoe
#
# These run only if named:
#   kernels     kernels without a farm
#   catalogue   every untuned table of AITER in a large simulated farm
#   workers     catalogue with 1,024 workers
#   chain       PyTorch's operators, to compare with bench_moves; on a GPU
set -euo pipefail
cd "$(dirname "$0")/.."
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(commit crashers aa move farm compare libfmoe)

scripts/setup.sh >&2
scripts/build.sh dev >&2
status=0
for name in "${names[@]}"; do
    arguments=() built=$name
    [ "$name" != workers ] || { built=catalogue arguments=(512 'kimik2_*' workers); }
    program=$(find build/dev -type f -name "bench_$built" -perm -u+x -print -quit)
    command=("$program" "${arguments[@]}")
    if [ -z "$program" ] && [ -f "tests/bench/bench_$name.py" ]; then
        command=(python3 "tests/bench/bench_$name.py" build/dev)
    elif [ -z "$program" ]; then
        echo "bench: bench_$name is missing" >&2
        status=1
        continue
    fi
    echo "bench: bench_$name" >&2
    # Figures have three words; other lines go to standard error
    if ! "${command[@]}" </dev/null | awk '
        NF == 3 && $2 ~ /^-?[0-9.]+(e[-+]?[0-9]+)?$/ {print; fflush(); next}
        {print > "/dev/stderr"}'; then
        echo "bench: bench_$name failed" >&2
        status=1
    fi
done
exit $status
