/* Both stages of the grouped GEMM in one launch by Hopper's core (hopper_core.inc.h), behind a sort; y is zeroed before, or on the way.
 *
 * A block a unit. A tile of h that has left is counted for its block of rows, and stage 2 begins on blocks that are there while others
 * are still made. Slices of both stages go through one ring, so a unit whose last tile of stage 1 is multiplied already brings weights
 * of stage 2, and memory is never without something to do in between. Blocks need not be there at once: whoever makes a tile of
 * stage 1 or zeroes waits for nobody.
 *
 *   MF_ZERO   y is zeroed on the way (hopper_zeroing.h); and what hopper_both.h says
 *
 *   lds: as hopper_ring.h has it, of the stage whose out is larger, with MF_ZERO zeros behind out; then what handed has seen u32 */
#define MF_WGMMA 1
#include "dialect.h"
#include "hopper_both.h"
#ifdef MF_ZERO
#    include "hopper_zeroing.h"
#else
#    define ZEROS 0
#endif

#define COUNTED (2 * GROUPS + 3) /* where a block's waves that count meet */

/* All 0 between launches. */
__device__ struct {
    u32 up[2], down[2]; /* of each half, how often a run of its was asked for */
    u32 begun, ended;   /* blocks that have begun; that take no more */
    u32 zeroed;         /* 1: counts of tiles are */
    u32 turns, y;       /* of y that are taken; that are zeroed */
} mf_pair_counts;

/* By a wave of each block that multiplies, and so has nothing to do yet: launches before have ended behind it. Counts are zeroed by the
 * block that is first, so that nobody has to wait for one that has not begun. */
MF_DEVICE void begin_counts(const mf_hip_pair_args &p)
{
    const i32 lane = (i32)threadIdx.x % MF_WAVE;
    mf_begin();
    const u32 before = lane == 0 ? mf_take_one(&mf_pair_counts.begun) : 0;
    if (mf_of_wave((i32)before) == 0) {
        for (i32 i = lane; i < p.n_made; i += MF_WAVE)
            p.made[i] = 0;
        __threadfence();
        mf_wave_sync();
        if (lane == 0)
            mf_part_done(&mf_pair_counts.zeroed);
    }
    mf_group_arrive(COUNTED, MF_WAVE + GROUP);
}
/* By those that bring, when all that their block counts is counted. The last block's counts are those of the next launch. */
MF_DEVICE void end_counts()
{
    mf_group_sync(COUNTED, MF_WAVE + GROUP);
    if (threadIdx.x % GROUP == 0 && mf_end_one(&mf_pair_counts.ended) == gridDim.x - 1)
        mf_pair_counts = {};
}

/* y is zeroed in so many turns, of which each that is in memory is counted. */
struct turns {
    static __device__ __forceinline__ u32 take() { return mf_take_one(&mf_pair_counts.turns); }
    static __device__ __forceinline__ void done() { mf_part_done(&mf_pair_counts.y); }
};
#ifdef MF_ZERO
typedef zeroing<MF_H, turns> beside;
#else
struct beside : up::nothing_aside {
    __device__ __forceinline__ beside(const mf_hip_bulk_args &, const u8 *) {}
};
MF_DEVICE u32 turns_of_y(const mf_hip_bulk_args &, i32) { return 0; }
#endif

/* Counts a tile when its rows have left out: at the next tile's end, or at the end of all. */
struct counting {
    static const bool counts_late = true;
    u32 *made;
    i32 block; /* of the tile whose rows are on their way; -1: none */
    __device__ __forceinline__ void wait_out() const { mf_bulk_wait(); }
    __device__ __forceinline__ void count(i32 me) const
    {
        if (block >= 0 && me == 0)
            mf_part_done_of_two(made + MF_HIP_MADE_OF_BLOCK + block, made + MF_HIP_MADE_TILES);
    }
    __device__ __forceinline__ void operator()(i32 stored, const up::part_of &) { block = stored; }
};

/* Until a block's rows of h are there, and y is zeroed. One thread looks, for the memory that it looks at has others to serve. */
struct handed {
    static const bool has_order = true;
    const u32 *made;
    u32 tiles, all;     /* that stage 1 makes of a block, of all blocks */
    u32 turns;          /* of y that are zeroed on the way; 0 once that was seen */
    volatile u32 *seen; /* LDS: all of h is there */
    bool pending;
    __device__ __forceinline__ bool is_pending() const { return pending; }
    __device__ __forceinline__ void operator()(i32 block)
    {
        if (!pending)
            return;
        if (threadIdx.x % GROUP == 0) {
            if (turns > 0)
                mf_parts_wait(&mf_pair_counts.y, turns);
            turns = 0;
            const bool ended = mf_parts_are_there(made + MF_HIP_MADE_TILES, all);
            if (!ended)
                mf_parts_wait(made + MF_HIP_MADE_OF_BLOCK + block, tiles);
            *seen = ended;
        }
        mf_group_sync(2 * GROUPS + 2, GROUP);
        pending = !*seen;
        mf_group_sync(2 * GROUPS + 2, GROUP);
    }
};

extern "C" __global__ void __launch_bounds__(GROUP *(GROUPS + 1), 1)
    mf_pair(const __grid_constant__ mf_hip_pair_args p)
{
    extern __shared__ __align__(1024) u8 lds[];
    const mf_hip_tile_args &t1 = p.up.tile, &t2 = p.down.tile;
    u8 *outs = lds + MF_STAGES * RING_BYTES;
    u8 *zeros = outs + BOTH_OUTS;
    ring r = ring_at(lds, BOTH_OUTS + ZEROS);
#ifdef MF_ZERO
    make_zeros(zeros);
#endif
    if (threadIdx.x == GROUP * GROUPS)
        up::ask_for_likely(p.up);
    begin_ring(r, GROUP);
    if (threadIdx.x < MF_WAVE)
        begin_counts(p);
    else
        mf_wait_before();
    const i32 n_blocks = t1.num_valid[0] / MF_BM;
    if (threadIdx.x >= GROUP * GROUPS) {
        mf_registers_give<up::brings>();
        beside beside(p.up, zeros);
        down::nothing_aside nothing_aside;
        const i32 half = up::half_of(p.up, mf_unit());
        up::taking of_up = {up::order_of(t1, n_blocks), half, mf_pair_counts.up, &mf_pair_counts.zeroed, 0, 0};
        down::taking of_down = {down::order_of(t2, n_blocks), half, mf_pair_counts.down, nullptr, 0, 0};
        up::all_there all_there;
        handed handed = {p.made,
                         up::tiles_of_block,
                         (u32)n_blocks * up::tiles_of_block,
                         turns_of_y(p.up, MF_H),
                         (u32 *)(r.tiles + QUEUE),
                         true};
        up::bring(p.up.w, p.up.x_map, t1, r, n_blocks, of_up, all_there, beside);
        beside.end();
        if (of_up.turn < 2 && threadIdx.x % GROUP == 0) /* has taken no tile, and so not waited */
            mf_parts_wait(&mf_pair_counts.zeroed, 1);
        down::bring(p.down.w, p.down.x_map, t2, r, n_blocks, of_down, handed, nothing_aside);
        end_counts();
        mf_copy_commit();
        mf_copy_wait<0>();
    } else {
        mf_registers_take<up::multiplies>();
        up::multiply_tiles(t1, r, outs, counting{p.made, -1});
        if (down::alone) /* rows that another group has yet to store lie where this one's will */
            mf_group_sync(2 * GROUPS + 1, GROUPS * GROUP);
        down::multiply_tiles(t2, r, outs, down::no_completion_signal());
    }
}
