/* moe_sorting: tokens into blocks of MF_BLOCK_M rows of one expert, AITER's contract as common/artifact.h has it. Tokens
 * stay in order within an expert (stable), so every run gives the same bits.
 *
 * One block of MF_THREADS threads: each wave takes a run of ids, counts them by expert, and after one scan over waves and
 * experts writes each id to its place. MF_E experts, at most MF_THREADS; MF_K topk.
 *
 *   lds: count[waves][E] | start[E] (rows, padded) | total[E] */
#include "dialect.h"
#include "args.h"

#define WAVES (MF_THREADS / MF_WAVE)

/* Sum of all lower threads' values within the block; *ret_all gets the whole. */
MF_DEVICE i32 scan_block(i32 v, i32 *room, i32 *ret_all)
{
    i32 lane = threadIdx.x % MF_WAVE, wave = threadIdx.x / MF_WAVE, sum = v;
    for (int d = 1; d < MF_WAVE; d *= 2) {
        i32 below = mf_shuffle_up(sum, d);
        if (lane >= d)
            sum += below;
    }
    if (lane == MF_WAVE - 1)
        room[wave] = sum;
    __syncthreads();
    i32 before = 0, all = 0;
    for (int i = 0; i < WAVES; i++) {
        before += i < wave ? room[i] : 0;
        all += room[i];
    }
    *ret_all = all;
    return before + sum - v;
}

#define AT_ONCE 8 /* loads in flight of a thread */

/* What is no expert's, and what lies beyond the end, is MF_E or more. */
MF_DEVICE void take_ids(const i32 *ids, i32 i, i32 to, u32 (&ret)[AT_ONCE])
{
    MF_UNROLL
    for (int c = 0; c < AT_ONCE; c++)
        ret[c] = i + c * MF_WAVE < to ? (u32)ids[i + c * MF_WAVE] : MF_E;
}

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_sort(const mf_hip_sort_args a)
{
    extern __shared__ i32 lds[];
    i32 *count = lds, *start = lds + WAVES * MF_E, *total = start + MF_E, *room = total + MF_E;
    const i32 n = a.token * MF_K, lane = threadIdx.x % MF_WAVE, wave = threadIdx.x / MF_WAVE;
    const i32 chunks = MF_CEIL(n, MF_WAVE), each = MF_CEIL(chunks, WAVES);
    const u64 below_me = ((u64)1 << lane) - 1;
    const i32 from = wave * each * MF_WAVE, to = MF_MIN(n, from + each * MF_WAVE);

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

    /* Thread e has expert e: where each wave's share of it begins, and how many blocks it takes. */
    i32 rows = 0;
    if (threadIdx.x < MF_E) {
        for (int w = 0; w < WAVES; w++) {
            i32 c = count[w * MF_E + threadIdx.x];
            count[w * MF_E + threadIdx.x] = rows;
            rows += c;
        }
        total[threadIdx.x] = rows;
    }
    i32 padded = MF_CEIL(rows, MF_BLOCK_M) * MF_BLOCK_M, all;
    i32 begin = scan_block(padded, room, &all);
    if (threadIdx.x < MF_E)
        start[threadIdx.x] = begin;
    if (threadIdx.x == 0) {
        a.num_valid[0] = all;
        a.num_valid[1] = a.token;
    }
    __syncthreads();

    for (i32 e = wave; e < MF_E; e += WAVES) {
        i32 at = start[e], used = total[e], blocks = MF_CEIL(used, MF_BLOCK_M);
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
