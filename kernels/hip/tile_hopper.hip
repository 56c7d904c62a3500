/* A stage of the two-stage grouped GEMM for many tokens, a launch of its own: Hopper's core (hopper_core.inc.h).
 *
 *   MF_ZERO  stage 1 zeroes y on the way, so many bytes at once: memory has time for it while the matrix unit is busy
 *
 *   lds: hopper_ring.h's, with MF_ZERO zeros behind out */
#define MF_WGMMA 1
#include "dialect.h"
#include "format.h"
#include "dialect_hopper.h"
#include "hopper_ring.h"
#include "hopper_core.inc.h"

__device__ u32 mf_taken[3]; /* of each half, how often a run of its was asked for; blocks that take no more */

/* The first tile of a run that nobody has: of this unit's half, and of the other one when that has no more. */
struct taking {
    struct order order;
    i32 half;
    __device__ __forceinline__ i32 operator()() const
    {
        i32 run = nth_run(order, half, (i32)mf_take_one(mf_taken + half));
        if (run < 0)
            run = nth_run(order, !half, (i32)mf_take_one(mf_taken + !half));
        return run < 0 ? 0x7fffffff : run * RUN;
    }
};

/* Whoever reads a stage's rows is another launch. */
struct always {
    static const bool waits = false;
    __device__ __forceinline__ void operator()(i32) const {}
    __device__ __forceinline__ void operator()(i32, i32, i32, i32) const {}
};

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

MF_DEVICE i32 half_of(const mf_hip_bulk_args &a, i32 unit)
{
    return (i32)(a.far[unit / 32] >> unit % 32 & 1);
}
/* What a unit takes first if all of its half do so in their order. */
MF_DEVICE spot likely_first(const mf_hip_bulk_args &a, i32 n_blocks)
{
    const i32 unit = mf_unit(), half = half_of(a, unit);
    i32 before = 0;
    for (i32 word = 0; word <= unit / 32; word++) {
        const u32 same = half ? a.far[word] : ~a.far[word];
        before += mf_popcount(word < unit / 32 ? same : same & ((1u << unit % 32) - 1));
    }
    const i32 run = nth_run(order_of(a.tile, n_blocks), half, before);
    return run < 0 ? spot{-1, 0} : spot_of(a.tile, n_blocks, run * RUN);
}

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
    if (MF_STAGE == 1)
        mf_begin();
    const i32 n_blocks = a.tile.num_valid[0] / MF_BM;
    begin_ring(r, COPIES ? GROUP : 0);
    if (MF_STAGE == 2) {
        const spot likely = likely_first(a, n_blocks);
        begin_at(a.tile, likely.block, likely.col, likely.block >= 0, MF_D * BYTES, MF_STAGES * SLICE);
    }
    if (threadIdx.x >= GROUP * GROUPS) {
        mf_registers_give<BRINGS>();
#ifdef MF_ZERO
        zeroing aside = {(u8 *)a.y, zeros, (i64)blockIdx.x * ZEROS, (i64)a.tile.token * MF_D * 2};
#else
        nothing_aside aside;
#endif
        const taking take = {order_of(a.tile, n_blocks), half_of(a, mf_unit())};
        bring(a.w_map, a.x_map, a.tile, r, n_blocks, take, always(), aside);
        aside.end();
        if (threadIdx.x % GROUP == 0 && mf_take_one(mf_taken + 2) == gridDim.x - 1)
            mf_taken[0] = mf_taken[1] = mf_taken[2] = 0; /* for the next launch */
        mf_copy_commit();
        mf_copy_wait<0>();
    } else {
        mf_registers_take<MULTIPLIES>();
        multiply_tiles(a.tile, r, outs, always());
    }
}
