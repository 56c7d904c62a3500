#!/bin/bash
# Tunes the shapes of examples/h200.csv on one GPU, through a coordinator and a worker on loopback. Prints a
# table: token count, floor, and the winner's end-to-end time, GEMM time and name. The floor is the larger of
# two times: bytes divided by read bandwidth, and FLOPs divided by peak rate, both as the worker measured them
# on this device. Then prints the share of wall time that was spent on timing and verification.
#
# The state folder keeps all results, so the same command continues where the last run stopped, or prints the
# table again. Exit status: 0: all shapes are tuned; 75: tasks are left, run the command again; 1: a step
# failed. Needs bash, coreutils, and the programs moefarmd, moefarm-worker, moefarm, moefarm-compile and
# moefarm-hip-*.so. These are in a build, or in one folder (--bin) with their shared libraries in the same
# folder or in lib next to it.
#
#   scripts/bench_gpu.sh [--device NAME] [--shape NAME[:T]]… [--shapes FILE] [--state DIR] [--bin DIR]
#                        [--minutes M] [-- OPTION…]
#
#   --device   device, as named by moefarm-worker --list-devices (default: hip:nvidia:0)
#   --shape    layer of the file, or one token count of a layer; may be repeated. Layers of the default file:
#              qwen3-30b, mixtral, deepseek-v3, qwen3-235b. A layer of another file is named
#              h<model_dim>-i<inter_dim>-e<expert>-k<topk>
#   --shapes   table to tune, with the columns of untuned_fmoe.csv in order (default: examples/h200.csv)
#   --state    folder that keeps the state (default: build/bench-gpu)
#   --bin      folder of the programs (default: build/dev)
#   --minutes  time limit including the table, a number with at most one decimal (default: 7.5)
#   --         options after it go to moefarm-worker, such as --families two_stage,move
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
device=hip:nvidia:0
file=$root/examples/h200.csv
state=$root/build/bench-gpu
bin=
minutes=7.5
picked=()
worker_options=()
. "$root/scripts/farm_end.sh"

fail() {
    echo "bench_gpu: $*" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || [ "$1" = --help ] || [ "$1" = -- ] || fail "$1 needs a value; --help lists the options"
    case $1 in
    --device) device=$2 ;;
    --shape) picked+=("$2") ;;
    --shapes) file=$2 ;;
    --state) state=$2 ;;
    --bin) bin=$2 ;;
    --minutes) minutes=$2 ;;
    --help)
        while IFS= read -r line && [ "${line:0:1}" = "#" ]; do
            [ "${line:1:1}" = "!" ] || echo "${line:2}"
        done <"$0"
        exit 0
        ;;
    --)
        shift
        worker_options=("$@")
        break
        ;;
    *) fail "unknown option $1; --help lists the options" ;;
    esac
    shift 2
done
[[ $minutes =~ ^([0-9]+)(\.([0-9]))?$ ]] || fail "--minutes $minutes: expected a number such as 7.5"
seconds=$((BASH_REMATCH[1] * 60 + ${BASH_REMATCH[3]:-0} * 6))
[ -r "$file" ] || fail "cannot read $file"

# Prints the path of a program: in --bin, or where a build puts it.
program() {
    local path
    for path in ${bin:+"$bin/$1"} "$root/build/dev/$2/$1" "$root/$1" "$root/bin/$1"; do
        if [ -x "$path" ]; then
            echo "$path"
            return
        fi
    done
    fail "$1 is missing; run make build, or name its folder with --bin"
}
moefarmd=$(program moefarmd server)
moefarm_worker=$(program moefarm-worker worker)
moefarm=$(program moefarm cli)
for folder in "$bin" "${bin:+$bin/lib}" "${bin:+$bin/../lib}"; do
    [ -n "$folder" ] && [ -d "$folder" ] && LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}
mkdir -p "$state"
state=$(cd "$state" && pwd)
export MOEFARM_CODE_CACHE=${MOEFARM_CODE_CACHE:-$state/code}

# ---- select the shapes ----

name_of() {
    case $1 in
    2048,768,128,8) echo qwen3-30b ;;
    4096,3584,8,2) echo mixtral ;;
    7168,256,256,8) echo deepseek-v3 ;;
    4096,384,128,8) echo qwen3-235b ;;
    *)
        local model_dim inter_dim expert topk
        IFS=, read -r model_dim inter_dim expert topk <<<"$1"
        echo "h$model_dim-i$inter_dim-e$expert-k$topk"
        ;;
    esac
}

