/* The scales of weights of four bits, or of groups (mx.hip and tile_hopper.hip): where they are and what they become.
 *
 *   MF_W        FP4, INT4, FP8    MF_W_GROUP  elements of K under one scale: 32, 16; 0: a row's */
#pragma once

#define FP4  0
#define INT4 1
#define FP8  2
#define BF16 3

#define PART    128 /* of K: what lanes have at once of a row, a quarter each */
#define QUARTER 32

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

/* What scales the whole sum of a weight row of an expert. */
MF_DEVICE float scale_of_row(const mf_hip_tile_args &a, i32 expert, i32 row)
{
    (void)a, (void)expert, (void)row;
    if (MF_W_GROUP == 0)
        return a.w_scale[(i64)expert * ROWS_OF_W + row];
    if (MF_W_GROUP == 16)
        return mf_divide((float)(1 << SMALLER_E4M3), a.w_global[expert]);
    return MF_W == INT4 ? 1.0f : 0x1p32f;
}
