/* moe_sorting, a launch of its own (sort.h). */
#include "dialect.h"
#include "sort.h"

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_sort(const mf_hip_sort_args a)
{
    extern __shared__ i32 lds[];
    mf_begin();
    nothing meanwhile;
    sort_ids(a, lds, sharing{(i32)blockIdx.x, (i32)gridDim.x, how_to_sort<MF_THREADS>(a.token * MF_K)},
             meanwhile);
}
