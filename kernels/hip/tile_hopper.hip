/* A stage of the two-stage grouped GEMM for many tokens: Hopper's own core.
 *
 * As in tile.hip the weights are the rows of the product and the tokens its columns, a slice is 128 bytes along K of every
 * row, and of gate and up there are eight rows each in turn. Four waves bring slices, two groups of four waves
 * multiply: they meet at barriers in LDS only, so one group's sums are scaled or stored while the other's are made. Weights,
 * and the tokens of stage 2, come as boxes of tensors in bulk; the tokens of stage 1 are gathered, row by row.
 *
 * The blocks that run at one time have neighbouring tiles: rows of weights that several expert blocks share, and tokens that
 * several columns share, are read while the last cache has them.
 *
 *   MF_FORMAT, MF_STAGES  as tile.hip has them, and what tile_parts.h says
 *   MF_ADD      stage 2 adds each row to that of its token in y, which was zeroed; in no order
 *   MF_TURNS    1: each group multiplies a tile of its own, turn and turn about; 0: the groups share a tile's rows
 *
 *   lds: ring[MF_STAGES] of { weights [BN][128], tokens [BM][128], scales float[BM] } | out bf16 [BM][COLS + 8], a group's own
 *        with MF_TURNS | full u64[MF_STAGES] | empty u64[MF_STAGES] */
#define MF_WGMMA 1
#include "dialect.h"
#include "tile_parts.h"
#include "dialect_hopper.h"

#define BF16      0
#define FP8_TOKEN 1
#define FP8_BLOCK 2

#define SLICE      128
#define BYTES      (MF_FORMAT == BF16 ? 2 : 1)
#define SLICE_K    (SLICE / BYTES)
#define SLICES     MF_CEIL(MF_D, SLICE_K)
#define BLOCKS_D   MF_CEIL(MF_D, 128)
#define GROUP      128
#define GROUPS     2
#define WN         (MF_TURNS ? MF_BN : MF_BN / GROUPS) /* weight rows of a group */
#define Q          (WN / 64)
#define QM         (MF_BM / 8)
/* Tokens of a block that are multiplied, by eights: all, half or a quarter, where a matrix instruction has that width. */
#define QM_HALF    (QM / 2)
#define QM_LEAST   (QM == 12 ? 6 : QM / 4)
/* With scales by slice the compiler finds no registers for more than one of them, and has every instruction wait. */
#define TRIMS      (MF_FORMAT != FP8_BLOCK)
#define SCALES     (MF_FORMAT == FP8_BLOCK ? MF_BM * 4 : 0)
#define RING_BYTES (MF_CEIL(MF_BN * SLICE + MF_BM * SLICE + SCALES, 1024) * 1024)
#define OUT_BYTES  (MF_BM * OUT_STRIDE * 2)
#define OUT_WAVES  (MF_TURNS ? 4 : 4 * GROUPS) /* that write one out */
#define GATHERS    (MF_STAGE == 1)
#define COPIES     (GATHERS || MF_FORMAT == FP8_BLOCK) /* all four bringing waves have something to copy */
#define PASSES     MF_CEIL(MF_BM, GROUP / 8)
/* Registers of a thread that brings, that remembers so many rows, and of one that multiplies: 64 Ki in all. */
#define BRINGS     (GATHERS && PASSES > 8 ? 56 : 40)
#define MULTIPLIES (GATHERS && PASSES > 8 ? 224 : 232)

struct ring {
    u8 *slices;
    u64 *full, *empty;
    u32 at; /* slices so far */
};
MF_DEVICE u8 *slice_of(const ring &r)
{
    return r.slices + r.at % MF_STAGES * RING_BYTES;
}
MF_DEVICE void wait_full(const ring &r)
{
    mf_barrier_wait(r.full + r.at % MF_STAGES, r.at / MF_STAGES & 1);
}
MF_DEVICE void wait_empty(const ring &r)
{
    mf_barrier_wait(r.empty + r.at % MF_STAGES, (r.at / MF_STAGES & 1) ^ 1);
}
/* The slice before the last `ago` ones is no longer read by this wave. */
MF_DEVICE void leave_slice(const ring &r, u32 ago)
{
    mf_wave_sync();
    if (threadIdx.x % MF_WAVE == 0)
        mf_barrier_arrive(r.empty + (r.at - ago) % MF_STAGES);
}

