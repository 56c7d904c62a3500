/* The product of hopper_core.inc.h with the weights for its rows and the tokens for its columns: of few tokens few columns are
 * multiplied. A wave's sums of 64 weight rows hold gate and up of a column in the same lane. */
#define WN (MF_TURNS ? MF_BN : MF_BN / GROUPS) /* weight rows of a group */
#define Q  (WN / 64)
/* With scales by slice the compiler finds no registers for more than one of them, and has every instruction wait. */
#define TRIMS (BY_BLOCK ? 0 : 2)

typedef float sums[QM][4];
typedef sums product[Q];

template <int N8> MF_DEVICE void hold(sums &d)
{
    MF_UNROLL
    for (int i = 0; i < N8 * 4; i++)
        mf_matrix_hold(d[i / 4][i % 4]);
}
#ifndef MF_W
/* 64 weight rows of a slice by its first tokens; `adds` to what d holds, or in its place. */
template <int N8> MF_DEVICE void multiply(const u8 *slice, i32 row, sums &d, bool adds)
{
    const u64 w = mf_matrix_of(slice + row * SLICE), x = mf_matrix_of(slice + MF_BN * SLICE);
    MF_UNROLL
    for (int s = 0; s < SLICE / 32; s++) {
        if (MF_FORMAT == BF16)
            mf_matrix_multiply<N8>::bf16(d, w + 2 * s, x + 2 * s, adds || s > 0);
        else
            mf_matrix_multiply<N8>::fp8(d, w + 2 * s, x + 2 * s, adds || s > 0);
    }
}
#endif

#ifdef MF_W
#    include "hopper_decode.h"
#elif BY_BLOCK

/* Products of 64 weight rows before they are scaled: two where registers hold them, so that one is scaled while the next is made. */
#    define PARTS       ((Q + 2) * QM <= 48 && Q > 1 ? 2 : 1)
/* Slices that are multiplied in one turn of a loop: within it a slice's last product is scaled while the next slice's first is
 * made. Over the end of a turn ptxas lets no matrix instruction run on. */
#    define TURN_SLICES MF_MIN(PARTS == 2 ? 4 : 1, SLICES)
/* Blocks of weights, of one scale each, that a group's rows are of: as many of gate and of up. */
#    define W_BLOCKS    MF_CEIL(WN / MF_HALVES, 128)
/* What scales the sums of a lane's two tokens of eight: by gate and by up. They are kept for a slice where registers hold them. */
#    define FACTORS     (2 * MF_HALVES)
#    define KEEPS       (PARTS == 2 && W_BLOCKS == 1 && (Q + 2) * QM * 4 + FACTORS * QM <= 208)

/* Of each block of the group's weights: of gate, or all, and of up. */
struct weight_scales {
    float low[W_BLOCKS], high[W_BLOCKS];
};
/* from: the first slice's of the group's first block. */
MF_DEVICE void load_scales(const float *from, i32 slice, weight_scales &ret)
{
    MF_UNROLL
    for (int b = 0; b < W_BLOCKS; b++) {
        const float *s = from + (i64)b * BLOCKS_D + MF_MIN(slice, SLICES - 1);
        ret.low[b] = s[0];
        ret.high[b] = MF_HALVES == 2 ? s[(i64)(MF_N / 128) * BLOCKS_D] : ret.low[b];
    }
}
/* Of the lane's slice of the next 32, where the last ones end. */
MF_DEVICE void renew_scales(const float *from, i32 slice, weight_scales &of_lane)
{
    static_assert(SLICES <= MF_WAVE || MF_WAVE % TURN_SLICES == 0, "a turn's scales are those of one load");
    if (scales_have_ended(slice))
        load_scales(from, slice + threadIdx.x % MF_WAVE, of_lane);
}
/* A slice's, which one lane has. */
MF_DEVICE void take_scales(const weight_scales &of_lane, i32 slice, weight_scales &ret)
{
    MF_UNROLL
    for (int b = 0; b < W_BLOCKS; b++) {
        ret.low[b] = mf_of_lane(of_lane.low[b], slice);
        ret.high[b] = mf_of_lane(of_lane.high[b], slice);
    }
}
/* tokens: the scales of eight. */
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

