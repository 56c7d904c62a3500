/* One stage of the two-stage grouped GEMM for many tokens as a launch of its own, with the Hopper mainloop
 * (hopper_core.inc.h).
 *
 *   MF_ZERO   stage 1 also zeroes y (hopper_zero_y.h)
 *
 *   shared memory: as in hopper_ring.h, with MF_ZERO zeros after `out` */
#define MF_WGMMA 1
#include "dialect.h"
#include "format.h"
#include "dialect_hopper.h"
#include "hopper_ring.h"
#include "hopper_core.inc.h"
#include "hopper_tile_scheduler.inc.h"
#ifdef MF_ZERO
#    include "hopper_zero_y.h"
#else
#    define ZEROS 0
#endif

/* Number of claims of runs in L2 partition 0, and in partition 1; number of blocks that have finished; number
 * of claims of batches of y to zero. All four are 0 between launches. */
__device__ u32 mf_taken[4];

/* Claims batches of y. Finished batches need no count, because no kernel reads y before this launch has
 * ended. */
struct zero_counter {
    static __device__ __forceinline__ u32 claim()
    {
        return mf_fetch_increment(mf_taken + 3);
    }
    static __device__ __forceinline__ void done()
    {
    }
};

extern "C" __global__ void __launch_bounds__(WARPGROUP *(CONSUMERS + 1), 1)
    mf_tile_hopper(const __grid_constant__ mf_hip_bulk_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    ring r = ring_at(lds, (MF_PINGPONG ? CONSUMERS : 1) * OUT_BYTES + ZEROS,
                     MF_WEIGHT_REUSE ? K_TILES * WEIGHT_BYTES : 0);
    u8 *outs = r.stages + MF_STAGES * STAGE_BYTES;
#ifdef MF_ZERO
    u8 *zeros = outs + (MF_PINGPONG ? CONSUMERS : 1) * OUT_BYTES;
    make_zeros(zeros);
#endif
#if MF_STAGE == 1
    if (threadIdx.x == WARPGROUP * CONSUMERS)
        prefetch_likely(a);
#endif
    init_ring(r, USES_CP_ASYNC ? WARPGROUP : 0);
    if (MF_STAGE == 1)
        mf_begin();
    const i32 n_blocks = a.tile.num_valid[0] / MF_BM;
#if MF_STAGE == 2
    const tile_coord likely = likely_tile(a, n_blocks);
    if (threadIdx.x == 0 && likely.block >= 0)
        prefetch_weights(a, likely.col, a.tile.experts[likely.block], MF_MIN(MF_STAGES, K_TILES));
    mf_begin();
#endif
    if (threadIdx.x >= WARPGROUP * CONSUMERS) {
        mf_registers_dealloc<PRODUCER_REGS>();
#ifdef MF_ZERO
        y_zeroing<MF_D, zero_counter> side_work(a, zeros);
#else
        no_side_work side_work;
#endif
        tile_scheduler scheduler = {
            order_of(a.tile, n_blocks), l2_half_of(a, mf_sm_id()), mf_taken, nullptr, 0, 0};
        no_wait ready;
        produce(a.w, a.x_map, a.tile, r, n_blocks, scheduler, ready, side_work);
        side_work.end();
#ifdef MF_ZERO
        /* a thread that loads no tiles may be ahead of the thread that zeroes y */
        mf_named_barrier_sync(2 * CONSUMERS + 2, WARPGROUP);
#endif
        if (threadIdx.x % WARPGROUP == 0 && mf_fetch_increment_acq_rel(mf_taken + 2) == gridDim.x - 1)
            mf_taken[0] = mf_taken[1] = mf_taken[2] = mf_taken[3] = 0; /* reset for the next launch */
        mf_copy_commit();
        mf_copy_wait<0>();
    } else {
        mf_registers_alloc<CONSUMER_REGS>();
        consume_tiles(a.tile, r, outs, no_completion_signal());
    }
}
