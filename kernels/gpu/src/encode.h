/* Quantises groups of bf16 to the activation formats of kernels/core/codec.h, bit for bit.
 *
 *   MF_ELEMENT  0 e4m3 (MF_FNUZ of dialect.h)   1 int8   2 e2m1, two per byte
 *   MF_GROUP    elements per scale: 128, 32 (e8m0 scale), 16 (e4m3 scale and a global factor);
 *               0: one scale per row; -1: one scale for all rows
 * One lane encodes eight elements at once. */
#pragma once

#include "mx_formats.h"
#include "quantise.h"

#define CODES (MF_ELEMENT == 2 ? 4 : 8) /* bytes of eight encoded elements */

/* Scale of a group: divisor and stored code. */
struct scaling {
    mf_divisor by;
    float times; /* e8m0: exact inverse of the scale; e4m3: the global factor */
    u32 code;
};

/* Returns the scale of a group. The larger of the two magnitudes in `top` is the group's largest. `factor` is
 * the global factor, which is used only if scales are e4m3. */
MF_DEVICE scaling scaling_of(u32 top, float factor)
{
    const float amax = mf_larger_half(top);
    scaling s;
    s.times = factor;
    s.code = 0;
#if MF_GROUP == 32
    s.code = mf_mx_scale_of(__float_as_uint(amax), MF_ELEMENT == 2);
    s.times = mf_mx_factor_of(s.code);
#elif MF_GROUP == 16
    const float least = 0x1p-9f, by = mf_divide(factor * amax, 6.0f);
    s.code = mf_fp8_pair(by < least ? least : by, 0.0f) & 0xff;
    s.by = mf_divisor_by(mf_f16_low(mf_fp8_to_f16_pair(s.code, 0)));
#else
    s.by = MF_ELEMENT == 1 ? mf_divisor_to(amax, 127.0f) : mf_divisor_of(amax);
#endif
    return s;
}
/* Stores the scale of group `at`. */
MF_DEVICE void store_scale(const scaling &s, void *scales, i64 at)
{
#if MF_GROUP == 32 || MF_GROUP == 16
    ((u8 *)scales)[at] = (u8)s.code;
#else
    ((float *)scales)[at] = s.by.by;
#endif
}

/* Rounds four values to int8 and packs them into a word. Adding 1.5 · 2^23 leaves the rounded integer in the
 * low bits of the float. NaN becomes 0. */
MF_DEVICE u32 int8_of_4(const float *q)
{
    u32 r = 0;
    MF_UNROLL
    for (int i = 0; i < 4; i++)
        r |= (q[i] == q[i] ? __float_as_uint(q[i] + 12582912.0f) & 0xff : 0) << 8 * i;
    return r;
}

#if MF_ELEMENT == 2
typedef u32 codes_of_8;
#else
typedef mf_8b codes_of_8;
#endif

MF_DEVICE codes_of_8 encode_8(const mf_16b &v, const scaling &s)
{
    float q[8];
    mf_floats_of_8(v, q);
#if MF_GROUP == 32 || MF_GROUP == 16
    MF_UNROLL
    for (int i = 0; i < 8; i++)
        q[i] *= s.times;
#endif
#if MF_GROUP != 32
    mf_divide_all(q, s.by);
#endif
#if MF_ELEMENT == 2
    u32 r = 0;
    MF_UNROLL
    for (int i = 0; i < 8; i++)
        r |= mf_fp4_of(q[i]) << 4 * i;
    return r;
#elif MF_ELEMENT == 1
    return mf_8b{int8_of_4(q), int8_of_4(q + 4)};
#else
    return mf_fp8_of_8(q);
#endif
}
