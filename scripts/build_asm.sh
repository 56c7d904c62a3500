#!/bin/sh
# Compiles stage-1 kernels for a GPU ahead of time and writes manifests in AITER's format, for
# moefarm-worker --asm-dir FOLDER. Needs NVRTC or hipRTC, and no GPU.
#
#   build_asm.sh FOLDER [ARCH]     ARCH: sm_… or gfx…; default sm_90
#
# MOEFARM_COMPILE names the compiler (default: moefarm-compile).
set -eu
arch=${2:-sm_90}
folder=${1:?build_asm.sh FOLDER [ARCH]}/$arch/fmoe_2stages
compile=${MOEFARM_COMPILE:-moefarm-compile}
case $arch in
gfx*) vendor=amd ;;
*) vendor=nvidia ;;
esac
mkdir -p "$folder"
for weight in 0 1; do
    manifest=$folder/fmoe_stage1_bf16_noquantBf16_g1u1
    [ $weight = 0 ] || manifest=${manifest}_doweight
    echo "tile_m,tile_n,knl_name,co_name" >"$manifest.csv.new"
    for tile in 16x64 32x64 64x64 64x128; do
        m=${tile%x*} n=${tile#*x} name=mf_stage1_bf16_$tile
        [ $weight = 0 ] || name=${name}_w
        "$compile" "$vendor" "$arch" asm_stage1.hip "$folder/$name.co" "-DMF_NAME=$name" "-DMF_SUB_M=$m" \
            "-DMF_SUB_N=$n" "-DMF_WEIGHT=$weight"
        echo "$m,$n,$name,$name.co" >>"$manifest.csv.new"
    done
    mv "$manifest.csv.new" "$manifest.csv"
done
