/* What the waves of Hopper's core (hopper_core.inc.h) hand to each other in LDS: slices, from those that bring to those that multiply,
 * and which tiles they are of.
 *
 *   MF_KEPT  weights are not the ring's: those of all slices of a tile stay in LDS for so many blocks of tokens in a row, of which those
 *            of one expert share them (stage 2 of a small inter_dim, where an expert has several blocks)
 *
 *   lds: with MF_KEPT { weights [BN][128] } of each slice, and none in the ring |
 *        ring[MF_STAGES] of { weights [BN][128], tokens [BM][128], scales float[BM] } | out bf16 [BM][COLS + 8], or codes
 *        [BM][COLS + 16], a group's own with MF_TURNS, or rows of each wave's own (hopper_core.inc.h's OUT_BYTES) | full u64[MF_STAGES] | empty u64[MF_STAGES] | told u64[QUEUE] | tiles[QUEUE] */
#pragma once

#ifndef MF_KEPT
#    define MF_KEPT 0
#endif
#ifndef MF_BOTH
#    define MF_BOTH 0
#endif
#define GROUP  128
#define GROUPS 2
#define USES   (MF_TURNS ? 4 : 4 * GROUPS) /* waves that multiply a slice */
#ifndef RING_BYTES                         /* of a slice: mx_hopper.hip has its own */
#    define SLICE      128
#    define SCALES     (BY_BLOCK ? MF_BM * 4 : 0)
#    define WEIGHTS    (MF_BN * SLICE)
#    define RING_BYTES (MF_CEIL((MF_KEPT ? 0 : WEIGHTS) + MF_BM * SLICE + SCALES, 1024) * 1024)
#endif
/* More than the tiles that a ring's slices can be of, the one that is told next and the one that is stored. */
#define QUEUE 16

/* An expert block's rows by some columns; block: -1 ends a stage. */
struct spot {
    i32 block, col;
};
struct ring {
    u8 *kept, *slices;
    u64 *full, *empty, *told;
    spot *tiles;
    u32 at;      /* slices so far */
    u32 n_tiles; /* so far, and one more for each end of them */
};
/* kept: bytes of the weights that are; outs: of all outs. */
MF_DEVICE ring ring_at(u8 *lds, i32 outs, i32 kept = 0)
{
    ring r;
    r.kept = lds;
    r.slices = lds + kept;
    r.full = (u64 *)(r.slices + MF_STAGES * RING_BYTES + outs);
    r.empty = r.full + MF_STAGES;
    r.told = r.empty + MF_STAGES;
    r.tiles = (spot *)(r.told + QUEUE);
    r.at = r.n_tiles = 0;
    return r;
}
/* By all threads, which meet. arrivals: at a slice's barrier, that of its weights apart. */
MF_DEVICE void begin_ring(const ring &r, i32 arrivals)
{
    if (threadIdx.x == 0) {
        for (int s = 0; s < MF_STAGES; s++) {
            mf_barrier_init(r.full + s, 1 + arrivals);
            mf_barrier_init(r.empty + s, USES);
        }
        for (int q = 0; q < QUEUE; q++)
            mf_barrier_init(r.told + q, 1);
    }
    mf_async_fence();
    __syncthreads();
}

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
/* Until nobody reads the slice that was brought `ago` slices ago, as many as the ring has or fewer. */
MF_DEVICE void wait_left(const ring &r, u32 ago)
{
    mf_barrier_wait(r.empty + (r.at - ago) % MF_STAGES, (r.at - ago) / MF_STAGES & 1);
}
/* The slice before the last `ago` ones is no longer read by this wave. */
MF_DEVICE void leave_slice(const ring &r, u32 ago)
{
    mf_wave_sync();
    if (threadIdx.x % MF_WAVE == 0)
        mf_barrier_arrive(r.empty + (r.at - ago) % MF_STAGES);
}

/* Says, by one thread, which tile is the ring's next. */
MF_DEVICE void tell_tile(const ring &r, const spot &next)
{
    r.tiles[r.n_tiles % QUEUE] = next;
    mf_barrier_arrive(r.told + r.n_tiles % QUEUE);
}
MF_DEVICE spot told_tile(const ring &r)
{
    mf_barrier_wait(r.told + r.n_tiles % QUEUE, r.n_tiles / QUEUE & 1);
    const volatile spot *t = r.tiles + r.n_tiles % QUEUE;
    return spot{t->block, t->col};
}
