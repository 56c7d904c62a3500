/* The product of hopper_core.inc.h with the tokens for its rows, as hopper_tokens.inc.h has it, where it is of few slices: stage 2
 * of a small inter_dim, whose groups share a tile by its tokens. Sums stay where the matrix unit adds to them: between two
 * slices they are brought into the units of the next one, sums * (scale / next scale). So they need no second registers, and an
 * instruction has all columns of the tile. The unit drops bits where it adds, which longer products would see. */
#define MF_DIVIDE __fdividef
#include "units.h"

#if !BY_BLOCK
#    error "MF_SWAP is for scales of 1x128"
#endif

#undef TOKENS /* hopper_tokens.inc.h's, of another stage */
#undef QX
#undef QW
#undef N8
#undef TRIMS
#define TOKENS (MF_BM / GROUPS) /* of a group */
#define QX     (TOKENS / 64)
#define N8     (MF_BN / 8)
#define QW     MF_CEIL(MF_BN, 128) /* columns that share scales of weights */
#define TRIMS  0

/* What a lane's sums are multiplied by: those of its token in the upper and in the lower eight of each sixteen. */
struct factors {
    float of[QX][2][QW];
};
struct product {
    float of[QX][N8][4];
    factors units, largest; /* largest: of the units so far */
    float weight[QX][2];    /* routing weights */
};

/* All tokens of the group are padding. */
MF_DEVICE bool is_idle(const mf_hip_tile_args &a, const place &p, i32 share)
{
    return share > 0 && is_few(a, p);
}
/* The first of the lane's tokens, counted in the block. */
MF_DEVICE i32 first_token(i32 share)
{
    return share * TOKENS + threadIdx.x % GROUP / MF_WAVE * 16 + threadIdx.x % MF_WAVE / 4;
}

struct weight_scales {
    float of[SLICES][QW];
};
MF_DEVICE void load_scales(const mf_hip_tile_args &a, const place &p, weight_scales &ret)
{
    MF_UNROLL
    for (int q = 0; q < QW; q++) {
        const i32 block = MF_MIN(p.col + q * 128, MF_N - 1) / 128;
        const float *s = a.w_scale + ((i64)p.expert * MF_CEIL(MF_N, 128) + block) * BLOCKS_D;
        MF_UNROLL
        for (int slice = 0; slice < SLICES; slice++)
            ret.of[slice][q] = s[slice];
    }
}
/* Of a slice; tokens: the scales of the lane's. */
MF_DEVICE void take_factors(const float *tokens, const float (&weights)[QW], factors &ret)
{
    MF_UNROLL
    for (int i = 0; i < QX * 2 * QW; i++)
        ret.of[i / 2 / QW][i / QW % 2][i % QW] = tokens[i / 2 / QW * 64 + i / QW % 2 * 8] * weights[i % QW];
}
/* next may be raised: mf_units_ratio. */
MF_DEVICE void into_units(factors &next, product &d)
{
    MF_UNROLL
    for (int i = 0; i < QX * 2 * QW; i++) {
        const int q = i / 2 / QW, half = i / QW % 2, w = i % QW;
        const float by =
            mf_units_ratio(d.units.of[q][half][w], &d.largest.of[q][half][w], &next.of[q][half][w]);
        MF_UNROLL
        for (int j = w * 16; j < MF_MIN(w * 16 + 16, N8); j++) {
            d.of[q][j][half * 2] *= by;
            d.of[q][j][half * 2 + 1] *= by;
        }
    }
    d.units = next;
}

MF_DEVICE void hold(product &d)
{
    MF_UNROLL
    for (int i = 0; i < QX * N8 * 4; i++)
        mf_matrix_hold(d.of[i / 4 / N8][i / 4 % N8][i % 4]);
}

/* N: as other cores have it; a block of few tokens leaves the second group idle instead. */
template <int N>
MF_DEVICE void multiply_tile(const mf_hip_tile_args &a, ring &r, const place &p, i32 share, product &d)
{
    const i32 first = first_token(share);
    if (is_idle(a, p, share)) {
        pass_slices(r);
        return;
    }
    weight_scales scales;
    load_scales(a, p, scales);
    MF_UNROLL
    for (int i = 0; i < QX * 2; i++)
        d.weight[i / 2][i % 2] =
            MF_WEIGHT ? a.sorted_weights[(i64)p.block * MF_BM + first + i / 2 * 64 + i % 2 * 8] : 1.0f;
    MF_UNROLL
    for (int slice = 0; slice < SLICES; slice++, r.at++) {
        const u8 *tokens = tokens_of(r);
        factors units;
        wait_full(r);
        take_factors((const float *)(tokens + MF_BM * SLICE) + first, scales.of[slice], units);
        if (slice == 0)
            d.units = d.largest = units;
        else
            into_units(units, d);
        hold(d);
        mf_matrix_begin();
        MF_UNROLL
        for (int q = 0; q < QX; q++) {
            const u64 x = mf_matrix_of(tokens + (share * TOKENS + q * 64) * SLICE),
                      w = mf_matrix_of(weights_of(r, slice));
            MF_UNROLL
            for (int s = 0; s < SLICE / 32; s++)
                mf_matrix_multiply<N8>::fp8(d.of[q], x + 2 * s, w + 2 * s, slice + s > 0);
        }
        mf_matrix_commit();
        mf_matrix_wait<0>();
        hold(d);
        leave_slice(r, 0);
    }
}