/* ---- the waves that bring ---- */

/* Where the rows lie that a thread gathers, in 16 bytes from x; ~0: padding. */
struct rows {
    u32 at[PASSES];
};
MF_DEVICE void find_rows(const mf_hip_tile_args &a, i32 block, rows &ret)
{
    const i32 me = threadIdx.x % GROUP;
    MF_UNROLL
    for (int p = 0; p < PASSES; p++) {
        const i32 r = me / 8 + p * (GROUP / 8);
        const i32 token = r < MF_BM ? mf_id_token(a.sorted_ids[(i64)block * MF_BM + r]) : a.token;
        ret.at[p] = token < a.token ? (u32)token * (MF_D * BYTES / 16) + me % 8 : ~0u;
    }
}
MF_DEVICE void gather(const mf_hip_tile_args &a, const rows &from, i32 slice, u8 *tokens)
{
    const i32 me = threadIdx.x % GROUP, row = me / 8, chunk = me % 8;
    const bool within = slice * SLICE + chunk * 16 < MF_D * BYTES;
    u8 *to = tokens + row * SLICE + ((chunk ^ (row & 7)) << 4);
    const u8 *x = (const u8 *)a.x + slice * SLICE;
    MF_UNROLL
    for (int p = 0; p < PASSES; p++) {
        const bool there = within && from.at[p] != ~0u;
        if (MF_BM % (GROUP / 8) == 0 || row + p * (GROUP / 8) < MF_BM)
            mf_copy_async_16(to + p * (GROUP / 8) * SLICE, x + (there ? (u64)from.at[p] * 16 : 0), there);
    }
}
/* Each token's scale of a slice. */
MF_DEVICE void copy_scales(const mf_hip_tile_args &a, const i64 (&from)[2], i32 slice, u8 *scales)
{
    const i32 me = threadIdx.x % GROUP;
    MF_UNROLL
    for (int p = 0; p < MF_CEIL(MF_BM, GROUP); p++) {
        if (me + p * GROUP < MF_BM)
            mf_copy_async_4(scales + (me + p * GROUP) * 4, a.x_scale + (from[p] < 0 ? 0 : from[p] + slice), from[p] >= 0);
    }
}
MF_DEVICE void find_scales(const mf_hip_tile_args &a, i32 block, i64 (&ret)[2])
{
    MF_UNROLL
    for (int p = 0; p < MF_CEIL(MF_BM, GROUP); p++) {
        const i32 r = threadIdx.x % GROUP + p * GROUP;
        const i64 at = (i64)block * MF_BM + r;
        const i32 token = r < MF_BM ? mf_id_token(a.sorted_ids[at]) : a.token;
        ret[p] = token < a.token ? (GATHERS ? (i64)token : at) * BLOCKS_D : -1;
    }
}

MF_DEVICE void bring(const mf_hip_bulk_args &a, ring r, i32 n_tiles)
{
    const i32 me = threadIdx.x % GROUP;
    const mf_hip_tile_args &t = a.tile;
    rows row;
    i64 scale[2] = {-1, -1};
    if (!COPIES && me > 0)
        return;
    for (i32 i = blockIdx.x; i < n_tiles; i += gridDim.x) {
        const i32 block = i / TILES_N, col = i % TILES_N * COLS, expert = t.experts[block];
        if (GATHERS)
            find_rows(t, block, row);
        if (MF_FORMAT == FP8_BLOCK)
            find_scales(t, block, scale);
        for (i32 slice = 0; slice < SLICES; slice++, r.at++) {
            u8 *to = slice_of(r), *tokens = to + MF_BN * SLICE;
            u64 *full = r.full + r.at % MF_STAGES;
            wait_empty(r);
            if (me == 0) {
                mf_barrier_expect(full, (MF_BN + (GATHERS ? 0 : MF_BM)) * SLICE);
                mf_bulk_load_5(to, &a.w_map, full, slice * SLICE_K, 0, 0, col / 8, expert);
                if (!GATHERS)
                    mf_bulk_load_2(tokens, &a.x_map, full, slice * SLICE_K, block * MF_BM);
            }
            if (GATHERS)
                gather(t, row, slice, tokens);
            if (MF_FORMAT == FP8_BLOCK)
                copy_scales(t, scale, slice, tokens + MF_BM * SLICE);
            if (COPIES)
                mf_barrier_arrive_copied(full);
        }
    }
    mf_copy_commit();
    mf_copy_wait<0>();
}

