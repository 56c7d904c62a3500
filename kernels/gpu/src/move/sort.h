/* moe_sorting: sorts tokens into blocks of MF_BLOCK_M rows of one expert, as AITER's contract in
 * common/moe/tensor_spec.h requires. The sort is stable, so results are reproducible.
 *
 * Each warp counts a contiguous run of ids by expert. A block scans its own counts and gets the counts of the
 * other blocks (enum sort_method). Each warp then knows at which row its ids of each expert start, and writes
 * its ids. There are MF_E experts, at most MF_THREADS; MF_K is topk. With GRID_SYNC the blocks must be
 * co-resident. Ids of non-local experts (local_experts.h) get no row.
 *
 *   shared memory: count[waves][E] | start[E] (first row of this block's ids) | begin[E] (first row) |
 *                  total[E]; before the scan begin and total hold the results of count_others */
#pragma once

#include "args.h"
#include "count.h"

#define BLOCKS_AT_ONCE 16

__device__ u32 mf_sorters[2]; /* grid barrier */

/* How blocks share a sort. If there are few ids, reading all ids in each block is cheaper than waiting at a
 * grid barrier. */
enum sort_method {
    /* each block counts all ids and therefore knows experts and num_valid; the blocks share only the writing
     */
    RANK_ALL,
    /* each block counts its own ids by warp and expert, but the ids of other blocks only by expert */
    COUNT_OTHERS,
    /* each block counts its own ids and writes the counts to a.counts; a grid barrier follows */
    GRID_SYNC,
};
template <int Threads> MF_DEVICE enum sort_method choose_sort_method(i32 ids)
{
    static_assert(MF_HIP_SORT_COUNTED <= LOADS_IN_FLIGHT * Threads, "take_others takes all ids at once");
    return ids <= MF_HIP_SORT_RANKED ? RANK_ALL : ids <= MF_HIP_SORT_COUNTED ? COUNT_OTHERS : GRID_SYNC;
}

template <class ID>
MF_DEVICE void load_others_as(const ID *ids, i32 n, i32 from, i32 to, u32 (&ret)[LOADS_IN_FLIGHT])
{
    MF_UNROLL
    for (int c = 0; c < LOADS_IN_FLIGHT; c++) {
        const i32 i = threadIdx.x + c * MF_THREADS;
        ret[c] = i < n && (i < from || i >= to) ? MF_MIN((u32)mf_local_expert(ids[i]), (u32)MF_E) : MF_E;
    }
}
/* Loads ids outside this block's run [from, to). A thread's ids are MF_THREADS apart. Ids inside the run are
 * replaced by MF_E. */
MF_DEVICE void load_others(const mf_hip_sort_args &a, i32 n, i32 from, i32 to, u32 (&ret)[LOADS_IN_FLIGHT])
{
    if (a.types & MF_HIP_WIDE_IDS)
        load_others_as((const i64 *)a.ids, n, from, to, ret);
    else
        load_others_as((const i32 *)a.ids, n, from, to, ret);
}
/* Adds the loaded ids to two sets of counts per expert: for the blocks before and for the blocks after this
 * one. */
MF_DEVICE void count_others(const u32 (&expert)[LOADS_IN_FLIGHT], i32 from, i32 *before, i32 *behind)
{
    MF_UNROLL
    for (int c = 0; c < LOADS_IN_FLIGHT; c++) {
        if (expert[c] < MF_E)
            mf_add_shared((threadIdx.x + c * MF_THREADS < from ? before : behind) + expert[c], 1);
    }
}

/* Thread e returns the number of expert e's rows in lower blocks. `rows` is the number of the expert's rows
 * in this block, and *ret_all receives their number in all blocks. scan_others() uses the results of
 * count_others, scan_blocks() uses a grid barrier. */