/* Slices from `slice` on. of_lane: the scales of the lane's slice of 32. */
template <int N8, int Slices>
MF_DEVICE void multiply_slices(ring &r, i32 first_row, const weight_scales &of_lane, i32 slice, product &d)
{
    sums part[PARTS];
    weight_scales next, now; /* of the slice that begins, and of the one that is scaled */
    float kept[KEEPS ? N8 : 1][FACTORS];
    const float *tokens = nullptr;
    MF_UNROLL
    for (int i = 0; i < Slices * Q + PARTS - 1; i++) {
        const bool begins = i < Slices * Q;
        const int made = i - (PARTS - 1), q = made % Q; /* behind the one that begins */
        if (begins) {
            if (i > 0 && i % Q == 0)
                r.at++;
            if (i % Q == 0) {
                take_scales(of_lane, slice + i / Q,
                            next); /* before the wait, as hopper_tokens.inc.h has it */
                wait_full(r);
                if (GATHERS)
                    mf_async_fence();
            }
            hold<N8>(part[i % PARTS]);
            mf_matrix_begin();
            multiply<N8>(slice_of(r), first_row + i % Q * 64, part[i % PARTS], false);
            mf_matrix_commit();
        }
        if (made < 0)
            continue;
        if (q == 0) {
            tokens = (const float *)(slice_of(r) + (MF_BN + MF_BM) * SLICE);
            now = next;
            MF_UNROLL
            for (int j = 0; KEEPS && j < N8; j++)
                make_factors(tokens + j * 8, now.low[0], now.high[0], kept[KEEPS ? j : 0]);
        }
        if (begins)
            mf_matrix_wait<PARTS - 1>();
        else
            mf_matrix_wait<0>();
        hold<N8>(part[made % PARTS]);
        if (KEEPS && q == Q - 1)
            leave_slice(r, begins ? PARTS - 1 : 0);
        MF_UNROLL
        for (int j = 0; j < N8; j++) {
            const int b = q * 64 / MF_HALVES / 128;
            if (!KEEPS)
                make_factors(tokens + j * 8, now.low[b], now.high[b], kept[0]);
            add_scaled(kept[KEEPS ? j : 0], part[made % PARTS][j], d[q][j]);
        }
        if (!KEEPS && q == Q - 1)
            leave_slice(r, begins ? PARTS - 1 : 0);
    }
    r.at++;
}
template <int N8>
MF_DEVICE void multiply_tile(const mf_hip_tile_args &a, ring &r, const place &p, i32 share, product &d)
{
    const i32 first_row = share * WN, block = MF_MIN(p.col + first_row / MF_HALVES, MF_N - 1) / 128;
    const float *w_scale = a.w_scale + ((i64)p.expert * MF_CEIL(ROWS_OF_W, 128) + block) * BLOCKS_D;
    weight_scales of_lane;
    i32 slice = 0;
    MF_UNROLL
    for (int i = 0; i < Q * N8 * 4; i++)
        d[i / (N8 * 4)][i / 4 % N8][i % 4] = 0;
    load_scales(w_scale, threadIdx.x % MF_WAVE, of_lane);
    MF_NO_UNROLL
    for (; slice + TURN_SLICES <= SLICES; slice += TURN_SLICES) {
        renew_scales(w_scale, slice, of_lane);
        multiply_slices<N8, TURN_SLICES>(r, first_row, of_lane, slice, d);
    }
    if (SLICES % TURN_SLICES > 0) {
        renew_scales(w_scale, slice, of_lane);
        multiply_slices<N8, MF_MAX(SLICES % TURN_SLICES, 1)>(r, first_row, of_lane, slice, d);
    }
}

#else