/* ---- the waves that multiply ---- */

typedef float sums[QM][4];

template <int N8> MF_DEVICE void hold(sums &d)
{
    MF_UNROLL
    for (int i = 0; i < N8 * 4; i++)
        mf_matrix_hold(d[i / 4][i % 4]);
}
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

#if MF_FORMAT == FP8_BLOCK

/* Products of a slice before they are scaled: two where registers hold them, so that one is scaled while the next is made. */
#define PARTS ((Q + 2) * QM <= 48 && Q > 1 ? 2 : 1)

/* Of the 64 weight rows q of a group: those of gate, or all, and those of up. */
struct weight_scales {
    float low[Q], high[Q];
};
MF_DEVICE void load_scales(const mf_hip_tile_args &a, i32 expert, i32 col, i32 first_row, i32 slice, weight_scales &ret)
{
    MF_UNROLL
    for (int q = 0; q < Q; q++) {
        const i32 c = col + (first_row + q * 64) / MF_HALVES;
        const i32 block = MF_MIN(c, MF_N - 1) / 128;
        const float *s = a.w_scale + ((i64)expert * MF_CEIL(ROWS_OF_W, 128) + block) * BLOCKS_D + MF_MIN(slice, SLICES - 1);
        ret.low[q] = s[0];
        ret.high[q] = MF_HALVES == 2 ? s[(i64)(MF_N / 128) * BLOCKS_D] : ret.low[q];
    }
}
template <int N8> MF_DEVICE void add_scaled(const u8 *slice, float low, float high, const sums &part, sums &d)
{
    const float *scales = (const float *)(slice + (MF_BN + MF_BM) * SLICE) + (threadIdx.x & 3) * 2;
    MF_UNROLL
    for (int j = 0; j < N8; j++) {
        const float2 s = *(const float2 *)(scales + j * 8);
        d[j][0] += part[j][0] * (low * s.x);
        d[j][1] += part[j][1] * (low * s.y);
        d[j][2] += part[j][2] * (high * s.x);
        d[j][3] += part[j][3] * (high * s.y);
    }
}
template <int N8>
MF_DEVICE void multiply_tile(const mf_hip_tile_args &a, ring &r, i32 expert, i32 col, i32 first_row, sums (&d)[Q])
{
    weight_scales now, next;
    sums part[PARTS];
    MF_UNROLL
    for (int i = 0; i < Q * N8 * 4; i++)
        d[i / (N8 * 4)][i / 4 % N8][i % 4] = 0;
    load_scales(a, expert, col, first_row, 0, next);
    MF_NO_UNROLL
    for (i32 slice = 0; slice < SLICES; slice++) {
        const u8 *from = slice_of(r);
        now = next;
        wait_full(r);
        mf_matrix_fence();
        load_scales(a, expert, col, first_row, slice + 1, next);
        MF_UNROLL
        for (int q = 0; q < Q + PARTS - 1; q++) {
            const int made = q - (PARTS - 1); /* behind the one that begins */
            if (q < Q) {
                hold<N8>(part[q % PARTS]);
                mf_matrix_begin();
                multiply<N8>(from, first_row + q * 64, part[q % PARTS], false);
                mf_matrix_commit();
            }
            if (made < 0)
                continue;
            if (q < Q)
                mf_matrix_wait<PARTS - 1>();
            else
                mf_matrix_wait<0>();
            hold<N8>(part[made % PARTS]);
            add_scaled<N8>(from, now.low[made], now.high[made], part[made % PARTS], d[made]);
        }
        leave_slice(r, 0);
        r.at++;
    }
}

#else