is_picked() {
    local name
    [ ${#picked[@]} -gt 0 ] || return 0
    for name in "${picked[@]}"; do
        [ "$name" = "$1" ] || [ "$name" = "$1:$2" ] && return 0
    done
    return 1
}

# Create one file and one batch per layer. Layers that come earlier in the file get a higher priority.
declare -A rows=() priorities=()
order=()
header=
while IFS= read -r line || [ -n "$line" ]; do
    line=${line%$'\r'}
    if [ -z "$header" ]; then
        header=$line
        continue
    fi
    [ -n "$line" ] || continue
    IFS=, read -r token model_dim inter_dim expert topk _ <<<"$line"
    name=$(name_of "$model_dim,$inter_dim,$expert,$topk")
    priorities[$name]=${priorities[$name]:-$((${#priorities[@]} < 90 ? 90 - ${#priorities[@]} : 0))}
    is_picked "$name" "$token" || continue
    [ -n "${rows[$name]-}" ] || order+=("$name")
    rows[$name]+=$line$'\n'
done <"$file"
[ ${#order[@]} -gt 0 ] || fail "no shape of $file matches --shape"

# ---- the farm ----

watch=
finish() {
    [ -z "$watch" ] || pids+=("$watch")
    stop_all 100
    case $1 in
    0 | 75 | 130) ;;
    *) tail_logs 15 "$state"/*.log ;;
    esac
}
end_with finish

rm -f "$state/ports"
"$moefarmd" --state "$state/farm" --http 127.0.0.1:0 --hub 127.0.0.1:0 --port-file "$state/ports" \
    >"$state/moefarmd.log" 2>&1 &
pids+=($!)
daemon=$!
http=
hub=
until [ -n "$http" ] && [ -n "$hub" ]; do
    kill -0 "$daemon" 2>/dev/null || fail "moefarmd did not start"
    [ $SECONDS -lt 60 ] || fail "moefarmd did not write its ports within a minute; see $state/moefarmd.log"
    sleep 0.1
    [ -s "$state/ports" ] || continue
    while IFS='= ' read -r key value; do
        case $key in
        http) http=$value ;;
        hub) hub=$value ;;
        esac
    done <"$state/ports"
done
export MOEFARM_URL=http://127.0.0.1:$http
"$moefarm_worker" --coordinator "tcp://127.0.0.1:$hub" --device "$device" --name bench \
    --spool "$state/spool" \
    "${worker_options[@]}" >"$state/worker.log" 2>&1 &
pids+=($!)
worker=$!

# With the idempotency key, a second submission of the same rows returns the first batch.
batches=()
for name in "${order[@]}"; do
    printf '%s\n%s' "$header" "${rows[$name]}" >"$state/$name.csv"
    read -r sum _ < <(cksum <"$state/$name.csv")
    receipt=$("$moefarm" submit "$state/$name.csv" --name "$name" --idempotency-key "bench-gpu-$name-$sum" \
        --priority "${priorities[$name]}")
    [[ $receipt =~ ^batch\ ([0-9]+): ]] || fail "no batch: $receipt"
    batches+=("${BASH_REMATCH[1]}")
    echo "$name: $receipt"
done

# ---- wait until all tasks are done or the time is up ----

left=0
for batch in "${batches[@]}"; do
    remaining=$((seconds - SECONDS - 15)) # reserve for the table and the shutdown
    if [ $remaining -lt 1 ]; then
        left=1
        break
    fi
    timeout "$remaining" "$moefarm" watch "$batch" &
    watch=$!
    code=0
    wait -n "$watch" "$worker" "$daemon" || code=$?
    kill -0 "$daemon" 2>/dev/null || fail "moefarmd has ended"
    kill -0 "$worker" 2>/dev/null || fail "the worker has ended"
    case $code in
    0 | 1) watch= ;; # 1: a task failed; the table gives the reason
    124)
        watch=
        left=1
        break
        ;;
    *) fail "moefarm watch $batch ended with exit status $code" ;;
    esac
done

echo
"$moefarm" report "${batches[@]}"
if "$moefarm" export -o "$state/tuned_fmoe.csv"; then
    echo "tuned table: $state/tuned_fmoe.csv"
    echo "check it: moefarm run-config $state/tuned_fmoe.csv --device $device"
fi
while IFS= read -r line; do
    case $line in
    *"recovered "*"after a runner died"*) echo "${line#*info: }" ;;
    esac
done <"$state/worker.log"
[ $left = 0 ] || { echo "time is up and tasks are left: run the same command again"; exit 75; }
