/* Quantises groups of bf16 to 8-bit floats: scale = amax / 448 (240 with MF_FNUZ), or 1 for a group of zeros;
 * q = round(x / scale) by true division, as kernels/core/quant.h defines it. */
#pragma once

#include "quotient.h"

/* Divisor of a group. If parts of the inverse could underflow, dividend and divisor are first multiplied by a
 * power of two, `lift` (otherwise 1). Infinity divided by itself is NaN, and so is everything divided by NaN.
 * The code that creates and applies a divisor contains no branch, because the compiler interleaves no
 * instructions across a branch. The only exception is groups that are zero or nearly zero. */
struct mf_divisor {
    float by, down, rest, lift;
};
MF_DEVICE mf_divisor mf_divisor_by(float by)
{
    const float lift = by < 1e-25f ? 0x1p64f : by > 1e25f ? 0x1p-64f : 1.0f, lifted = by * lift;
    const mf_inverse inverse = mf_inverse_of(lifted, mf_inverse_near(lifted));
    return mf_divisor{by, inverse.down, fmaxf(inverse.rest, 0.0f), lift};
}
MF_DEVICE mf_divisor mf_divisor_to_scale(float s)
{
    return mf_divisor_by(s == 0.0f ? 1.0f : s);
}
/* Returns the divisor for a group with the largest magnitude `amax`. `max` is the largest value of the
 * format. */
MF_DEVICE mf_divisor mf_divisor_to(float amax, float max)
{
    return mf_divisor_to_scale(mf_divide(amax, max));
}
/* Returns the divisor amax / 448 (or 240). 448 and 240 are e4m3 values, as quotient.h requires. */
MF_DEVICE mf_divisor mf_divisor_of(float amax)
{
    const mf_inverse max = mf_inverse_of(MF_FP8_MAX, 1.0f / MF_FP8_MAX);
    return mf_divisor_to_scale(amax < 1e-25f ? mf_divide(amax, MF_FP8_MAX)
                                             : mf_quotient_of(amax, max.down, max.rest));
}

template <int N> MF_DEVICE void mf_divide_all(float (&x)[N], const mf_divisor &d)
{
    MF_UNROLL
    for (int i = 0; i < N; i++)
        x[i] = mf_quotient_of(x[i] * d.lift, d.down, d.rest);
}

MF_DEVICE void mf_floats_of_8(const mf_16b &v, float (&x)[8])
{
    const u32 two[4] = {v.x, v.y, v.z, v.w};
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        x[2 * i] = mf_bf16_low(two[i]);
        x[2 * i + 1] = mf_bf16_high(two[i]);
    }
}

/* Quantises two bf16 to two bytes. */
MF_DEVICE u32 mf_quantise_2(u32 two, const mf_divisor &d)
{
    float x[2] = {mf_bf16_low(two), mf_bf16_high(two)};
    mf_divide_all(x, d);
    return mf_fp8_pair(x[0], x[1]);
}
MF_DEVICE mf_8b mf_fp8_of_8(const float (&q)[8])
{
    return mf_8b{mf_fp8_pair(q[0], q[1]) | mf_fp8_pair(q[2], q[3]) << 16,
                 mf_fp8_pair(q[4], q[5]) | mf_fp8_pair(q[6], q[7]) << 16};
}
/* Quantises eight bf16 to eight bytes. */
MF_DEVICE mf_8b mf_quantise_8(const mf_16b &v, const mf_divisor &d)
{
    float x[8];
    mf_floats_of_8(v, x);
    mf_divide_all(x, d);
    return mf_fp8_of_8(x);
}

/* Returns the elementwise maximum of the magnitudes in `two` and in the four words of `v`, each of two bf16.
 * NaN is treated as the largest. */
MF_DEVICE u32 mf_larger_8(u32 two, const mf_16b &v)
{
    return mf_larger_2(two, mf_larger_2(mf_larger_2(v.x, v.y), mf_larger_2(v.z, v.w)));
}
MF_DEVICE float mf_larger_half(u32 two)
{
    return __uint_as_float(MF_MAX(two & 0xffff, two >> 16) << 16);
}
/* Returns the maximum over LANES adjacent lanes. */
template <int LANES> MF_DEVICE u32 mf_larger_of_lanes(u32 two)
{
    MF_UNROLL
    for (int d = LANES / 2; d > 0; d /= 2)
        two = mf_larger_2(two, __float_as_uint(mf_shuffle_xor(__uint_as_float(two), d)));
    return two;
}
/* Returns the maximum over a block of N warps. `room` has one word of shared memory per warp. */
template <int N> MF_DEVICE u32 mf_larger_of_block(u32 two, u32 *room)
{
    two = mf_larger_of_lanes<MF_WAVE>(two);
    if (threadIdx.x % MF_WAVE == 0)
        room[threadIdx.x / MF_WAVE] = two;
    __syncthreads();
    MF_UNROLL
    for (int i = 0; i < N; i++)
        two = mf_larger_2(two, room[i]);
    return two;
}
MF_DEVICE float mf_amax_2(u32 two)
{
    return mf_larger_half(two & 0x7fff7fffu);
}
MF_DEVICE float mf_amax_8(const mf_16b &v)
{
    return mf_larger_half(mf_larger_8(0, v));
}
/* Returns the maximum over a group of 128 that sixteen lanes hold. */
MF_DEVICE float mf_amax_of_16_lanes(float amax)
{
    MF_UNROLL
    for (int d = 8; d > 0; d /= 2)
        amax = fmaxf(amax, mf_shuffle_xor(amax, d));
    return amax;
}
