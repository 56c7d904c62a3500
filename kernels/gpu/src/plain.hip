/* Baselines for moving rows (tests/bench/bench_moves.c): a copy, and library ops. Each op is a launch of its
 * own that reads the output of the previous launch. Ops are split as in PyTorch
 * (aten/src/ATen/native/cuda/Sort.cpp: a small sort copies the keys, fills the indices and sorts pairs).
 * Blocks have MF_THREADS threads. */
#include "dialect.h"
#include "args.h"

#define UNROLL 4

MF_DEVICE i64 global_thread()
{
    return (i64)blockIdx.x * MF_THREADS + threadIdx.x;
}
MF_DEVICE i64 global_threads()
{
    return (i64)gridDim.x * MF_THREADS;
}

/* Copies n chunks of 16 bytes. */
extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_copy(const mf_hip_plain_args a)
{
    mf_begin();
    for (i64 first = global_thread(); first < a.n; first += UNROLL * global_threads()) {
        mf_16b v[UNROLL];
        MF_UNROLL
        for (int t = 0; t < UNROLL; t++) {
            if (first + t * global_threads() < a.n)
                v[t] = mf_load_once((const mf_16b *)a.from + first + t * global_threads());
        }
        MF_UNROLL
        for (int t = 0; t < UNROLL; t++) {
            if (first + t * global_threads() < a.n)
                ((mf_16b *)a.to)[first + t * global_threads()] = v[t];
        }
    }
}

extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_iota(const mf_hip_plain_args a)
{
    mf_begin();
    for (i64 i = global_thread(); i < a.n; i += global_threads())
        ((i32 *)a.to)[i] = (i32)i;
}

/* Divides indices by k, rounding down. */
extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_floor_divide(const mf_hip_plain_args a)
{
    mf_begin();
    for (i64 i = global_thread(); i < a.n; i += global_threads())
        ((i32 *)a.to)[i] = ((const i32 *)a.from)[i] / a.k;
}

/* Sorts pairs of a key in `index` and a value in `to`, in place and in one block. The sort is stable; a.n is
 * at most 2 * MF_THREADS. */
extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_sort_pairs(const mf_hip_plain_args a)
{
    __shared__ u64 pair[2 * MF_THREADS];
    i32 *keys = (i32 *)a.index, *values = (i32 *)a.to;
    i32 size = 2;
    mf_begin();
    while (size < a.n)
        size *= 2;
    for (i32 i = threadIdx.x; i < size; i += MF_THREADS)
        pair[i] = i < a.n ? (u64)(u32)keys[i] << 32 | (u32)values[i] : ~(u64)0;
    for (i32 run = 2; run <= size; run *= 2) {
        for (i32 apart = run / 2; apart > 0; apart /= 2) {
            __syncthreads();
            const i32 i = 2 * threadIdx.x - (threadIdx.x & (apart - 1));
            if (i + apart < size) {
                const u64 low = pair[i], high = pair[i + apart];
                if ((low > high) == ((i & run) == 0)) {
                    pair[i] = high;
                    pair[i + apart] = low;
                }
            }
        }
    }
    __syncthreads();
    for (i32 i = threadIdx.x; i < a.n; i += MF_THREADS) {
        keys[i] = (i32)(pair[i] >> 32);
        values[i] = (i32)pair[i];
    }
}

/* Copies to[i] = from[index[i]] for n rows of `chunks` * 16 bytes. */
extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_index_select(const mf_hip_plain_args a)
{
    mf_begin();
    for (i64 at = global_thread(); at < a.n * a.chunks; at += global_threads()) {
        const i64 row = at / a.chunks;
        ((mf_16b *)a.to)[at] = ((const mf_16b *)a.from)[a.index[row] * (i64)a.chunks + (at - row * a.chunks)];
    }
}

MF_DEVICE void widen(const mf_16b &v, float (&x)[8])
{
    const u32 two[4] = {v.x, v.y, v.z, v.w};
    MF_UNROLL
    for (int i = 0; i < 4; i++) {
        x[2 * i] = mf_bf16_low(two[i]);
        x[2 * i + 1] = mf_bf16_high(two[i]);
    }
}
MF_DEVICE mf_16b narrow(const float (&x)[8])
{
    return mf_16b{mf_bf16_pair(x[0], x[1]), mf_bf16_pair(x[2], x[3]), mf_bf16_pair(x[4], x[5]),
                  mf_bf16_pair(x[6], x[7])};
}

/* Multiplies each row by its weight. */
extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_multiply_rows(const mf_hip_plain_args a)
{
    mf_begin();
    for (i64 at = global_thread(); at < a.n * a.chunks; at += global_threads()) {
        float x[8];
        widen(((const mf_16b *)a.from)[at], x);
        for (int i = 0; i < 8; i++)
            x[i] *= a.weights[at / a.chunks];
        ((mf_16b *)a.to)[at] = narrow(x);
    }
}

/* Computes n sums of k rows each. */
extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_sum_rows(const mf_hip_plain_args a)
{
    mf_begin();
    for (i64 at = global_thread(); at < a.n * a.chunks; at += global_threads()) {
        const i64 row = at / a.chunks;
        float sum[8] = {0};
        for (int j = 0; j < a.k; j++) {
            float x[8];
            widen(((const mf_16b *)a.from)[(row * a.k + j) * a.chunks + (at - row * a.chunks)], x);
            for (int i = 0; i < 8; i++)
                sum[i] += x[i];
        }
        ((mf_16b *)a.to)[at] = narrow(sum);
    }
}
