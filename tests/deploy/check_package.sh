#!/bin/bash
# Builds the Debian packages, installs them in a disposable copy of the machine, uses them, and removes them.
# Workers for both GPU vendors start on fake drivers, which are installed where the vendors' packages put
# theirs.
set -euo pipefail
export MF_SOURCE_DIR=${1:?check_package.sh SOURCE BUILD} MF_BINARY_DIR=${2:?check_package.sh SOURCE BUILD}
here=$MF_SOURCE_DIR/tests/deploy

if [ -z "${3-}" ]; then
    for program in cpack dpkg-shlibdeps file; do
        command -v $program >/dev/null || {
            echo "skipped: $program is missing (package ${program/cpack/cmake})"
            exit 77
        }
    done
    exec "$here/in_copy.sh" "$here/check_package.sh" "$@" --inside
fi

cd /tmp
fail() {
    echo "check_package: $*" >&2
    tail -n 20 /tmp/*.log >&2 || true
    exit 1
}

echo "== make"
cpack --config "$MF_BINARY_DIR/CPackConfig.cmake" -B /tmp/packages >cpack.log 2>&1 || fail "cpack failed"
for package in server worker cli; do
    depends=$(dpkg-deb -f packages/moefarm-${package}_*.deb Depends)
    [[ $depends == *libc6* && $depends == *libcjson1* ]] || fail "moefarm-$package depends on: $depends"
done
recommends=$(dpkg-deb -f packages/libfmoe-dev_*.deb Recommends)
[[ $recommends == *libdnnl2* && $recommends == *libcurl4* ]] || fail "libfmoe-dev recommends: $recommends"
[[ $(dpkg-deb -f packages/moefarm-worker_*.deb Depends) == *libdnnl2* ]] || fail "moefarm-worker lacks oneDNN"
[[ $(dpkg-deb -f packages/moefarm-cli_*.deb Depends) == *libcurl4* ]] || fail "moefarm-cli lacks libcurl"

echo "== install"
# Include the documentation, because slim images configure dpkg to omit it
dpkg --path-include='/usr/share/doc/*' --path-include='/usr/share/man/*' -i packages/*.deb >dpkg.log 2>&1 ||
    fail "dpkg -i failed"
dpkg -L moefarm-server moefarm-worker moefarm-cli libfmoe-dev | sort -u >files
for file in bin/moefarmd bin/moefarm-worker bin/moefarm lib/systemd/system/moefarmd.service \
    lib/systemd/system/moefarm-worker@.service lib/systemd/system/moefarm-pull@.service \
    lib/systemd/system/moefarm-pull@.timer lib/sysusers.d/moefarm-pull.conf \
    libexec/moefarm/moefarm-compile libexec/moefarm/moefarm-hip-nvidia.so \
    libexec/moefarm/libmoefarm-runner.so libexec/moefarm/libmoefarm-cli.so \
    libexec/moefarm/python/moefarm/boot.py \
    share/bash-completion/completions/moefarm \
    libexec/moefarm/moefarm-hip-amd.so share/moefarm/hip/tile.hip share/moefarm/models.csv \
    share/doc/moefarm/docs/api.md share/doc/moefarm/SECURITY.md \
    share/doc/moefarm/examples/qwen3_untuned_fmoe.csv share/doc/moefarm-worker/copyright \
    include/fmoe.h share/man/man3/fmoe.3 share/doc/libfmoe-dev/examples/serve_layer.c \
    share/doc/libfmoe-dev/copyright; do
    grep -qx "/usr/$file" files && [ -f "/usr/$file" ] || fail "/usr/$file is not installed"
done
cp -r "$MF_BINARY_DIR/tests/fake_cuda" "$MF_BINARY_DIR/tests/hip6/lib" .
# Hide the build tree, because the installed programs must not need it
umount "$MF_BINARY_DIR"
for program in moefarmd moefarm-worker moefarm; do
    [ "$(command -v $program)" = "/usr/bin/$program" ] || fail "$program is not /usr/bin/$program"
done

echo "== GPU libraries"
# expect_device PATTERN: a line of the device list must match
expect_device() {
    moefarm-worker --list-devices --no-sandbox >devices 2>&1 || fail "--list-devices: $(cat devices)"
    grep -qE "$1" devices || fail "expected '$1', got: $(cat devices)"
}

export MOEFARM_CODE_CACHE=/tmp/cache
rm -rf /usr/local/cuda* /usr/local/nvidia /opt/rocm* /usr/lib/*/lib{cuda,nvrtc,amdhip64,hiprtc}.so*
ldconfig
expect_device '^hip:nvidia .*: libcuda.so.1 not found: install NVIDIA.s driver'
expect_device '^hip:amd .*: libamdhip64.so.7, .*so.6 or .*so.5 not found: install AMD.s ROCm'
cp fake_cuda/libcuda.so.1 "/usr/lib/$(uname -m)-linux-gnu/" # the NVIDIA Container Toolkit mounts it there
expect_device '^hip:nvidia:0 .*: libnvrtc.so.13, .* or libnvrtc.so not found: install package cuda-nvrtc'
mkdir -p /usr/local/cuda-13.0/lib64
cp fake_cuda/libnvrtc.so.13 /usr/local/cuda-13.0/lib64/
expect_device '^hip:nvidia:0 +sm_90/132: Fake H200'
for version in 6.2.0 6.10.0; do
    mkdir -p /opt/rocm-$version/lib
    cp lib/libamdhip64.so.6 /opt/rocm-$version/lib/libamdhip64.so.$version
    ln -s libamdhip64.so.$version /opt/rocm-$version/lib/libamdhip64.so.6
done
expect_device '^hip:amd:0 +gfx90a/2: '
expect_device 'compiler hiprtc 9.0 libamdhip64.so.6.10.0,'

echo "== HIP's headers"
for folder in /opt/rocm-*; do
    mkdir -p $folder/include/hip
    echo >$folder/include/hip/hip_runtime_api.h
done
cmake -S "$MF_SOURCE_DIR" -B configured -DMF_SIM=OFF >configure.log 2>&1 || fail "configuring fails"
grep -qx 'MF_HIP_INCLUDE:PATH=/opt/rocm-6.10.0/include' configured/CMakeCache.txt ||
    fail "a build uses $(grep MF_HIP_INCLUDE: configured/CMakeCache.txt)"

echo "== use"
examples=/usr/share/doc/moefarm/examples
head -n 3 $examples/qwen3_untuned_fmoe.csv >shapes.csv
compiled=$(MOEFARM_CODE_CACHE=cache moefarm-worker --compile-only --arch amd:gfx90a --families onednn \
    --shapes shapes.csv 2>&1) || true
[[ $compiled != *"starting moefarm-compile"* ]] ||
    fail "the installed worker does not find its compiler: $compiled"
gcc -std=gnu17 -shared -fPIC -I/usr/include/moefarm $(pkg-config --cflags libcjson) -o plain.so \
    $examples/family_plain.c -lm || fail "the example family does not compile with the installed headers"
read -ra flags < <(pkg-config --cflags --libs fmoe)
gcc -o serve_layer /usr/share/doc/libfmoe-dev/examples/serve_layer.c "${flags[@]}" ||
    fail "the example of libfmoe does not build"
[[ $(./serve_layer 2>&1) == usage:* ]] || fail "the example of libfmoe does not start: $(./serve_layer 2>&1)"

moefarmd --state farm --http 127.0.0.1:0 --hub 127.0.0.1:0 --port-file ports >moefarmd.log 2>&1 &
daemon=$!
until [ -s ports ]; do
    kill -0 $daemon || fail "moefarmd did not start"
    sleep 0.02
done
. ./ports
export MOEFARM_URL=http://127.0.0.1:$http
moefarm-worker --coordinator "tcp://127.0.0.1:$hub" --device sim:gfx942/304:0 --name w --spool spool \
    >worker.log 2>&1 &
workers=($!)
moefarm-worker --coordinator "tcp://127.0.0.1:$hub" --device hip:nvidia:0 --name nvidia --spool spool \
    >worker-nvidia.log 2>&1 &
workers+=($!)
# no sandbox, because the fake compiler for AMD starts g++
moefarm-worker --coordinator "tcp://127.0.0.1:$hub" --device hip:amd:0 --name amd --spool spool --no-sandbox \
    >worker-amd.log 2>&1 &
workers+=($!)
timeout 100 moefarm submit shapes.csv --classes gfx942/304 --watch >watch.log 2>&1 || fail "the batch failed"
moefarm export --simulated -o tuned.csv >/dev/null
[ "$(wc -l <tuned.csv)" = 3 ] || fail "expected 3 lines in the table, got $(wc -l <tuned.csv)"
end=$((SECONDS + 120))
until [ "$(moefarm --json workers | grep -c '"state":.*"idle"')" = 3 ]; do
    [ $SECONDS -lt $end ] || fail "after 120 s not all three workers are idle: $(moefarm workers)"
    for worker in "${workers[@]}"; do
        kill -0 "$worker" || fail "a worker ended"
    done
    sleep 0.05
done
kill "${workers[@]}"
for worker in "${workers[@]}"; do
    wait "$worker" || fail "moefarm-worker: exit status $?"
done
kill $daemon
wait $daemon || fail "moefarmd: exit status $?"

echo "== remove"
dpkg --purge moefarm-server moefarm-worker moefarm-cli libfmoe-dev >dpkg.log 2>&1 ||
    fail "dpkg --purge failed"
while read -r file; do
    [[ $file != *moefarm* && $file != *fmoe* ]] || [ ! -e "$file" ] || fail "$file was not removed"
done <files
echo "installed, used and removed $(grep -c moefarm files) files"