MF_DEVICE i32 scan_others(const i32 *before, const i32 *behind, i32 rows, i32 *ret_all)
{
    const bool is_expert = threadIdx.x < MF_E;
    const i32 lower = is_expert ? before[threadIdx.x] : 0;
    *ret_all = is_expert ? lower + rows + behind[threadIdx.x] : 0;
    return lower;
}
MF_DEVICE i32 scan_blocks(const mf_hip_sort_args &a, i32 block, i32 blocks, i32 rows, i32 *ret_all)
{
    u32 generation = 0;
    i32 before = 0, sum = 0;
    *ret_all = rows;
    if (blocks == 1)
        return 0;
    if (threadIdx.x < MF_E)
        a.counts[block * MF_E + threadIdx.x] = rows;
    mf_grid_arrive(mf_sorters, &generation);
    mf_grid_wait(mf_sorters, generation);
    if (threadIdx.x < MF_E) {
        for (i32 first = 0; first < blocks; first += BLOCKS_AT_ONCE) {
            i32 c[BLOCKS_AT_ONCE];
            MF_UNROLL
            for (int i = 0; i < BLOCKS_AT_ONCE; i++)
                c[i] = first + i < blocks
                           ? mf_load_shared_by_grid_4(a.counts + (first + i) * MF_E + threadIdx.x)
                           : 0;
            MF_UNROLL
            for (int i = 0; i < BLOCKS_AT_ONCE; i++) {
                before += first + i < block ? c[i] : 0;
                sum += c[i];
            }
        }
    }
    *ret_all = sum;
    return before;
}

template <class WEIGHT>
MF_DEVICE void load_weights_as(const WEIGHT *weights, i32 to, const id_batch<LOADS_IN_FLIGHT> &t,
                               float (&ret)[LOADS_IN_FLIGHT])
{
    MF_UNROLL
    for (int c = 0; c < LOADS_IN_FLIGHT; c++)
        ret[c] = t.first + c * MF_WAVE < to ? mf_float_of(weights[t.first + c * MF_WAVE]) : 0.0f;
}
MF_DEVICE void load_weights(const mf_hip_sort_args &a, i32 to, const id_batch<LOADS_IN_FLIGHT> &t,
                            float (&ret)[LOADS_IN_FLIGHT])
{
    if (a.types & MF_HIP_BF16_WEIGHTS)
        load_weights_as((const u16 *)a.weights, to, t, ret);
    else
        load_weights_as((const float *)a.weights, to, t, ret);
}

/* Writes the batch's ids to row start[expert] + rank, plus the warp's base[expert] if `base` is not NULL. If
 * all blocks have the same ids, each block writes only part number `part` of n_parts: every n_parts-th group
 * of MF_WAVE ids. */
MF_DEVICE void place_batch(const mf_hip_sort_args &a, i32 to, const i32 *start, const i32 *base,
                           const id_batch<LOADS_IN_FLIGHT> &t, const float (&weight)[LOADS_IN_FLIGHT],
                           i32 part, i32 n_parts)
{
    MF_UNROLL
    for (int c = 0; c < LOADS_IN_FLIGHT; c++) {
        const i32 i = t.first + c * MF_WAVE;
        if (i >= to || t.expert[c] >= MF_E || i / MF_WAVE % n_parts != part)
            continue;
        const i32 at = start[t.expert[c]] + t.rank[c] + (base ? base[t.expert[c]] : 0);
        a.sorted_ids[at] = ((i % MF_K) << 24) | (i / MF_K);
        a.sorted_weights[at] = weight[c];
    }
}

/* Writes part number `part` (of n_parts) of the padding in the last block of each expert. */
MF_DEVICE void place_padding(const mf_hip_sort_args &a, const i32 *begin, const i32 *total, i32 part,
                             i32 n_parts)
{
    for (i32 i = part * MF_THREADS + threadIdx.x; i < MF_E * MF_BLOCK_M; i += n_parts * MF_THREADS) {
        const i32 e = i / MF_BLOCK_M, used = total[e], at = used + i % MF_BLOCK_M;
        if (at < MF_CEIL(used, MF_BLOCK_M) * MF_BLOCK_M) {
            a.sorted_ids[begin[e] + at] = (MF_K << 24) | a.token;
            a.sorted_weights[begin[e] + at] = 0.0f;
        }
    }
}
/* Type of `overlap` if no work overlaps with the sort. */
struct no_overlap {
    __device__ __forceinline__ void operator()()
    {
    }
};

