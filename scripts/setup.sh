#!/bin/bash
# Installs the missing Debian packages and prints why each package is needed. Never installs a GPU driver.
# Tests whose programs are missing are skipped, with the reason. After a run without options, only tests that
# need a GPU or its compilers, Slurm, systemd, Chromium or buildah are skipped.
#
#   scripts/setup.sh                        building and testing
#   scripts/setup.sh --with-browser         also Chromium
#   scripts/setup.sh --with-fuzzers         also clang and llvm
#   scripts/setup.sh --with-cluster         also Slurm, systemd, buildah and mmdebstrap
#   scripts/setup.sh --with-gpu-compilers   also clang 19, which compiles the GPU kernels for gfx942
#   scripts/setup.sh --with-python          also what scripts/python_env.sh needs for the tests with PyTorch
set -euo pipefail

# package            why
needed='
build-essential      C compiler, make
cmake                build system
pkg-config           finds the libraries below
libmicrohttpd-dev    REST API and status page
libsqlite3-dev       the database of moefarmd
libcjson-dev         JSON
libzmq3-dev          messages between moefarmd and its workers
libsodium-dev        encryption of those messages
zlib1g-dev           checksums of worker spools
libjemalloc-dev      malloc of moefarmd and its workers
libcurl4-openssl-dev HTTP client of the command line
libdnnl-dev          oneDNN, the library yardstick among the CPU kernels
libamdhip64-dev      headers of the module for AMD GPUs; hipRTC, which compiles the GPU kernels for gfx90a
check                unit tests
file                 finds the programs when packages are built
python3              Python families and their tests
nodejs               runs the tests of the status page
prometheus           its promtool checks /metrics
clang-format         style check
iproute2             network namespaces for tests with several nodes
openssl              makes certificates for tests with TLS
python3-jsonschema   checks the Kubernetes manifests
python3-yaml         reads them
'
with_browser='
chromium             renders the status page in a test
chromium-driver      drives it
'
with_cluster='
slurm-wlm            schedules the workers of a test over two nodes of this machine
munge                authenticates the daemons of Slurm
systemd              checks the units and runs them in a container
buildah              builds the container images in a test
mmdebstrap           makes their base image
'
with_fuzzers='
clang                builds the fuzzers
llvm                 measures their coverage
'
with_python='
python3-venv         the environment of the Python tests (numpy, mypy, PyTorch)
'
with_gpu_compilers='
clang-19             compiles the GPU kernels for gfx942
lld-19               links the code objects of clang-19
'

wanted=$needed
for option in "$@"; do
    case $option in
    --with-browser) wanted+=$with_browser ;;
    --with-fuzzers) wanted+=$with_fuzzers ;;
    --with-cluster) wanted+=$with_cluster ;;
    --with-gpu-compilers) wanted+=$with_gpu_compilers ;;
    --with-python) wanted+=$with_python ;;
    *)
        sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "setup: no apt-get on this machine; install the contents of these Debian packages yourself:"
    sed '/^$/d; s/^/  /' <<<"$wanted"
    exit 0
fi

installed() {
    # any version of clang-format and clang will do
    case $1 in
    clang | clang-format) command -v "$1" >/dev/null && return 0 ;;
    nodejs) command -v node >/dev/null && return 0 ;;
    prometheus) command -v promtool >/dev/null && return 0 ;;
    libamdhip64-dev) # ROCm has the headers too
        ! compgen -G "${ROCM_PATH:-/opt/rocm*}/include/hip/hip_runtime_api.h" >/dev/null || return 0
        ;;
    esac
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "setup: installing packages needs root: run this once as root, or install sudo" >&2
        exit 1
    fi
}

update() {
    echo "setup: apt-get update"
    as_root apt-get -qq update </dev/null
}

have_lists() {
    compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null
}

missing=()
while read -r package why; do
    [ -n "$package" ] || continue
    installed "$package" && continue
    [ ${#missing[@]} -gt 0 ] || echo "setup: installing with apt-get:"
    printf '  %-21s %s\n' "$package" "$why"
    missing+=("$package")
done <<<"$wanted"
[ ${#missing[@]} -gt 0 ] || exit 0

# Services that come with a package (Prometheus, Slurm) must not start on this machine.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'as_root rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
    as_root chmod 755 $policy
fi

install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 "${missing[@]}" </dev/null >"$log" 2>&1
}

log=$(mktemp)
have_lists || update
# The package lists may be out of date: update them and try again
if ! install && ! { update && install; }; then
    tail -n 20 "$log" >&2
    echo "setup: apt-get install failed (log: $log)" >&2
    exit 1
fi
rm -f "$log"
