/* A stage of the two-stage grouped GEMM for many tokens, a launch of its own: Hopper's core (hopper_core.inc.h).
 *
 *   MF_ZERO   stage 1 zeroes y on the way, so many bytes at once: memory has time for it while the matrix unit is busy
 *   MF_HANDS  1: stage 1 can hand h on tile by tile, and stage 2 take it so (mf_hip_bulk_args.made); without MF_ZERO
 *
 *   lds: hopper_ring.h's, with MF_ZERO zeros behind out */
#define MF_WGMMA 1
#include "dialect.h"
#include "format.h"
#include "dialect_hopper.h"
#include "hopper_ring.h"
#include "hopper_core.inc.h"
#include "hopper_taking.inc.h"

/* Of each half, how often a run of its was asked for; blocks that take no more; and, where h is handed on, blocks that have begun, and
 * whether counts are zeroed. */
__device__ u32 mf_taken[5];

#define HANDS_ON (MF_HANDS && MF_STAGE == 1)
#define TAKES_ON (MF_HANDS && MF_STAGE == 2)

/* ---- h is handed on tile by tile: stage 2 begins on blocks of rows that are there while stage 1 still makes others ---- */

#if HANDS_ON
/* By a wave of each block of stage 1. The first block zeroes the counts, so that none has to wait for one that has not begun; the launch
 * behind may begin when the launch before has ended. Nobody reads counts by now, for that one has waited for whoever was before it. */
MF_DEVICE void begin_counts(const mf_hip_bulk_args &a)
{
    const i32 lane = (i32)threadIdx.x % MF_WAVE;
    const i32 before = mf_of_wave(lane == 0 ? (i32)mf_take_one(mf_taken + 3) : 0);
    if (before == 0) {
        for (i32 i = lane; i < a.n_made; i += MF_WAVE)
            a.made[i] = 0;
        __threadfence();
        mf_wave_sync();
        if (lane == 0)
            mf_part_done(mf_taken + 4);
    }
    mf_wait_before();
    mf_let_behind();
}

/* Counts a tile when its rows have left out: at the next tile's end, or at the end of all. */
struct counting {
    static const bool counts_late = true;
    u32 *made; /* NULL: nobody is told */
    i32 block; /* of the tile whose rows are on their way; -1: none */
    __device__ __forceinline__ void wait_out() const
    {
        if (made)
            mf_bulk_wait();
        else
            mf_bulk_wait_read();
    }
    __device__ __forceinline__ void count(i32 me) const
    {
        if (made && block >= 0 && me == 0)
            mf_part_done_of_two(made + MF_HIP_MADE_OF_BLOCK + block, made + MF_HIP_MADE_TILES);
    }
    __device__ __forceinline__ void operator()(i32 stored, const part_of &) { block = stored; }
};

typedef counting done;
#else
typedef untold done;
#endif

/* Tokens are those of a launch that has ended. */
struct all_there {
    static const bool has_order = true;
    static __device__ __forceinline__ bool is_pending() { return false; }
    __device__ __forceinline__ void operator()(i32) const {}
};
#if TAKES_ON
/* Until a block's rows of h are there. One thread looks, for the memory that it looks at has others to serve. */
struct handed {
    static const bool has_order = true;
    const mf_hip_bulk_args &a;
    volatile u32 *seen; /* LDS: all of h is there */
    bool pending;
    __device__ __forceinline__ bool is_pending() const { return pending; }
    __device__ __forceinline__ void operator()(i32 block)
    {
        if (!pending)
            return;
        if (threadIdx.x % GROUP == 0) {
            const u32 all = (u32)(a.tile.num_valid[0] / MF_BM * a.tiles);
            const bool ended = mf_parts_are_there(a.made + MF_HIP_MADE_TILES, all);
            if (!ended)
                mf_parts_wait(a.made + MF_HIP_MADE_OF_BLOCK + block, (u32)a.tiles);
            *seen = ended;
        }
        if (COPIES)
            mf_group_sync(2 * GROUPS + 2, GROUP);
        pending = !*seen;
        if (COPIES)
            mf_group_sync(2 * GROUPS + 2, GROUP);
    }
};
#endif

