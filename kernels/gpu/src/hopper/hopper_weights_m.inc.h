/* Mainloop product of hopper_core.inc.h with weights as the M dimension and tokens as N, so that few tokens
 * need only a narrow instruction. For each 64 weight rows, a lane's accumulators hold both gate and up of a
 * column. */
#define WN (MF_PINGPONG ? MF_BN : MF_BN / CONSUMERS) /* weight rows of a warpgroup */
#define Q  (WN / 64)
/* Number of narrower widths that are compiled in addition to the full width. 0 with block scales,
 * because with more widths the compiler runs out of registers and serialises the WGMMAs. */
#define TRIMS (BY_BLOCK ? 0 : 2)

typedef float sums[QM][4];
typedef sums product[Q];

template <int N8> MF_DEVICE void fence_sums(sums &d)
{
    MF_UNROLL
    for (int i = 0; i < N8 * 4; i++)
        mf_wgmma_fence_operand(d[i / 4][i % 4]);
}
#ifndef MF_W
/* Multiplies 64 weight rows of a K tile by the K tile's first N8 * 8 tokens. `adds`: true: adds the product
 * to d; false: overwrites d. */
template <int N8> MF_DEVICE void multiply(const u8 *k_tile, i32 row, sums &d, bool adds)
{
    const u64 w = mf_wgmma_descriptor(k_tile + row * K_TILE_BYTES),
              x = mf_wgmma_descriptor(k_tile + MF_BN * K_TILE_BYTES);
    MF_UNROLL
    for (int s = 0; s < K_TILE_BYTES / 32; s++) {
        if (MF_FORMAT == BF16)
            mf_wgmma<N8>::bf16(d, w + 2 * s, x + 2 * s, adds || s > 0);
        else
            mf_wgmma<N8>::fp8(d, w + 2 * s, x + 2 * s, adds || s > 0);
    }
}
#endif

#ifdef MF_W
#    include "hopper_w4_mma.h"
#elif BY_BLOCK

/* Number of unscaled products of 64 weight rows in registers. It is two if there are enough registers, so
 * that one product is scaled while the next one is computed. */
#    define PARTS            ((Q + 2) * QM <= 48 && Q > 1 ? 2 : 1)
/* Number of K tiles per unrolled loop iteration. Within an iteration, the last product of a K tile is scaled
 * while the first product of the next K tile is computed. ptxas lets no WGMMA run across the end of an
 * iteration. */
#    define UNROLLED_K_TILES MF_MIN(PARTS == 2 ? 4 : 1, K_TILES)
/* Number of 128-row weight blocks, with one scale each, that cover a warpgroup's gate rows. As many blocks
 * cover its up rows. */
#    define W_BLOCKS         MF_CEIL(WN / MF_HALVES, 128)
/* Number of scale factors that a lane needs for each group of eight tokens. The lane has two of these tokens,
 * and each token has a factor for gate and, if the layer has up, a factor for up. The factors are kept for a
 * whole K tile if there are enough registers. */
#    define FACTORS          (2 * MF_HALVES)
#    define CACHES_FACTORS   (PARTS == 2 && W_BLOCKS == 1 && (Q + 2) * QM * 4 + FACTORS * QM <= 208)

/* Scales of the weight blocks: `low` is for gate (or for all rows), `high` for up. */
struct weight_scales {
    float low[W_BLOCKS], high[W_BLOCKS];
};
/* Loads the scales of a K tile. `from` points to the scale of the first K tile of the warpgroup's first
 * block. */
MF_DEVICE void load_scales(const float *from, i32 k_tile, weight_scales &ret)
{
    MF_UNROLL
    for (int b = 0; b < W_BLOCKS; b++) {
        const float *s = from + (i64)b * BLOCKS_D + MF_MIN(k_tile, K_TILES - 1);
        ret.low[b] = s[0];
        ret.high[b] = MF_HALVES == 2 ? s[(i64)(MF_N / 128) * BLOCKS_D] : ret.low[b];
    }
}
/* After every 32 K tiles, loads the scales of the next 32 K tiles. Each lane loads the scales of one of these
 * K tiles. */
