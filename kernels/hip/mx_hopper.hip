/* A stage of mx and wint4 by Hopper's core: weights of four bits are decoded into the registers that wgmma multiplies
 * (hopper_decode.h); tokens come as bf16, or become it on their way into LDS (hopper_narrow.h).
 *
 * Four waves bring slices, two groups of four waves multiply: they meet at barriers in LDS only, so one group's sums are stored
 * while the other's are made. Weights come as boxes of tensors in bulk. The blocks that run at one time have neighbouring tiles:
 * rows of weights that several expert blocks share, and tokens that several columns share, are read while the last cache has
 * them. A block's tiles are its own from the start, where tile_hopper.hip's are taken by whoever is free (hopper_core.inc.h).
 *
 *   MF_W, MF_X  formats of weights and tokens (narrow.h), MF_STAGES, and what tile_parts.inc.h says
 *   MF_ADD      stage 2 adds each row to that of its token in y, which was zeroed; in no order
 *   MF_BLOCKS   of a unit at once
 *
 *   lds: ring[MF_STAGES] of { weights [BN][64], tokens [BM][256], scales } | out bf16 [BM][COLS + 8] |
 *        full u64[MF_STAGES] | empty u64[MF_STAGES] */
#define MF_WGMMA 1
#define MF_TURNS 0
#include "dialect.h"
#ifndef MF_BLOCKS
#    define MF_BLOCKS 1
#endif
#define BYTES     2 /* of an element of the tokens */
#define BY_BLOCK  0
#define BY_TENSOR 0
#include "tile_parts.inc.h"
#include "narrow.h"
#include "narrow_scales.h"
#define MF_FORMAT BF16
#define W_SLICE   64
#define X_SLICE   256
#include "dialect_hopper.h"

#define SLICE_K    (X_SLICE / BYTES)
#define SLICES     MF_CEIL(MF_D, SLICE_K)
#define BLOCKS_D   MF_CEIL(MF_D, 128)
#define GROUP      128
#define GROUPS     2
/* Tokens of a block that are multiplied, by eights: as few of these widths as hold them, where a matrix instruction has them. */
#define QM         (MF_BM / 8)
#define QM_HALF    (QM / 2)
#define FOR_WIDTHS(X) X(6) X(4) X(2) X(1)
#define SCALES (MF_BN * SCALES_WORDS * 4)
#define RING_BYTES (MF_CEIL(MF_BN * W_SLICE + MF_BM * X_SLICE + SCALES, 1024) * 1024)
#define OUT_BYTES  (MF_BM * OUT_STRIDE * 2)
#define OUT_WAVES  (MF_TURNS ? 4 : 4 * GROUPS) /* that write one out */
#define GATHERS    (MF_STAGE == 1)
#define COPIES     (GATHERS || BY_BLOCK) /* all four bringing waves have something to copy */
#define ARRIVALS (1 + 2 * GROUP) /* at a full slice: of copies, and of stores */
#define PASSES     MF_CEIL(MF_BM, GROUP / 8)
/* Registers of a thread that brings, that remembers so many rows or has tokens on their way, and of one that multiplies: 64 Ki
 * in all. */
#if MF_BLOCKS == 2
#    define BRINGS     64
#    define MULTIPLIES 88
#else
#    define BRINGS     88
#    define MULTIPLIES 208
#endif

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

/* Tile i of all: block and column. Some columns, all where out is in cache whole, are made of every block before the next. */
MF_DEVICE void find_tile(const mf_hip_tile_args &a, i32 i, i32 n_blocks, i32 &ret_block, i32 &ret_col)
{
    const i32 chunk = i / (n_blocks * a.columns), first = chunk * a.columns, width = MF_MIN(a.columns, TILES_N - first);
    const i32 within = i - n_blocks * first;
    ret_block = within / width;
    ret_col = (first + within % width) * COLS;
}

#define W_BOX W_SLICE /* elements of the box: bytes */
/* A slice of a tile's weights, in one box. Where rows lie by sixteens, eight columns are not always as far from the next
 * eight: the box then counts sixteens through all experts, and the eights in them. */
MF_DEVICE void bring_weights(const mf_hip_bulk_args &a, u8 *to, u64 *full, i32 slice, i32 col, i32 expert)
{
#if defined(MF_GATE_ROWS) && MF_GATE_ROWS == 16
    mf_bulk_load_5(to, &a.w_map, full, slice * W_BOX, 0, 0, 0, expert * (MF_N / 16) + col / 16);
#else
    mf_bulk_load_5(to, &a.w_map, full, slice * W_BOX, 0, 0, col / 8, expert);
#endif
}

#include "hopper_narrow.h"

/* What is known of a tile before it is multiplied. */
struct place {
    i32 block, col, expert;
    i32 width; /* that holds the block's tokens: padding is at its end */
};

#include "hopper_weights.inc.h"

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
#    ifdef MF_ADD
        mf_bulk_add((u16 *)a.out + (i64)mf_id_token(id) * MF_N + col, out + row * OUT_STRIDE, bytes);
#    else
        const i64 to = MF_STAGE == 1 ? at : (i64)mf_id_token(id) * MF_K + mf_id_slot(id);
        mf_bulk_store((u16 *)a.out + to * MF_N + col, out + row * OUT_STRIDE, bytes);
