#!/bin/bash
# Tests the installed libfmoe: installs it into a folder, moves this folder, builds the example with
# pkg-config and with CMake, runs the example under load with table reloads, and checks the manual page.
set -euo pipefail
export MF_SOURCE_DIR=${1:?check_libfmoe.sh SOURCE BUILD} MF_BINARY_DIR=${2:?check_libfmoe.sh SOURCE BUILD}
folder=$(mktemp -d /tmp/check_libfmoe.XXXXXX)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
fail() {
    echo "check_libfmoe: $*" >&2
    tail -n 20 ./*.log >&2 || true
    exit 1
}

echo "== install and move"
cmake --install "$MF_BINARY_DIR" --component fmoe --prefix "$folder/first" >install.log 2>&1 ||
    fail "cmake --install failed"
mv first moved
pc=$(find moved -name fmoe.pc)
[ -n "$pc" ] || fail "fmoe.pc is not installed"
headers=$(find moved -name '*.h' -printf '%f\n' | sort | xargs)
[ "$headers" = "fmoe.h fmoe_ops.h" ] || fail "expected the headers fmoe.h and fmoe_ops.h, got: $headers"

echo "== pkg-config"
read -ra flags < <(PKG_CONFIG_PATH=$(dirname "$folder/$pc") pkg-config --cflags --libs fmoe)
library=$(PKG_CONFIG_PATH=$(dirname "$folder/$pc") pkg-config --variable=libdir fmoe)
cc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -pedantic -O2 "$MF_SOURCE_DIR/examples/serve_layer.c" \
    "${flags[@]}" -o serve_layer >cc.log 2>&1 ||
    fail "the example does not build with pkg-config"
exported=$(nm -D --defined-only "$library/libfmoe.so" | awk '{print $3}' | grep -v '^fmoe_' || true)
[ -z "$exported" ] || fail "the library exports symbols that fmoe.h does not declare: $exported"

echo "== CMake"
mkdir project
cat >project/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.20)
project(serve C)
find_package(fmoe 0.1 REQUIRED)
add_executable(serve ${EXAMPLE})
target_compile_definitions(serve PRIVATE _GNU_SOURCE)
target_link_libraries(serve PRIVATE fmoe::fmoe)
END
cmake -S project -B project/build -DCMAKE_PREFIX_PATH="$folder/moved" \
    -DEXAMPLE="$MF_SOURCE_DIR/examples/serve_layer.c" >cmake.log 2>&1 &&
    cmake --build project/build >>cmake.log 2>&1 || fail "the example does not build with CMake"
usage=$(project/build/serve 2>&1) && fail "the example accepts a call without arguments"
[[ $usage == usage:* ]] || fail "expected the usage of the example, got '$usage'"

echo "== C++"
echo '#include <fmoe.h>
int main() {
    struct fmoe_error error;
    fmoe *f;
    return fmoe_open("none", nullptr, 0, &error, &f) ? 0 : 1;
}' >cxx.cpp
if command -v c++ >/dev/null; then
    c++ -Wall -Wextra -Werror cxx.cpp "${flags[@]}" -o cxx >cxx.log 2>&1 ||
        fail "fmoe.h does not compile as C++"
    LD_LIBRARY_PATH=$library ./cxx || fail "the C++ program failed"
fi

echo "== serve"
header=gfx,cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type
header+=,use_g1u1,doweight_stage1,block_m,ksplit,us1,kernelName1,err1,us2
header+=,kernelName2,err2,us,run_1stage,xbf16,flat,tflops,bw,pipeline
echo "$header" >table.csv
await_reports() {
    until [ "$(grep -c misses serve.log)" -ge "$1" ]; do
        kill -0 $server 2>/dev/null || fail "the example ended"
        sleep 0.02
    done
}
LD_LIBRARY_PATH=$library ./serve_layer table.csv 256 128 8 3 16 >serve.log 2>&1 &
server=$!
await_reports 1
for reload in 2 3 4; do
    kill -HUP $server
    await_reports $reload
done
# The example must keep the previous table if the new table is invalid
echo "x,y" >table.csv
kill -HUP $server
await_reports 5
grep -q 'the previous table stays in use' serve.log || fail "the invalid table is not reported"
kill -TERM $server
wait $server || fail "the example: exit status $?"
grep -q '^table.csv: the header has no column' serve.log || fail "the report does not name the invalid table"
tail -n 1 serve.log | grep -qx '[0-9]* calls, 0 failed' ||
    fail "the example's last line is '$(tail -n 1 serve.log)'"

echo "== manual"
if command -v groff >/dev/null; then
    groff -man -Tascii -ww "$(find moved -name fmoe.3)" >/dev/null 2>man.log || fail "groff rejects fmoe.3"
    [ ! -s man.log ] || fail "groff warns about fmoe.3"
fi
page=$(cat "$(find moved -name fmoe.3)")
for function in $(nm -D --defined-only "$library/libfmoe.so" | awk '{print $3}'); do
    [[ $page == *$function* ]] || fail "fmoe.3 does not document $function"
done
echo "served $(tail -n 1 serve.log)"
