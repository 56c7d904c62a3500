/* Both stages of the grouped GEMM in one launch with the Hopper mainloop (hopper_core.inc.h), after a sort.
 * An earlier launch or this kernel zeroes y.
 *
 * The grid has one block per SM. Each finished tile of h increments a count of its expert block, and stage 2
 * starts on complete blocks while other blocks are still computed. K tiles of both stages go through one ring
 * buffer, so a block that has finished its last tile of stage 1 already loads weights of stage 2, and HBM
 * stays busy at the transition. The grid need not be co-resident, because computing stage 1 and zeroing y
 * never wait for another block's tiles.
 *
 *   MF_ZERO   this kernel zeroes y (hopper_zero_y.h); the macros of hopper_two_stages.h
 *
 *   shared memory: as in hopper_ring.h, with the larger `out` of the two stages and, with MF_ZERO, zeros
 *                  after `out`; then h_complete u32 of wait_h */
#define MF_WGMMA 1
#include "dialect.h"
#include "hopper_two_stages.h"
#ifdef MF_ZERO
#    include "hopper_zero_y.h"
#else
#    define ZEROS 0
#endif

#define COUNTS_BARRIER (2 * CONSUMERS + 3) /* named barrier of a block's warps that use the counts */

/* All members are 0 between launches. */
__device__ struct {
    u32 up[2], down[2];  /* number of claims of runs per L2 partition */
    u32 begun, ended;    /* number of blocks that have started, and of blocks that have finished */
    u32 zeroed;          /* 1 if the tile counts are zeroed */
    u32 zero_batches, y; /* number of batches of y that are claimed, and that are zeroed */
} mf_pair_counts;

/* Zeroes the tile counts in the first block that starts, so that no block waits for a block that has not
 * started. One consumer warp of each block calls this function, because it is idle at this point; mf_begin
 * orders the call after earlier launches. */
MF_DEVICE void begin_counts(const mf_hip_pair_args &p)
{
    const i32 lane = (i32)threadIdx.x % MF_WAVE;
    mf_begin();
    const u32 before = lane == 0 ? mf_fetch_increment(&mf_pair_counts.begun) : 0;
    if (mf_warp_uniform((i32)before) == 0) {
        for (i32 i = lane; i < p.n_made; i += MF_WAVE)
            p.made[i] = 0;
        __threadfence();
        mf_wave_sync();
        if (lane == 0)
            mf_signal_part(&mf_pair_counts.zeroed);
    }
    mf_named_barrier_arrive(COUNTS_BARRIER, MF_WAVE + WARPGROUP);
}
/* Resets the counts for the next launch, in the last block. The producer warps call this function after the
 * block's last use of the counts. */
MF_DEVICE void end_counts()
{
    mf_named_barrier_sync(COUNTS_BARRIER, MF_WAVE + WARPGROUP);
    if (threadIdx.x % WARPGROUP == 0 && mf_fetch_increment_acq_rel(&mf_pair_counts.ended) == gridDim.x - 1)
        mf_pair_counts = {};
}

/* Claims batches of y to zero, and counts finished batches. */
struct zero_counter {
    static __device__ __forceinline__ u32 claim()
    {
        return mf_fetch_increment(&mf_pair_counts.zero_batches);
    }
    static __device__ __forceinline__ void done()
    {
        mf_signal_part(&mf_pair_counts.y);
    }
};
#ifdef MF_ZERO
typedef y_zeroing<MF_H, zero_counter> zeroing_work;
#else
struct zeroing_work : up::no_side_work {
    __device__ __forceinline__ zeroing_work(const mf_hip_bulk_args &, const u8 *)
    {
    }
};
MF_DEVICE u32 zero_batches_of_y(const mf_hip_bulk_args &, i32)
{
    return 0;
}
#endif

/* Counts a tile once its stores are complete, which is checked at the end of the next tile or of the kernel.
 */
struct tile_counter {
    static const bool counts_late = true;
    u32 *made;
    i32 block; /* expert block of the tile whose stores are in flight; -1: no tile */
    __device__ __forceinline__ void wait_out() const
    {
        mf_bulk_wait();
    }
    __device__ __forceinline__ void count(i32 me) const
    {
        if (block >= 0 && me == 0)
            mf_signal_part_and_total(made + MF_HIP_MADE_OF_BLOCK + block, made + MF_HIP_MADE_TILES);
    }
    __device__ __forceinline__ void operator()(i32 stored, const up::tile_part &)
    {
        block = stored;
    }
};

