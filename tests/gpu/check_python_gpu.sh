#!/bin/bash
# Checks Python families on a GPU with the programs of a build or bundle. Prints one line per case and ends
# with status 0 if all are OK. Takes at most about 5 minutes, and with peers about 5 more.
#
#   tests/gpu/check_python_gpu.sh BIN_DIR PYTHON [PART]…
#
#   BIN_DIR   folder of moefarmd, moefarm-worker, moefarm, moefarm-compile, moefarm-hip-*.so and
#             libmoefarm-runner.so, with their shared libraries in lib and the project's folder python in it;
#             or a build folder
#   PYTHON    absolute path of an interpreter with PyTorch
#   PART      planted: families that misbehave, each with its right result; board: bf16 layers, our kernels
#             and torch on one scoreboard; peers: our kernels and the families PEERS on one scoreboard, with
#             the tables for moefarm and vLLM (default: planted board)
#
# Environment: DEVICE (default: hip:nvidia:0); STATE, a folder that keeps the compiled kernels and the tables
# (default: a new one); NO_SANDBOX, not empty to run without a sandbox; SECONDS_PLANTED, SECONDS_BOARD and
# SECONDS_PEERS, limits of the parts (150, 140 and 300); PEERS, modules with families; FAMILIES, the families
# of part peers (default: all); SHAPES, files with shapes, one batch each, the most important one first.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=$(cd "${1:?the folder of the programs}" && pwd)
python=${2:?an interpreter with PyTorch}
shift 2
device=${DEVICE:-hip:nvidia:0}
state=${STATE:-$(mktemp -d)}
mkdir -p "$state"
. "$root/scripts/farm_end.sh"

