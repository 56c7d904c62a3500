/* Groups of bf16 into 8-bit floats: scale = amax / 448 (240 with MF_FNUZ), 1 for a group of zeros; q = round(x / scale) by true
 * division, as kernels/quant.h defines it. */
#pragma once

#include "quotient.h"

/* What divides a group; one of numbers so small that a remainder underflows takes true division. */
struct mf_divisor {
    float by, inverse;
    bool is_small;
};
MF_DEVICE mf_divisor mf_divisor_of(float amax)
{
    const float s = mf_divide(amax, MF_FP8_MAX);
    mf_divisor d;
    d.by = s == 0.0f ? 1.0f : s;
    d.inverse = mf_divide(1.0f, d.by);
    d.is_small = d.by < 1e-25f;
    return d;
}
MF_DEVICE float mf_quotient(float x, const mf_divisor &d)
{
    const float q = mf_quotient_of(x, d.by, d.inverse);
    return d.is_small ? mf_divide(x, d.by) : q;
}
/* Two bf16 to two bytes. */
MF_DEVICE u32 mf_quantise_2(u32 two, const mf_divisor &d)
{
    return mf_fp8_pair(mf_quotient(mf_bf16_low(two), d), mf_quotient(mf_bf16_high(two), d));
}
/* Eight bf16 to eight bytes. */
MF_DEVICE mf_8b mf_quantise_8(const mf_16b &v, const mf_divisor &d)
{
    return mf_8b{mf_quantise_2(v.x, d) | mf_quantise_2(v.y, d) << 16,
                 mf_quantise_2(v.z, d) | mf_quantise_2(v.w, d) << 16};
}
MF_DEVICE float mf_amax_2(u32 two)
{
    return fmaxf(fabsf(mf_bf16_low(two)), fabsf(mf_bf16_high(two)));
}
MF_DEVICE float mf_amax_8(const mf_16b &v)
{
    return fmaxf(fmaxf(mf_amax_2(v.x), mf_amax_2(v.y)), fmaxf(mf_amax_2(v.z), mf_amax_2(v.w)));
}
/* Of a group of 128 that sixteen lanes have. */
MF_DEVICE float mf_amax_of_16_lanes(float amax)
{
    MF_UNROLL
    for (int d = 8; d > 0; d /= 2)
        amax = fmaxf(amax, mf_shuffle_xor(amax, d));
    return amax;
}
