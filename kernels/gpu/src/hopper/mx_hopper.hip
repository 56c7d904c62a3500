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
/* Tokens of a block that are multiplied, by eights: as few of these widths as hold them, where a matrix instruction has them. */
#define QM         (MF_BM / 8)
#define QM_HALF    (QM / 2)
#define FOR_WIDTHS(X) X(6) X(4) X(2) X(1)
#define SCALES (MF_BN * SCALES_WORDS * 4)
#define RING_BYTES (MF_CEIL(MF_BN * W_SLICE + MF_BM * X_SLICE + SCALES, 1024) * 1024)
#define OUT_BYTES  (MF_BM * OUT_STRIDE * 2)
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

#include "hopper_ring.h"

#include "hopper_tile.inc.h"

#include "hopper_narrow.h"

/* What is known of a tile before it is multiplied. */
struct place {
    i32 block, col, expert;
    i32 width; /* that holds the block's tokens: padding is at its end */
};

#include "hopper_weights.inc.h"

MF_DEVICE place place_of(const mf_hip_tile_args &a, i32 i, i32 n_blocks)
{
    const spot t = spot_of(a, n_blocks, i);
    place p;
    p.block = t.block;
    p.col = t.col;
    p.expert = a.experts[p.block];
    p.width = QM;
#define FITS(n)                                                                                        \
    if ((n) < QM && mf_id_token(a.sorted_ids[(i64)p.block * MF_BM + MF_MIN(n, QM - 1) * 8]) >= a.token) \
        p.width = n;
    FOR_WIDTHS(FITS)
#undef FITS
    return p;
}

/* A tile's product into out, by both groups of waves. */
template <int N> MF_DEVICE void make_tile(const mf_hip_tile_args &a, ring &r, const place &p, u16 *out)
{
    const i32 group = mf_of_wave(threadIdx.x / GROUP);
    product d;
    multiply_tile<N>(a, r, p, group, d);
    mf_bulk_wait_read();
    mf_group_sync(1, GROUPS * GROUP);
    store_tile<N>(a, p, group, d, out);
    mf_async_fence();
    mf_group_sync(1, GROUPS * GROUP);
}

MF_DEVICE void multiply_tiles(const mf_hip_tile_args &a, ring r, u16 *out, i32 n_blocks)
{
    const i32 n_tiles = n_blocks * TILES_N, stride = (i32)gridDim.x;
    i32 i = (i32)blockIdx.x;
    const writers all = {(i32)threadIdx.x, GROUPS * GROUP, 0, MF_BM};
    place next;
    if (i < n_tiles)
        next = place_of(a, i, n_blocks);
    for (; i < n_tiles; i += stride) {
        const place p = next;
        const i32 id = first_id(a, p.block, all);
        if (i + stride < n_tiles)
            next = place_of(a, i + stride, n_blocks);
#define MAKE(n)                                 \
    if (TRIMS && (n) < QM && p.width == (n))    \
        make_tile<MF_MIN(n, QM)>(a, r, p, out); \
    else
        FOR_WIDTHS(MAKE)
        make_tile<QM>(a, r, p, out);
#undef MAKE
        store(a, p.block, p.col, out, all, id);
    }
    mf_bulk_wait_read();
}

extern "C" __global__ void __launch_bounds__(GROUP *(GROUPS + 1), MF_BLOCKS) mf_mx_hopper(const __grid_constant__ mf_hip_bulk_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    const ring r = ring_at(lds, OUT_BYTES); /* which tiles they are of need not be told */
    if (MF_STAGE == 1)
        mf_begin();
    const i32 n_blocks = a.tile.num_valid[0] / MF_BM;
    if (threadIdx.x == 0) {
        for (int s = 0; s < MF_STAGES; s++) {
            mf_barrier_init(r.full + s, ARRIVALS);
            mf_barrier_init(r.empty + s, USES);
        }
        mf_async_fence();
    }
    __syncthreads();
    const spot first = spot_of(a.tile, n_blocks, blockIdx.x);
    begin_at(a.tile, first.block, first.col, first.block >= 0, MF_D * W_SLICE / SLICE_K, MF_STAGES * W_SLICE);
    if (threadIdx.x >= GROUP * GROUPS) {
        mf_registers_give<BRINGS>();
        bring(a, r, n_blocks);
    } else {
        mf_registers_take<MULTIPLIES>();
        multiply_tiles(a.tile, r, (u16 *)(lds + MF_STAGES * RING_BYTES), n_blocks);
    }
}
