/* Implements the dialect's primitives on the host for g++. Included by dialect.h instead of a GPU vendor's
 * header. MF_EMULATOR is the number of lanes of a wave: 32 emulates NVIDIA, 64 AMD.
 *
 * Lanes are fibers of one thread. __shared__ variables are thread_local variables, so they lie in a separate
 * address range. The emulator saves and restores this range when it switches blocks. */
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

/* Emulator code: its loads and stores are not reported as accesses of the kernel. */
#define MF_UNINSTRUMENTED static inline __attribute__((no_sanitize_thread))
/* A primitive that stands for one instruction. It is not inlined, so its return address locates the call. */
#define MF_INSTRUCTION static __attribute__((no_sanitize_thread, noinline))
#define MF_PC          __builtin_return_address(0)

extern struct mf_emulator_calls *mf_emulator; /* defined in tsan_hooks.cc */

/* ---- compiler built-ins ---- */

/* The result is constant during the life of a lane. */
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

MF_UNINSTRUMENTED void __syncthreads()
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
#define __expf(x) expf(x) /* the C library declares __expf itself */

/* ---- shared by both vendors ---- */

template <class T> struct mf_exchange {
    T value;
    int by;
};

/* Gives every lane the value of lane FROM(l, by), or the lane's own value if lane FROM(l, by) does not exist.
 */
template <class T, int (*FROM)(int, int)> MF_UNINSTRUMENTED void mf_exchange_all(void **lanes)
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
/* The exponent bias of f16 is 112 lower than that of float. The highest exponent means infinity or NaN in
 * both formats. */
MF_DEVICE float mf_f16(u32 bits)
{
    const float v = __uint_as_float((bits & 0x7fff) << 13) * 0x1p112f;
    const u32 magnitude = (bits & 0x7c00) == 0x7c00 ? 0x7f800000 | (bits & 0x3ff) << 13 : __float_as_uint(v);
    return __uint_as_float(magnitude | (bits & 0x8000) << 16);
}
/* Adds a·b to d, in ascending order of k. */
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