MF_DEVICE void refresh_scales(const float *from, i32 k_tile, weight_scales &of_lane)
{
    static_assert(K_TILES <= MF_WAVE || MF_WAVE % UNROLLED_K_TILES == 0,
                  "an unrolled iteration uses the scales of one load");
    if (scales_exhausted(k_tile))
        load_scales(from, k_tile + threadIdx.x % MF_WAVE, of_lane);
}
/* Broadcasts the scales of a K tile from the lane that holds them. */
MF_DEVICE void broadcast_scales(const weight_scales &of_lane, i32 k_tile, weight_scales &ret)
{
    MF_UNROLL
    for (int b = 0; b < W_BLOCKS; b++) {
        ret.low[b] = mf_shuffle(of_lane.low[b], k_tile);
        ret.high[b] = mf_shuffle(of_lane.high[b], k_tile);
    }
}
/* Computes a lane's factors for eight tokens. `tokens` points to the scales of these tokens. */
MF_DEVICE void make_factors(const float *tokens, float low, float high, float (&ret)[FACTORS])
{
    const float2 s = *(const float2 *)(tokens + (threadIdx.x & 3) * 2);
    ret[0] = low * s.x;
    ret[1] = low * s.y;
    if (MF_HALVES == 2) {
        ret[FACTORS - 2] = high * s.x;
        ret[FACTORS - 1] = high * s.y;
    }
}
MF_DEVICE void add_scaled(const float (&f)[FACTORS], const float (&part)[4], float (&d)[4])
{
    d[0] += part[0] * f[0];
    d[1] += part[1] * f[1];
    d[2] += part[2] * f[FACTORS - 2];
    d[3] += part[3] * f[FACTORS - 1];
}

/* Multiplies `Tiles` K tiles, starting at `k_tile`. of_lane: the scales that this lane has loaded, which are
 * those of one K tile in 32. */
template <int N8, int Tiles>
MF_DEVICE void multiply_k_tiles(ring &r, i32 first_row, const weight_scales &of_lane, i32 k_tile, product &d)
{
    sums part[PARTS];
    /* next: scales of the K tile that is multiplied; now: scales of the K tile that is scaled */
    weight_scales next, now;
    float cached[CACHES_FACTORS ? N8 : 1][FACTORS];
    const float *tokens = nullptr;
    MF_UNROLL
    for (int i = 0; i < Tiles * Q + PARTS - 1; i++) {
        const bool begins = i < Tiles * Q;
        /* index of the finished product, PARTS - 1 behind the started one */
        const int made = i - (PARTS - 1), q = made % Q;
        if (begins) {
            if (i > 0 && i % Q == 0)
                r.at++;
            if (i % Q == 0) {
                broadcast_scales(of_lane, k_tile + i / Q,
                                 next); /* before the wait, as in hopper_tokens_m.inc.h */
                wait_full(r);
                if (GATHERS)
                    mf_async_fence();
            }
            fence_sums<N8>(part[i % PARTS]);
            mf_wgmma_fence();
            multiply<N8>(stage_of(r), first_row + i % Q * 64, part[i % PARTS], false);
            mf_wgmma_commit();
        }
        if (made < 0)
            continue;
        if (q == 0) {
            tokens = (const float *)(stage_of(r) + (MF_BN + MF_BM) * K_TILE_BYTES);
            now = next;
            MF_UNROLL
            for (int j = 0; CACHES_FACTORS && j < N8; j++)
                make_factors(tokens + j * 8, now.low[0], now.high[0], cached[CACHES_FACTORS ? j : 0]);
        }
        if (begins)
            mf_wgmma_wait<PARTS - 1>();
        else
            mf_wgmma_wait<0>();
        fence_sums<N8>(part[made % PARTS]);
        if (CACHES_FACTORS && q == Q - 1)
            release_stage(r, begins ? PARTS - 1 : 0);
        MF_UNROLL
        for (int j = 0; j < N8; j++) {
            const int b = q * 64 / MF_HALVES / 128;
            if (!CACHES_FACTORS)
                make_factors(tokens + j * 8, now.low[b], now.high[b], cached[0]);
            add_scaled(cached[CACHES_FACTORS ? j : 0], part[made % PARTS][j], d[q][j]);
        }
        if (!CACHES_FACTORS && q == Q - 1)
            release_stage(r, begins ? PARTS - 1 : 0);
    }
    r.at++;
}
template <int N8>
MF_DEVICE void multiply_tile(const mf_hip_tile_args &a, ring &r, const tile_info &p, i32 part_index,
                             product &d)
{
    const i32 first_row = part_index * WN, block = MF_MIN(p.col + first_row / MF_HALVES, MF_N - 1) / 128;
    const float *w_scale = a.w_scale + ((i64)p.expert * MF_CEIL(ROWS_OF_W, 128) + block) * BLOCKS_D;
    weight_scales of_lane;
    i32 k_tile = 0;
    MF_UNROLL
    for (int i = 0; i < Q * N8 * 4; i++)
        d[i / (N8 * 4)][i / 4 % N8][i % 4] = 0;
    load_scales(w_scale, threadIdx.x % MF_WAVE, of_lane);
    MF_NO_UNROLL
    for (; k_tile + UNROLLED_K_TILES <= K_TILES; k_tile += UNROLLED_K_TILES) {
        refresh_scales(w_scale, k_tile, of_lane);
        multiply_k_tiles<N8, UNROLLED_K_TILES>(r, first_row, of_lane, k_tile, d);
    }
    if (K_TILES % UNROLLED_K_TILES > 0) {
        refresh_scales(w_scale, k_tile, of_lane);
        multiply_k_tiles<N8, MF_MAX(K_TILES % UNROLLED_K_TILES, 1)>(r, first_row, of_lane, k_tile, d);
    }
}

