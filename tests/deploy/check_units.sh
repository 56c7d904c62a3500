#!/bin/bash
# Tests the systemd units: checks them with systemd-analyze, then boots systemd in a disposable copy of the
# machine. systemd starts the daemons with the hardening of a real host and waits until they are ready. It
# restarts a daemon that hangs, but does not restart a drained worker.
#
#   check_units.sh SOURCE BUILD
set -euo pipefail
export MF_SOURCE_DIR=${1:?check_units.sh SOURCE BUILD} MF_BINARY_DIR=${2:?check_units.sh SOURCE BUILD}
self=$MF_SOURCE_DIR/tests/deploy/check_units.sh
units=/tmp/units
log=$MF_BINARY_DIR/check_units.log # the only file written outside the copy
worker=$(systemd-escape --template=moefarm-worker@.service sim:gfx942/304:0 2>/dev/null) || {
    echo "skipped: systemd is missing (package systemd)"
    exit 77
}

fail() {
    echo "check_units: $*"
    systemctl status --no-pager 'moefarm*' 2>/dev/null || true
    tail -n 30 /tmp/{moefarm,verify,watch}*.log || true
    exit 1
} >&2

# ---- outside the copy: a temporary control group ----

outside() {
    local hierarchy group code=0
    hierarchy=$(findmnt -rn -o TARGET -t cgroup2 | head -n 1)
    group=$hierarchy/moefarm-test.$$
    rm -f "$log"
    (
        how=--no-boot
        if [ -n "$hierarchy" ] && mkdir "$group" && echo $BASHPID >"$group/cgroup.procs"; then
            how=--boot
        fi 2>/dev/null
        exec unshare --cgroup "$MF_SOURCE_DIR/tests/deploy/in_copy.sh" "$self" "$MF_SOURCE_DIR" \
            "$MF_BINARY_DIR" $how
    ) || code=$?
    [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} +
    [ ! -f "$log" ] || cat "$log"
    exit $code
}

# ---- in the copy, before systemd starts ----

# Checks the units without booting. A ceiling is the maximum exposure level of a unit, times 10. Comments in
# moefarm-worker@.service explain why its ceiling is higher.
check_offline() {
    local unit ceiling
    cmake --install "$MF_BINARY_DIR" --prefix /usr >install.log 2>&1 || fail "cmake --install"
    systemd-analyze verify /usr/lib/systemd/system/moefarm* >verify.log 2>&1 || fail "systemd-analyze verify"
    for unit in /usr/lib/systemd/system/moefarm*.service; do
        grep -q '^MemoryMax=' "$unit" || fail "$unit has no MemoryMax"
    done
    ! grep -i moefarm verify.log || fail "systemd-analyze verify warns about the units"
    "$MF_SOURCE_DIR/deploy/debian/worker/postinst" configure
    "$MF_SOURCE_DIR/deploy/debian/cli/postinst" configure
    while read -r unit ceiling; do
        systemd-analyze security --offline=true --threshold="$ceiling" "$unit" >security.log 2>&1 ||
            fail "the exposure of $unit is above $ceiling of 100"
    done <<<"moefarmd.service 15
moefarm-backup.service 10
moefarm-pull@.service 12
moefarm-worker@.service 26"
    echo "verified; exposure levels below the ceilings"
}

# Installs the units of moefarm and the standard targets, but no services of the host and no machine setup.
lay_out() {
    local target
    mkdir -p $units/moefarm{d,-worker@,-backup,-pull@}.service.d /etc/moefarm
    for target in sysinit basic shutdown network network-online exit umount; do
        printf '[Unit]\nDefaultDependencies=no\n' >$units/$target.target
    done
    cp /usr/lib/systemd/system/moefarm* $units/
    printf '[Service]\nStandardOutput=append:/tmp/%%p.log\nStandardError=append:/tmp/%%p.log\n' |
        tee $units/moefarm{d,-worker@,-backup,-pull@}.service.d/log.conf >/dev/null
    printf '[Service]\nRestartSec=0\n' >$units/moefarmd.service.d/hasty.conf
    echo 'MOEFARMD_OPTIONS=--http 127.0.0.1:0 --hub 127.0.0.1:0 --port-file /var/lib/moefarm/ports' \
        >/etc/moefarm/moefarmd.env
    # The units that docs/guide.md suggests for reloading the serving process
    printf '[Unit]\nDefaultDependencies=no\n[Path]\nPathChanged=%s\n' \
        /var/lib/moefarm-pull/stable/tuned_fmoe.csv >$units/reload.path
    printf '[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nExecStart=touch /tmp/reloaded\n' \
        >$units/reload.service
    cat >$units/probe.service <<END
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
StandardOutput=append:$log
StandardError=append:$log
ExecStart=$self $MF_SOURCE_DIR $MF_BINARY_DIR --booted
ExecStopPost=sh -c 'systemctl --force --no-block exit \$EXIT_STATUS'
END
}