#    endif
    }
    mf_bulk_commit();
#endif
}

MF_DEVICE place place_of(const mf_hip_tile_args &a, i32 i, i32 n_blocks)
{
    place p;
    find_tile(a, i, n_blocks, p.block, p.col);
    p.expert = a.experts[p.block];
    p.width = QM;
#define FITS(n)                                                                                        \
    if ((n) < QM && mf_id_token(a.sorted_ids[(i64)p.block * MF_BM + MF_MIN(n, QM - 1) * 8]) >= a.token) \
        p.width = n;
    FOR_WIDTHS(FITS)
#undef FITS
    return p;
}

/* How the waves meet that write a tile's rows. */
struct part_of {
    i32 share, number, me;
    bool waits, hands_on; /* MF_TURNS: for the other group, to it */
    u16 *out;
};

/* A tile's product into out. */
template <int N> MF_DEVICE void make_tile(const mf_hip_tile_args &a, ring &r, const place &p, const part_of &mine)
{
    const i32 group = threadIdx.x / GROUP;
    product d;
    /* A group may not run ahead to its slices: of a barrier only the last phase and the one before can be told apart. */
    if (MF_TURNS && mine.waits)
        mf_group_sync(GROUPS + 1 + group, GROUPS * GROUP);
    multiply_tile<N>(a, r, p, mine.share, d);
    if (MF_TURNS && mine.hands_on)
        mf_group_arrive(GROUPS + 1 + (group + 1) % GROUPS, GROUPS * GROUP);
    mf_bulk_wait_read();
    mf_group_sync(mine.number, OUT_WAVES * MF_WAVE);
    leave_tile<N>(a, p, mine.share, d, mine.out);
    mf_matrix_fence();
    mf_group_sync(mine.number, OUT_WAVES * MF_WAVE);
}

MF_DEVICE void multiply_tiles(const mf_hip_tile_args &a, ring r, u8 *outs, i32 n_blocks)
{
    const i32 n_tiles = n_blocks * TILES_N;
    const i32 group = threadIdx.x / GROUP, stride = (i32)gridDim.x;
    part_of mine;
    mine.share = MF_TURNS ? 0 : group;
    mine.number = MF_TURNS ? 1 + group : 1;
    mine.me = MF_TURNS ? threadIdx.x % GROUP : threadIdx.x;
    mine.out = (u16 *)(outs + (MF_TURNS ? group * OUT_BYTES : 0));
    i32 turn = MF_TURNS ? group : 0;
    i32 i = (i32)blockIdx.x + turn * stride;
    if (MF_TURNS)
        r.at += turn * SLICES;
    place next;
    if (i < n_tiles)
        next = place_of(a, i, n_blocks);
    for (; i < n_tiles; i += (MF_TURNS ? GROUPS : 1) * stride, turn += GROUPS) {
        const place p = next;
        if (i + (MF_TURNS ? GROUPS : 1) * stride < n_tiles)
            next = place_of(a, i + (MF_TURNS ? GROUPS : 1) * stride, n_blocks);
        mine.waits = turn > 0;
        mine.hands_on = i + stride < n_tiles;
#define MAKE(n)                             \
    if (TRIMS && (n) < QM && p.width == (n)) \
        make_tile<MF_MIN(n, QM)>(a, r, p, mine); \
    else
        FOR_WIDTHS(MAKE)
        make_tile<QM>(a, r, p, mine);
#undef MAKE
        store(a, p.block, p.col, mine.out, mine.me);
        if (MF_TURNS)
            r.at += SLICES; /* the other group's */
    }
    mf_bulk_wait_read();
}

extern "C" __global__ void __launch_bounds__(GROUP *(GROUPS + 1), MF_BLOCKS) mf_mx_hopper(const __grid_constant__ mf_hip_bulk_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    u8 *outs = lds + MF_STAGES * RING_BYTES;
    u64 *full = (u64 *)(outs + (MF_TURNS ? GROUPS : 1) * OUT_BYTES);
    const ring r = {lds, full, full + MF_STAGES, 0};
    if (MF_STAGE == 1)
        mf_begin();
    const i32 n_blocks = a.tile.num_valid[0] / MF_BM;
    if (threadIdx.x == 0) {
        for (int s = 0; s < MF_STAGES; s++) {
            mf_barrier_init(r.full + s, ARRIVALS);
            mf_barrier_init(r.empty + s, OUT_WAVES);
        }
        mf_matrix_fence();
    }
    __syncthreads();
    i32 block, col;
    find_tile(a.tile, blockIdx.x, MF_MAX(n_blocks, 1), block, col);
    begin_at(a.tile, block, col, (i32)blockIdx.x < n_blocks * TILES_N, MF_D * W_SLICE / SLICE_K, MF_STAGES * W_SLICE);
    if (threadIdx.x >= GROUP * GROUPS) {
        mf_registers_give<BRINGS>();
        bring(a, r, n_blocks);
    } else {
        mf_registers_take<MULTIPLIES>();
        multiply_tiles(a.tile, r, outs, n_blocks);
    }
}