#else

template <int N8>
MF_DEVICE void multiply_tile(const mf_hip_tile_args &a, ring &r, const tile_info &p, i32 part_index,
                             product &d)
{
    const i32 first_row = part_index * WN;
    MF_NO_UNROLL
    for (i32 k_tile = 0; k_tile < K_TILES; k_tile++) {
        const u8 *from = stage_of(r);
        wait_full(r);
        if (USES_CP_ASYNC)
            mf_async_fence();
        MF_UNROLL
        for (int q = 0; q < Q; q++)
            fence_sums<N8>(d[q]);
        mf_wgmma_fence();
        MF_UNROLL
        for (int q = 0; q < Q; q++)
            multiply<N8>(from, first_row + q * 64, d[q], k_tile > 0);
        mf_wgmma_commit();
        mf_wgmma_wait<1>();
        if (k_tile > 0)
            release_stage(r, 1);
        r.at++;
    }
    mf_wgmma_wait<0>();
    MF_UNROLL
    for (int q = 0; q < Q; q++)
        fence_sums<N8>(d[q]);
    release_stage(r, 1);
}

#endif

/* low_column() and high_column() return the output columns of a lane's accumulators for the 16 weight rows
 * that begin at `row`: low_column() for the first two accumulators, high_column() for the last two. The last
 * two belong to up if the layer has up. */
MF_DEVICE i32 low_column(i32 col, i32 row)
{
    return col + row / MF_HALVES + (i32)(threadIdx.x % MF_WAVE >> 2);
}
MF_DEVICE i32 high_column(i32 col, i32 row)
{
    return low_column(col, row) + (MF_HALVES == 2 ? 0 : 8);
}

#ifdef MF_QUANT
MF_DEVICE bool quantises_in_registers(const mf_hip_tile_args &, const tile_info &)
{
    return false;
}
#    define BF16_ROWS MF_BM
#endif

#ifdef MF_W
/* Multiplies the sums over all K tiles by the factors of their weight rows and of their tokens. */
template <int N8>
MF_DEVICE void scale_by_row(const mf_hip_tile_args &a, i32 block, i32 expert, i32 col, i32 row, sums &d)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    const i32 low_at = row_of(low_column(col, row), false),
              high_at = row_of(high_column(col, row), MF_HALVES == 2);
    const float low = scale_of_row(a, expert, MF_MIN(low_at, ROWS_OF_W - 1));
    const float high = scale_of_row(a, expert, MF_MIN(high_at, ROWS_OF_W - 1));
    MF_UNROLL
    for (int j = 0; j < N8; j++) {
        MF_UNROLL
        for (int c = 0; c < 2; c++) {
            const i64 at = (i64)block * MF_BM + j * 8 + (lane & 3) * 2 + c;
            const i32 token = SCALED_BY_TOKEN ? mf_id_token(a.sorted_ids[at]) : 0;
            const float s = scale_of_token(a, token < a.token ? (MF_STAGE == 1 ? (i64)token : at) : -1);
            d[j][c] *= low * s;
            d[j][c + 2] *= high * s;
        }
    }
}
#elif MF_FORMAT != BF16 && !BY_BLOCK
/* Multiplies the sums over all K tiles by per-row or per-tensor scales. */
template <int N8>
MF_DEVICE void scale_by_row(const mf_hip_tile_args &a, i32 block, i32 expert, i32 col, i32 row, sums &d)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    const i32 low_at = row_of(low_column(col, row), false),
              high_at = row_of(high_column(col, row), MF_HALVES == 2);
    const float *w = a.w_scale + (i64)expert * (BY_TENSOR ? 1 : ROWS_OF_W);
    const float low = w[BY_TENSOR ? 0 : MF_MIN(low_at, ROWS_OF_W - 1)];
    const float high = w[BY_TENSOR ? 0 : MF_MIN(high_at, ROWS_OF_W - 1)];
    MF_UNROLL
    for (int j = 0; j < N8; j++) {
        float s[2];
        MF_UNROLL
        for (int c = 0; c < 2; c++) {
            const i64 at = (i64)block * MF_BM + j * 8 + (lane & 3) * 2 + c;
            const i32 token = mf_id_token(a.sorted_ids[at]);
            s[c] = token < a.token ? a.x_scale[BY_TENSOR ? 0 : MF_STAGE == 1 ? (i64)token : at] : 0;
        }
        d[j][0] *= low * s[0];
        d[j][1] *= low * s[1];
        d[j][2] *= high * s[0];
        d[j][3] *= high * s[1];
    }
}
#endif

