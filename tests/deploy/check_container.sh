#!/bin/bash
# Builds the images of deploy/container/Containerfile and runs them as deploy/kubernetes says: read-only root,
# no privileges, the arguments of the manifests. The coordinator serves TLS, and a worker on a fake NVIDIA
# driver enrols and connects. Runs in a disposable copy of the machine.
#
# buildah builds the images in a chroot. The base image is a new Debian 12, because no image registry may be
# reachable, and the packages are those of the build. So stages `packages` and `nvrtc` of the Containerfile do
# not run.
set -euo pipefail
export MF_SOURCE_DIR=${1:?check_container.sh SOURCE BUILD} MF_BINARY_DIR=${2:?check_container.sh SOURCE BUILD}
here=$MF_SOURCE_DIR/tests/deploy
skip() {
    echo "skipped: $*"
    exit 77
}

if [ -z "${3-}" ]; then
    for program in buildah mmdebstrap openssl cpack:cmake dpkg-shlibdeps:dpkg-dev; do
        command -v "${program%:*}" >/dev/null || skip "${program%:*} is missing (package ${program#*:})"
    done
    python3 -c 'import yaml' 2>/dev/null || skip "Python's yaml is missing (package python3-yaml)"
    [ -n "$(apt-get indextargets 'Origin: Debian' 'Codename: bookworm' 2>/dev/null)" ] ||
        skip "apt has no package list of Debian 12"
    exec "$here/in_copy.sh" "$here/check_container.sh" "$@" --inside
fi

