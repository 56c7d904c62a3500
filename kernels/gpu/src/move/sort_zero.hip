/* Prepares stage 1 in one launch. The first blocks sort the ids (sort.h). The other blocks quantise x
 * (quant_groups.h, with MF_GROUP) and zero y if it is not NULL. The sort is bound by latency, the other work
 * by memory bandwidth. The grid has more blocks than those that sort; with GRID_SYNC all blocks must be
 * co-resident. */
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
    const enum sort_method sort_method = choose_sort_method<MF_THREADS>(a.sort.token * MF_K);
    mf_begin();
    if (other < 0) {
        no_overlap overlap;
        sort_ids(a.sort, lds, block_part{(i32)blockIdx.x, sorters, sort_method}, overlap);
        return;
    }
    /* the grid barrier counts all blocks, so the blocks that do not sort must arrive too */
    if (sort_method == GRID_SYNC && sorters > 1) {
        u32 generation;
        mf_grid_arrive(mf_sorters, &generation);
    }
#ifdef MF_GROUP
    quantise_groups(a.quant, a.sort.token, other, others);
#endif
    if (a.y)
        zero_rows(a.y, a.sort.token, other, others);
}
