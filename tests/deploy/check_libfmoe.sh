#!/bin/bash
# libfmoe as others get it: installed into a folder, which is moved; its example built with pkg-config and with CMake, and served
# with under load, reloads included; its manual page read.
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

echo "== install, and move"
cmake --install "$MF_BINARY_DIR" --component fmoe --prefix "$folder/first" >install.log 2>&1 || fail "cmake --install failed"
mv first moved
pc=$(find moved -name fmoe.pc)
[ -n "$pc" ] || fail "there is no fmoe.pc"
header=$(find moved -name '*.h')
[ "$(basename "$header")" = fmoe.h ] || fail "headers are installed that nobody may use: $header"

echo "== pkg-config"
read -ra flags < <(PKG_CONFIG_PATH=$(dirname "$folder/$pc") pkg-config --cflags --libs fmoe)
library=$(PKG_CONFIG_PATH=$(dirname "$folder/$pc") pkg-config --variable=libdir fmoe)
cc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -pedantic -O2 "$MF_SOURCE_DIR/examples/serve_layer.c" "${flags[@]}" -o serve_layer >cc.log 2>&1 ||
    fail "the example does not build with pkg-config"
shown=$(nm -D --defined-only "$library/libfmoe.so" | awk '{print $3}' | grep -v '^fmoe_' || true)
[ -z "$shown" ] || fail "the library shows what fmoe.h does not declare: $shown"

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
cmake -S project -B project/build -DCMAKE_PREFIX_PATH="$folder/moved" -DEXAMPLE="$MF_SOURCE_DIR/examples/serve_layer.c" >cmake.log 2>&1 &&
    cmake --build project/build >>cmake.log 2>&1 || fail "the example does not build with CMake"
usage=$(project/build/serve 2>&1) && fail "no arguments are fine to the example"
[[ $usage == usage:* ]] || fail "the example says '$usage'"

echo "== C++"
echo '#include <fmoe.h>
int main() { struct fmoe_error error; fmoe *f; return fmoe_open("none", nullptr, 0, &error, &f) ? 0 : 1; }' >cxx.cpp
if command -v c++ >/dev/null; then
    c++ -Wall -Wextra -Werror cxx.cpp "${flags[@]}" -o cxx >cxx.log 2>&1 || fail "the header is no C++"
    LD_LIBRARY_PATH=$library ./cxx || fail "the C++ program fails"
fi

echo "== serve"
header=gfx,cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,doweight_stage1
header+=,block_m,ksplit,us1,kernelName1,err1,us2,kernelName2,err2,us,run_1stage,xbf16,flat,tflops,bw,pipeline
echo "$header" >table.csv
said() {
    until [ "$(grep -c misses serve.log)" -ge "$1" ]; do
        kill -0 $server 2>/dev/null || fail "the example ended"
        sleep 0.02
    done
}
LD_LIBRARY_PATH=$library ./serve_layer table.csv 256 128 8 3 16 >serve.log 2>&1 &
server=$!
said 1
for reload in 2 3 4; do
    kill -HUP $server
    said $reload
done
# A table that is refused changes nothing
echo "x,y" >table.csv
kill -HUP $server
said 5
grep -q 'what served goes on' serve.log || fail "a bad table is not told of"
kill -TERM $server
wait $server || fail "the example ends with $?"
grep -q '^table.csv: the header has no column' serve.log || fail "a refused table is not named"
tail -n 1 serve.log | grep -qx '[0-9]* calls, 0 failed' || fail "the example's last line is '$(tail -n 1 serve.log)'"

echo "== manual"
if command -v groff >/dev/null; then
    groff -man -Tascii -ww "$(find moved -name fmoe.3)" >/dev/null 2>man.log || fail "fmoe.3 is no manual page"
    [ ! -s man.log ] || fail "fmoe.3 has mistakes"
fi
page=$(cat "$(find moved -name fmoe.3)")
for function in $(nm -D --defined-only "$library/libfmoe.so" | awk '{print $3}'); do
    [[ $page == *$function* ]] || fail "the manual does not know $function"
done
echo "served $(tail -n 1 serve.log)"
