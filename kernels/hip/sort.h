/* moe_sorting: tokens into blocks of MF_BLOCK_M rows of one expert, AITER's contract as common/artifact.h has it. Tokens
 * stay in order within an expert (stable), so every run gives the same bits.
 *
 * Each wave of each block takes a run of ids and counts them by expert. One block scans its own counts; several leave theirs
 * in a.counts, meet, and every one of them scans all. Then each wave knows where its share of each expert begins and writes
 * its ids to their places. MF_E experts, at most MF_THREADS; MF_K topk; all blocks have to be resident. Of a
 * rank's share (share.h) what goes to others' experts gets no row.
 *
 *   lds: count[waves][E] | start[E] (first row of this block's share) | begin[E] (first row) | total[E] */
#pragma once

#include "args.h"
#include "count.h"

#define BLOCKS_AT_ONCE 16

__device__ u32 mf_sorters[2]; /* where blocks meet */

/* Thread e: of the rows of expert e, those of lower blocks; *ret_all gets those of all. */
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

/* How blocks sort the same ids. They share the counting, and each places what it counted; or every block counts all, so that each
 * knows experts and num_valid by itself, and only what they place is shared. */
struct sharing {
    i32 block, blocks;
    bool counting;
};

/* Ends with its writes to memory unseen by its other threads. The last turn of a wave stays in registers while all scan; the
 * turns before it are taken again. meanwhile(): whatever else is to be done while memory brings the first ids. */
template <class Meanwhile>
MF_DEVICE void sort_ids(const mf_hip_sort_args &a, i32 *lds, const sharing by, Meanwhile &meanwhile)
{
    const i32 block = by.counting ? by.block : 0, blocks = by.counting ? by.blocks : 1;
    const i32 share = by.counting ? 0 : by.block, shares = by.counting ? 1 : by.blocks;
    i32 *count = lds, *start = lds + WAVES * MF_E, *begin = start + MF_E, *total = begin + MF_E,
        *room = total + MF_E;
    const i32 n = a.token * MF_K, lane = threadIdx.x % MF_WAVE, wave = threadIdx.x / MF_WAVE;
    const i32 run = block * WAVES + wave, runs = blocks * WAVES;
    const i32 each = MF_CEIL(MF_CEIL(n, MF_WAVE), runs) * MF_WAVE;
    const i32 from = run * each, to = MF_MIN(n, from + each);
    const i32 last = from + MF_MAX(MF_CEIL(to - from, AT_ONCE * MF_WAVE) - 1, 0) * AT_ONCE * MF_WAVE;
    turn<AT_ONCE> held, again;
    float weight[AT_ONCE];

    held.first = last + lane;
    take_ids(a.ids, to, held);
    take_weights(a.weights, to, held, weight);
    meanwhile();
    for (i32 i = threadIdx.x; i < WAVES * MF_E; i += MF_THREADS)
        count[i] = 0;
    __syncthreads();
    for (i32 first = from; first < last; first += AT_ONCE * MF_WAVE) {
        again.first = first + lane;
        take_ids(a.ids, to, again);
        count_turn(to, count + wave * MF_E, again);
    }
    count_turn(to, count + wave * MF_E, held);
    __syncthreads();

    i32 all_rows, end;
    const i32 before = scan_blocks(a, block, blocks, scan_waves(count), &all_rows);
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