boot() {
    mount -t sysfs -o ro sysfs /sys
    mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null || return 0
    mount --make-rshared / # the state at boot, which systemd needs for credentials
    mount --bind /proc/sys /proc/sys
    mount -o remount,ro,bind /proc/sys
    lay_out
    exec env -i container=moefarm-test SYSTEMD_UNIT_PATH=$units PATH="$PATH" \
        /lib/systemd/systemd --system --unit=probe.service
}

# ---- under systemd ----

value() {
    systemctl show --value -p "$2" "$1"
}

# await COMMAND…: repeats the command every 50 ms until it succeeds; fails after two minutes.
await() {
    local i
    for i in $(seq 2400); do
        ! "$@" || return 0
        sleep 0.05
    done
    fail "timed out: $*"
}

is() {
    [ "$(value "$1" "$2")" = "$3" ]
}

workers_are() {
    [ "$(moefarm --json workers 2>/dev/null | grep -c "\"state\":.*\"$1\"")" = "$2" ]
}

n_batches() {
    moefarm --json batches | grep -c '"id":'
}

# True if the unit runs the current version of the program.
runs() {
    [ "$(readlink "/proc/$(value "$1" MainPID)/exe")" = "/usr/bin/$2" ]
}

# Starts the daemons. systemctl start returns once a daemon has sent READY=1.
check_start() {
    systemctl start moefarmd.service || fail "moefarmd did not start"
    . /var/lib/moefarm/ports
    export MOEFARM_URL=http://127.0.0.1:$http
    echo "MOEFARM_WORKER_OPTIONS=--coordinator tcp://127.0.0.1:$hub" >/etc/moefarm/worker.env
    echo "MOEFARMD_OPTIONS=--http 127.0.0.1:$http --hub 127.0.0.1:$hub" >/etc/moefarm/moefarmd.env
    systemctl start "$worker" moefarm-worker@cpu:0.service || fail "the workers did not start"
    await workers_are idle 2
    [ "$(moefarm --json workers | grep -c '"pid namespace.*seccomp')" = 2 ] ||
        fail "a runner has no sandbox or no PID namespace"
    [ "$(stat -c %U:%a /var/lib/private/moefarm/farm.db)" = "moefarm:600" ] ||
        fail "the database is accessible to other users"
    ! runuser -u daemon -- ls /var/lib/moefarm/ 2>/dev/null ||
        fail "the state folder is accessible to other users"
    echo "ready: the coordinator, a simulated device, the CPU"
}

check_batch() {
    head -n 3 /usr/share/doc/moefarm/examples/qwen3_untuned_fmoe.csv >shapes.csv
    timeout 100 moefarm submit shapes.csv --classes gfx942/304 --watch >watch.log 2>&1 ||
        fail "the batch failed"
    echo "tuned: $(moefarm export --simulated | tail -n +2 | wc -l) rows"
}

# Tests moefarm-pull@.service. Without an approved release the unit fails. With a release it writes the table,
# which the serving process can read, and rewrites it only if the release changes. If the table has local
# changes, the unit fails and does not overwrite them.
check_pull() {
    local table=/var/lib/moefarm-pull/stable/tuned_fmoe.csv was
    echo "MOEFARM_URL=$MOEFARM_URL" >/etc/moefarm/pull.env
    ! systemctl start moefarm-pull@stable.service 2>/dev/null || fail "pull succeeded without a release"
    systemctl start reload.path
    moefarm release freeze --name one --simulated >/dev/null || fail "release freeze failed"
    moefarm release stage stable one >/dev/null && moefarm release approve stable one >/dev/null ||
        fail "the release was not approved"
    systemctl start moefarm-pull@stable.service || fail "the table was not pulled"
    runuser -u daemon -- cat "$table" | cmp - <(moefarm export --simulated) ||
        fail "the table is unreadable or differs from the release"
    [ "$(stat -c %U:%a "$table")" = "moefarm-pull:644" ] || fail "the table has $(stat -c %U:%a "$table")"
    await [ -e /tmp/reloaded ]
    systemctl stop reload.path
    was=$(stat -c %i "$table")
    systemctl start moefarm-pull@stable.service || fail "the second pull failed"
    [ "$(stat -c %i "$table")" = "$was" ] || fail "an unchanged table was rewritten"
    echo "gfx942,304,1" >>"$table"
    ! systemctl start moefarm-pull@stable.service 2>/dev/null || fail "local changes were overwritten"
    systemctl start moefarm-pull@stable.timer || fail "the timer did not start"
    [ -n "$(value moefarm-pull@stable.timer NextElapseUSecRealtime)" ] ||
        fail "the timer has no next elapse time"
    systemctl stop moefarm-pull@stable.timer
    echo "pulled"
}

check_backup() {
    local copy
    systemctl start moefarm-backup.service || fail "the backup failed"
    copy=$(echo /var/lib/private/moefarm/backup/farm-*.db)
    [ "$(stat -c %U:%a "$copy")" = "moefarm:600" ] || fail "the backup is accessible to other users"
    moefarm submit shapes.csv --classes gfx950/256 >/dev/null # not in the backup
    systemctl stop moefarmd.service
    (cd /var/lib/private/moefarm && rm -f farm.db-wal farm.db-shm && cp backup/farm-*.db farm.db &&
        chown --reference=. farm.db)
    systemctl start moefarmd.service
    await workers_are idle 2
    [ "$(n_batches)" = 1 ] || fail "the restored farm differs from the backup"
    echo "backed up and restored"
}

is_replaced() {
    [ "$(value moefarmd.service SubState)" = running ] && [ "$(value moefarmd.service MainPID)" != "$1" ]
}

# Stops a daemon by SIGSTOP, so that only the watchdog can end it. Other checks use the default watchdog
# interval, because on a busy machine a short interval could also restart a working daemon.
check_watchdog() {
    local hasty=$units/moefarmd.service.d/watchdog.conf main
    printf '[Service]\nWatchdogSec=5\n' >$hasty
    systemctl daemon-reload
    systemctl restart moefarmd.service || fail "moefarmd did not start with a short watchdog"
    main=$(value moefarmd.service MainPID)
    systemctl kill --kill-whom=main --signal=STOP moefarmd.service
    await is_replaced "$main"
    [ "$(value moefarmd.service NRestarts)" -ge 1 ] || fail "systemd did not restart moefarmd"
    rm $hasty
    systemctl daemon-reload
    systemctl restart moefarmd.service || fail "moefarmd did not start with the default watchdog"
    await workers_are idle 2
    echo "restarted by the watchdog; the workers reconnected"
}

# Runs the commands of docs/operations.md that move the state folder to a new host.
check_move() {
    local was
    was=$(n_batches)
    systemctl disable --now moefarmd.service moefarm-backup.timer 2>/dev/null ||
        fail "the old host did not stop"
    cp -r /var/lib/private/moefarm copied
    rm -r /var/lib/private/moefarm /var/lib/moefarm
    install -d -m 0700 /var/lib/private
    cp -r copied /var/lib/private/moefarm

    chown -R root: /var/lib/private/moefarm
    systemctl enable --now moefarmd.service moefarm-backup.timer 2>/dev/null ||
        fail "the new host did not start"

    await workers_are idle 2
    [ "$(n_batches)" = "$was" ] || fail "expected $was batches, got $(n_batches)"
    [ "$(stat -c %U:%a /var/lib/private/moefarm/farm.db)" = "moefarm:600" ] ||
        fail "the moved database is accessible to other users"
    [ -n "$(value moefarm-backup.timer NextElapseUSecRealtime)" ] || fail "the new host has no backup timer"
    systemctl stop moefarm-backup.timer
    echo "moved; the workers reconnected"
}

# Runs the update commands of docs/operations.md. They replace the installed files by packages of this build.
check_update() {
    local name before
    command -v cpack >/dev/null && command -v dpkg-shlibdeps >/dev/null || {
        echo "not updated: cpack or dpkg-shlibdeps is missing (packages cmake, dpkg-dev)"
        return
    }
    cpack --config "$MF_BINARY_DIR/CPackConfig.cmake" -B /tmp/packages >cpack.log 2>&1 || fail "cpack failed"
    cd /tmp/packages

    for name in $(moefarm --json workers | sed -n 's/.*"name":[ \t]*"\([^"]*\)".*/\1/p'); do
        moefarm drain "$name" >/dev/null || fail "cannot drain $name"
    done
    while systemctl is-active -q 'moefarm-worker@*.service'; do sleep 5; done
    dpkg -i moefarm-worker_*.deb >dpkg.log 2>&1 || fail "$(cat dpkg.log)"
    ! systemctl is-active -q 'moefarm-worker@*.service' || fail "the package started a worker"
    systemctl start "$worker" moefarm-worker@cpu:0.service || fail "the updated workers did not start"
    await workers_are idle 2
    runs "$worker" moefarm-worker || fail "the worker still runs the old program"

    before=$(value moefarmd.service MainPID)
    systemctl start moefarm-backup.service || fail "the backup before the update failed"
    dpkg -i moefarm-server_*.deb moefarm-cli_*.deb >dpkg.log 2>&1 || fail "$(cat dpkg.log)"
    [ "$(value moefarmd.service MainPID)" = "$before" ] || fail "the package restarted moefarmd"
    systemctl restart moefarmd || fail "the updated moefarmd did not start"

    runs moefarmd.service moefarmd || fail "moefarmd still runs the old program"
    await workers_are idle 2
    cd /tmp
    echo "updated the workers and the coordinator"
}

check_end() {
    local id
    id=$(moefarm workers | awk '/sim/ {print $1}')
    moefarm drain "$id" >/dev/null
    await is "$worker" ActiveState inactive
    is "$worker" Result success && is "$worker" NRestarts 0 ||
        fail "a drained worker did not end successfully"
    systemctl stop moefarm-worker@cpu:0.service moefarmd.service
    is moefarm-worker@cpu:0.service Result success || fail "the worker did not stop successfully"
    is moefarmd.service Result success || fail "moefarmd did not stop successfully"
    echo "drained and stopped"
}

# Uses a certificate, tokens and keys, in files that only root can read.
check_locked() {
    local credentials=/run/credentials/moefarmd.service name
    name=$(hostname | tr -c 'A-Za-z0-9_.\n-' -)-cpu-0
    mkdir -p -m 0700 /etc/moefarm/enrol
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost \
        -addext subjectAltName=DNS:localhost -keyout /etc/moefarm/tls.key -out /etc/moefarm/tls.crt \
        2>openssl.log || fail "$(cat openssl.log)"
    chmod 0600 /etc/moefarm/tls.*
    echo "MOEFARMD_OPTIONS=--http 127.0.0.1:0 --hub 127.0.0.1:0 --port-file /var/lib/moefarm/ports" \
        "--tokens --keys --tls-cert $credentials/tls.crt --tls-key $credentials/tls.key" \
        >/etc/moefarm/moefarmd.env
    rm /var/lib/moefarm/ports
    systemctl start moefarmd.service || fail "moefarmd did not start with a certificate"
    . /var/lib/moefarm/ports
    export MOEFARM_URL=https://localhost:$http MOEFARM_CA=/etc/moefarm/tls.crt
    export MOEFARM_TOKEN_FILE=/var/lib/private/moefarm/admin.token
    moefarm token worker "$name" -o /etc/moefarm/enrol/cpu:0.token >/dev/null ||
        fail "cannot create an enrolment token"
    echo "MOEFARM_WORKER_OPTIONS=--coordinator tcp://127.0.0.1:$hub" >/etc/moefarm/worker.env
    systemctl start moefarm-worker@cpu:0.service || fail "the worker did not enrol"
    await workers_are idle 1
    rm /etc/moefarm/enrol/cpu:0.token
    systemctl restart moefarm-worker@cpu:0.service || fail "the worker did not start with its key"
    await workers_are idle 1
    rm /var/lib/moefarm-pull/stable/tuned_fmoe.csv
    install -m 0644 /etc/moefarm/tls.crt /etc/moefarm/ca.crt
    printf 'MOEFARM_URL=%s\nMOEFARM_CA=/etc/moefarm/ca.crt\n' "$MOEFARM_URL" >/etc/moefarm/pull.env
    ! systemctl start moefarm-pull@stable.service 2>/dev/null || fail "pull succeeded without a token"
    is moefarm-pull@stable.service ExecMainStatus 2 || fail "pull without a token did not exit with 2"
    moefarm token read hosts -o /etc/moefarm/pull.token >/dev/null && chmod 0600 /etc/moefarm/pull.token
    systemctl start moefarm-pull@stable.service || fail "pull with a token failed"
    [ -s /var/lib/moefarm-pull/stable/tuned_fmoe.csv ] || fail "pull with a token wrote no table"
    echo "authenticated by key and token, over TLS"
}

case ${3-} in
--boot | --no-boot)
    cd /tmp
    check_offline
    [ "$3" = --no-boot ] || boot
    echo "skipped starting the units: cannot create a control group"
    ;;
--booted)
    cd /tmp
    check_start
    check_batch
    check_pull
    check_backup
    check_watchdog
    check_move
    check_update
    check_end
    check_locked
    ;;
*) outside ;;
esac