/* Two columns of one token as bf16; col: the lane's first, of eight. */
MF_DEVICE u32 leave_two(const mf_hip_tile_args &a, const place &p, i32 col, float units, float weight,
                        const float *sum)
{
#ifdef MF_BIAS
    const i32 column = p.col + col + (i32)(threadIdx.x % 4) * 2;
    return mf_bf16_pair(finished(sum[0] * units, weight, bias_of(a, p.expert, column, false)),
                        finished(sum[1] * units, weight, bias_of(a, p.expert, column + 1, false)));
#else
    (void)a, (void)p, (void)col;
    return mf_bf16_pair(sum[0] * (units * weight), sum[1] * (units * weight));
#endif
}
/* Sixteen tokens' sums of so many eights of columns, from `eight` of the tile on, as bf16 to `to`, whose rows are Stride elements apart. */
template <int Eights, int Stride>
MF_DEVICE void leave_eights(const mf_hip_tile_args &a, const place &p, const product &d, int q, int eight,
                            u16 *to)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    /* twice eight tokens, and eights of columns: four matrices of eight by eight */
    MF_UNROLL
    for (int j = 0; j < Eights; j += 2) {
        u32 v[4];
        MF_UNROLL
        for (int i = 0; i < 4; i++) {
            const int at = eight + j + i / 2;
            v[i] = leave_two(a, p, at * 8, d.units.of[q][i % 2][at / 16], d.weight[q][i % 2],
                             d.of[q][at] + i % 2 * 2);
        }
        mf_store_4(to + lane % 16 * Stride + lane / 16 * 8 + j * 8, v);
    }
}

#if ADDS_OWN
/* The id of the wave's token that is the lane's: of each 64 of the group's a wave has sixteen. Of no token where it has fewer. */
MF_DEVICE i32 own_id(const mf_hip_tile_args &a, i32 block, const writers &w)
{
    const i32 lane = w.me % MF_WAVE, row = lane / 16 * 64 + w.me / MF_WAVE * 16 + lane % 16;
    return lane / 16 < QX ? a.sorted_ids[(i64)block * MF_BM + w.first + row] : a.token;
}
#    define OWN_LANES (OWN_COLS / 8) /* lanes that add a row's columns, 16 bytes each */

/* The wave's sums, each row's to its token's of y; out: all waves'. */
template <int N>
MF_DEVICE void store_tile(const mf_hip_tile_args &a, const place &p, i32 share, product &d, u16 *out)
{
    const i32 lane = threadIdx.x % MF_WAVE, col = lane % OWN_LANES * 8;
    u16 *own = out + threadIdx.x / MF_WAVE * (OWN_BYTES / 2);
    if (is_idle(a, p, share))
        return;
    MF_UNROLL
    for (int i = 0; i < QX * (MF_BN / OWN_COLS); i++) {
        const int q = i / (MF_BN / OWN_COLS), first = i % (MF_BN / OWN_COLS) * OWN_COLS;
        leave_eights<OWN_COLS / 8, OWN_STRIDE>(a, p, d, q, first / 8, own);
        mf_wave_sync();
        MF_UNROLL
        for (i32 row = lane / OWN_LANES; row < 16 + lane / OWN_LANES; row += MF_WAVE / OWN_LANES) {
            const i32 token = mf_id_token(mf_of_lane(p.id, q * 16 + row));
            if (token < a.token && p.col + first + col < MF_N)
                mf_add_8((u16 *)a.out + (i64)token * MF_N + p.col + first + col,
                         *(const mf_16b *)(own + row * OWN_STRIDE + col));
        }
        mf_wave_sync();
    }
}
#else
/* The group's sums as bf16 into out[token][column]; a wave has sixteen tokens of each 64. */
template <int N>
MF_DEVICE void store_tile(const mf_hip_tile_args &a, const place &p, i32 share, product &d, u16 *out)
{
    if (is_idle(a, p, share))
        return;
    MF_UNROLL
    for (int q = 0; q < QX; q++) {
        const i32 token = share * TOKENS + q * 64 + threadIdx.x % GROUP / MF_WAVE * 16;
        leave_eights<N8, OUT_STRIDE>(a, p, d, q, 0, out + token * OUT_STRIDE);
    }
}
#endif
