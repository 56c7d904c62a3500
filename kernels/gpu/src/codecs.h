/* GPU implementation of the codecs of kernels/core/codec.h, bit for bit: encodes bf16 in shared memory, and
 * decodes the codes to floats. Each compiled kernel contains one codec, MF_CODEC:
 *
 *   0 bf16   1 fp8, f32 scales   2 int8   7 int4 by token   one scale per group (data.hip), or per matrix
 *   3 MXFP8  4 MXFP4  5 NVFP4    6 int4, 1x32               one scale per CODEC_GROUP columns of a row
 *
 * With MF_FNUZ, e4m3 of codec 1 has AMD's bias. */
#pragma once

#include "quantise.h"

#define CODEC_BITS   (MF_CODEC == 0 ? 16 : MF_CODEC <= 3 ? 8 : 4)
#define CODEC_GROUP  (MF_CODEC == 5 ? 16 : MF_CODEC >= 3 && MF_CODEC <= 6 ? 32 : 0)
#define CODEC_GLOBAL (MF_CODEC == 5)
#define IN_WORD      (32 / CODEC_BITS)

MF_DEVICE u32 bits_of(float v)
{
    return __builtin_bit_cast(u32, v);
}

/* Returns v clamped to [-max, max] and rounded to the nearest integer, ties to even: adding and then
 * subtracting 1.5 * 2^23 rounds. */
MF_DEVICE float whole(float v, float max)
{
    return mf_plus(mf_plus(fminf(fmaxf(v, -max), max), 12582912.0f), -12582912.0f);
}

MF_DEVICE float f32_scale(float amax, float max)
{
    const float s = mf_divide(amax, max);
    return s == 0.0f ? 1.0f : s;
}

/* Returns the e8m0 code of amax / max. The exponent is rounded up unless the quotient is an exact power of
 * two, so that no element is clipped. */
MF_DEVICE u32 e8m0_code(float amax, float max)
{
    const u32 u = bits_of(mf_divide(amax, max));
    const u32 e = (u >> 23) + ((u & 0x7fffff) != 0);
    return amax == 0.0f ? 0 : MF_MIN(e, 254u);
}
MF_DEVICE float e8m0_value(u32 code)
{
    return __uint_as_float(code == 0 ? 0x00400000u : code << 23);
}

/* Returns the e4m3 code of v >= 0. A v below the smallest subnormal is replaced by the smallest subnormal. */
MF_DEVICE u32 e4m3_code(float v)
{
    const u32 u = bits_of(v < 0x1p-9f ? 0x1p-9f : v), c = MF_MIN(u, 0x43e00000u);
    const u32 normal = ((c + 0x7ffffu + (c >> 20 & 1)) >> 20) - (120u << 3);
    return c < 121u << 23 ? bits_of(mf_plus(__uint_as_float(c), 16384.0f)) - bits_of(16384.0f) : normal;
}
MF_DEVICE float e4m3_value(u32 code)
{
    return code < 8 ? (float)(i32)code * 0x1p-9f : __uint_as_float((code << 20) + (120u << 23));
}

MF_DEVICE u32 e2m1_code(float v)
{
    const u32 c = MF_MIN(bits_of(v) & 0x7fffffffu, 0x40c00000u), magic = 149u << 23;
    const u32 small = bits_of(mf_plus(__uint_as_float(c), __uint_as_float(magic))) - magic;
    const u32 normal = ((c + 0x1fffffu + (c >> 22 & 1)) >> 22) - (126u << 1);
    return (c < 127u << 23 ? small : normal) | bits_of(v) >> 31 << 3;
}
MF_DEVICE float e2m1_value(u32 code)
{
    const float size = (float)(i32)(0xc8643210u >> (code & 7) * 4 & 15) * 0.5f;
    return __uint_as_float(bits_of(size) | (code & 8) << 28);
}

/* ---- scales of groups ---- */

#if MF_CODEC == 1
struct scaling {
    mf_divisor divisor;
};
#else
struct scaling {
    float by, global;
};
#endif

