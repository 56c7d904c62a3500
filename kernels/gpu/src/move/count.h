/* Counts ids by expert: the first step of sort.h and align.hip. Each warp counts a contiguous run of ids.
 * There are MF_E experts, at most MF_THREADS. Ids of non-local experts (local_experts.h), and positions
 * beyond the end, are counted as ids of an expert MF_E. */
#pragma once

#include "local_experts.h"
#include "scan.h"

#define LOADS_IN_FLIGHT 8 /* number of loads in flight per thread */

/* The N ids of a warp's run that one lane processes. Consecutive ids of a lane are a warp's width apart. */
template <int N> struct id_batch {
    i32 first; /* index of the lane's first id */
    u32 expert[N];
    i32 rank[N]; /* per id: number of ids of the same expert that were counted before it */
};

template <int N, class ID> MF_DEVICE void load_ids_as(const ID *ids, i32 to, id_batch<N> &t)
{
    MF_UNROLL
    for (int c = 0; c < N; c++)
        t.expert[c] = t.first + c * MF_WAVE < to
                          ? MF_MIN((u32)mf_local_expert(ids[t.first + c * MF_WAVE]), (u32)MF_E)
                          : MF_E;
}
/* Starts loading the batch's ids. */
template <int N> MF_DEVICE void load_ids(const void *ids, i32 types, i32 to, id_batch<N> &t)
{
    if (types & MF_HIP_WIDE_IDS)
        load_ids_as((const i64 *)ids, to, t);
    else
        load_ids_as((const i32 *)ids, to, t);
}

/* Adds the batch to `count`, the warp's number of ids per expert. */
template <int N> MF_DEVICE void count_batch(i32 to, i32 *count, id_batch<N> &t)
{
    const i32 lane = threadIdx.x % MF_WAVE;
    MF_UNROLL
    for (int c = 0; c < N; c++) {
        const u32 e = t.expert[c];
        if (t.first - lane + c * MF_WAVE >= to)
            break;
        const u64 same = mf_match<MF_E + 1>(e), below = same & (((u64)1 << lane) - 1);
        if (e < MF_E)
            t.rank[c] = count[e] + mf_popcount(below);
        mf_wave_sync();
        if (e < MF_E && below == 0)
            count[e] += mf_popcount(same);
        mf_wave_sync();
    }
}

/* Thread e scans the counts of expert e. Replaces each warp's count by the number of ids of the expert in
 * lower warps. Returns the number of ids of the expert in the block. */
MF_DEVICE i32 scan_waves(i32 *count)
{
    i32 c[WAVES], rows = 0;
    if (threadIdx.x < MF_E) {
        MF_UNROLL
        for (int w = 0; w < WAVES; w++)
            c[w] = count[w * MF_E + threadIdx.x];
        MF_UNROLL
        for (int w = 0; w < WAVES; w++) {
            count[w * MF_E + threadIdx.x] = rows;
            rows += c[w];
        }
    }
    return rows;
}

/* Writes part number `part` (of n_parts) of the experts array, which has the expert of each expert block. */
MF_DEVICE void place_experts(i32 *experts, const i32 *begin, const i32 *total, i32 part, i32 n_parts)
{
    for (i32 e = part * MF_THREADS + threadIdx.x; e < MF_E; e += n_parts * MF_THREADS) {
        for (i32 b = 0; b < MF_CEIL(total[e], MF_BLOCK_M); b++)
            experts[begin[e] / MF_BLOCK_M + b] = e;
    }
}
