#!/bin/sh
# Prebuilt kernels of ours for NVIDIA's GPUs, with manifests in AITER's form, for moefarm-worker --asm-dir FOLDER:
#     build_asm.sh FOLDER [ARCH]        ARCH: sm_90, as the device's class says it
# MOEFARM_COMPILE: the compiler of this build (moefarm-compile), which needs NVRTC and no GPU.
set -eu
folder=${1:?build_asm.sh FOLDER [ARCH]}/${2:-sm_90}/fmoe_2stages
compile=${MOEFARM_COMPILE:-moefarm-compile}
mkdir -p "$folder"
for weight in 0 1; do
    manifest=$folder/fmoe_stage1_bf16_noquantBf16_g1u1
    [ $weight = 0 ] || manifest=${manifest}_doweight
    echo "tile_m,tile_n,knl_name,co_name" >"$manifest.csv.new"
    for tile in 16x64 32x64 64x64 64x128; do
        m=${tile%x*} n=${tile#*x} name=mf_stage1_bf16_$tile
        [ $weight = 0 ] || name=${name}_w
        "$compile" nvidia "${2:-sm_90}" asm_stage1.hip "$folder/$name.co" "-DMF_NAME=$name" "-DMF_SUB_M=$m" \
            "-DMF_SUB_N=$n" "-DMF_WEIGHT=$weight"
        echo "$m,$n,$name,$name.co" >>"$manifest.csv.new"
    done
    mv "$manifest.csv.new" "$manifest.csv"
done
