#!/bin/bash
# Tests deploy/slurm with a Slurm cluster of two nodes in a disposable copy of this machine. The cluster
# consists of munged, slurmctld and two slurmd. Each slurmd has its own folders for locks and spools, as on
# separate hosts. Workers on both nodes tune a batch. During the batch the job of one node is cancelled, and
# another job replaces it. At the end of the batch the workers are drained and pending jobs are cancelled.
#
#   check_slurm.sh SOURCE BUILD
set -euo pipefail
export MF_SOURCE_DIR=${1:?check_slurm.sh SOURCE BUILD} MF_BINARY_DIR=${2:?check_slurm.sh SOURCE BUILD}
self=$MF_SOURCE_DIR/tests/deploy/check_slurm.sh
export PATH=$PATH:/usr/sbin
nodes="node1 node2"
address=10.77.0.1

for program in munged slurmctld slurmd sbatch ip; do
    command -v $program >/dev/null || {
        echo "skipped: $program is missing (packages slurm-wlm, munge, iproute2)"
        exit 77
    }
done
if [ -z "${3-}" ]; then
    exec unshare --net --uts "$MF_SOURCE_DIR/tests/deploy/in_copy.sh" "$self" "$1" "$2" --inside
fi

cd /tmp
fail() {
    echo "check_slurm: $*"
    tail -n 15 /tmp/{munged,slurmctld,node1,node2,moefarmd}.log /tmp/*.out
    timeout 5 squeue
    timeout 5 moefarm workers
    exit 1
} >&2

# await COMMAND…: repeats the command every 50 ms until it succeeds; fails after a minute.
await() {
    local until=$((SECONDS + 60))
    while [ $SECONDS -lt $until ]; do
        ! "$@" || return 0
        sleep 0.05
    done
    fail "timed out: $*"
}

start_slurm() {
    local node port=17001
    # A host whose only address is 127.0.0.1 counts as offline and resolves no host names
    ip link set lo up
    ip address add $address/32 dev lo
    hostname farm
    echo "$address farm" >>/etc/hosts
    # slurmd reads the CPUs from /sys. It requires control groups even if no configured plugin uses them
    mount -t sysfs -o ro sysfs /sys
    mount -t tmpfs tmpfs /sys/fs/cgroup
    mkdir -p /etc/slurm
    echo CgroupPlugin=cgroup/v1 >/etc/slurm/cgroup.conf
    # A munge key for this test only
    dd if=/dev/urandom bs=128 count=1 of=/etc/munge/munge.key status=none
    chown munge: /etc/munge/munge.key
    mkdir -p /run/munge ctld node1.spool node2.spool
    chown munge: /run/munge
    runuser -u munge -- munged --force >munged.log 2>&1 || fail "munged did not start"
    cat >/etc/slurm/slurm.conf <<END
ClusterName=test
SlurmctldHost=farm($address)
SlurmUser=root
StateSaveLocation=/tmp/ctld
SlurmctldPidFile=/tmp/ctld/pid
SlurmdPidFile=/tmp/%n.pid
SlurmdSpoolDir=/tmp/%n.spool
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SchedulerParameters=defer_batch,sched_min_interval=100000
ReturnToService=2
KillWait=20
END
    for node in $nodes; do
        echo "NodeName=$node NodeHostname=farm NodeAddr=$address Port=$port CPUs=1" >>/etc/slurm/slurm.conf
        port=$((port + 1))
    done
    echo "PartitionName=all Nodes=${nodes// /,} Default=YES" >>/etc/slurm/slurm.conf
    slurmctld -D >slurmctld.log 2>&1 &
    for node in $nodes; do
        unshare --mount sh -c "mount -t tmpfs tmpfs /run/lock && mkdir -p /var/lib/spool &&
            mount -t tmpfs tmpfs /var/lib/spool && exec slurmd -D -N $node" >$node.log 2>&1 &
    done
    await nodes_are_idle
    echo "Slurm: $(srun --quiet --nodes=2 --ntasks-per-node=1 printenv SLURMD_NODENAME | sort | xargs)"
}

nodes_are_idle() {
    [ "$(timeout 5 sinfo --noheader --Node --format=%T 2>/dev/null | grep -cx idle)" = 2 ]
}

start_farm() {
    cmake --install "$MF_BINARY_DIR" --prefix /usr >install.log 2>&1 || fail "cmake --install"
    moefarmd --state farm --port-file ports >moefarmd.log 2>&1 &
    export MOEFARM_URL=http://127.0.0.1:8080 MOEFARM_COORDINATOR=tcp://127.0.0.1:7070
    await test -s ports
}

# worker NAME MEMBER: prints the given member of the worker with this name
worker() {
    moefarm --json workers | python3 -c 'import json, sys
found = [w for w in json.load(sys.stdin) if w["name"] == sys.argv[1]]
print(found[0][sys.argv[2]] if found else "")' "$1" "$2"
}

# has_results NAME N: true if all instances of the worker together have at least N results
has_results() {
    local n
    n=$(worker "$1" n_results)
    [ -n "$n" ] && [ "$n" -ge "$2" ]
}

is_gone() {
    [ "$(worker "$1" state)" = gone ]
}

no_jobs() {
    [ -z "$(squeue --noheader)" ]
}

submit_workers() {
    sbatch --parsable --output=/tmp/job-%j.out --chdir=/tmp "$@" \
        /usr/share/moefarm/slurm/moefarm-workers.sbatch "$batch"
}

start_slurm
start_farm
head -n 9 $MF_SOURCE_DIR/examples/qwen3_untuned_fmoe.csv >shapes.csv
# Steps are slow until the cancelled job is replaced, and fast afterwards
echo '{"step_ms": 100}' >slow.json
batch=$(moefarm submit shapes.csv --classes gfx942/304 --name slurm | sed -n 's/^batch \([0-9]*\):.*/\1/p')
export MOEFARM_DEVICES=sim:gfx942/304:0:/tmp/slow.json MOEFARM_SPOOL=/var/lib/spool

submit_workers --array=1-3 >/dev/null
name=-sim-gfx942-304-0
await has_results node1$name 1
await has_results node2$name 1
echo "workers on both nodes measure"

# Cancel one job. The worker of the new job has the same name, so the farm treats it as the same worker
victim=$(squeue --noheader --format='%i %N' | awk '$2 == "node2" {print $1}')
scancel "$victim"
await is_gone node2$name
results=$(worker node2$name n_results)
echo '{}' >slow.json
submit_workers --nodelist=node2 >/dev/null
await has_results node2$name $((results + 1))
echo "a cancelled node was replaced"

timeout 120 moefarm watch "$batch" >watch.log || fail "the batch failed"
await no_jobs
await is_gone node1$name
await is_gone node2$name
for log in job-*.out; do
    ! grep -v ' exited with status 0$' $log | grep ' exited with status ' || fail "a worker failed"
done
grep -q 'leaving the farm: drained' job-*.out || fail "no worker was drained"
[ "$(moefarm export --simulated | tail -n +2 | wc -l)" = 8 ] || fail "rows are missing"
echo "tuned 8 rows: $(worker node1$name n_results) results of node1, $(worker node2$name n_results) of node2"
