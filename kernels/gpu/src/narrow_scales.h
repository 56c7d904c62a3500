/* Weights of four bits, or with scales of groups, and their tokens (mx.hip and mx_hopper.hip): where scales are, and what they
 * and elements become.
 *
 *   MF_W        FP4, INT4, FP8    MF_W_GROUP  elements of K under one scale: 32, 16; 0: a row's
 *   MF_X        BF16, FP8, FP4    MF_X_GROUP  the same of the tokens */
#pragma once

#define FP4  0
#define INT4 1
#define FP8  2
#define BF16 3

#define PART    128 /* of K: what lanes have at once of a row, a quarter each */
#define QUARTER 32
#define X_BITS  (MF_X == BF16 ? 16 : MF_X == FP8 ? 8 : 4)

/* Scales of a row in memory, and those of a part as words: they may begin within one. */
#define SCALE_BYTES (MF_W == INT4 ? 2 : 1)
#define SCALES_ROW  (MF_W_GROUP == 0 ? 0 : MF_D / MF_MAX(MF_W_GROUP, 1) * SCALE_BYTES)
#define SCALES_PART (MF_W_GROUP == 0 ? 0 : PART / MF_MAX(MF_W_GROUP, 1) * SCALE_BYTES)
#define SCALES_SKEW (SCALES_ROW % 4 != 0)
/* No word begins behind the last scale: rows begin at words, and end with slices. */
#define SCALES_END_WITHIN (!SCALES_SKEW && MF_D % SLICE_K == 0)
#define SCALES_WORDS      (SCALES_PART / 4 + SCALES_SKEW)

/* What is kept of 2^-127 to 2^127 when an element of e2m1 or e4m3 is multiplied by its scale, and by what its place in a bf16
 * makes it smaller: it stays smaller by 2^32, so that scales go up to 2^33 and, before a bf16 would be a subnormal, down to
 * 2^-93. Of scales in e4m3 2^16 is enough. */
#define SMALLER_POWER 32
#define SMALLER_E4M3  16
#define FP4_AWAY      126
#define FP8_AWAY      120

/* Both halves of a factor from a scale. */
MF_DEVICE u32 factor_of_power(u32 code, int away)
{
    const u32 power = code + away - SMALLER_POWER;
    return MF_MIN(power, 255u) * 0x00800080u;
}
MF_DEVICE void factors_of_e4m3(u32 two, u32 (&ret)[2])
{
    const u32 f = mf_fp8_to_f16_pair(two, 0);
    ret[0] = mf_bf16_both(mf_f16_low(f) * 0x1p110f);
    ret[1] = mf_bf16_both(mf_f16_high(f) * 0x1p110f);
}

#if MF_X != BF16
/* Of a token's elements under a scale, or of the quarter's halves under two. */
MF_DEVICE void factors_of_x(u32 scale, u32 (&ret)[2])
{
    if (MF_X_GROUP == 16)
        factors_of_e4m3(scale, ret);
    else if (MF_X_GROUP == 32)
        ret[0] = ret[1] = factor_of_power(scale & 255, MF_X == FP8 ? FP8_AWAY : FP4_AWAY);
    else
        ret[0] = ret[1] = MF_FP8_MAX == 448.0f ? 0x7b807b80u : 0x7b007b00u; /* 2^120, 2^119 */
}
MF_DEVICE void eight_of_x(const u32 *v, u32 factor, u32 (&ret)[4])
{
#    if MF_X == FP8
    mf_fp8_to_bf16(v[0], v[1], factor, ret);
#    else
    mf_fp4_to_bf16(v[0], factor, ret);
#    endif
}
#endif

/* What scales the whole sum of a token that is that row of x, -1: padding; of a weight row of an expert. */
#define SCALED_BY_TOKEN (MF_X != BF16 && MF_X_GROUP == 0)
MF_DEVICE float scale_of_token(const mf_hip_tile_args &a, i64 row)
{
    (void)a, (void)row;
    if (MF_X == BF16)
        return 1;
    if (MF_X_GROUP == 16)
        return mf_divide((float)(1 << SMALLER_E4M3), *a.x_global);
    if (MF_X_GROUP == 32)
        return 0x1p32f;
    return row < 0 ? 0 : a.x_scale[row];
}
MF_DEVICE float scale_of_row(const mf_hip_tile_args &a, i32 expert, i32 row)
{
    (void)a, (void)expert, (void)row;
    if (MF_W_GROUP == 0)
        return a.w_scale[(i64)expert * ROWS_OF_W + row];
    if (MF_W_GROUP == 16)
        return mf_divide((float)(1 << SMALLER_E4M3), a.w_global[expert]);
    return MF_W == INT4 ? 1.0f : 0x1p32f;
}