/* Stores the warp's sums of 16 weight rows as bf16 into out[token][column], transposed by stmatrix. */
template <int N8>
MF_DEVICE void store_sums(const mf_hip_tile_args &a, const tile_info &p, i32 row, const sums &d, u16 *out)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    const float low = bias_of(a, p.expert, low_column(p.col, row), false);
    const float high = bias_of(a, p.expert, high_column(p.col, row), MF_HALVES == 2);
    const float *weights = a.sorted_weights + (i64)p.block * MF_BM + (lane & 3) * 2;
#if MF_HALVES == 2
    /* four 8x8 matrices: eight tokens by eight columns each */
    MF_UNROLL
    for (int j = 0; j < N8; j += 4) {
        u32 h[4];
        MF_UNROLL
        for (int i = 0; i < 4; i++) {
            const int at = MF_MIN(j + i, N8 - 1);
            const float w0 = MF_WEIGHT ? weights[at * 8] : 1.0f, w1 = MF_WEIGHT ? weights[at * 8 + 1] : 1.0f;
            h[i] = mf_bf16_pair(mf_activate(finished(d[at][0], w0, low), finished(d[at][2], w0, high)),
                                mf_activate(finished(d[at][1], w1, low), finished(d[at][3], w1, high)));
        }
        const i32 token = MF_MIN(j + (lane >> 3), N8 - 1) * 8 + (lane & 7);
        mf_stmatrix_trans_4(out + token * OUT_STRIDE + row / 2, h);
    }
#else
    /* two matrices of eight tokens by sixteen columns */
    MF_UNROLL
    for (int j = 0; j < N8; j += 2) {
        u32 z[4];
        MF_UNROLL
        for (int i = 0; i < 2; i++) {
            const int at = MF_MIN(j + i, N8 - 1);
            const float w0 = MF_WEIGHT ? weights[at * 8] : 1.0f, w1 = MF_WEIGHT ? weights[at * 8 + 1] : 1.0f;
            z[2 * i] =
                mf_bf16_pair(activated(finished(d[at][0], w0, low)), activated(finished(d[at][1], w1, low)));
            z[2 * i + 1] = mf_bf16_pair(activated(finished(d[at][2], w0, high)),
                                        activated(finished(d[at][3], w1, high)));
        }
        const i32 token = MF_MIN(j + (lane >> 4), N8 - 1) * 8 + (lane & 7);
        mf_stmatrix_trans_4(out + token * OUT_STRIDE + row + ((lane >> 3) & 1) * 8, z);
    }
#endif
}

/* Stores the product into `out`. */
template <int N8>
MF_DEVICE void store_tile(const mf_hip_tile_args &a, const tile_info &p, i32 part_index, product &d, u16 *out)
{
    MF_UNROLL
    for (int q = 0; q < Q; q++) {
        const i32 row = part_index * WN + q * 64 + threadIdx.x % WARPGROUP / MF_WAVE * 16;
#if defined(MF_W) || (MF_FORMAT != BF16 && !BY_BLOCK)
        scale_by_row<N8>(a, p.block, p.expert, p.col, row, d[q]);
#endif
        store_sums<N8>(a, p, row, d[q], out);
    }
}
