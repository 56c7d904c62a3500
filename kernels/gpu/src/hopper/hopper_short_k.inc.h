/* Mainloop product of hopper_core.inc.h with tokens as the M dimension, for few K tiles. It is used for stage
 * 2 of a small inter_dim, if the warpgroups split a tile by tokens. The sums stay in the WGMMA accumulators.
 * Between two K tiles they are rescaled by (scale / next scale), so no second set of registers is needed, and
 * one WGMMA covers all columns of the tile. The tensor core drops low bits when it accumulates, so longer
 * products would lose accuracy. */
#define MF_DIVIDE __fdividef
#include "rescale.h"

#if !BY_BLOCK
#    error "MF_SWAP is for scales of 1x128"
#endif

#undef TOKENS /* defined by hopper_tokens_m.inc.h for the other stage */
#undef QX
#undef QW
#undef N8
#undef TRIMS
#define TOKENS (MF_BM / CONSUMERS) /* tokens of a warpgroup */
#define QX     (TOKENS / 64)
#define N8     (MF_BN / 8)
#define QW     MF_CEIL(MF_BN, 128) /* number of 128-column blocks, each of which has one weight scale */
#define TRIMS  0

/* Scale factors of a lane's sums. Of each sixteen tokens, a lane has two: one of the first eight and one of
 * the last eight. */
struct factors {
    float of[QX][2][QW];
};
struct product {
    float of[QX][N8][4];
    factors scale, largest; /* scale: current scale of the sums; largest: the largest scale so far */
    float weight[QX][2];    /* routing weights */
};

/* Returns true if all tokens of the warpgroup are padding. */
MF_DEVICE bool is_idle(const mf_hip_tile_args &a, const tile_info &p, i32 part_index)
{
    return part_index > 0 && is_few(a, p);
}
/* Returns the lane's first token within the block. */
MF_DEVICE i32 first_token(i32 part_index)
{
    return part_index * TOKENS + threadIdx.x % WARPGROUP / MF_WAVE * 16 + threadIdx.x % MF_WAVE / 4;
}

struct weight_scales {
    float of[K_TILES][QW];
};
MF_DEVICE void load_scales(const mf_hip_tile_args &a, const tile_info &p, weight_scales &ret)
{
    MF_UNROLL
    for (int q = 0; q < QW; q++) {
        const i32 block = MF_MIN(p.col + q * 128, MF_N - 1) / 128;
        const float *s = a.w_scale + ((i64)p.expert * MF_CEIL(MF_N, 128) + block) * BLOCKS_D;
        MF_UNROLL
        for (int k_tile = 0; k_tile < K_TILES; k_tile++)
            ret.of[k_tile][q] = s[k_tile];
    }
}
/* Computes the factors of a K tile. `tokens` points to the scales of the lane's tokens. */
MF_DEVICE void make_factors(const float *tokens, const float (&weights)[QW], factors &ret)
{
    MF_UNROLL
    for (int i = 0; i < QX * 2 * QW; i++)
        ret.of[i / 2 / QW][i / QW % 2][i % QW] = tokens[i / 2 / QW * 64 + i / QW % 2 * 8] * weights[i % QW];
}
/* Rescales the sums from d.scale to `next`. mf_rescale_factor may raise `next`. */
MF_DEVICE void rescale_sums(factors &next, product &d)
{
    MF_UNROLL
    for (int i = 0; i < QX * 2 * QW; i++) {
        const int q = i / 2 / QW, half = i / QW % 2, w = i % QW;
        const float by =
            mf_rescale_factor(d.scale.of[q][half][w], &d.largest.of[q][half][w], &next.of[q][half][w]);
        MF_UNROLL
        for (int j = w * 16; j < MF_MIN(w * 16 + 16, N8); j++) {
            d.of[q][j][half * 2] *= by;
            d.of[q][j][half * 2 + 1] *= by;
        }
    }
    d.scale = next;
}

MF_DEVICE void fence_sums(product &d)
{
    MF_UNROLL
    for (int i = 0; i < QX * N8 * 4; i++)
        mf_wgmma_fence_operand(d.of[i / 4 / N8][i / 4 % N8][i % 4]);
}

/* N is a template parameter only because other mainloop products need it. Here N is not needed: if there are
 * few tokens, the second warpgroup is idle instead. */
template <int N>
MF_DEVICE void multiply_tile(const mf_hip_tile_args &a, ring &r, const tile_info &p, i32 part_index,
                             product &d)
{
    const i32 first = first_token(part_index);
    if (is_idle(a, p, part_index)) {
        skip_k_tiles(r);
        return;
    }
    weight_scales scales;
    load_scales(a, p, scales);
    MF_UNROLL
    for (int i = 0; i < QX * 2; i++)
        d.weight[i / 2][i % 2] =
            MF_WEIGHT ? a.sorted_weights[(i64)p.block * MF_BM + first + i / 2 * 64 + i % 2 * 8] : 1.0f;
    MF_UNROLL
    for (int k_tile = 0; k_tile < K_TILES; k_tile++, r.at++) {
        const u8 *tokens = tokens_of(r);
        factors scale;
        wait_full(r);
        make_factors((const float *)(tokens + MF_BM * K_TILE_BYTES) + first, scales.of[k_tile], scale);
        if (k_tile == 0)
            d.scale = d.largest = scale;
        else
            rescale_sums(scale, d);
        fence_sums(d);
        mf_wgmma_fence();
        MF_UNROLL
        for (int q = 0; q < QX; q++) {
            const u64 x = mf_wgmma_descriptor(tokens + (part_index * TOKENS + q * 64) * K_TILE_BYTES),
                      w = mf_wgmma_descriptor(weights_of(r, k_tile));
            MF_UNROLL
            for (int s = 0; s < K_TILE_BYTES / 32; s++)
                mf_wgmma<N8>::fp8(d.of[q], x + 2 * s, w + 2 * s, k_tile + s > 0);
        }
        mf_wgmma_commit();
        mf_wgmma_wait<0>();
        fence_sums(d);
        release_stage(r, 0);
    }
}

