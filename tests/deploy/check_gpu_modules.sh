#!/bin/bash
# Tests which GPU modules a build contains: configures the source tree without the CUDA Toolkit, and with
# HIP's headers in ROCM_PATH or nowhere. Compiles nothing.
set -euo pipefail
source=${1:?check_gpu_modules.sh SOURCE BUILD}
folder=$(mktemp -d /tmp/check_gpu_modules.XXXXXX)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset CUDA_PATH CUDA_HOME ROCM_PATH
fail() {
    echo "check_gpu_modules: $*" >&2
    exit 1
}

# configure NAME [option…]: configures into NAME. Ignores CUDA and ROCm installations of this machine.
configure() {
    local name=$1 ignored
    shift
    ignored=$(printf '%s;' /usr/local/cuda*/include /opt/rocm*/include)
    cmake -S "$source" -B "$name" -DMF_SIM=OFF "-DCMAKE_IGNORE_PATH=$ignored${IGNORED-}" "$@" \
        >"$name.log" 2>&1 || fail "configuring fails: $(tail -n 20 "$name.log")"
}

has_target() {
    cmake --build "$1" --target help >targets
    grep -qw "$2" targets
}

echo "== HIP's headers in ROCM_PATH"
mkdir -p rocm/include/hip
echo >rocm/include/hip/hip_runtime_api.h
ROCM_PATH=$folder/rocm configure rocm_path
has_target rocm_path moefarm-hip-nvidia || fail "without the CUDA Toolkit the build has no moefarm-hip-nvidia"
has_target rocm_path moefarm-hip-amd || fail "the build has no moefarm-hip-amd"
grep -q "^MF_HIP_INCLUDE:PATH=$folder/rocm/include\$" rocm_path/CMakeCache.txt ||
    fail "HIP's headers in ROCM_PATH are not used: $(grep MF_HIP_INCLUDE rocm_path/CMakeCache.txt)"
[ ! -s rocm_path/left_out.txt ] || fail "left_out.txt is not empty: $(cat rocm_path/left_out.txt)"

echo "== no headers"
IGNORED=/usr/include configure none -DDNNL_INCLUDE_DIR=/usr/include
has_target none moefarm-hip-nvidia || fail "without headers the build has no moefarm-hip-nvidia"
! has_target none moefarm-hip-amd || fail "without headers the build has moefarm-hip-amd"
for words in moefarm-hip-amd.so hip/hip_runtime_api.h libamdhip64-dev ROCM_PATH; do
    grep -q "$words" none/left_out.txt ||
        fail "left_out.txt does not mention $words: $(cat none/left_out.txt)"
done
[ "$(wc -l <none/left_out.txt)" = 1 ] || fail "left_out.txt has more than one line"

echo "== the last command of make build prints what is left out"
make --no-print-directory -C "$source" -n build | tail -n 1 | grep -q 'cat build/dev/left_out.txt$' ||
    fail "make build ends with: $(make --no-print-directory -C "$source" -n build | tail -n 1)"
