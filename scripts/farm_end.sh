# shellcheck shell=bash
# Stops the processes of a farm when a script ends. scripts/demo.sh and scripts/bench_gpu.sh source this file,
# add the pid of each process to pids and call end_with. Needs bash and coreutils.
pids=()

# stop_all TENTHS: sends SIGTERM to all processes in pids, waits for each at most TENTHS tenths of a second,
# and sends SIGKILL to a process that still runs.
stop_all() {
    local tenths=$1 pid i
    for pid in "${pids[@]}"; do
        kill -TERM "$pid" 2>/dev/null || true
    done
    for pid in "${pids[@]}"; do
        for ((i = 0; i < tenths; i++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
}

# tail_logs LINES LOG…: prints the last lines of each log that is not empty.
tail_logs() {
    local lines=$1 log
    shift
    for log in "$@"; do
        [ -s "$log" ] || continue
        echo "--- last lines of $log" >&2
        tail -n "$lines" "$log" >&2
    done
}

# end_with FUNCTION: calls FUNCTION once with the exit status when the script ends, even if a signal ends it.
# Signals cannot interrupt FUNCTION.
end_with() {
    # shellcheck disable=SC2064
    trap "end_once $1" EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
}

end_once() {
    local code=$?
    trap - EXIT
    trap '' INT TERM HUP
    "$1" $code
    exit $code
}