struct block_part {
    i32 block, blocks;
    enum sort_method sort_method;
};

/* Sorts the ids. When the function returns, its writes to global memory are not yet visible to other threads.
 * A warp's last batch of ids stays in registers during the scan; earlier batches are loaded again. overlap()
 * runs while the first ids are loaded. */
template <class Overlap>
MF_DEVICE void sort_ids(const mf_hip_sort_args &a, i32 *lds, const block_part by, Overlap &overlap)
{
    const bool ranks_all = by.sort_method == RANK_ALL, counts_others = by.sort_method == COUNT_OTHERS;
    const i32 block = ranks_all ? 0 : by.block, blocks = ranks_all ? 1 : by.blocks;
    const i32 part = ranks_all ? by.block : 0, n_parts = ranks_all ? by.blocks : 1;
    i32 *count = lds, *start = lds + WAVES * MF_E, *begin = start + MF_E, *total = begin + MF_E,
        *room = total + MF_E;
    const i32 n = a.token * MF_K, lane = threadIdx.x % MF_WAVE, wave = threadIdx.x / MF_WAVE;
    const i32 run = block * WAVES + wave, runs = blocks * WAVES;
    const i32 each = MF_CEIL(MF_CEIL(n, MF_WAVE), runs) * MF_WAVE;
    const i32 from = run * each, to = MF_MIN(n, from + each);
    const i32 last =
        from + MF_MAX(MF_CEIL(to - from, LOADS_IN_FLIGHT * MF_WAVE) - 1, 0) * LOADS_IN_FLIGHT * MF_WAVE;
    const i32 own = block * WAVES * each; /* start of the block's run */
    id_batch<LOADS_IN_FLIGHT> held, again;
    float weight[LOADS_IN_FLIGHT];
    u32 other[LOADS_IN_FLIGHT];

    held.first = last + lane;
    load_ids(a.ids, a.types, to, held);
    load_weights(a, to, held, weight);
    if (counts_others)
        load_others(a, n, own, own + WAVES * each, other);
    overlap();
    for (i32 i = threadIdx.x; i < WAVES * MF_E; i += MF_THREADS)
        count[i] = 0;
    for (i32 e = threadIdx.x; counts_others && e < MF_E; e += MF_THREADS)
        begin[e] = total[e] = 0;
    __syncthreads();
    if (counts_others)
        count_others(other, own, begin, total);
    for (i32 first = from; first < last; first += LOADS_IN_FLIGHT * MF_WAVE) {
        again.first = first + lane;
        load_ids(a.ids, a.types, to, again);
        count_batch(to, count + wave * MF_E, again);
    }
    count_batch(to, count + wave * MF_E, held);
    __syncthreads();

    i32 all_rows, end;
    const i32 rows = scan_waves(count);
    const i32 before = counts_others ? scan_others(begin, total, rows, &all_rows)
                                     : scan_blocks(a, block, blocks, rows, &all_rows);
    const i32 first_row = scan_block(MF_CEIL(all_rows, MF_BLOCK_M) * MF_BLOCK_M, room, &end);
    if (threadIdx.x < MF_E) {
        start[threadIdx.x] = first_row + before;
        begin[threadIdx.x] = first_row;
        total[threadIdx.x] = all_rows;
    }
    if (block == 0 && threadIdx.x == 0) {
        a.num_valid[0] = end;
        a.num_valid[1] = a.token;
    }
    __syncthreads();

    place_experts(a.experts, begin, total, block, blocks);
    place_padding(a, begin, total, by.block, by.blocks);
    place_batch(a, to, start, count + wave * MF_E, held, weight, part, n_parts);
    mf_wave_sync(); /* earlier batches are counted again, from the start of the warp's ids */
    for (i32 first = from; first < last; first += LOADS_IN_FLIGHT * MF_WAVE) {
        again.first = first + lane;
        load_ids(a.ids, a.types, to, again);
        load_weights(a, to, again, weight);
        count_batch(to, count + wave * MF_E, again);
        place_batch(a, to, start, nullptr, again, weight, part, n_parts);
    }
}
