#!/bin/bash
# Builds and runs the benchmarks. Standard output holds one line a figure: name value unit.
# A benchmark that was not built or that fails is named on standard error, and the exit code is 1.
#
#   scripts/bench.sh [NAME…]     commit, crashers, aa, move, farm, search, compare and libfmoe, or the ones named; by name only: kernels,
#                                kernels without a farm around them, catalogue, every table of AITER through a large farm, workers, a farm of
#                                1,024 of them, large, a database of ten million measurements, and chain, what bench_moves is held against by PyTorch's ops on a GPU
set -euo pipefail
cd "$(dirname "$0")/.."
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(commit crashers aa move farm search compare libfmoe)

scripts/setup.sh >&2
scripts/build.sh dev >&2
status=0
for name in "${names[@]}"; do
    arguments=() built=$name
    # The same farm with 1,024 workers, each a connection of its own, for three tables
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
    # Only lines of the form are figures; the rest is for people
    if ! "${command[@]}" </dev/null | awk 'NF == 3 && $2 ~ /^-?[0-9.]+(e[-+]?[0-9]+)?$/ {print; fflush(); next}
                                      {print > "/dev/stderr"}'; then
        echo "bench: bench_$name failed" >&2
        status=1
    fi
done
exit $status
