/* Floating-point conversions in integer arithmetic, for GPUs without instructions for them. The code is plain
 * C, so that a CPU test covers all codes. `bias` is the exponent bias of e4m3: 7 for OCP's format, 8 for the
 * format of CDNA 3 (fnuz). fnuz has no -0; the code that would be -0 is its only NaN. */
#pragma once

union mf_soft {
    float f;
    u32 u;
};

/* Converts to bf16, rounding to nearest even. Every NaN becomes 0x7fff, as on NVIDIA. */
MF_DEVICE u32 mf_soft_bf16(float v)
{
    const union mf_soft bits = {.f = v};
    return v != v ? 0x7fffu : (bits.u + 0x7fffu + (bits.u >> 16 & 1)) >> 16;
}

/* Converts to e4m3, rounding to nearest even and saturating. A result below the smallest normal number is a
 * multiple of the smallest subnormal, and the code is the factor of this multiple. */
MF_DEVICE u32 mf_soft_fp8(float v, int bias)
{
    const u32 max = bias == 8 ? 0x43700000u : 0x43e00000u; /* 240, 448 */
    const union mf_soft bits = {.f = v};
    const u32 size = bits.u & 0x7fffffffu, sign = bits.u >> 24 & 0x80;
    const union mf_soft in = {.u = size < max ? size : max};
    const u32 smallest = (u32)(128 - bias) << 23;
    const u32 normal = ((in.u + 0x7ffffu + (in.u >> 20 & 1)) >> 20) - ((u32)(127 - bias) << 3);
    const u32 small = (u32)__builtin_rintf(in.f * (float)(1 << (bias + 2)));
    const u32 code = in.u < smallest ? small : normal;
    if (bias == 8)
        return v != v ? 0x80 : code ? code | sign : 0;
    return (v != v ? 0x7f : code) | sign;
}

/* Returns bytes 2·half and 2·half + 1, each followed by a zero byte. A GPU may have an instruction for this.
 */
#ifndef MF_SOFT_PAIR
#    define MF_SOFT_PAIR(four, half) (((four) >> 16 * (half)&0xff) | ((four) >> 16 * (half)&0xff00) << 8)
#endif

/* Places exponent and fraction of e4m3 bytes 2·half and 2·half + 1 at their f16 positions. This yields the
 * value times 2^(bias - 15), also for subnormals. For a NaN code, all bits are set first, so that the result
 * is an f16 NaN. After the caller's multiplication by 2^(15 - bias), no value is an f16 subnormal, which CDNA
 * 2's matrix instructions would flush to 0. */
MF_DEVICE u32 mf_soft_fp8_spread(u32 four, int half, int bias)
{
    const u32 size = four & 0x7f7f7f7fu, high = 0x80808080u;
    const u32 minus_zero = four & ~(size + 0x7f7f7f7fu) & high;
    const u32 all = bias == 8 ? minus_zero | (minus_zero - (minus_zero >> 7)) : (size + 0x01010101u) & high;
    return MF_SOFT_PAIR(size | all, half) << 7 | MF_SOFT_PAIR(four & high, half) << 8;
}
