#!/bin/bash
# Installs the packages that moefarm needs and this machine lacks, and says what and why.
# Never installs a GPU's driver; a browser, a scheduler, and compilers for GPUs, only when asked: tests that need one skip
# with the reason.
#
#   scripts/setup.sh                        what a build and its tests need
#   scripts/setup.sh --with-browser         and what CI checks besides: Chromium, Node, promtool, clang-format
#   scripts/setup.sh --with-fuzzers         and what the fuzzers are built and measured with: clang, llvm
#   scripts/setup.sh --with-cluster         and what tests of several nodes need: Slurm, systemd, networks, Kubernetes' schema
#   scripts/setup.sh --with-gpu-compilers   and what compiles the GPU kernels for AMD: hipRTC, clang 19
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
zlib1g-dev           checksums of what a worker keeps on disk
libjemalloc-dev      malloc of moefarmd and its workers
libcurl4-openssl-dev HTTP client of the command line
libdnnl-dev          oneDNN, the library yardstick among the CPU kernels
check                unit tests
file                 tells the maker of packages what is a program
python3              the example runner in Python and its test
'
with_browser='
chromium             renders the status page in a test
chromium-driver      drives it
nodejs               runs that test
prometheus           its promtool checks /metrics
clang-format         style check
'
with_cluster='
slurm-wlm            schedules the workers of a test over two nodes of this machine
munge                by which its daemons know each other
iproute2             gives these nodes, and farms whose network is cut, a network of their own
systemd              checks the units, and runs them in a copy of this machine
openssl              makes the certificate of a farm that asks for keys and tokens
python3-kubernetes   the schema that the Kubernetes manifests are held against
'
with_fuzzers='
clang                builds the fuzzers
llvm                 says which lines they reach
'
with_gpu_compilers='
libamdhip64-dev      hipRTC, which compiles the GPU kernels for gfx90a; headers of the device module for AMD
clang-19             compiles the GPU kernels for gfx942
lld-19               links what it makes
'

wanted=$needed
for option in "$@"; do
    case $option in
    --with-browser) wanted+=$with_browser ;;
    --with-fuzzers) wanted+=$with_fuzzers ;;
    --with-cluster) wanted+=$with_cluster ;;
    --with-gpu-compilers) wanted+=$with_gpu_compilers ;;
    *)
        sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "setup: this machine has no apt-get; nothing is installed. The build needs what these Debian packages hold:"
    sed '/^$/d; s/^/  /' <<<"$wanted"
    exit 0
fi

installed() {
    # clang-format and clang come in versions; any that answers to the plain name will do
    case $1 in
    clang | clang-format) command -v "$1" >/dev/null && return 0 ;;
    nodejs) command -v node >/dev/null && return 0 ;;
    prometheus) command -v promtool >/dev/null && return 0 ;;
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
# Lists that are there may be too old: their packages are gone from the mirror
if ! install && ! { update && install; }; then
    tail -n 20 "$log" >&2
    echo "setup: apt-get install failed (log: $log)" >&2
    exit 1
fi
rm -f "$log"
