#!/bin/bash
# A farm of one machine, from shapes to a validated table: moefarmd and one CPU worker on loopback, with a state
# folder that is thrown away. Leaves the status page up until Ctrl-C; with DEMO_ONCE=1 it ends by itself.
# The table stays in build/demo/tuned_fmoe.csv.
#
#   scripts/demo.sh [SHAPES]     an untuned_fmoe.csv; examples/qwen3_untuned_fmoe.csv otherwise
set -euo pipefail
cd "$(dirname "$0")/.."
shapes=${1:-examples/qwen3_untuned_fmoe.csv}
build=build/dev
out=build/demo
table=$out/tuned_fmoe.csv
port=${DEMO_PORT:-8080}
. scripts/farm_end.sh

say() {
    printf '\n== %s\n' "$*"
}

scripts/setup.sh
scripts/build.sh dev moefarmd moefarm-worker moefarm
mkdir -p "$out"
rm -f "$table"
state=$(mktemp -d "${TMPDIR:-/tmp}/moefarm-demo.XXXXXX")

finish() {
    if [ "$1" != 0 ] && [ "$1" != 130 ]; then
        (cd "$state" && tail_logs 25 *.log) || true
        echo "demo: failed with exit code $1" >&2
    fi
    stop_all 50
    rm -rf "$state"
}
end_with finish

# Waits until a file has a line, while the process that writes it lives.
await_line() {
    local file=$1 pid=$2 i
    for i in $(seq 200); do
        [ -s "$file" ] && return 0
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

port_is_free() {
    ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

port_is_free "$port" || port=0
say "moefarmd and one worker, state in $state"
"$build/server/moefarmd" --state "$state/farm" --http "127.0.0.1:$port" --hub 127.0.0.1:0 \
    --port-file "$state/ports" >"$state/moefarmd.log" 2>&1 &
pids+=($!)
await_line "$state/ports" "${pids[0]}" || { echo "demo: moefarmd did not start" >&2; exit 1; }
http=$(sed -n 's/^http[= ]//p' "$state/ports")
hub=$(sed -n 's/^hub[= ]//p' "$state/ports")
export MOEFARM_URL=http://127.0.0.1:$http
"$build/worker/moefarm-worker" --coordinator "tcp://127.0.0.1:$hub" --device cpu:0 --name demo --spool "$state/spool" \
    >"$state/worker.log" 2>&1 &
pids+=($!)
moefarm=$build/cli/moefarm
echo "status page: $MOEFARM_URL/"

say "submit $shapes and watch it"
started=$SECONDS
# fewer finalists than by default and no regret under other routings: three minutes on two cores
receipt=$($moefarm submit "$shapes" --name demo --topk 4 --regret none)
echo "$receipt"
batch=$(sed -n 's/^batch \([0-9]*\):.*/\1/p' <<<"$receipt")
$moefarm watch "$batch"

shape=$(sed -n 4p "$shapes")
say "the ranked configs of $shape"
$moefarm rank --batch "$batch" --shape "$shape" --top 3

say "why not the library's kernels, for a shape in fp8?"
fp8=$(grep -m1 per_Token "$shapes" || echo "$shape")
$moefarm why --batch "$batch" "$fp8" lib | head -n 6

say "the table, for the production operator: $table"
$moefarm export --batch "$batch" -o "$table"
echo "$(($(wc -l <"$table") - 1)) rows"

say "run it through the production operator"
# Twice the time is still no alarm on a machine that does other things too; a wrong result always is
$moefarm run-config "$table" --rounds 7 --slack 2

say "done in $((SECONDS - started)) s after the build; the table is $table"
[ -z "${DEMO_ONCE-}" ] || exit 0
echo "The status page stays up: $MOEFARM_URL/   (Ctrl-C ends the demo)"
trap 'echo; exit 0' INT
wait -n "${pids[@]}" || true
echo "demo: a process of the farm has ended" >&2
exit 1
