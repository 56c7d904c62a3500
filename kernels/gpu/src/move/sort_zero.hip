/* What a layer needs before stage 1, in one launch: ids are sorted by the first blocks (sort.h) while the others quantise x
 * (quant_groups.h, where MF_GROUP is there) and zero y, where it is given. Sorting waits for memory and for itself, the others keep memory busy. There
 * are more blocks than sort, and where those meet (sort.h) all have to be resident. */
#include "dialect.h"
#include "sort.h"
#include "zero.h"
#ifdef MF_GROUP
#    include "quant_groups.h"
#endif

extern "C" __global__ void MF_BOUNDS(MF_THREADS, 1) mf_sort_zero(const mf_hip_sort_zero_args a)
{
    extern __shared__ i32 lds[];
    const i32 sorters = a.sorters, other = (i32)blockIdx.x - sorters, others = (i32)gridDim.x - sorters;
    const enum how how = how_to_sort<MF_THREADS>(a.sort.token * MF_K);
    mf_begin();
    if (other < 0) {
        nothing meanwhile;
        sort_ids(a.sort, lds, sharing{(i32)blockIdx.x, sorters, how}, meanwhile);
        return;
    }
    if (how == MEET && sorters > 1) { /* whose meeting counts all blocks */
        u32 generation;
        mf_grid_arrive(mf_sorters, &generation);
    }
#ifdef MF_GROUP
    quantise_groups(a.quant, a.sort.token, other, others);
#endif
    if (a.y)
        zero_rows(a.y, a.sort.token, other, others);
}