template <int N8>
MF_DEVICE void multiply_tile(const mf_hip_tile_args &a, ring &r, i32 expert, i32 col, i32 first_row, sums (&d)[Q])
{
    MF_NO_UNROLL
    for (i32 slice = 0; slice < SLICES; slice++) {
        const u8 *from = slice_of(r);
        wait_full(r);
        if (COPIES)
            mf_matrix_fence();
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

#if MF_FORMAT == FP8_TOKEN
/* Scales by row, once the sum is whole. */
template <int N8>
MF_DEVICE void scale_by_row(const mf_hip_tile_args &a, i32 block, i32 expert, i32 col, i32 row, sums &d)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    const i32 low_at = low_column(col, row), high_at = high_column(col, row) + (MF_HALVES == 2 ? MF_N : 0);
    const float *w = a.w_scale + (i64)expert * ROWS_OF_W;
    const float low = w[MF_MIN(low_at, ROWS_OF_W - 1)], high = w[MF_MIN(high_at, ROWS_OF_W - 1)];
    MF_UNROLL
    for (int j = 0; j < N8; j++) {
        float s[2];
        MF_UNROLL
        for (int c = 0; c < 2; c++) {
            const i64 at = (i64)block * MF_BM + j * 8 + (lane & 3) * 2 + c;
            const i32 token = mf_id_token(a.sorted_ids[at]);
            s[c] = token < a.token ? a.x_scale[MF_STAGE == 1 ? (i64)token : at] : 0;
        }
        d[j][0] *= low * s[0];
        d[j][1] *= low * s[1];
        d[j][2] *= high * s[0];
        d[j][3] *= high * s[1];
    }
}
#endif

/* ---- from sums to rows ---- */

/* What is known of a tile before it is multiplied. */
struct place {
    i32 block, col, expert;
    bool few, fewest; /* the block's tokens fit QM_HALF or QM_LEAST: padding is at its end */
};

/* The wave's sums of 16 weight rows as bf16 into out[token][column], turned on the way. */
template <int N8> MF_DEVICE void leave(const mf_hip_tile_args &a, const place &p, i32 row, const sums &d, u16 *out)
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
            z[2 * i] = mf_bf16_pair(leaving(finished(d[at][0], w0, low)), leaving(finished(d[at][1], w1, low)));
            z[2 * i + 1] = mf_bf16_pair(leaving(finished(d[at][2], w0, high)), leaving(finished(d[at][3], w1, high)));
        }
        const i32 token = MF_MIN(j + (lane >> 4), N8 - 1) * 8 + (lane & 7);
        mf_store_turned_4(out + token * OUT_STRIDE + row + ((lane >> 3) & 1) * 8, z);
    }
#endif
}

/* out's rows: in bulk, each by one thread, or quantised. */
MF_DEVICE void store(const mf_hip_tile_args &a, i32 block, i32 col, const u16 *out, i32 me)
{
#ifdef MF_QUANT
    store_quantised(a, block, col, out, me, OUT_WAVES * MF_WAVE);
#else
    for (i32 row = me; row < MF_BM; row += OUT_WAVES * MF_WAVE) {
        const i64 at = (i64)block * MF_BM + row;
        const i32 id = a.sorted_ids[at];
        const i32 bytes = MF_MIN(COLS, MF_N - col) * 2;
        if (mf_id_token(id) >= a.token)
            continue;
#ifdef MF_ADD
        mf_bulk_add((u16 *)a.out + (i64)mf_id_token(id) * MF_N + col, out + row * OUT_STRIDE, bytes);
#else
        const i64 to = MF_STAGE == 1 ? at : (i64)mf_id_token(id) * MF_K + mf_id_slot(id);
        mf_bulk_store((u16 *)a.out + to * MF_N + col, out + row * OUT_STRIDE, bytes);
#endif
    }
    mf_bulk_commit();
#endif
}

MF_DEVICE place place_of(const mf_hip_tile_args &a, i32 i)
{
    place p;
    p.block = i / TILES_N;
    p.col = i % TILES_N * COLS;
    p.expert = a.experts[p.block];
    p.few = mf_id_token(a.sorted_ids[(i64)p.block * MF_BM + QM_HALF * 8]) >= a.token;
    p.fewest = mf_id_token(a.sorted_ids[(i64)p.block * MF_BM + QM_LEAST * 8]) >= a.token;
    return p;
}

/* Where a group's part of a tile is, and how the waves meet that write one out. */
struct part_of {
    i32 first_row, wave_row, number, me;
    bool waits, hands_on; /* MF_TURNS: for the other group, to it */
    u16 *out;
};