#ifdef MF_ZERO
#    define ZEROS MF_ZERO
/* This block's part of y, by one thread of those that bring. */
struct zeroing {
    u8 *y;
    const u8 *zeros;
    i64 at, bytes;

    __device__ __forceinline__ bool more()
    {
        if (threadIdx.x % GROUP != MF_WAVE || at >= bytes)
            return false;
        mf_bulk_store(y + at, zeros, (i32)MF_MIN((i64)ZEROS, bytes - at));
        at += (i64)gridDim.x * ZEROS;
        return true;
    }
    __device__ __forceinline__ void operator()() { (void)more(); }
    __device__ __forceinline__ void end()
    {
        while (more())
            ;
        mf_bulk_commit();
        mf_bulk_wait();
    }
};
#else
#    define ZEROS 0
#endif

extern "C" __global__ void __launch_bounds__(GROUP *(GROUPS + 1), 1) mf_tile_hopper(const __grid_constant__ mf_hip_bulk_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    ring r = ring_at(lds, (MF_TURNS ? GROUPS : 1) * OUT_BYTES + ZEROS, MF_KEPT ? SLICES * WEIGHTS : 0);
    u8 *outs = r.slices + MF_STAGES * RING_BYTES;
#ifdef MF_ZERO
    u8 *zeros = outs + (MF_TURNS ? GROUPS : 1) * OUT_BYTES;
    for (i32 i = threadIdx.x; i < ZEROS / 16; i += blockDim.x)
        ((mf_16b *)zeros)[i] = mf_16b{0, 0, 0, 0};
#endif
    const bool hands = MF_HANDS && a.made;
#if MF_STAGE == 1
    if (threadIdx.x == GROUP * GROUPS)
        ask_for_likely(a);
#endif
    begin_ring(r, COPIES ? GROUP : 0);
#if HANDS_ON
    if (hands && threadIdx.x / MF_WAVE == 4 * GROUPS + 3)
        begin_counts(a);
    else if (hands)
        mf_wait_before();
#endif
    if (MF_STAGE == 1 && !hands)
        mf_begin();
    if (TAKES_ON && hands) /* what the launch before the one before wrote is there: that one has waited for it */
        mf_let_behind();
    const i32 n_blocks = a.tile.num_valid[0] / MF_BM;
    if (MF_STAGE == 2 && !hands) {
        const spot likely = likely_first(a, n_blocks);
#ifdef MF_SLICED
        if (threadIdx.x == 0 && likely.block >= 0)
            ask_slices(a, likely.col, a.tile.experts[likely.block], MF_MIN(MF_STAGES, SLICES));
        mf_begin();
#else
        begin_at(a.tile, likely.block, likely.col, likely.block >= 0, MF_D * BYTES, MF_STAGES * SLICE);
#endif
    }
    if (threadIdx.x >= GROUP * GROUPS) {
        mf_registers_give<BRINGS>();
#ifdef MF_ZERO
        zeroing aside = {(u8 *)a.y, zeros, (i64)blockIdx.x * ZEROS, (i64)a.tile.token * MF_D * 2};
#else
        nothing_aside aside;
#endif
        taking take = {order_of(a.tile, n_blocks), half_of(a, mf_unit()), mf_taken, HANDS_ON && hands ? mf_taken + 4 : nullptr, 0, 0};
        all_there there;
#if TAKES_ON
        handed handed = {a, (u32 *)(r.tiles + QUEUE), true};
        if (hands)
            bring(a.w_map, a.x_map, a.tile, r, n_blocks, take, handed, aside);
        else
#endif
            bring(a.w_map, a.x_map, a.tile, r, n_blocks, take, there, aside);
        aside.end();
        if (threadIdx.x % GROUP == 0 && mf_take_one(mf_taken + 2) == gridDim.x - 1)
            mf_taken[0] = mf_taken[1] = mf_taken[2] = mf_taken[3] = mf_taken[4] = 0; /* for the next launch */
        if (TAKES_ON && hands)
            mf_wait_before(); /* who waits for this launch has waited for that, too */
        mf_copy_commit();
        mf_copy_wait<0>();
    } else {
        mf_registers_take<MULTIPLIES>();
#if HANDS_ON
        multiply_tiles(a.tile, r, outs, done{a.made, -1});
#else
        multiply_tiles(a.tile, r, outs, done());
#endif
    }
}
