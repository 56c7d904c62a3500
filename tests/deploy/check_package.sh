#!/bin/bash
# Builds the Debian packages, installs them in a disposable copy of the machine, uses and removes them.
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
depends=$(dpkg-deb -f packages/libfmoe-dev_*.deb Depends)
[[ $depends == *libdnnl* && $depends == *libcurl4* ]] || fail "libfmoe-dev depends on: $depends"

echo "== install"
# Slim images configure dpkg to omit documentation
dpkg --path-include='/usr/share/doc/*' --path-include='/usr/share/man/*' -i packages/*.deb >dpkg.log 2>&1 ||
    fail "dpkg -i failed"
dpkg -L moefarm-server moefarm-worker moefarm-cli libfmoe-dev | sort -u >files
for file in bin/moefarmd bin/moefarm-worker bin/moefarm lib/systemd/system/moefarmd.service \
    lib/systemd/system/moefarm-worker@.service lib/systemd/system/moefarm-pull@.service \
    lib/systemd/system/moefarm-pull@.timer lib/sysusers.d/moefarm-pull.conf \
    libexec/moefarm/moefarm-compile share/moefarm/hip/tile.hip share/moefarm/models.csv \
    share/doc/moefarm/docs/api.md share/doc/moefarm/SECURITY.md \
    share/doc/moefarm/examples/qwen3_untuned_fmoe.csv share/doc/moefarm-worker/copyright \
    include/fmoe.h share/man/man3/fmoe.3 share/doc/libfmoe-dev/examples/serve_layer.c \
    share/doc/libfmoe-dev/copyright; do
    grep -qx "/usr/$file" files && [ -f "/usr/$file" ] || fail "/usr/$file is not installed"
done
# The installed programs must not need the build tree
umount "$MF_BINARY_DIR"
for program in moefarmd moefarm-worker moefarm; do
    [ "$(command -v $program)" = "/usr/bin/$program" ] || fail "$program is not /usr/bin/$program"
done

echo "== use"
moefarm-worker --list-devices >devices 2>&1 || fail "--list-devices: $(cat devices)"
for module in $(sed -n 's|.*/\(moefarm-hip-.*\.so\)$|\1|p' files); do
    ! grep -F "$module)" devices || fail "the installed worker does not find $module"
done
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
worker=$!
timeout 100 moefarm submit shapes.csv --watch >watch.log 2>&1 || fail "the batch failed"
moefarm export --simulated -o tuned.csv >/dev/null
[ "$(wc -l <tuned.csv)" = 3 ] || fail "expected 3 lines in the table, got $(wc -l <tuned.csv)"
kill $worker $daemon
wait $worker || fail "moefarm-worker: exit status $?"
wait $daemon || fail "moefarmd: exit status $?"

echo "== remove"
dpkg --purge moefarm-server moefarm-worker moefarm-cli libfmoe-dev >dpkg.log 2>&1 ||
    fail "dpkg --purge failed"
while read -r file; do
    [[ $file != *moefarm* && $file != *fmoe* ]] || [ ! -e "$file" ] || fail "$file was not removed"
done <files
echo "installed, used and removed $(grep -c moefarm files) files"
