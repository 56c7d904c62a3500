/* Scales of 4-bit or group-scaled weights and of their tokens (mx.hip and mx_hopper.hip).
 *
 *   MF_W        FP4, INT4, FP8    MF_W_GROUP  elements of K per scale: 32, 16; 0: one scale per row
 *   MF_X        BF16, FP8, FP4    MF_X_GROUP  the same for tokens */
#pragma once

#define FP4  0
#define INT4 1
#define FP8  2
#define BF16 3

#define PART    128 /* elements of K that are processed at once, a quarter of the elements per lane */
#define QUARTER 32
#define X_BITS  (MF_X == BF16 ? 16 : MF_X == FP8 ? 8 : 4)

/* Bytes of scales per row and per part. Scales are copied in words. With SCALES_SKEW the scales of a row may
 * begin inside a word. */
#define SCALE_BYTES (MF_W == INT4 ? 2 : 1)
#define SCALES_ROW  (MF_W_GROUP == 0 ? 0 : MF_D / MF_MAX(MF_W_GROUP, 1) * SCALE_BYTES)
#define SCALES_PART (MF_W_GROUP == 0 ? 0 : PART / MF_MAX(MF_W_GROUP, 1) * SCALE_BYTES)
#define SCALES_SKEW (SCALES_ROW % 4 != 0)
/* True if no copied word begins after the last scale: each row of scales begins at a word boundary and ends
 * with a K tile. */
#define SCALES_END_WITHIN (!SCALES_SKEW && MF_D % K_TILE == 0)
#define SCALES_WORDS      (SCALES_PART / 4 + SCALES_SKEW)

/* Scaled elements are too small by a factor of 2^32 until the sum is complete. Together with the exponent
 * offset of an e2m1 or e4m3 element in a bf16, this allows scales up to 2^33 and down to 2^-93, where a bf16
 * becomes subnormal. For e4m3 scales a factor of 2^16 is enough. */
#define E8M0_DOWNSCALE      32
#define E4M3_DOWNSCALE      16
#define FP4_EXPONENT_OFFSET 126
#define FP8_EXPONENT_OFFSET 120

/* Returns the factor of an e8m0 scale, in both halves of a word. */
MF_DEVICE u32 factor_of_power(u32 code, int away)
{
    const u32 power = code + away - E8M0_DOWNSCALE;
    return MF_MIN(power, 255u) * 0x00800080u;
}
MF_DEVICE void factors_of_e4m3(u32 two, u32 (&ret)[2])
{
    const u32 f = mf_fp8_to_f16_pair(two, 0);
    ret[0] = mf_bf16_broadcast(mf_f16_low(f) * 0x1p110f);
    ret[1] = mf_bf16_broadcast(mf_f16_high(f) * 0x1p110f);
}

#if MF_X != BF16
/* Computes the factors of a token's elements for the two halves of the lane's quarter, from one or two
 * scales. */
MF_DEVICE void factors_of_x(u32 scale, u32 (&ret)[2])
{
    if (MF_X_GROUP == 16)
        factors_of_e4m3(scale, ret);
    else if (MF_X_GROUP == 32)
        ret[0] = ret[1] =
            factor_of_power(scale & 255, MF_X == FP8 ? FP8_EXPONENT_OFFSET : FP4_EXPONENT_OFFSET);
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

/* Factors of a whole sum: scale_of_token() returns the factor of its token, scale_of_row() that of its weight
 * row. The `row` of a token is its row of x, or -1 for padding. */
#define SCALED_BY_TOKEN (MF_X != BF16 && MF_X_GROUP == 0)
MF_DEVICE float scale_of_token(const mf_hip_tile_args &a, i64 row)
{
    (void)a, (void)row;
    if (MF_X == BF16)
        return 1;
    if (MF_X_GROUP == 16)
        return mf_divide((float)(1 << E4M3_DOWNSCALE), *a.x_global);
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
        return mf_divide((float)(1 << E4M3_DOWNSCALE), a.w_global[expert]);
    return MF_W == INT4 ? 1.0f : 0x1p32f;
}