/* A tile's product into out. */
template <int N8> MF_DEVICE void make_tile(const mf_hip_tile_args &a, ring &r, const place &p, const part_of &mine)
{
    const i32 group = threadIdx.x / GROUP;
    sums d[Q];
    /* A group may not run ahead to its slices: of a barrier only the last phase and the one before can be told apart. */
    if (MF_TURNS && mine.waits)
        mf_group_sync(GROUPS + 1 + group, GROUPS * GROUP);
    multiply_tile<N8>(a, r, p.expert, p.col, mine.first_row, d);
    if (MF_TURNS && mine.hands_on)
        mf_group_arrive(GROUPS + 1 + (group + 1) % GROUPS, GROUPS * GROUP);
    mf_bulk_wait_read();
    mf_group_sync(mine.number, OUT_WAVES * MF_WAVE);
    MF_UNROLL
    for (int q = 0; q < Q; q++) {
        const i32 row = mine.first_row + q * 64 + mine.wave_row;
#if MF_FORMAT == FP8_TOKEN
        scale_by_row<N8>(a, p.block, p.expert, p.col, row, d[q]);
#endif
        leave<N8>(a, p, row, d[q], mine.out);
    }
    mf_matrix_fence();
    mf_group_sync(mine.number, OUT_WAVES * MF_WAVE);
}

MF_DEVICE void multiply_tiles(const mf_hip_tile_args &a, ring r, u8 *outs, i32 n_tiles)
{
    const i32 group = threadIdx.x / GROUP, stride = (i32)gridDim.x;
    part_of mine;
    mine.first_row = MF_TURNS ? 0 : group * WN;
    mine.wave_row = threadIdx.x % GROUP / MF_WAVE * 16;
    mine.number = MF_TURNS ? 1 + group : 1;
    mine.me = MF_TURNS ? threadIdx.x % GROUP : threadIdx.x;
    mine.out = (u16 *)(outs + (MF_TURNS ? group * OUT_BYTES : 0));
    i32 turn = MF_TURNS ? group : 0;
    i32 i = (i32)blockIdx.x + turn * stride;
    if (MF_TURNS)
        r.at += turn * SLICES;
    place next;
    if (i < n_tiles)
        next = place_of(a, i);
    for (; i < n_tiles; i += (MF_TURNS ? GROUPS : 1) * stride, turn += GROUPS) {
        const place p = next;
        if (i + (MF_TURNS ? GROUPS : 1) * stride < n_tiles)
            next = place_of(a, i + (MF_TURNS ? GROUPS : 1) * stride);
        mine.waits = turn > 0;
        mine.hands_on = i + stride < n_tiles;
        if (TRIMS && p.fewest)
            make_tile<QM_LEAST>(a, r, p, mine);
        else if (TRIMS && p.few)
            make_tile<QM_HALF>(a, r, p, mine);
        else
            make_tile<QM>(a, r, p, mine);
        store(a, p.block, p.col, mine.out, mine.me);
        if (MF_TURNS)
            r.at += SLICES; /* the other group's */
    }
    mf_bulk_wait_read();
}

extern "C" __global__ void __launch_bounds__(GROUP *(GROUPS + 1), 1) mf_tile_hopper(const __grid_constant__ mf_hip_bulk_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    u8 *outs = lds + MF_STAGES * RING_BYTES;
    u64 *full = (u64 *)(outs + (MF_TURNS ? GROUPS : 1) * OUT_BYTES);
    const ring r = {lds, full, full + MF_STAGES, 0};
    const i32 n_tiles = a.tile.num_valid[0] / MF_BM * TILES_N;
    if (threadIdx.x == 0) {
        for (int s = 0; s < MF_STAGES; s++) {
            mf_barrier_init(r.full + s, 1 + (COPIES ? GROUP : 0));
            mf_barrier_init(r.empty + s, OUT_WAVES);
        }
        mf_matrix_fence();
    }
    __syncthreads();
    if (threadIdx.x >= GROUP * GROUPS) {
        mf_registers_give<BRINGS>();
        bring(a, r, n_tiles);
    } else {
        mf_registers_take<MULTIPLIES>();
        multiply_tiles(a.tile, r, outs, n_tiles);
    }
}
