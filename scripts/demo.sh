#!/bin/bash
# Tunes shapes on this machine: starts moefarmd and one CPU worker on loopback, submits the shapes, shows the
# ranking, exports the table to build/demo/tuned_fmoe.csv and runs it. The farm's state is temporary. The
# status page stays up until Ctrl-C; DEMO_ONCE=1 ends the demo without waiting.
#
#   scripts/demo.sh [SHAPES]     an untuned_fmoe.csv (default: examples/qwen3_untuned_fmoe.csv)
set -euo pipefail
cd "$(dirname "$0")/.."
shapes=${1:-examples/qwen3_untuned_fmoe.csv}
build=build/dev
out=build/demo
table=$out/tuned_fmoe.csv
port=${DEMO_PORT:-8080}
. scripts/farm_end.sh

print_step() {
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

# Waits until the file contains the text. Fails if the process that writes it ends first.
await_text() {
    local file=$1 text=$2 pid=$3 i
    for i in $(seq 200); do
        grep -qs "$text" "$file" && return 0
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

port_is_free() {
    ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

port_is_free "$port" || port=0
print_step "start moefarmd and one worker, state in $state"
"$build/server/moefarmd" --state "$state/farm" --http "127.0.0.1:$port" --hub 127.0.0.1:0 \
    --port-file "$state/ports" >"$state/moefarmd.log" 2>&1 &
pids+=($!)
await_text "$state/ports" . "${pids[0]}" || { echo "demo: moefarmd did not start" >&2; exit 1; }
http=$(sed -n 's/^http[= ]//p' "$state/ports")
hub=$(sed -n 's/^hub[= ]//p' "$state/ports")
export MOEFARM_URL=http://127.0.0.1:$http
"$build/worker/moefarm-worker" --coordinator "tcp://127.0.0.1:$hub" --device cpu:0 --name demo \
    --spool "$state/spool" >"$state/worker.log" 2>&1 &
pids+=($!)
await_text "$state/worker.log" "joined the farm" "${pids[1]}" ||
    { echo "demo: the worker did not start" >&2; exit 1; }
moefarm=$build/cli/moefarm
echo "status page: $MOEFARM_URL/"

print_step "submit $shapes and wait for the batch"
started=$SECONDS
# Race few finalists and skip regret races, so that the demo takes three minutes on two cores
receipt=$($moefarm submit "$shapes" --name demo --topk 4 --regret none)
echo "$receipt"
batch=$(sed -n 's/^batch \([0-9]*\):.*/\1/p' <<<"$receipt")
$moefarm watch "$batch"

shape=$(sed -n 4p "$shapes")
print_step "the three best pipelines of $shape"
$moefarm rank --batch "$batch" --shape "$shape" --top 3

print_step "why did the oneDNN kernels not win, for an fp8 shape?"
fp8=$(grep -m1 per_Token "$shapes" || echo "$shape")
$moefarm why --batch "$batch" "$fp8" onednn | head -n 6

print_step "export the table for the production operator: $table"
$moefarm export --batch "$batch" -o "$table"
echo "$(($(wc -l <"$table") - 1)) rows"

print_step "run the table with the production operator and check its times"
# Accepts from a quarter of the tuned time to four times, because the machine may be busy. A wrong result
# always fails.
$moefarm run-config "$table" --rounds 7 --slack 4

print_step "done in $((SECONDS - started)) s after the build; the table is $table"
[ -z "${DEMO_ONCE-}" ] || exit 0
echo "The status page stays up: $MOEFARM_URL/   (Ctrl-C ends the demo)"
trap 'echo; exit 0' INT
wait -n "${pids[@]}" || true
echo "demo: moefarmd or the worker ended unexpectedly" >&2
exit 1
