/* moe_sorting: tokens into blocks of MF_BLOCK_M rows of one expert, AITER's contract as common/artifact.h has it. Tokens
 * stay in order within an expert (stable), so every run gives the same bits.
 *
 * Each wave of each block takes a run of ids and counts them by expert. One block scans its own counts; several leave theirs
 * in a.counts, meet, and every one of them scans all. Then each wave knows where its share of each expert begins and writes
 * its ids to their places. MF_E experts, at most MF_THREADS; MF_K topk; all blocks have to be resident. Of a
 * rank's share (share.h) what goes to others' experts gets no row.
 *
 *   lds: count[waves][E] | start[E] (first row of this block's share) | begin[E] (first row) | total[E] */
#include "dialect.h"
#include "args.h"
#include "share.h"
#include "scan.h"

#define AT_ONCE        8 /* loads in flight of a thread */
#define BLOCKS_AT_ONCE 16

/* What is no expert's here, and what lies beyond the end, is MF_E. */
MF_DEVICE void take_ids(const i32 *ids, i32 i, i32 to, u32 (&ret)[AT_ONCE])
{
    MF_UNROLL
    for (int c = 0; c < AT_ONCE; c++)
        ret[c] = i + c * MF_WAVE < to ? MF_MIN((u32)mf_local(ids[i + c * MF_WAVE]), (u32)MF_E) : MF_E;
}

__device__ u32 mf_barrier[2];

/* Thread e has expert e: where each wave's share of it begins within the block's, and how many the block has. */
MF_DEVICE i32 scan_waves(i32 *count)
{
    i32 rows = 0;
    if (threadIdx.x < MF_E) {
        for (int w = 0; w < WAVES; w++) {
            i32 c = count[w * MF_E + threadIdx.x];
            count[w * MF_E + threadIdx.x] = rows;
            rows += c;
        }
    }
    return rows;
}

/* Thread e: of the rows of expert e, those of lower blocks; *ret_all gets those of all. */
MF_DEVICE i32 scan_blocks(const mf_hip_sort_args &a, i32 rows, i32 *ret_all)
{
    u32 generation = 0;
    const i32 blocks = (i32)gridDim.x, block = (i32)blockIdx.x;
    i32 before = 0, all = 0;
    *ret_all = rows;
    if (blocks == 1)
        return 0;
    if (threadIdx.x < MF_E)
        a.counts[block * MF_E + threadIdx.x] = rows;
    mf_grid_arrive(mf_barrier, &generation);
    mf_grid_wait(mf_barrier, generation);
    if (threadIdx.x < MF_E) {
        for (i32 first = 0; first < blocks; first += BLOCKS_AT_ONCE) {
            i32 c[BLOCKS_AT_ONCE];
            MF_UNROLL
            for (int i = 0; i < BLOCKS_AT_ONCE; i++)
                c[i] = first + i < blocks ? mf_load_shared_by_grid_4(a.counts + (first + i) * MF_E + threadIdx.x) : 0;
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

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_sort(const mf_hip_sort_args a)
{
    extern __shared__ i32 lds[];
    i32 *count = lds, *start = lds + WAVES * MF_E, *begin = start + MF_E, *total = begin + MF_E, *room = total + MF_E;
    const i32 n = a.token * MF_K, lane = threadIdx.x % MF_WAVE, wave = threadIdx.x / MF_WAVE;
    const i32 run = blockIdx.x * WAVES + wave, runs = gridDim.x * WAVES;
    const i32 each = MF_CEIL(MF_CEIL(n, MF_WAVE), runs) * MF_WAVE;
    const u64 below_me = ((u64)1 << lane) - 1;
    const i32 from = run * each, to = MF_MIN(n, from + each);

    mf_begin();
    for (i32 i = threadIdx.x; i < WAVES * MF_E; i += MF_THREADS)
        count[i] = 0;
    __syncthreads();
    for (i32 first = from; first < to; first += AT_ONCE * MF_WAVE) {
        u32 expert[AT_ONCE];
        take_ids(a.ids, first + lane, to, expert);
        MF_UNROLL
        for (int c = 0; c < AT_ONCE; c++) {
            if (first + c * MF_WAVE >= to)
                break;
            u64 same = mf_match((i32)expert[c]);
            if (expert[c] < MF_E && (same & below_me) == 0)
                count[wave * MF_E + expert[c]] += mf_popcount(same);
            mf_wave_sync();
        }
    }
    __syncthreads();

    i32 all_rows, end;
    const i32 before = scan_blocks(a, scan_waves(count), &all_rows);
    const i32 first_row = scan_block(MF_CEIL(all_rows, MF_BLOCK_M) * MF_BLOCK_M, room, &end);
    if (threadIdx.x < MF_E) {
        start[threadIdx.x] = first_row + before;
        begin[threadIdx.x] = first_row;
        total[threadIdx.x] = all_rows;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        a.num_valid[0] = end;
        a.num_valid[1] = a.token;
    }
    __syncthreads();

    for (i32 e = run; e < MF_E; e += runs) {
        i32 at = begin[e], used = total[e], blocks = MF_CEIL(used, MF_BLOCK_M);
        for (i32 b = lane; b < blocks; b += MF_WAVE)
            a.experts[at / MF_BLOCK_M + b] = e;
        for (i32 i = used + lane; i < blocks * MF_BLOCK_M; i += MF_WAVE) {
            a.sorted_ids[at + i] = (MF_K << 24) | a.token;
            a.sorted_weights[at + i] = 0.0f;
        }
    }
    for (i32 first = from; first < to; first += AT_ONCE * MF_WAVE) {
        u32 expert[AT_ONCE];
        float weight[AT_ONCE];
        take_ids(a.ids, first + lane, to, expert);
        MF_UNROLL
        for (int c = 0; c < AT_ONCE; c++) {
            i32 i = first + c * MF_WAVE + lane;
            weight[c] = i < to ? a.weights[i] : 0.0f;
        }
        MF_UNROLL
        for (int c = 0; c < AT_ONCE; c++) {
            if (first + c * MF_WAVE >= to)
                break;
            i32 i = first + c * MF_WAVE + lane, at = 0;
            u64 same = mf_match((i32)expert[c]), below = same & below_me;
            if (expert[c] < MF_E)
                at = start[expert[c]] + count[wave * MF_E + expert[c]] + mf_popcount(below);
            mf_wave_sync();
            if (expert[c] < MF_E && below == 0)
                count[wave * MF_E + expert[c]] += mf_popcount(same);
            mf_wave_sync();
            if (expert[c] < MF_E) {
                a.sorted_ids[at] = ((i % MF_K) << 24) | (i / MF_K);
                a.sorted_weights[at] = weight[c];
            }
        }
    }
}
