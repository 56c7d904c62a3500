#!/bin/bash
# Runs a command in a copy of this machine that is thrown away: namespaces of its own for mounts and processes, and an
# overlay over / whose changes lie in memory. /tmp and /run are empty there. What the command started dies with it.
# Exit 77, with a sentence, where the machine does not allow that.
#
#   in_copy.sh COMMAND [argument…]
set -euo pipefail
if [ "${1-}" != --inside ]; then
    if [ "$(id -u)" != 0 ] || ! unshare --mount --pid --fork true 2>/dev/null; then
        echo "skipped: a copy of the machine needs root and the right to make namespaces"
        exit 77
    fi
    exec unshare --mount --pid --fork --kill-child "$0" --inside "$@"
fi
shift

mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/changes /mnt/work /mnt/root
if ! mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/changes,workdir=/mnt/work /mnt/root 2>/dev/null; then
    echo "skipped: a copy of the machine needs an overlay over /, and the kernel refuses it"
    exit 77
fi
cd /mnt/root
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs tmpfs tmp
mount -t tmpfs tmpfs run
mkdir -m 1777 run/lock
# Source and build tree where they are, though /tmp is covered
for folder in "${MF_SOURCE_DIR:?}" "${MF_BINARY_DIR:?}"; do
    mkdir -p "./$folder"
    mount --bind "$folder" "./$folder"
done
# Not chroot: in one, user namespaces are refused
mkdir -p .outside
pivot_root . .outside
cd /
umount --lazy .outside
rmdir .outside
exec "$@"
