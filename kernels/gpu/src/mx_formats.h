/* Conversions to e2m1 and e8m0 in portable arithmetic. The code is valid C and C++, so that a CPU test covers
 * every case. */
#pragma once

union mf_small {
    float f;
    unsigned u;
};
MF_DEVICE unsigned mf_small_bits(float f)
{
    const union mf_small v = {f};
    return v.u;
}
MF_DEVICE float mf_small_float(unsigned u)
{
    union mf_small v = {0};
    v.u = u;
    return v.f;
}

/* Converts to e2m1, rounding to nearest even and saturating; NaN becomes the largest magnitude. Let p be the
 * largest power of two up to |v|, but at least 1. Adding 2^22 · p makes the last fraction bit of the sum
 * equal the format's step. */
MF_DEVICE unsigned mf_fp4_of(float v)
{
    const float size = fabsf(v) < 6.0f ? fabsf(v) : 6.0f;
    const unsigned own = mf_small_bits(size), least = 0x3f800000u;
    const unsigned top = (own > least ? own : least) & 0x7f800000u, above = top + (22u << 23);
    const unsigned steps = mf_small_bits(size + mf_small_float(above)) - above;
    return (steps + (top >> 22) - 254) | (mf_small_bits(v) >> 28 & 8);
}

/* Returns the e8m0 scale of a group from the bits of the group's largest magnitude, a bf16. It is the
 * smallest power of two for which the magnitude fits the largest value of the format
 * (kernels/core/quant_mx.h, rounding up). The largest value is 1.5 times a power of two for e2m1 and 1.75
 * times a power of two for e4m3. */
MF_DEVICE unsigned mf_mx_scale_of(unsigned amax, bool fp4)
{
    const int code = fp4 ? (int)((amax + 0x3fffffu) >> 23) - 2 : (int)((amax + 0x1fffffu) >> 23) - 8;
    return amax >= 0x7f800000u ? 0xff : amax == 0 ? 0 : code < 1 ? 1 : (unsigned)code;
}
/* Returns the factor by which elements are multiplied if the code of their scale is `code`. */
MF_DEVICE float mf_mx_factor_of(unsigned code)
{
    return mf_small_float(code == 0xff ? 0x7fc00000u : code == 254 ? 0x00400000u : (254 - code) << 23);
}