#if CODEC_GROUP > 0
/* scale_code() returns a group's encoded scale; scaling_of_code() decodes such a code. */
MF_DEVICE u32 scale_code(float amax, float global)
{
#    if MF_CODEC == 5
    return e4m3_code(mf_divide(mf_times(global, amax), 6.0f));
#    elif MF_CODEC == 6
    return mf_bf16_pair(mf_divide(fmaxf(amax, 1e-6f), 7.0f), 0.0f) & 0xffff;
#    else
    (void)global;
    return e8m0_code(amax, MF_CODEC == 3 ? 448.0f : 6.0f);
#    endif
}
MF_DEVICE scaling scaling_of_code(u32 code, float global)
{
#    if MF_CODEC == 5
    return scaling{e4m3_value(code), global};
#    elif MF_CODEC == 6
    return scaling{mf_bf16((u16)code), global};
#    else
    return scaling{e8m0_value(code), global};
#    endif
}
#else
MF_DEVICE scaling scaling_of(float amax)
{
#    if MF_CODEC == 1
    return scaling{mf_divisor_of(amax)};
#    elif MF_CODEC == 2
    return scaling{f32_scale(amax, 127.0f), 1};
#    elif MF_CODEC == 7
    return scaling{f32_scale(amax, 7.0f), 1};
#    else
    (void)amax;
    return scaling{1, 1};
#    endif
}
MF_DEVICE float scale_value(const scaling &s)
{
#    if MF_CODEC == 1
    return s.divisor.by;
#    else
    return s.by;
#    endif
}
#endif

/* Returns the global factor of a matrix with largest magnitude `amax`. */
MF_DEVICE float global_of(float amax)
{
    const float g = mf_divide(448.0f * 6.0f, amax), most = __uint_as_float(0x7f7fffffu);
    return amax > 0 ? fminf(g, most) : 1.0f;
}

/* ---- encoding of two neighbours, and decoding ---- */

#if MF_CODEC == 0
MF_DEVICE u32 code_pair(u32 two, const scaling &s)
{
    (void)s;
    return two;
}
MF_DEVICE void decoded(u32 two, const scaling &s, float &low, float &high)
{
    (void)s;
    low = mf_bf16_low(two);
    high = mf_bf16_high(two);
}
#elif MF_CODEC == 1 || MF_CODEC == 3
MF_DEVICE u32 code_pair(u32 two, const scaling &s)
{
#    if MF_CODEC == 1
    return mf_quantise_2(two, s.divisor) & 0xffff;
#    else
    return mf_fp8_pair(mf_divide(mf_bf16_low(two), s.by), mf_divide(mf_bf16_high(two), s.by)) & 0xffff;
#    endif
}
MF_DEVICE void decoded(u32 two, const scaling &s, float &low, float &high)
{
    const u32 halves = mf_fp8_to_f16_pair(code_pair(two, s), 0);
#    if MF_CODEC == 1
    const float by = s.divisor.by;
#    else
    const float by = s.by;
#    endif
    low = mf_f16_low(halves) * by;
    high = mf_f16_high(halves) * by;
}
#elif MF_CODEC == 4 || MF_CODEC == 5
MF_DEVICE u32 code(float v, const scaling &s)
{
    return e2m1_code(mf_divide(CODEC_GLOBAL ? mf_times(v, s.global) : v, s.by));
}
MF_DEVICE float value(u32 c, const scaling &s)
{
    const float v = mf_times(e2m1_value(c), s.by);
    return CODEC_GLOBAL ? mf_divide(v, s.global) : v;
}
MF_DEVICE u32 code_pair(u32 two, const scaling &s)
{
    return code(mf_bf16_low(two), s) | code(mf_bf16_high(two), s) << 4;
}
MF_DEVICE void decoded(u32 two, const scaling &s, float &low, float &high)
{
    low = value(code(mf_bf16_low(two), s), s);
    high = value(code(mf_bf16_high(two), s), s);
}
#else
#    define CODEC_MAX (MF_CODEC == 2 ? 127.0f : 7.0f)
MF_DEVICE float number(float v, const scaling &s)
{
    return whole(mf_divide(v, s.by), CODEC_MAX);
}
MF_DEVICE u32 code_pair(u32 two, const scaling &s)
{
    const u32 mask = CODEC_BITS == 8 ? 0xff : 0xf;
    return ((u32)(i32)number(mf_bf16_low(two), s) & mask) | ((u32)(i32)number(mf_bf16_high(two), s) & mask)
                                                                << CODEC_BITS;
}
MF_DEVICE void decoded(u32 two, const scaling &s, float &low, float &high)
{
    low = number(mf_bf16_low(two), s) * s.by;
    high = number(mf_bf16_high(two), s) * s.by;
}
#endif
