/* moe_align_block_size, vLLM's order of experts (common/moe/tensor_spec.h): flat ids token * k + slot in
 * blocks of MF_BLOCK_M rows of one expert. Padding and the tail have id T * k, and blocks of the tail have
 * expert -1. Within an expert, slots stay in their original order.
 *
 * Each warp of a block counts a contiguous run of ids by expert. Every block counts all ids, so that no block
 * waits for another block. Each block then writes the ids that some of its warps have counted. There are at
 * most MF_THREADS experts, and at most as many blocks as warps per block. With expert parallelism
 * (local_experts.h), ids of other ranks' experts get no row.
 *
 *   shared memory: count[waves][E] | begin[E] (first row) | total[E] | room[waves] */
#include "dialect.h"
#include "args.h"
#include "count.h"

/* Writes this block's part of the padding. Padding follows the rows of each expert and, as the tail, the last
 * expert. */
MF_DEVICE void place_padding(const mf_hip_align_args &a, const i32 *begin, const i32 *total, i32 end)
{
    const i32 pad = a.token * MF_K, lane = threadIdx.x % MF_WAVE, runs = gridDim.x * WAVES;
    const i32 global_thread = (i32)(blockIdx.x * MF_THREADS + threadIdx.x),
              global_threads = (i32)gridDim.x * MF_THREADS;
    for (i32 e = blockIdx.x * WAVES + threadIdx.x / MF_WAVE; e < MF_E; e += runs) {
        for (i32 i = total[e] + lane; i < MF_CEIL(total[e], MF_BLOCK_M) * MF_BLOCK_M; i += MF_WAVE)
            a.sorted_ids[begin[e] + i] = pad;
    }
    for (i32 i = end + global_thread; i < a.rows; i += global_threads)
        a.sorted_ids[i] = pad;
    for (i32 b = end / MF_BLOCK_M + global_thread; b < a.rows / MF_BLOCK_M; b += global_threads)
        a.experts[b] = -1;
    if (global_thread == 0)
        *a.num_post_pad = end;
}

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_align(const mf_hip_align_args a)
{
    extern __shared__ i32 lds[];
    i32 *begin = lds + WAVES * MF_E, *total = begin + MF_E, *room = total + MF_E;
    const i32 n = a.token * MF_K, lane = threadIdx.x % MF_WAVE, wave = threadIdx.x / MF_WAVE;
    const i32 each = MF_CEIL(MF_CEIL(n, MF_WAVE), WAVES) * MF_WAVE, from = wave * each,
              to = MF_MIN(n, from + each);
    i32 *count = lds + wave * MF_E, end;
    id_batch<LOADS_IN_FLIGHT> t;
    mf_begin();
    for (i32 i = threadIdx.x; i < WAVES * MF_E; i += MF_THREADS)
        lds[i] = 0;
    __syncthreads();
    for (t.first = from + lane; t.first - lane < to; t.first += LOADS_IN_FLIGHT * MF_WAVE) {
        load_ids(a.ids, a.types, to, t);
        count_batch(to, count, t);
    }
    __syncthreads();
    const i32 rows = scan_waves(lds),
              first_row = scan_block(MF_CEIL(rows, MF_BLOCK_M) * MF_BLOCK_M, room, &end);
    if (threadIdx.x < MF_E) {
        begin[threadIdx.x] = first_row;
        total[threadIdx.x] = rows;
    }
    __syncthreads();
    place_experts(a.experts, begin, total, blockIdx.x, gridDim.x);
    place_padding(a, begin, total, end);
    if (wave % (i32)gridDim.x != (i32)blockIdx.x)
        return;
    for (t.first = from + lane; t.first - lane < to; t.first += LOADS_IN_FLIGHT * MF_WAVE) {
        load_ids(a.ids, a.types, to, t);
        count_batch(to, count, t);
        MF_UNROLL
        for (int c = 0; c < LOADS_IN_FLIGHT; c++) {
            const i32 i = t.first + c * MF_WAVE;
            if (i < to && t.expert[c] < MF_E)
                a.sorted_ids[begin[t.expert[c]] + t.rank[c]] = i;
        }
    }
}
