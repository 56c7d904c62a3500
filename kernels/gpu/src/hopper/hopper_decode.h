/* The product of mx_hopper.hip with weights of four bits: each lane makes bf16 of its own and hands them to the matrix
 * instructions in registers (hopper_weights.inc.h includes this; hopper_narrow.h says what lies where). While eight steps' worth of
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

/* Weights of four instructions: of two times 64 rows one step of j, where a group has so many, or of 64 rows two. Those that
 * follow each other then add to other sums: one that adds to the same sums as that before it waits for it. */
#define BESIDE (Q > 1 ? 2 : 1)
#define STEPS  (2 / BESIDE)
#define TURNS  (4 / STEPS) /* of steps, of the same rows */
typedef u32 four[2][2][4]; /* by step, or rows; by h */
typedef raw raws[BESIDE];
typedef factors all_factors[BESIDE];

MF_DEVICE void load_rows(const u8 *slice, const place &p, i32 row, raws &of, all_factors &f)
{
    MF_UNROLL
    for (int q = 0; q < BESIDE; q++)
        load_raw(slice, row + q * 64, of[q]);
    MF_UNROLL
    for (int q = 0; q < BESIDE; q++)
        load_factors(p, slice + MF_BN * W_SLICE + MF_BM * X_SLICE, row + q * 64, f[q]);
}
MF_DEVICE void decode_four(const raws &of, const all_factors &f, int turn, four &ret)
{
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        const int q = BESIDE > 1 ? i / 2 : 0, j = BESIDE > 1 ? turn : turn * 2 + i / 2;
        u32 w[4];
        decode(of[q][i % 2][j], f[q][i % 2][j / 2], w);
        MF_UNROLL
        for (int k = 0; k < 4; k++)
            ret[i / 2][k / 2][k % 2 * 2 + i % 2] = w[k];
    }
    MF_UNROLL
    for (int i = 0; i < 16; i++)
        mf_matrix_hold(ret[i / 8][i / 4 % 2][i % 4]);
}
template <int N8>
MF_DEVICE void multiply_four(const four &w, const u8 *tokens, int q, int turn, bool adds, product &d)
{
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        const int which = BESIDE > 1 ? i % 2 : i / 2, h = BESIDE > 1 ? i / 2 : i % 2;
        const int step = 2 * (BESIDE > 1 ? turn : turn * 2 + which) + h;
        const u64 x = mf_matrix_of(tokens + step / 4 * (MF_BM * 128)) + step % 4 * 2;
        mf_matrix_multiply<N8>::held(d[q + (BESIDE > 1 ? which : 0)], w[which][h], x, adds || step > 0);
    }
    mf_matrix_commit();
}

template <int N8>
MF_DEVICE void multiply_tile(const mf_hip_tile_args &, ring &r, const place &p, i32 share, product &d)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    const i32 first = share * WN + threadIdx.x % GROUP / MF_WAVE * 16 + lane / 4;
    four w[2]; /* that are multiplied, and made meanwhile */
    raws of;
    all_factors f;
    wait_full(r);
    load_rows(slice_of(r), p, first, of, f);
    decode_four(of, f, 0, w[0]);
    mf_matrix_begin();
    MF_NO_UNROLL
    for (i32 slice = 0; slice < SLICES; slice++) {
        const u8 *from = slice_of(r);
        r.at++;
        MF_UNROLL
        for (int q = 0; q < Q; q++)
            hold<N8>(d[q]);
        MF_UNROLL
        for (int i = 0; i < Q * 2; i++) {
            multiply_four<N8>(w[i % 2], from + MF_BN * W_SLICE, i / TURNS * BESIDE, i % TURNS, slice > 0, d);
            if ((i + 1) % TURNS > 0) {
                decode_four(of, f, (i + 1) % TURNS, w[(i + 1) % 2]);
            } else if (i + 1 < Q * 2) {
                load_rows(from, p, first + (i + 1) / TURNS * (BESIDE * 64), of, f);
                decode_four(of, f, 0, w[(i + 1) % 2]);
            } else if (slice + 1 < SLICES) {
                wait_full(r);
                load_rows(slice_of(r), p, first, of, f);
                decode_four(of, f, 0, w[0]);
            }
            mf_matrix_begin();
            mf_matrix_wait<0>();
        }
        leave_slice(r, 1);
    }
    MF_UNROLL
    for (int q = 0; q < Q; q++)
        hold<N8>(d[q]);
}
