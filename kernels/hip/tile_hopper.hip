/* A stage of the two-stage grouped GEMM for many tokens, a launch of its own: Hopper's core (hopper_core.inc.h). */
#define MF_WGMMA 1
#include "dialect.h"
#include "format.h"
#include "dialect_hopper.h"
#include "hopper_ring.h"
#include "hopper_core.inc.h"

__device__ u32 mf_taken[2]; /* tiles beyond the blocks' first; blocks that take no more */

/* Whoever reads a stage's rows is another launch. */
struct always {
    static const bool waits = false;
    __device__ __forceinline__ void operator()(i32) const {}
    __device__ __forceinline__ void operator()(i32, i32, i32, i32) const {}
};

extern "C" __global__ void __launch_bounds__(GROUP *(GROUPS + 1), 1) mf_tile_hopper(const __grid_constant__ mf_hip_bulk_args a)
{
    extern __shared__ __align__(1024) u8 lds[];
    u8 *outs = lds + MF_STAGES * RING_BYTES;
    ring r = ring_at(lds, (MF_TURNS ? GROUPS : 1) * OUT_BYTES);
    if (MF_STAGE == 1)
        mf_begin();
    const i32 n_blocks = a.tile.num_valid[0] / MF_BM;
    begin_ring(r, COPIES ? GROUP : 0);
    i32 block, col;
    find_tile(a.tile, blockIdx.x, MF_MAX(n_blocks, 1), block, col);
    begin_at(a.tile, block, col, (i32)blockIdx.x < n_blocks * TILES_N, MF_D * BYTES, MF_STAGES * SLICE);
    if (threadIdx.x >= GROUP * GROUPS) {
        mf_registers_give<BRINGS>();
        bring(a.w_map, a.x_map, a.tile, r, n_blocks, mf_taken, always());
        if (threadIdx.x % GROUP == 0 && mf_take_one(mf_taken + 1) == gridDim.x - 1)
            mf_taken[0] = mf_taken[1] = 0; /* for the next launch */
        mf_copy_commit();
        mf_copy_wait<0>();
    } else {
        mf_registers_take<MULTIPLIES>();
        multiply_tiles(a.tile, r, outs, n_blocks, always());
    }
}
