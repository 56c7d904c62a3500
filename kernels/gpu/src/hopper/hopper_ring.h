/* Ring buffer of pipeline stages in shared memory, and the tile queue, between producer and consumer warps of
 * the Hopper mainloop (hopper_core.inc.h).
 *
 *   MF_WEIGHT_REUSE  0, or the number of consecutive expert blocks for which the weights of all K tiles stay
 *                    in shared memory, outside the ring. Blocks of the same expert share these weights. It
 *                    is meant for stage 2 with a small inter_dim and several blocks per expert.
 *
 *   shared memory: with MF_WEIGHT_REUSE { weights [BN][128] } per K tile, and no weights in the ring |
 *                  ring[MF_STAGES] of { weights [BN][128], tokens [BM][128], scales float[BM] } |
 *                  out bf16 [BM][COLS + 8] or codes [BM][COLS + 16], per warpgroup with MF_PINGPONG, or rows
 *                  of each warp with WARP_EPILOGUE |
 *                  full u64[MF_STAGES] | empty u64[MF_STAGES] | tile_full u64[TILE_QUEUE] |
 *                  tiles[TILE_QUEUE] */
#pragma once

#ifndef MF_WEIGHT_REUSE
#    define MF_WEIGHT_REUSE 0
#endif
#ifndef MF_TWO_STAGES
#    define MF_TWO_STAGES 0
#endif
#define WARPGROUP      128
#define CONSUMERS      2
#define CONSUMER_WARPS (MF_PINGPONG ? 4 : 4 * CONSUMERS) /* number of warps that release a pipeline stage */
#ifndef STAGE_BYTES /* bytes of a pipeline stage; mx_hopper.hip defines its own */
#    define K_TILE_BYTES 128
#    define SCALES       (BY_BLOCK ? MF_BM * 4 : 0)
#    define WEIGHT_BYTES (MF_BN * K_TILE_BYTES)
#    define STAGE_BYTES \
        (MF_CEIL((MF_WEIGHT_REUSE ? 0 : WEIGHT_BYTES) + MF_BM * K_TILE_BYTES + SCALES, 1024) * 1024)
#endif
/* Size of the tile queue. More than the number of tiles in flight, which are the tiles with K tiles in the
 * ring, the next published tile and the tile in the epilogue. */
#define TILE_QUEUE 16

/* A tile: an expert block and its first column. Block -1 marks the end of a stage of the GEMM. */
struct tile_coord {
    i32 block, col;
};
struct ring {
    u8 *resident, *stages;
    u64 *full, *empty, *tile_full;
    tile_coord *tiles;
    /* number of K tiles that this thread has passed: stage = at % MF_STAGES, phase = at / MF_STAGES & 1 */
    u32 at;
    u32 n_tiles; /* number of tiles that this thread has passed, plus one for each end marker */
};
/* Returns the ring in the shared memory `lds`. `resident` is the number of bytes of reused weights, `outs`
 * the number of bytes of all `out` regions. */
MF_DEVICE ring ring_at(u8 *lds, i32 outs, i32 resident = 0)
{
    ring r;
    r.resident = lds;
    r.stages = lds + resident;
    r.full = (u64 *)(r.stages + MF_STAGES * STAGE_BYTES + outs);
    r.empty = r.full + MF_STAGES;
    r.tile_full = r.empty + MF_STAGES;
    r.tiles = (tile_coord *)(r.tile_full + TILE_QUEUE);
    r.at = r.n_tiles = 0;
    return r;
}
/* Initialises the mbarriers. All threads call it; it ends with __syncthreads(). `arrivals` is the number of
 * arrivals at each full barrier, without the arrival for the TMA load. */
MF_DEVICE void init_ring(const ring &r, i32 arrivals)
{
    if (threadIdx.x == 0) {
        for (int s = 0; s < MF_STAGES; s++) {
            mf_mbarrier_init(r.full + s, 1 + arrivals);
            mf_mbarrier_init(r.empty + s, CONSUMER_WARPS);
        }
        for (int q = 0; q < TILE_QUEUE; q++)
            mf_mbarrier_init(r.tile_full + q, 1);
    }
    mf_async_fence();
    __syncthreads();
}

MF_DEVICE u8 *stage_of(const ring &r)
{
    return r.stages + r.at % MF_STAGES * STAGE_BYTES;
}
MF_DEVICE void wait_full(const ring &r)
{
    mf_mbarrier_wait(r.full + r.at % MF_STAGES, r.at / MF_STAGES & 1);
}
MF_DEVICE void wait_empty(const ring &r)
{
    mf_mbarrier_wait(r.empty + r.at % MF_STAGES, (r.at / MF_STAGES & 1) ^ 1);
}
/* Waits until the consumers have released the K tile that is `ago` K tiles before the current one. `ago` is
 * at most MF_STAGES. */
MF_DEVICE void wait_released(const ring &r, u32 ago)
{
    mf_mbarrier_wait(r.empty + (r.at - ago) % MF_STAGES, (r.at - ago) / MF_STAGES & 1);
}
/* Signals that this warp no longer reads the K tile that is `ago` K tiles before the current one. */
MF_DEVICE void release_stage(const ring &r, u32 ago)
{
    mf_wave_sync();
    if (threadIdx.x % MF_WAVE == 0)
        mf_mbarrier_arrive(r.empty + (r.at - ago) % MF_STAGES);
}

/* Publishes the next tile. Called by one thread. */
MF_DEVICE void publish_tile(const ring &r, const tile_coord &next)
{
    r.tiles[r.n_tiles % TILE_QUEUE] = next;
    mf_mbarrier_arrive(r.tile_full + r.n_tiles % TILE_QUEUE);
}
MF_DEVICE tile_coord wait_tile(const ring &r)
{
    mf_mbarrier_wait(r.tile_full + r.n_tiles % TILE_QUEUE, r.n_tiles / TILE_QUEUE & 1);
    const volatile tile_coord *t = r.tiles + r.n_tiles % TILE_QUEUE;
    return tile_coord{t->block, t->col};
}
