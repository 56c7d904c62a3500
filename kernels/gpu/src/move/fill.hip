/* Fills memory with a repeated four-byte pattern. The start is aligned to 16 bytes. */
#include "dialect.h"
#include "args.h"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS) mf_fill(const mf_hip_fill_args a)
{
    const i64 n = a.bytes / 16, first = (i64)blockIdx.x * THREADS + threadIdx.x;
    for (i64 i = first; i < n; i += (i64)gridDim.x * THREADS)
        ((mf_16b *)a.to)[i] = mf_16b{a.pattern, a.pattern, a.pattern, a.pattern};
    if (first < a.bytes - n * 16)
        ((u8 *)a.to)[n * 16 + first] = (u8)(a.pattern >> first % 4 * 8);
}
