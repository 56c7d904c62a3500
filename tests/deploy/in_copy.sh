#!/bin/bash
# Runs a command in a disposable copy of this machine: in new mount and PID namespaces, with an overlay over /
# that keeps changes in memory. /tmp and /run are empty. All processes of the command die with it. If the
# machine does not allow this, the script prints the reason and exits with status 77 (skipped).
#
#   in_copy.sh COMMAND [argument…]
set -euo pipefail
if [ "${1-}" != --inside ]; then
    if [ "$(id -u)" != 0 ] || ! unshare --mount --pid --fork true 2>/dev/null; then
        echo "skipped: a copy of the machine needs root and permission to create namespaces"
        exit 77
    fi
    exec unshare --mount --pid --fork --kill-child "$0" --inside "$@"
fi
shift

mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/changes /mnt/work /mnt/root
if ! mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/changes,workdir=/mnt/work /mnt/root \
    2>/dev/null; then
    echo "skipped: the kernel does not allow an overlay over /"
    exit 77
fi
cd /mnt/root
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs tmpfs tmp
mount -t tmpfs tmpfs run
mkdir -m 1777 run/lock
# Mount the source and build trees at their usual paths, even if these are below /tmp, which is empty here
for folder in "${MF_SOURCE_DIR:?}" "${MF_BINARY_DIR:?}"; do
    mkdir -p "./$folder"
    mount --bind "$folder" "./$folder"
done
# pivot_root instead of chroot, because a process in a chroot cannot create user namespaces
mkdir -p .outside
pivot_root . .outside
cd /
umount --lazy .outside
rmdir .outside
exec "$@"
