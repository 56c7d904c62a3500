/* The product of tile_hopper.hip with weights of four bits: each lane makes bf16 of its own and hands them to the matrix
 * instructions in registers (hopper_weights.h includes this; hopper_narrow.h says what lies where). While eight steps' worth of
 * instructions multiply some, the lane makes the next. Weights by groups are rounded to bf16 under INT4's scales. */
#pragma once

/* The lane's quarter of rows `row` and `row` + 8 of a slice. */
typedef u32 raw[2][4];
MF_DEVICE void load_raw(const u8 *slice, i32 row, raw &ret)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    MF_UNROLL
    for (int r = 0; r < 2; r++) {
        const mf_16b v = *(const mf_16b *)(slice + (row + r * 8) * W_SLICE + (lane & 3) * 16);
        ret[r][0] = v.x;
        ret[r][1] = v.y;
        ret[r][2] = v.z;
        ret[r][3] = v.w;
    }
}

/* What scales them, both halves of a word, by halves of the quarter. */
typedef u32 factors[2][2];
MF_DEVICE void load_factors(const place &p, const u8 *scales, i32 row, factors &ret)
{
    const i32 quarter = threadIdx.x & 3;
    MF_UNROLL
    for (int r = 0; r < (SCALES_WORDS > 0 ? 2 : 0); r++) {
        const i32 skew = SCALES_SKEW ? (i32)(scale_at(p.expert, weight_row(p.col, row + r * 8)) & 3) : 0;
        const u8 *of = scales + (row + r * 8) * (SCALES_WORDS * 4) + skew;
        if (MF_W == INT4)
            ret[r][0] = ret[r][1] = *(const u16 *)(of + quarter * 2) * 0x00010001u;
        else if (MF_W_GROUP == 16)
            factors_of_e4m3(*(const u16 *)(of + quarter * 2), ret[r]);
        else
            ret[r][0] = ret[r][1] = factor_of_power(of[quarter], FP4_AWAY);
    }
}
MF_DEVICE void decode(u32 eight, u32 factor, u32 (&ret)[4])
{
#if MF_W == FP4
    mf_fp4_to_bf16(eight, factor, ret);
#else
    mf_int4_to_bf16(eight, ret);
    MF_UNROLL
    for (int i = 0; i < (MF_W_GROUP > 0 ? 4 : 0); i++)
        ret[i] = mf_bf16_fma(ret[i], factor, 0x80008000u);
    (void)factor;
#endif
}

/* Half of the quarters of 64 weight rows: two words of each row are four instructions' weights. */
typedef u32 half[16];
MF_DEVICE void decode_half(const raw &of, const factors &f, int which, half &ret)
{
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        const int j = which * 2 + i / 2;
        u32 four[4];
        decode(of[i % 2][j], f[i % 2][which], four);
        MF_UNROLL
        for (int k = 0; k < 4; k++)
            ret[i / 2 * 8 + k / 2 * 4 + k % 2 * 2 + i % 2] = four[k];
    }
    MF_UNROLL
    for (int i = 0; i < 16; i++)
        mf_matrix_hold(ret[i]);
}

template <int N8>
MF_DEVICE void multiply_tile(const mf_hip_tile_args &, ring &r, const place &p, i32 share, product &d)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    const i32 first = share * WN + threadIdx.x % GROUP / MF_WAVE * 16 + lane / 4;
    half w[2]; /* that are multiplied, and made meanwhile */
    raw of;
    factors f;
    wait_full(r);
    load_raw(slice_of(r), first, of);
    load_factors(p, slice_of(r) + MF_BN * W_SLICE + MF_BM * X_SLICE, first, f);
    decode_half(of, f, 0, w[0]);
    MF_NO_UNROLL
    for (i32 slice = 0; slice < SLICES; slice++) {
        const u8 *from = slice_of(r), *tokens = from + MF_BN * W_SLICE;
        r.at++;
        MF_UNROLL
        for (int q = 0; q < Q; q++)
            hold<N8>(d[q]);
        MF_UNROLL
        for (int h = 0; h < 2 * Q; h++) {
            const u64 x = mf_matrix_of(tokens + h % 2 * (MF_BM * 128));
            mf_matrix_begin();
            MF_UNROLL
            for (int s = 0; s < 4; s++)
                mf_matrix_multiply<N8>::held(d[h / 2], w[h % 2] + s * 4, x + 2 * s,
                                             slice > 0 || h % 2 > 0 || s > 0);
            mf_matrix_commit();
            if (h % 2 == 0) {
                decode_half(of, f, 1, w[1]);
            } else if (h + 1 < 2 * Q) {
                load_raw(from, first + (h + 1) / 2 * 64, of);
                load_factors(p, tokens + MF_BM * X_SLICE, first + (h + 1) / 2 * 64, f);
                decode_half(of, f, 0, w[0]);
            } else if (slice + 1 < SLICES) {
                wait_full(r);
                load_raw(slice_of(r), first, of);
                load_factors(p, slice_of(r) + MF_BN * W_SLICE + MF_BM * X_SLICE, first, f);
                decode_half(of, f, 0, w[0]);
            }
            mf_matrix_wait<0>();
        }
        leave_slice(r, 1);
    }
    MF_UNROLL
    for (int q = 0; q < Q; q++)
        hold<N8>(d[q]);
}
