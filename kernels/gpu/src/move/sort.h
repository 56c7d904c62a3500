/* moe_sorting: tokens into blocks of MF_BLOCK_M rows of one expert, AITER's contract as common/moe/tensor_spec.h has it. Tokens
 * stay in order within an expert (stable), so every run gives the same bits.
 *
 * Each wave of each block takes a run of ids and counts them by expert. A block scans its own counts and learns those of the others
 * (enum how). Then each wave knows where its share of each expert begins and writes its ids to their places. MF_E experts, at most
 * MF_THREADS; MF_K topk; blocks that meet have to be resident. Of a rank's share (share.h) what goes to others' experts gets no row.
 *
 *   lds: count[waves][E] | start[E] (first row of this block's share) | begin[E] (first row) | total[E]; before the scan begin and total
 *        hold what count_others counts */
#pragma once

#include "args.h"
#include "count.h"

#define BLOCKS_AT_ONCE 16

__device__ u32 mf_sorters[2]; /* where blocks meet */

/* How blocks sort the same ids: the fewer there are, the more of them each block looks at sooner than it could meet the others. */
enum how {
    RANK_ALL, /* each counts all, so that each knows experts and num_valid by itself; what they place is shared */
    COUNT_OTHERS, /* each counts its own run by waves, and only how many of the others' each expert has */
    MEET,         /* each counts its own run; they leave what they counted in a.counts and meet */
};
template <int Threads> MF_DEVICE enum how how_to_sort(i32 ids)
{
    static_assert(MF_HIP_SORT_COUNTED <= AT_ONCE * Threads, "take_others takes all ids at once");
    return ids <= MF_HIP_SORT_RANKED ? RANK_ALL : ids <= MF_HIP_SORT_COUNTED ? COUNT_OTHERS : MEET;
}

/* Ids that are not of this block's run, from `from` to `to`, MF_THREADS apart; MF_E for what is. */
MF_DEVICE void take_others(const i32 *ids, i32 n, i32 from, i32 to, u32 (&ret)[AT_ONCE])
{
    MF_UNROLL
    for (int c = 0; c < AT_ONCE; c++) {
        const i32 i = threadIdx.x + c * MF_THREADS;
        ret[c] = i < n && (i < from || i >= to) ? MF_MIN((u32)mf_local(ids[i]), (u32)MF_E) : MF_E;
    }
}
/* Adds them to what blocks before this one have of each expert, and to what those behind it have. */
MF_DEVICE void count_others(const u32 (&expert)[AT_ONCE], i32 from, i32 *before, i32 *behind)
{
    MF_UNROLL
    for (int c = 0; c < AT_ONCE; c++) {
        if (expert[c] < MF_E)
            mf_add_shared((threadIdx.x + c * MF_THREADS < from ? before : behind) + expert[c], 1);
    }
}

/* Thread e: of the rows of expert e, of which this block has so many, those of lower blocks; *ret_all gets those of all. By what
 * count_others counted, or by blocks that meet. */
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
    i32 before = 0, all = 0;
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
                all += c[i];
            }
        }
    }
    *ret_all = all;
    return before;
}

MF_DEVICE void take_weights(const float *weights, i32 to, const turn<AT_ONCE> &t, float (&ret)[AT_ONCE])
{
    MF_UNROLL
    for (int c = 0; c < AT_ONCE; c++)
        ret[c] = t.first + c * MF_WAVE < to ? weights[t.first + c * MF_WAVE] : 0.0f;
}

/* The turn's ids to their places: at start[expert] + rank, and of a wave base[expert] more. Of ids that other blocks have, too,
 * a wave's width is this block's and the next one another's. */
MF_DEVICE void place_turn(const mf_hip_sort_args &a, i32 to, const i32 *start, const i32 *base,
                          const turn<AT_ONCE> &t, const float (&weight)[AT_ONCE], i32 share, i32 shares)
{
    MF_UNROLL
    for (int c = 0; c < AT_ONCE; c++) {
        const i32 i = t.first + c * MF_WAVE;
        if (i >= to || t.expert[c] >= MF_E || i / MF_WAVE % shares != share)
            continue;
        const i32 at = start[t.expert[c]] + t.rank[c] + (base ? base[t.expert[c]] : 0);
        a.sorted_ids[at] = ((i % MF_K) << 24) | (i / MF_K);
        a.sorted_weights[at] = weight[c];
    }
}

