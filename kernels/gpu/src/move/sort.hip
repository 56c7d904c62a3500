/* moe_sorting as a launch of its own (sort.h). */
#include "dialect.h"
#include "sort.h"

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_sort(const mf_hip_sort_args a)
{
    extern __shared__ i32 lds[];
    mf_begin();
    no_overlap overlap;
    sort_ids(a, lds,
             block_part{(i32)blockIdx.x, (i32)gridDim.x, choose_sort_method<MF_THREADS>(a.token * MF_K)},
             overlap);
}
