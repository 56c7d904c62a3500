/* One stage of the grouped GEMM with 4-bit weights on Hopper. Weights are dequantised in registers and feed
 * WGMMA as the register operand (hopper_w4_mma.h). Tokens arrive as bf16, or are converted to bf16 on the way
 * into shared memory (hopper_w4_producer.h).
 *
 * A producer warpgroup fills the ring buffer by TMA loads, and two consumer warpgroups multiply. They
 * synchronise only through mbarriers and named barriers in shared memory. Concurrent blocks work on
 * neighbouring tiles, so weight rows that expert blocks share, and tokens that columns share, are still in
 * L2. Tiles are assigned statically; tile_hopper.hip assigns them dynamically (hopper_core.inc.h).
 *
 *   MF_W, MF_X  formats of weights and tokens (narrow.h), MF_STAGES, and the macros of tile_parts.inc.h
 *   MF_ADD      stage 2 adds each row to its token's row of y, which starts as zeros; the order is undefined
 *   MF_BLOCKS   blocks per SM
 *
 *   shared memory: ring[MF_STAGES] of { weights [BN][64], tokens [BM][256], scales } |
 *                  out bf16 [BM][COLS + 8] | full u64[MF_STAGES] | empty u64[MF_STAGES] */
#define MF_WGMMA    1
#define MF_PINGPONG 0
#include "dialect.h"
#ifndef MF_BLOCKS
#    define MF_BLOCKS 1
#endif
#define BYTES     2 /* bytes of a token element */
#define BY_BLOCK  0
#define BY_TENSOR 0
#include "tile_parts.inc.h"
#include "narrow.h"
#include "narrow_scales.h"
#define MF_FORMAT   BF16
#define W_ROW_BYTES 64
#define X_ROW_BYTES 256
#include "dialect_hopper.h"

#define K_TILE   (X_ROW_BYTES / BYTES)
#define K_TILES  MF_CEIL(MF_D, K_TILE)
#define BLOCKS_D MF_CEIL(MF_D, 128)
/* Widths of the product in units of 8 tokens. A tile uses the smallest width that holds all valid tokens of
 * its block and that WGMMA supports. */
#define QM            (MF_BM / 8)
#define QM_HALF       (QM / 2)
#define FOR_WIDTHS(X) X(6) X(4) X(2) X(1)
#define SCALES        (MF_BN * SCALES_WORDS * 4)
#define STAGE_BYTES   (MF_CEIL(MF_BN * W_ROW_BYTES + MF_BM * X_ROW_BYTES + SCALES, 1024) * 1024)
#define OUT_BYTES     (MF_BM * OUT_STRIDE * 2)
#define GATHERS       (MF_STAGE == 1)
/* true: all four producer warps issue copies */
#define USES_CP_ASYNC (GATHERS || BY_BLOCK)
/* Arrivals at a full barrier: one for the TMA load, and two per producer thread, for its cp.async copies and
 * for its ordinary stores. */
#define ARRIVALS (1 + 2 * WARPGROUP)
#define PASSES   MF_CEIL(MF_BM, WARPGROUP / 8)
/* Registers per producer thread, which holds row offsets and tokens in flight, and registers per consumer
 * thread. An SM has 64 Ki registers. */
#if MF_BLOCKS == 2
#    define PRODUCER_REGS 64
#    define CONSUMER_REGS 88
#else
#    define PRODUCER_REGS 88
#    define CONSUMER_REGS 208
#endif

#include "hopper_ring.h"

#include "hopper_tile.inc.h"

#include "hopper_w4_producer.h"

/* A consumer's data about a tile, which are loaded before the mainloop. */
struct tile_info {
    i32 block, col, expert;
    i32 width; /* smallest width that holds the block's tokens; padding is at the end of a block */
};

#include "hopper_weights_m.inc.h"

MF_DEVICE tile_info tile_info_of(const mf_hip_tile_args &a, i32 i, i32 n_blocks)
{
    const tile_coord t = tile_coord_of(a, n_blocks, i);
    tile_info p;
    p.block = t.block;
    p.col = t.col;
    p.expert = a.experts[p.block];
    p.width = QM;
#define FITS(n)                                                                                         \
    if ((n) < QM && mf_id_token(a.sorted_ids[(i64)p.block * MF_BM + MF_MIN(n, QM - 1) * 8]) >= a.token) \
        p.width = n;
    FOR_WIDTHS(FITS)
#undef FITS
    return p;
}

/* Mainloop and stores into `out`, by both consumer warpgroups. */
template <int N> MF_DEVICE void compute_tile(const mf_hip_tile_args &a, ring &r, const tile_info &p, u16 *out)
{
    const i32 group = mf_warp_uniform(threadIdx.x / WARPGROUP);
    product d;
    multiply_tile<N>(a, r, p, group, d);
    mf_bulk_wait_read();
    mf_named_barrier_sync(1, CONSUMERS * WARPGROUP);
    store_tile<N>(a, p, group, d, out);
    mf_async_fence();
    mf_named_barrier_sync(1, CONSUMERS * WARPGROUP);
}

MF_DEVICE void consume_tiles(const mf_hip_tile_args &a, ring r, u16 *out, i32 n_blocks)
{
    const i32 n_tiles = n_blocks * TILES_N, stride = (i32)gridDim.x;
    i32 i = (i32)blockIdx.x;
    const writers all = {(i32)threadIdx.x, CONSUMERS * WARPGROUP, 0, MF_BM};
    tile_info next;
    if (i < n_tiles)
        next = tile_info_of(a, i, n_blocks);
    for (; i < n_tiles; i += stride) {
        const tile_info p = next;
        const i32 id = first_id(a, p.block, all);
        if (i + stride < n_tiles)
            next = tile_info_of(a, i + stride, n_blocks);
#define MAKE(n)                                    \
    if (TRIMS && (n) < QM && p.width == (n))       \
        compute_tile<MF_MIN(n, QM)>(a, r, p, out); \
    else
        FOR_WIDTHS(MAKE)
        compute_tile<QM>(a, r, p, out);
#undef MAKE
        store(a, p.block, p.col, out, all, id);
    }
    mf_bulk_wait_read();
}

extern "C" __global__ void __launch_bounds__(WARPGROUP *(CONSUMERS + 1), MF_BLOCKS)
    mf_mx_hopper(const __grid_constant__ mf_hip_bulk_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    /* only the ring is used, not the tile queue, because tiles are assigned statically */
    const ring r = ring_at(lds, OUT_BYTES);
    if (MF_STAGE == 1)
        mf_begin();
    const i32 n_blocks = a.tile.num_valid[0] / MF_BM;
    if (threadIdx.x == 0) {
        for (int s = 0; s < MF_STAGES; s++) {
            mf_mbarrier_init(r.full + s, ARRIVALS);
            mf_mbarrier_init(r.empty + s, CONSUMER_WARPS);
        }
        mf_async_fence();
    }
    __syncthreads();
    const tile_coord first = tile_coord_of(a.tile, n_blocks, blockIdx.x);
    prefetch_and_begin(a.tile, first.block, first.col, first.block >= 0, MF_D * W_ROW_BYTES / K_TILE,
                       MF_STAGES * W_ROW_BYTES);
    if (threadIdx.x >= WARPGROUP * CONSUMERS) {
        mf_registers_dealloc<PRODUCER_REGS>();
        produce(a, r, n_blocks);
    } else {
        mf_registers_alloc<CONSUMER_REGS>();
        consume_tiles(a.tile, r, (u16 *)(lds + MF_STAGES * STAGE_BYTES), n_blocks);
    }
}
