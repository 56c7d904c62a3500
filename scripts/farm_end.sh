# shellcheck shell=bash
# How a script that starts a farm ends: sourced by scripts/demo.sh and scripts/bench_gpu.sh, which put what they start into
# pids and call end_with. Needs bash and coreutils.
pids=()

# stop_all TENTHS: SIGTERM to all, and SIGKILL to what is still there so many tenths of a second later.
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

# tail_logs LINES LOG…: the ends of those that are there and not empty.
tail_logs() {
    local lines=$1 log
    shift
    for log in "$@"; do
        [ -s "$log" ] || continue
        echo "--- the end of $log" >&2
        tail -n "$lines" "$log" >&2
    done
}

# end_with FUNCTION: it gets the exit code when the script ends, by itself or by a signal, and nothing interrupts it.
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
