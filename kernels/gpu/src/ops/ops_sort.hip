/* moe_align_block_size, moe_sorting and the sort of every permutation (ops_sort.h). With one slice,
 * mf_op_sort is the only launch. With more slices, mf_op_sort_count runs first. Blocks beyond the sorters
 * zero memory. */
#include "dialect.h"
#include "ops_sort.h"

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_op_sort_count(const mf_op_sort_args a)
{
    extern __shared__ i32 lds[];
    const sort_room r = make_room(a, lds);
    id_run t;
    mf_begin();
    const warp_run w = run_of(a, blockIdx.x, a.slices);
    const id_batch ids = load_batch(a, w, w.from);
    prepare_bins(a, r);
    count_ids(a, r, w, ids, t);
    __syncthreads();
    scan_warps(a, r);
    for (i32 b = threadIdx.x; b < a.bins; b += MF_THREADS)
        a.counts[(i64)blockIdx.x * a.bins + b] = r.total[b];
}

MF_DEVICE void zero_part(const mf_op_sort_args &a, i32 part)
{
    const i64 from = (i64)part * (MF_OP_ZERO_BYTES / 16), to = from + MF_OP_ZERO_BYTES / 16;
    for (i64 i = from + threadIdx.x; i < MF_MIN(to, a.zeroed_bytes / 16); i += MF_THREADS)
        ((mf_16b *)a.zeroed)[i] = mf_16b{0, 0, 0, 0};
}

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_op_sort(const mf_op_sort_args a)
{
    extern __shared__ i32 lds[];
    mf_begin();
    const i32 block = (i32)blockIdx.x;
    if (block >= a.sorters)
        zero_part(a, block - a.sorters);
    else
        sort_ids(a, lds, sort_part{a.slices > 1 ? block : 0, a.slices, block, a.sorters, nullptr});
}
