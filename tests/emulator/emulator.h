/* The dialect on the emulator, for g++ on the host: what a GPU's compiler gives. Included by dialect.h in the place of the
 * GPUs' own, with MF_EMULATOR being the lanes of a wave: 32 is NVIDIA's flavour, 64 AMD's.
 *
 * Lanes are fibers of one thread. Shared variables are thread-local ones, so that they have addresses of their own, which
 * the emulator exchanges when it turns from a block to another. */
#pragma once

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "calls.h"

#define __device__
#define __global__      __attribute__((visibility("default")))
#define __shared__      thread_local
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

/* The emulator's own work is no access of the kernel. */
#define MF_HIDDEN static inline __attribute__((no_sanitize_thread))
/* A word that stands for one instruction: the emulator hears from where it is called. */
#define MF_WORD static __attribute__((no_sanitize_thread, noinline))
#define MF_PC   __builtin_return_address(0)

extern struct mf_emulator_calls *mf_emulator; /* beside.cc */

/* ---- what the compiler knows ---- */

/* They do not change while a lane lives. */
static __attribute__((no_sanitize_thread, noinline, const)) mf_emulator_dim mf_now_thread()
{
    return mf_emulator->now.thread;
}
static __attribute__((no_sanitize_thread, noinline, const)) mf_emulator_dim mf_now_block()
{
    return mf_emulator->now.block;
}
static __attribute__((no_sanitize_thread, noinline, const)) mf_emulator_dim mf_now_block_dim()
{
    return mf_emulator->now.block_dim;
}
static __attribute__((no_sanitize_thread, noinline, const)) mf_emulator_dim mf_now_grid_dim()
{
    return mf_emulator->now.grid_dim;
}
#define threadIdx mf_now_thread()
#define blockIdx  mf_now_block()
#define blockDim  mf_now_block_dim()
#define gridDim   mf_now_grid_dim()

MF_HIDDEN void __syncthreads()
{
    mf_emulator->barrier(mf_emulator);
}

static inline float __uint_as_float(u32 v)
{
    float f;
    memcpy(&f, &v, 4);
    return f;
}
static inline u32 __float_as_uint(float f)
{
    u32 v;
    memcpy(&v, &f, 4);
    return v;
}
#define __expf(x) expf(x) /* libm has the name for itself */

/* ---- what flavours share ---- */

template <class T> struct mf_exchange {
    T value;
    int by;
};

/* Every lane gets what lane from(l, by) brought; its own where there is no such lane. */
template <class T, int (*FROM)(int, int)> MF_HIDDEN void mf_exchange_all(void **lanes)
{
    T taken[MF_EMULATOR];
    for (int l = 0; l < MF_EMULATOR; l++) {
        const mf_exchange<T> *mine = (const mf_exchange<T> *)lanes[l];
        const int from = FROM(l, mine->by);
        taken[l] =
            from >= 0 && from < MF_EMULATOR ? ((const mf_exchange<T> *)lanes[from])->value : mine->value;
    }
    for (int l = 0; l < MF_EMULATOR; l++)
        ((mf_exchange<T> *)lanes[l])->value = taken[l];
}
/* A float's exponent is 112 above; infinities and NaN have the highest of both. */
MF_DEVICE float mf_f16(u32 bits)
{
    const float v = __uint_as_float((bits & 0x7fff) << 13) * 0x1p112f;
    const u32 magnitude = (bits & 0x7c00) == 0x7c00 ? 0x7f800000 | (bits & 0x3ff) << 13 : __float_as_uint(v);
    return __uint_as_float(magnitude | (bits & 0x8000) << 16);
}
/* d += a·b, each sum in the order of K. */
template <int K, int COLS>
static __attribute__((no_sanitize_thread, optimize("O3"))) void
mf_multiply(const double (&a)[16][K], const double (&b)[K][COLS], double (&d)[16][COLS])
{
    for (int row = 0; row < 16; row++) {
        for (int k = 0; k < K; k++) {
            for (int col = 0; col < COLS; col++)
                d[row][col] += a[row][k] * b[k][col];
        }
    }
}

#if MF_EMULATOR == 32
#    include "emulator_nvidia.h"
#else
#    include "emulator_amd.h"
#endif