/* Returns two columns of one token as bf16. `col` is the lane's first column. */
MF_DEVICE u32 output_pair(const mf_hip_tile_args &a, const tile_info &p, i32 col, float scale, float weight,
                          const float *sum)
{
#ifdef MF_BIAS
    const i32 column = p.col + col + (i32)(threadIdx.x % 4) * 2;
    return mf_bf16_pair(finished(sum[0] * scale, weight, bias_of(a, p.expert, column, false)),
                        finished(sum[1] * scale, weight, bias_of(a, p.expert, column + 1, false)));
#else
    (void)a, (void)p, (void)col;
    return mf_bf16_pair(sum[0] * (scale * weight), sum[1] * (scale * weight));
#endif
}
/* Stores the sums of sixteen tokens and Eights * 8 columns as bf16. The rows at `to` are Stride elements
 * apart. `eight` is the index of the first group of 8 columns within the tile. */
template <int Eights, int Stride>
MF_DEVICE void store_columns(const mf_hip_tile_args &a, const tile_info &p, const product &d, int q,
                             int eight, u16 *to)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    /* four 8x8 matrices: 16 tokens by 16 columns */
    MF_UNROLL
    for (int j = 0; j < Eights; j += 2) {
        u32 v[4];
        MF_UNROLL
        for (int i = 0; i < 4; i++) {
            const int at = eight + j + i / 2;
            v[i] = output_pair(a, p, at * 8, d.scale.of[q][i % 2][at / 16], d.weight[q][i % 2],
                               d.of[q][at] + i % 2 * 2);
        }
        mf_stmatrix_4(to + lane % 16 * Stride + lane / 16 * 8 + j * 8, v);
    }
}

#if WARP_EPILOGUE
/* Each warp holds the sums of 16 of every 64 tokens. Returns the sorted id of the lane's token among them, or
 * a.token if the warp has fewer tokens. */
MF_DEVICE i32 warp_row_id(const mf_hip_tile_args &a, i32 block, const writers &w)
{
    const i32 lane = w.me % MF_WAVE, row = lane / 16 * 64 + w.me / MF_WAVE * 16 + lane % 16;
    return lane / 16 < QX ? a.sorted_ids[(i64)block * MF_BM + w.first + row] : a.token;
}
#    define WARP_OUT_LANES (WARP_OUT_COLS / 8) /* number of lanes that add one row, 16 bytes each */

/* Adds each row of the warp's sums to its token's row of y. `out` has the regions of all warps. */
template <int N>
MF_DEVICE void store_tile(const mf_hip_tile_args &a, const tile_info &p, i32 part_index, product &d, u16 *out)
{
    const i32 lane = threadIdx.x % MF_WAVE, col = lane % WARP_OUT_LANES * 8;
    u16 *own = out + threadIdx.x / MF_WAVE * (WARP_OUT_BYTES / 2);
    if (is_idle(a, p, part_index))
        return;
    MF_UNROLL
    for (int i = 0; i < QX * (MF_BN / WARP_OUT_COLS); i++) {
        const int q = i / (MF_BN / WARP_OUT_COLS), first = i % (MF_BN / WARP_OUT_COLS) * WARP_OUT_COLS;
        store_columns<WARP_OUT_COLS / 8, WARP_OUT_STRIDE>(a, p, d, q, first / 8, own);
        mf_wave_sync();
        MF_UNROLL
        for (i32 row = lane / WARP_OUT_LANES; row < 16 + lane / WARP_OUT_LANES;
             row += MF_WAVE / WARP_OUT_LANES) {
            const i32 token = mf_id_token(mf_shuffle(p.id, q * 16 + row));
            if (token < a.token && p.col + first + col < MF_N)
                mf_red_add_8((u16 *)a.out + (i64)token * MF_N + p.col + first + col,
                             *(const mf_16b *)(own + row * WARP_OUT_STRIDE + col));
        }
        mf_wave_sync();
    }
}
#else
/* Stores the warpgroup's sums as bf16 into out[token][column]. Each warp holds the sums of 16 of every 64
 * tokens. */
template <int N>
MF_DEVICE void store_tile(const mf_hip_tile_args &a, const tile_info &p, i32 part_index, product &d, u16 *out)
{
    if (is_idle(a, p, part_index))
        return;
    MF_UNROLL
    for (int q = 0; q < QX; q++) {
        const i32 token = part_index * TOKENS + q * 64 + threadIdx.x % WARPGROUP / MF_WAVE * 16;
        store_columns<N8, OUT_STRIDE>(a, p, d, q, 0, out + token * OUT_STRIDE);
    }
}
#endif