/* Waits until a block's rows of h are complete and y is zeroed. Only one thread polls, which keeps the load
 * on L2 low. */
struct wait_h {
    static const bool has_order = true;
    const u32 *made;
    u32 tiles, all; /* number of tiles of stage 1 per block, and in total */
    /* number of batches of y that this kernel zeroes; set to 0 once all of them are zeroed */
    u32 zero_batches;
    volatile u32 *h_complete; /* in shared memory: true if all of h is complete */
    bool pending;
    __device__ __forceinline__ bool is_pending() const
    {
        return pending;
    }
    __device__ __forceinline__ void operator()(i32 block)
    {
        if (!pending)
            return;
        if (threadIdx.x % WARPGROUP == 0) {
            if (zero_batches > 0)
                mf_wait_parts(&mf_pair_counts.y, zero_batches);
            zero_batches = 0;
            const bool ended = mf_parts_ready(made + MF_HIP_MADE_TILES, all);
            if (!ended)
                mf_wait_parts(made + MF_HIP_MADE_OF_BLOCK + block, tiles);
            *h_complete = ended;
        }
        mf_named_barrier_sync(2 * CONSUMERS + 2, WARPGROUP);
        pending = !*h_complete;
        mf_named_barrier_sync(2 * CONSUMERS + 2, WARPGROUP);
    }
};

extern "C" __global__ void __launch_bounds__(WARPGROUP *(CONSUMERS + 1), 1)
    mf_pair(const __grid_constant__ mf_hip_pair_args p)
{
    extern __shared__ __align__(1024) u8 lds[];
    const mf_hip_tile_args &t1 = p.up.tile, &t2 = p.down.tile;
    u8 *outs = lds + MF_STAGES * STAGE_BYTES;
    u8 *zeros = outs + OUT_REGION_BYTES;
    ring r = ring_at(lds, OUT_REGION_BYTES + ZEROS);
#ifdef MF_ZERO
    make_zeros(zeros);
#endif
    if (threadIdx.x == WARPGROUP * CONSUMERS)
        up::prefetch_likely(p.up);
    init_ring(r, WARPGROUP);
    if (threadIdx.x < MF_WAVE)
        begin_counts(p);
    else
        mf_pdl_wait();
    const i32 n_blocks = t1.num_valid[0] / MF_BM;
    if (threadIdx.x >= WARPGROUP * CONSUMERS) {
        mf_registers_dealloc<up::producer_regs>();
        zeroing_work zeroing_work(p.up, zeros);
        down::no_side_work no_side_work;
        const i32 half = up::l2_half_of(p.up, mf_sm_id());
        up::tile_scheduler of_up = {up::order_of(t1, n_blocks), half, mf_pair_counts.up,
                                    &mf_pair_counts.zeroed,     0,    0};
        down::tile_scheduler of_down = {
            down::order_of(t2, n_blocks), half, mf_pair_counts.down, nullptr, 0, 0};
        up::no_wait no_wait;
        wait_h wait_h = {p.made,
                         up::tiles_of_block,
                         (u32)n_blocks * up::tiles_of_block,
                         zero_batches_of_y(p.up, MF_H),
                         (u32 *)(r.tiles + TILE_QUEUE),
                         true};
        up::produce(p.up.w, p.up.x_map, t1, r, n_blocks, of_up, no_wait, zeroing_work);
        zeroing_work.end();
        /* a block that claimed no tile of stage 1 has not yet waited for the counts to be zeroed */
        if (of_up.n_claims < 2 && threadIdx.x % WARPGROUP == 0)
            mf_wait_parts(&mf_pair_counts.zeroed, 1);
        down::produce(p.down.w, p.down.x_map, t2, r, n_blocks, of_down, wait_h, no_side_work);
        end_counts();
        mf_copy_commit();
        mf_copy_wait<0>();
    } else {
        mf_registers_alloc<up::consumer_regs>();
        up::consume_tiles(t1, r, outs, tile_counter{p.made, -1});
        /* the other warpgroup's rows may still occupy this warpgroup's region of `out` */
        if (down::own_epilogue)
            mf_named_barrier_sync(2 * CONSUMERS + 1, CONSUMERS * WARPGROUP);
        down::consume_tiles(t2, r, outs, down::no_completion_signal());
    }
}
