/* Consumer product of mx_hopper.hip with 4-bit weights (included by hopper_weights_m.inc.h). Each lane
 * dequantises its weights to bf16 in registers and passes them to WGMMA as the register operand.
 * hopper_w4_producer.h describes the layout. While the instructions of one round execute, the lane
 * dequantises the weights of the next round. INT4 weights with group scales are rounded to bf16 after
 * scaling. */
#pragma once

/* Loads the lane's quarter of a K tile, in rows `row` and `row` + 8. */
typedef u32 raw[2][4];
MF_DEVICE void load_raw(const u8 *k_tile, i32 row, raw &ret)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    MF_UNROLL
    for (int r = 0; r < 2; r++) {
        const mf_16b v = *(const mf_16b *)(k_tile + (row + r * 8) * W_ROW_BYTES + (lane & 3) * 16);
        ret[r][0] = v.x;
        ret[r][1] = v.y;
        ret[r][2] = v.z;
        ret[r][3] = v.w;
    }
}

/* Scale factors of the lane's two rows. Each row has one factor for each half of the lane's quarter. Both
 * halves of a word contain the same factor. */
typedef u32 factors[2][2];
MF_DEVICE void load_factors(const tile_info &p, const u8 *scales, i32 row, factors &ret)
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
            ret[r][0] = ret[r][1] = factor_of_power(of[quarter], FP4_EXPONENT_OFFSET);
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

/* Weights of four WGMMAs, which are the steps 2j + h of hopper_w4_producer.h. If a warpgroup has two 64-row
 * blocks, the four steps have the same j: two for each block. Otherwise they have two values of j in one
 * block. Consecutive WGMMAs then use different accumulators. A WGMMA that uses the same accumulators as its
 * predecessor would wait for the predecessor. */
#define ROW_BLOCKS (Q > 1 ? 2 : 1)
#define K_STEPS    (2 / ROW_BLOCKS)
#define ROUNDS     (4 / K_STEPS) /* number of rounds per set of rows */
typedef u32 four[2][2][4];       /* indices: value of j or row block; h; word */
typedef raw raws[ROW_BLOCKS];
typedef factors all_factors[ROW_BLOCKS];

MF_DEVICE void load_rows(const u8 *k_tile, const tile_info &p, i32 row, raws &of, all_factors &f)
{
    MF_UNROLL
    for (int q = 0; q < ROW_BLOCKS; q++)
        load_raw(k_tile, row + q * 64, of[q]);
    MF_UNROLL
    for (int q = 0; q < ROW_BLOCKS; q++)
        load_factors(p, k_tile + MF_BN * W_ROW_BYTES + MF_BM * X_ROW_BYTES, row + q * 64, f[q]);
}
MF_DEVICE void decode_four(const raws &of, const all_factors &f, int round, four &ret)
{
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        const int q = ROW_BLOCKS > 1 ? i / 2 : 0, j = ROW_BLOCKS > 1 ? round : round * 2 + i / 2;
        u32 w[4];
        decode(of[q][i % 2][j], f[q][i % 2][j / 2], w);
        MF_UNROLL
        for (int k = 0; k < 4; k++)
            ret[i / 2][k / 2][k % 2 * 2 + i % 2] = w[k];
    }
    MF_UNROLL
    for (int i = 0; i < 16; i++)
        mf_wgmma_fence_operand(ret[i / 8][i / 4 % 2][i % 4]);
}
template <int N8>
MF_DEVICE void multiply_four(const four &w, const u8 *tokens, int q, int round, bool adds, product &d)
{
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        const int which = ROW_BLOCKS > 1 ? i % 2 : i / 2, h = ROW_BLOCKS > 1 ? i / 2 : i % 2;
        const int step = 2 * (ROW_BLOCKS > 1 ? round : round * 2 + which) + h;
        const u64 x = mf_wgmma_descriptor(tokens + step / 4 * (MF_BM * 128)) + step % 4 * 2;
        mf_wgmma<N8>::bf16_rs(d[q + (ROW_BLOCKS > 1 ? which : 0)], w[which][h], x, adds || step > 0);
    }
    mf_wgmma_commit();
}

template <int N8>
MF_DEVICE void multiply_tile(const mf_hip_tile_args &, ring &r, const tile_info &p, i32 part_index,
                             product &d)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    const i32 first = part_index * WN + threadIdx.x % WARPGROUP / MF_WAVE * 16 + lane / 4;
    four w[2]; /* double buffer: one is multiplied while the other is dequantised */
    raws of;
    all_factors f;
    wait_full(r);
    load_rows(stage_of(r), p, first, of, f);
    decode_four(of, f, 0, w[0]);
    mf_wgmma_fence();
    MF_NO_UNROLL
    for (i32 k_tile = 0; k_tile < K_TILES; k_tile++) {
        const u8 *from = stage_of(r);
        r.at++;
        MF_UNROLL
        for (int q = 0; q < Q; q++)
            fence_sums<N8>(d[q]);
        MF_UNROLL
        for (int i = 0; i < Q * 2; i++) {
            multiply_four<N8>(w[i % 2], from + MF_BN * W_ROW_BYTES, i / ROUNDS * ROW_BLOCKS, i % ROUNDS,
                              k_tile > 0, d);
            if ((i + 1) % ROUNDS > 0) {
                decode_four(of, f, (i + 1) % ROUNDS, w[(i + 1) % 2]);
            } else if (i + 1 < Q * 2) {
                load_rows(from, p, first + (i + 1) / ROUNDS * (ROW_BLOCKS * 64), of, f);
                decode_four(of, f, 0, w[(i + 1) % 2]);
            } else if (k_tile + 1 < K_TILES) {
                wait_full(r);
                load_rows(stage_of(r), p, first, of, f);
                decode_four(of, f, 0, w[0]);
            }
            mf_wgmma_fence();
            mf_wgmma_wait<0>();
        }
        release_stage(r, 1);
    }
    MF_UNROLL
    for (int q = 0; q < Q; q++)
        fence_sums<N8>(d[q]);
}
