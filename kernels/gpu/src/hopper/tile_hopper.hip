/* A stage of the two-stage grouped GEMM for many tokens, a launch of its own: Hopper's core (hopper_core.inc.h).
 *
 *   MF_ZERO   stage 1 zeroes y on the way (hopper_zeroing.h)
 *
 *   lds: hopper_ring.h's, with MF_ZERO zeros behind out */
#define MF_WGMMA 1
#include "dialect.h"
#include "format.h"
#include "dialect_hopper.h"
#include "hopper_ring.h"
#include "hopper_core.inc.h"
#include "hopper_taking.inc.h"
#ifdef MF_ZERO
#    include "hopper_zeroing.h"
#else
#    define ZEROS 0
#endif

/* Of each half, how often a run of its was asked for; blocks that take no more; turns of y. All 0 between launches. */
__device__ u32 mf_taken[4];

/* Of a y that nobody asks for before the launch has ended. */
struct turns_taken {
    static __device__ __forceinline__ u32 take() { return mf_take_one(mf_taken + 3); }
    static __device__ __forceinline__ void done() {}
};

extern "C" __global__ void __launch_bounds__(GROUP *(GROUPS + 1), 1) mf_tile_hopper(const __grid_constant__ mf_hip_bulk_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    ring r = ring_at(lds, (MF_TURNS ? GROUPS : 1) * OUT_BYTES + ZEROS, MF_KEPT ? SLICES * WEIGHTS : 0);
    u8 *outs = r.slices + MF_STAGES * RING_BYTES;
#ifdef MF_ZERO
    u8 *zeros = outs + (MF_TURNS ? GROUPS : 1) * OUT_BYTES;
    make_zeros(zeros);
#endif
#if MF_STAGE == 1
    if (threadIdx.x == GROUP * GROUPS)
        ask_for_likely(a);
#endif
    begin_ring(r, COPIES ? GROUP : 0);
    if (MF_STAGE == 1)
        mf_begin();
    const i32 n_blocks = a.tile.num_valid[0] / MF_BM;
#if MF_STAGE == 2
    const spot likely = likely_first(a, n_blocks);
    if (threadIdx.x == 0 && likely.block >= 0)
        ask_slices(a, likely.col, a.tile.experts[likely.block], MF_MIN(MF_STAGES, SLICES));
    mf_begin();
#endif
    if (threadIdx.x >= GROUP * GROUPS) {
        mf_registers_give<BRINGS>();
#ifdef MF_ZERO
        zeroing<MF_D, turns_taken> aside(a, zeros);
#else
        nothing_aside aside;
#endif
        taking take = {order_of(a.tile, n_blocks), half_of(a, mf_unit()), mf_taken, nullptr, 0, 0};
        all_there there;
        bring(a.w, a.x_map, a.tile, r, n_blocks, take, there, aside);
        aside.end();
#ifdef MF_ZERO
        mf_group_sync(2 * GROUPS + 2, GROUP); /* who has brought no tile may be ahead of who zeroes */
#endif
        if (threadIdx.x % GROUP == 0 && mf_end_one(mf_taken + 2) == gridDim.x - 1)
            mf_taken[0] = mf_taken[1] = mf_taken[2] = mf_taken[3] = 0; /* for the next launch */
        mf_copy_commit();
        mf_copy_wait<0>();
    } else {
        mf_registers_take<MULTIPLIES>();
        multiply_tiles(a.tile, r, outs, no_completion_signal());
    }
}
