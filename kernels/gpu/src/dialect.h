/* Portable primitives for all kernels of this folder. They hide the differences between NVIDIA, AMD and the
 * tests' emulator; kernel sources contain no vendor-specific code. */
#pragma once

#define MF_HIP_KERNEL 1

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

/* A value of 16 bytes that is loaded and stored as a whole. Without the alignment the compiler would access
 * it word by word. */
struct alignas(16) mf_16b {
    u32 x, y, z, w;
};
struct alignas(8) mf_8b {
    u32 x, y;
};

#define MF_DEVICE     static __device__ __forceinline__
#define MF_UNROLL     _Pragma("unroll")
#define MF_NO_UNROLL  _Pragma("unroll 1")
#define MF_MIN(a, b)  ((a) < (b) ? (a) : (b))
#define MF_MAX(a, b)  ((a) > (b) ? (a) : (b))
#define MF_CEIL(a, b) (((a) + (b)-1) / (b))

/* e4m3 is OCP's format with bias 7 or, with MF_FNUZ, AMD's CDNA 3 format with bias 8. */
#ifdef MF_FNUZ
#    define MF_FP8_MAX 240.0f
#else
#    define MF_FP8_MAX 448.0f
#endif

#ifdef MF_EMULATOR
#    include "emulator.h"
#elif defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)
#    include "dialect_nvidia.h"
#else
#    include "dialect_amd.h"
#endif

#ifndef MF_LOOP
#    define MF_LOOP
#endif

/* ---- bf16 ---- */

MF_DEVICE float mf_bf16_low(u32 two)
{
    return __uint_as_float(two << 16);
}
MF_DEVICE float mf_bf16_high(u32 two)
{
    return __uint_as_float(two & 0xffff0000u);
}
MF_DEVICE float mf_bf16(u16 v)
{
    return __uint_as_float((u32)v << 16);
}

/* Elementwise maximum of the magnitudes in two words of two bf16 each. NaN is treated as the largest. */
#ifndef MF_LARGER_2
MF_DEVICE u32 mf_larger_2(u32 a, u32 b)
{
    const u32 low = MF_MAX(a & 0x7fffu, b & 0x7fffu), high = MF_MAX(a & 0x7fff0000u, b & 0x7fff0000u);
    return low | high;
}
#endif

/* ---- sorted ids: token in the low 24 bits, top-k slot above ---- */

MF_DEVICE i32 mf_id_token(i32 id)
{
    return id & 0xffffff;
}
MF_DEVICE i32 mf_id_slot(i32 id)
{
    return (i32)((u32)id >> 24);
}

MF_DEVICE float mf_wave_max(float v)
{
    MF_UNROLL
    for (int d = MF_WAVE / 2; d > 0; d /= 2)
        v = fmaxf(v, mf_shuffle_xor(v, d));
    return v;
}
MF_DEVICE float mf_wave_sum(float v)
{
    MF_UNROLL
    for (int d = MF_WAVE / 2; d > 0; d /= 2)
        v += mf_shuffle_xor(v, d);
    return v;
}