program() {
    local path
    for path in "$bin/$1" "$bin"/*/"$1"; do
        [ ! -x "$path" ] || { echo "$path"; return; }
    done
    echo "check_python_gpu: $1 is missing in $bin" >&2
    exit 1
}
moefarmd=$(program moefarmd) || exit 1
worker_program=$(program moefarm-worker) || exit 1
moefarm=$(program moefarm) || exit 1
[ ! -d "$bin/lib" ] || export LD_LIBRARY_PATH=$bin:$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export MOEFARM_CODE_CACHE=$state/code
families=$root/python/moefarm/families
[ -d "$families" ] || families=$bin/python/moefarm/families

finish() {
    stop_all 50
    [ "$1" = 0 ] || tail_logs 25 "$state"/*.log
}
end_with finish

# start_farm NAME WORKER_OPTION…: a coordinator and a worker with their own state
start_farm() {
    local name=$1 key value
    shift
    rm -rf "${state:?}/$name" "$state/ports"
    "$moefarmd" --state "$state/$name" --http 127.0.0.1:0 --hub 127.0.0.1:0 --port-file "$state/ports" \
        >"$state/$name-moefarmd.log" 2>&1 &
    pids+=($!)
    until [ -s "$state/ports" ]; do
        kill -0 "${pids[-1]}" 2>/dev/null || { echo "FAIL moefarmd did not start"; exit 1; }
        sleep 0.1
    done
    while IFS='= ' read -r key value; do
        [ "$key" != http ] || export MOEFARM_URL=http://127.0.0.1:$value
        [ "$key" != hub ] || hub=$value
    done <"$state/ports"
    "$worker_program" --coordinator "tcp://127.0.0.1:$hub" --device "$device" --name "$name" \
        --spool "$state/$name/spool" ${NO_SANDBOX:+--no-sandbox} --python "$python" "$@" \
        >"$state/$name-worker.log" 2>&1 &
    pids+=($!)
}

stop_farm() {
    stop_all 50
    pids=()
}

header=token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1
header+=,doweight_stage1
layer=${LAYER:-2048,768,128,8}
bf16=ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0
fp8=ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_Token,1,0

check_planted() {
    local start=$SECONDS
    echo "== planted families =="
    start_farm planted --families move,planted,torch_grouped --family-py "$here/planted_torch.py" \
        --family-py "$families/torch_grouped.py"
    printf '%s\n' "$header" "64,$layer,$bf16" >"$state/planted.csv"
    printf '%s\n' "$header" "64,$layer,$fp8" >"$state/fp8.csv"
    "$moefarm" submit "$state/planted.csv" --consumer any --search exhaustive --time-cap-ms 8000 \
        --regret none
    "$moefarm" submit "$state/fp8.csv" --consumer any --regret none
    timeout "${SECONDS_PLANTED:-150}" "$moefarm" watch 1 | tail -n 2
    timeout 20 "$moefarm" watch 2 | tail -n 2
    "$python" "$here/python_gpu_table.py" planted 1 || failed=1
    echo "torch_grouped, bf16 and fp8 per token:"
    "$python" "$here/python_gpu_table.py" board 1
    "$python" "$here/python_gpu_table.py" board 2
    "$moefarm" rank 1 --top 3 | head -n 20
    grep -iE "warning|error|died|crash" "$state/planted-worker.log" | head -n 20
    echo "-- $((SECONDS - start)) s"
    stop_farm
}

check_board() {
    local start=$SECONDS task
    echo "== scoreboard =="
    # without our own whole-layer kernels, because the farm would drop torch's layer after its first run
    start_farm board --families move,two_stage,two_stage_single_launch,torch_grouped \
        --family-py "$families/torch_grouped.py"
    printf '%s\n' "$header" "16,$layer,$bf16" "256,$layer,$bf16" "4096,$layer,$bf16" >"$state/board.csv"
    "$moefarm" submit "$state/board.csv" --consumer any --regret none
    timeout "${SECONDS_BOARD:-140}" "$moefarm" watch 1 | tail -n 4
    "$moefarm" report 1
    for task in 1 2 3; do
        "$moefarm" rank "$task" --top 1000 >"$state/rank-$task.txt"
        head -n 7 "$state/rank-$task.txt"
        # of weight layouts that do not race, only the best pipelines are kept
        grep -B 3 "torch_grouped:" "$state/rank-$task.txt" || echo "  torch is not among the pipelines kept"
        "$python" "$here/python_gpu_table.py" board "$task" || failed=1
    done
    echo "-- $((SECONDS - start)) s"
    stop_farm
}

check_peers() {
    local start=$SECONDS end=$((SECONDS + ${SECONDS_PEERS:-300})) n=0 module shapes batch options=()
    echo "== peers =="
    for module in ${PEERS:?modules with families}; do
        options+=(--family-py "$module")
    done
    [ -z "${FAMILIES:-}" ] || options+=(--families "$FAMILIES")
    start_farm peers "${options[@]}"
    for shapes in ${SHAPES:?files with shapes}; do
        "$moefarm" submit "$shapes" --consumer any,moefarm,vllm --time-cap-ms 30000 --regret none
        n=$((n + 1))
    done
    for batch in $(seq $n); do
        [ $SECONDS -ge $end ] || timeout $((end - SECONDS)) "$moefarm" watch "$batch" | tail -n 3
        "$python" "$here/python_gpu_table.py" peers "$batch" || failed=1
    done
    echo "-- $((SECONDS - start)) s of wall time, of which the worker spent:"
    "$moefarm" report 1
    "$moefarm" export --output "$state/tuned_fmoe.csv" && cut -c1-200 "$state/tuned_fmoe.csv"
    "$moefarm" export --consumer vllm --output "$state/vllm" && head -n 3 "$state"/vllm/*
    grep -iE "warning|error|died|crash|refused" "$state/peers-worker.log" | cut -c1-300 | head -n 20
    stop_farm
}

failed=0
"$python" -c 'import torch; print("torch", torch.__version__, torch.cuda.get_device_name())'
[ $# -gt 0 ] || set -- planted board
for part in "$@"; do
    "check_$part"
done
[ $failed = 0 ] && echo "all OK" || echo "some FAIL"
exit $failed