cd /tmp
pod=moefarm-worker-0
fail() {
    echo "check_container: $*" >&2
    tail -n 20 /tmp/*.log >&2 || true
    exit 1
}

build() {
    BUILDAH_ISOLATION=chroot buildah build --pull-never --layers=false --target "$1" -t "moefarm-$1" \
        --build-context packages=/tmp/packages --build-context nvrtc=/tmp/nvrtc \
        -f "$MF_SOURCE_DIR/deploy/container/Containerfile" "$MF_SOURCE_DIR" >"build-$1.log" 2>&1 ||
        fail "image $1 does not build"
}

# mount_root NAME: mounts the root file system of an image at /tmp/NAME.
mount_root() {
    local container
    container=$(buildah from --pull-never "moefarm-$1")
    mkdir "$1"
    mount --bind "$(buildah mount "$container")" "$1"
}

# seal NAME FOLDER…: makes an image's root read-only, except for /tmp and FOLDERs, which belong to its user.
seal() {
    local root=/tmp/$1 folder
    shift
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -o remount,ro,bind "$root"
    for folder in tmp "$@"; do
        mount -t tmpfs -o "uid=10001,gid=10001,mode=0700" tmpfs "$root/$folder"
    done
}

# set_command NAME WORD…: sets `command`, which runs a program as the image's user without capabilities.
set_command() {
    local name=$1 user
    shift
    user=$(buildah inspect --type image --format '{{.OCIv1.Config.User}}' "moefarm-$name")
    command=(chroot "/tmp/$name" setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups
        --bounding-set=-all --inh-caps=-all --no-new-privs env -i PATH=/usr/bin:/bin "${variables[@]}" "$@")
}

# run NAME WORD…: runs a program and waits for it.
run() {
    set_command "$@"
    "${command[@]}"
}

# arguments MANIFEST: prints the arguments of the manifest's container, one a line. Ports become 0.
arguments() {
    python3 - "$MF_SOURCE_DIR/deploy/kubernetes/$1" <<'CODE' |
import sys, yaml
for manifest in yaml.safe_load_all(open(sys.argv[1])):
    if manifest["kind"] == "StatefulSet":
        print("\n".join(manifest["spec"]["template"]["spec"]["containers"][0]["args"]))
CODE
        sed "s/\$(POD)/$pod/; s/:\(8443\|7070\)\$/:0/"
}

entrypoint() {
    buildah inspect --type image --format '{{range .OCIv1.Config.Entrypoint}}{{.}} {{end}}{{println}}' \
        "moefarm-$1"
}

# start NAME ARGUMENT…: starts the image's entrypoint.
start() {
    local name=$1 words
    shift
    read -ra words < <(entrypoint "$name")
    set_command "$name" "${words[@]}" "$@"
    "${command[@]}" >"$name.log" 2>&1 &
    pids+=($!)
}

# await COMMAND…: repeats the command until it succeeds. Fails if a program has ended, or after 120 s.
await() {
    local pid end=$((SECONDS + 120))
    until "$@"; do
        [ $SECONDS -lt $end ] || fail "after 120 s, this still fails: $*"
        for pid in "${pids[@]}"; do
            kill -0 "$pid" 2>/dev/null || fail "a program has ended while the test waits for: $*"
        done
        sleep 0.05
    done
}

echo "== base image"
# storage on a tmpfs, because overlayfs does not work on the overlay of the copy
export STORAGE_DRIVER=overlay
mkdir -p /var/lib/containers
mount -t tmpfs tmpfs /var/lib/containers
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' \
    'Origin: Debian' | sort -u >sources.list
mmdebstrap --variant=apt --mode=root bookworm base.tar sources.list >mmdebstrap.log 2>&1 ||
    skip "mmdebstrap cannot make a base image: $(grep -m 1 '^E:' mmdebstrap.log || tail -n 1 mmdebstrap.log)"
container=$(buildah from scratch 2>buildah.log) || skip "buildah does not work here: $(tail -n 1 buildah.log)"
buildah add --quiet "$container" base.tar / >buildah.log 2>&1 || fail "buildah add failed"
buildah commit --quiet "$container" docker.io/library/debian:12-slim >buildah.log 2>&1 ||
    fail "buildah commit failed"
rm base.tar

echo "== images"
mkdir -p packages nvrtc/wheel/nvidia/cuda_nvrtc/lib
cpack --config "$MF_BINARY_DIR/CPackConfig.cmake" -B /tmp/packages/packages >cpack.log 2>&1 ||
    fail "cpack failed"
cp "$MF_BINARY_DIR/tests/fake_cuda/libnvrtc.so.13" nvrtc/wheel/nvidia/cuda_nvrtc/lib/
build server
build worker-nvidia

echo "== coordinator"
pids=()
variables=()
mount_root server
mkdir server/tls
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -keyout server/tls/tls.key -out server/tls/tls.crt 2>openssl.log || fail "openssl failed"
chmod 0644 server/tls/*
seal server var/lib/moefarm
mapfile -t words < <(arguments coordinator.yaml)
start server "${words[@]}" --port-file /var/lib/moefarm/ports
await test -s server/var/lib/moefarm/ports
. server/var/lib/moefarm/ports
variables=("MOEFARM_URL=https://localhost:$http" MOEFARM_CA=/tls/tls.crt
    MOEFARM_TOKEN_FILE=/var/lib/moefarm/admin.token)
run server moefarm token worker $pod -o /tmp/token >token.log 2>&1 || fail "no enrolment token"

echo "== worker"
mount_root worker-nvidia
mkdir worker-nvidia/enrol
cp server/tmp/token "worker-nvidia/enrol/$pod.token"
chmod 0644 "worker-nvidia/enrol/$pod.token"
# as the NVIDIA Container Toolkit does
cp "$MF_BINARY_DIR/tests/fake_cuda/libcuda.so.1" "worker-nvidia/usr/lib/$(uname -m)-linux-gnu/"
chroot worker-nvidia ldconfig
seal worker-nvidia var/lib/moefarm-worker
mapfile -t words < <(arguments workers.yaml | sed "s/^--coordinator=.*/--coordinator=tcp:\/\/127.0.0.1:$hub/")
server_variables=("${variables[@]}")
variables=(MOEFARM_CODE_CACHE=/var/lib/moefarm-worker/cache)
start worker-nvidia "${words[@]}"
variables=("${server_variables[@]}")
is_idle() {
    run server moefarm --json workers | grep -c '"state":.*"idle"' >/dev/null
}
await is_idle
run server moefarm --json workers >workers.json
grep -q "\"$pod\"" workers.json || fail "the worker has another name: $(cat workers.json)"
kill "${pids[@]}"
for pid in "${pids[@]}"; do
    wait "$pid" || fail "exit status $?"
done
echo "built two images; a worker enrolled, connected and shut down"