/* What stands beyond an expert's last row in its last block: a share of it. */
MF_DEVICE void place_padding(const mf_hip_sort_args &a, const i32 *begin, const i32 *total, i32 share,
                             i32 shares)
{
    for (i32 i = share * MF_THREADS + threadIdx.x; i < MF_E * MF_BLOCK_M; i += shares * MF_THREADS) {
        const i32 e = i / MF_BLOCK_M, used = total[e], at = used + i % MF_BLOCK_M;
        if (at < MF_CEIL(used, MF_BLOCK_M) * MF_BLOCK_M) {
            a.sorted_ids[begin[e] + at] = (MF_K << 24) | a.token;
            a.sorted_weights[begin[e] + at] = 0.0f;
        }
    }
}
/* A sort with nothing else to do. */
struct nothing {
    __device__ __forceinline__ void operator()()
    {
    }
};

struct sharing {
    i32 block, blocks;
    enum how how;
};

/* Ends with its writes to memory unseen by its other threads. The last turn of a wave stays in registers while all scan; the
 * turns before it are taken again. meanwhile(): whatever else is to be done while memory brings the first ids. */
template <class Meanwhile>
MF_DEVICE void sort_ids(const mf_hip_sort_args &a, i32 *lds, const sharing by, Meanwhile &meanwhile)
{
    const bool ranks_all = by.how == RANK_ALL, counts_others = by.how == COUNT_OTHERS;
    const i32 block = ranks_all ? 0 : by.block, blocks = ranks_all ? 1 : by.blocks;
    const i32 share = ranks_all ? by.block : 0, shares = ranks_all ? by.blocks : 1;
    i32 *count = lds, *start = lds + WAVES * MF_E, *begin = start + MF_E, *total = begin + MF_E,
        *room = total + MF_E;
    const i32 n = a.token * MF_K, lane = threadIdx.x % MF_WAVE, wave = threadIdx.x / MF_WAVE;
    const i32 run = block * WAVES + wave, runs = blocks * WAVES;
    const i32 each = MF_CEIL(MF_CEIL(n, MF_WAVE), runs) * MF_WAVE;
    const i32 from = run * each, to = MF_MIN(n, from + each);
    const i32 last = from + MF_MAX(MF_CEIL(to - from, AT_ONCE * MF_WAVE) - 1, 0) * AT_ONCE * MF_WAVE;
    const i32 own = block * WAVES * each; /* where the block's run begins */
    turn<AT_ONCE> held, again;
    float weight[AT_ONCE];
    u32 other[AT_ONCE];

    held.first = last + lane;
    take_ids(a.ids, to, held);
    take_weights(a.weights, to, held, weight);
    if (counts_others)
        take_others(a.ids, n, own, own + WAVES * each, other);
    meanwhile();
    for (i32 i = threadIdx.x; i < WAVES * MF_E; i += MF_THREADS)
        count[i] = 0;
    for (i32 e = threadIdx.x; counts_others && e < MF_E; e += MF_THREADS)
        begin[e] = total[e] = 0;
    __syncthreads();
    if (counts_others)
        count_others(other, own, begin, total);
    for (i32 first = from; first < last; first += AT_ONCE * MF_WAVE) {
        again.first = first + lane;
        take_ids(a.ids, to, again);
        count_turn(to, count + wave * MF_E, again);
    }
    count_turn(to, count + wave * MF_E, held);
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
    place_turn(a, to, start, count + wave * MF_E, held, weight, share, shares);
    mf_wave_sync(); /* the turns before it count on from where the wave's share begins */
    for (i32 first = from; first < last; first += AT_ONCE * MF_WAVE) {
        again.first = first + lane;
        take_ids(a.ids, to, again);
        take_weights(a.weights, to, again, weight);
        count_turn(to, count + wave * MF_E, again);
        place_turn(a, to, start, nullptr, again, weight, share, shares);
    }
}