template <int N8>
MF_DEVICE void multiply_tile(const mf_hip_tile_args &a, ring &r, const place &p, i32 share, product &d)
{
    const i32 first_row = share * WN;
    MF_NO_UNROLL
    for (i32 slice = 0; slice < SLICES; slice++) {
        const u8 *from = slice_of(r);
        wait_full(r);
        if (COPIES)
            mf_async_fence();
        MF_UNROLL
        for (int q = 0; q < Q; q++)
            hold<N8>(d[q]);
        mf_matrix_begin();
        MF_UNROLL
        for (int q = 0; q < Q; q++)
            multiply<N8>(from, first_row + q * 64, d[q], slice > 0);
        mf_matrix_commit();
        mf_matrix_wait<1>();
        if (slice > 0)
            leave_slice(r, 1);
        r.at++;
    }
    mf_matrix_wait<0>();
    MF_UNROLL
    for (int q = 0; q < Q; q++)
        hold<N8>(d[q]);
    leave_slice(r, 1);
}

#endif

/* Columns of a lane's sums of the 16 weight rows from `row` on: of the first two, and of the others, which are of up where
 * there is up. */
MF_DEVICE i32 low_column(i32 col, i32 row)
{
    return col + row / MF_HALVES + (i32)(threadIdx.x % MF_WAVE >> 2);
}
MF_DEVICE i32 high_column(i32 col, i32 row)
{
    return low_column(col, row) + (MF_HALVES == 2 ? 0 : 8);
}

#ifdef MF_QUANT
MF_DEVICE bool leaves_codes(const mf_hip_tile_args &, const place &)
{
    return false;
}
#    define LEFT_ROWS MF_BM
#endif

#ifdef MF_W
/* What scales whole sums. */
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
/* Scales by row, or of all tokens and of the expert, once the sum is whole. */
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

/* The wave's sums of 16 weight rows as bf16 into out[token][column], turned on the way. */
template <int N8>
MF_DEVICE void leave(const mf_hip_tile_args &a, const place &p, i32 row, const sums &d, u16 *out)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    const float low = bias_of(a, p.expert, low_column(p.col, row), false);
    const float high = bias_of(a, p.expert, high_column(p.col, row), MF_HALVES == 2);
    const float *weights = a.sorted_weights + (i64)p.block * MF_BM + (lane & 3) * 2;
#if MF_HALVES == 2
    /* four times eight tokens by eight columns */
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
        mf_store_turned_4(out + token * OUT_STRIDE + row / 2, h);
    }
#else
    /* twice eight tokens by sixteen columns */
    MF_UNROLL
    for (int j = 0; j < N8; j += 2) {
        u32 z[4];
        MF_UNROLL
        for (int i = 0; i < 2; i++) {
            const int at = MF_MIN(j + i, N8 - 1);
            const float w0 = MF_WEIGHT ? weights[at * 8] : 1.0f, w1 = MF_WEIGHT ? weights[at * 8 + 1] : 1.0f;
            z[2 * i] =
                mf_bf16_pair(leaving(finished(d[at][0], w0, low)), leaving(finished(d[at][1], w1, low)));
            z[2 * i + 1] =
                mf_bf16_pair(leaving(finished(d[at][2], w0, high)), leaving(finished(d[at][3], w1, high)));
        }
        const i32 token = MF_MIN(j + (lane >> 4), N8 - 1) * 8 + (lane & 7);
        mf_store_turned_4(out + token * OUT_STRIDE + row + ((lane >> 3) & 1) * 8, z);
    }
#endif
}

/* The product into out. */
template <int N8>
MF_DEVICE void store_tile(const mf_hip_tile_args &a, const place &p, i32 share, product &d, u16 *out)
{
    MF_UNROLL
    for (int q = 0; q < Q; q++) {
        const i32 row = share * WN + q * 64 + threadIdx.x % GROUP / MF_WAVE * 16;
#if defined(MF_W) || (MF_FORMAT != BF16 && !BY_BLOCK)
        scale_by_row<N8>(a, p.block, p.expert, p.col, row, d[q]);
#endif
        leave<N8>(a, p, row, d[q], out);
    }
}
