/* The dialect on the emulator: what a GPU's compiler and its dialect_*.h give, for g++ on the host. Included by dialect.h
 * in the place of those, with MF_EMULATOR being the lanes of a wave: 32 is NVIDIA's flavour.
 *
 * Lanes are fibers of one thread. Shared variables are thread-local ones, so that they have addresses of their own, which
 * the emulator exchanges when it turns from a block to another. */
#pragma once

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "calls.h"

#define MF_WAVE MF_EMULATOR

#define __device__
#define __global__      __attribute__((visibility("default")))
#define __shared__      thread_local
#define __forceinline__ inline
#define __launch_bounds__(...)
#define MF_BOUNDS(...)
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

/* ---- lanes of a wave ---- */

template <class T> struct mf_exchange {
    T value;
    int by;
};

/* Every lane gets what lane from(l, by) brought; its own where there is no such lane. */
template <class T, int (*FROM)(int, int)> MF_HIDDEN void mf_exchange_all(void **lanes)
{
    T taken[MF_WAVE];
    for (int l = 0; l < MF_WAVE; l++) {
        const mf_exchange<T> *mine = (const mf_exchange<T> *)lanes[l];
        const int from = FROM(l, mine->by);
        taken[l] = from >= 0 && from < MF_WAVE ? ((const mf_exchange<T> *)lanes[from])->value : mine->value;
    }
    for (int l = 0; l < MF_WAVE; l++)
        ((mf_exchange<T> *)lanes[l])->value = taken[l];
}
static inline int mf_lane_xor(int lane, int mask)
{
    return lane ^ mask;
}
static inline int mf_lane_below(int lane, int delta)
{
    return lane - delta;
}

MF_WORD float mf_shuffle_xor(float v, int mask)
{
    mf_exchange<float> e = {v, mask};
    mf_emulator->meet(mf_emulator, "mf_shuffle_xor", &e, mf_exchange_all<float, mf_lane_xor>, MF_PC);
    return e.value;
}
MF_WORD i32 mf_shuffle_up(i32 v, int delta)
{
    mf_exchange<i32> e = {v, delta};
    mf_emulator->meet(mf_emulator, "mf_shuffle_up", &e, mf_exchange_all<i32, mf_lane_below>, MF_PC);
    return e.value;
}

MF_HIDDEN void mf_match_all(void **lanes)
{
    u64 same[MF_WAVE];
    for (int l = 0; l < MF_WAVE; l++) {
        same[l] = 0;
        for (int other = 0; other < MF_WAVE; other++)
            same[l] |= (u64)(*(u64 *)lanes[other] == *(u64 *)lanes[l]) << other;
    }
    for (int l = 0; l < MF_WAVE; l++)
        *(u64 *)lanes[l] = same[l];
}
MF_WORD u64 mf_match(i32 v)
{
    u64 mine = (u32)v;
    mf_emulator->meet(mf_emulator, "mf_match", &mine, mf_match_all, MF_PC);
    return mine;
}
MF_DEVICE int mf_popcount(u64 v)
{
    return __builtin_popcountll(v);
}
MF_WORD void mf_wave_sync()
{
    mf_emulator->meet(mf_emulator, "mf_wave_sync", NULL, NULL, MF_PC);
}

/* ---- global memory ---- */

MF_WORD void mf_copy_async_16(void *lds, const void *global, bool valid)
{
    mf_emulator->copy(mf_emulator, lds, global, 16, valid, MF_PC);
}
MF_WORD void mf_copy_async_4(void *lds, const void *global, bool valid)
{
    mf_emulator->copy(mf_emulator, lds, global, 4, valid, MF_PC);
}
struct mf_copy_16 {
};
struct mf_copy_4 {
};
#define mf_copy_ask_16(way, lds, global, valid) mf_copy_async_16(lds, global, valid)
#define mf_copy_ask_4(way, lds, global, valid)  mf_copy_async_4(lds, global, valid)
#define mf_copy_land_16(way, lds)               ((void)0)
#define mf_copy_land_4(way, lds)                ((void)0)
MF_HIDDEN void mf_copy_commit()
{
    mf_emulator->copy_commit(mf_emulator);
}
template <int N> MF_HIDDEN void mf_copy_wait()
{
    mf_emulator->copy_wait(mf_emulator, N);
}

/* In a register: a structure might be left by the word where it is stored, which would then be no store of the kernel. */
typedef u32 mf_four __attribute__((vector_size(16)));
MF_WORD mf_four mf_load_four(const void *p)
{
    mf_emulator->access(mf_emulator, p, 16, MF_ACCESS_READ, MF_PC);
    return *(const mf_four *)p;
}
MF_DEVICE mf_16b mf_load_once(const void *p)
{
    const mf_four v = mf_load_four(p);
    return mf_16b{v[0], v[1], v[2], v[3]};
}
MF_DEVICE mf_16b mf_load_shared_by_grid(const void *p)
{
    const mf_four v = mf_load_four(p);
    return mf_16b{v[0], v[1], v[2], v[3]};
}

/* ---- conversions ---- */

MF_DEVICE u32 mf_bf16_bits(float f)
{
    const u32 v = __float_as_uint(f);
    return f != f ? 0x7fff : (v + 0x7fff + (v >> 16 & 1)) >> 16;
}
MF_DEVICE u32 mf_bf16_pair(float low, float high)
{
    return mf_bf16_bits(low) | mf_bf16_bits(high) << 16;
}

/* A float's exponent is 112 above; infinities and NaN have the highest of both. */
MF_DEVICE float mf_f16(u32 bits)
{
    const float v = __uint_as_float((bits & 0x7fff) << 13) * 0x1p112f;
    const u32 magnitude = (bits & 0x7c00) == 0x7c00 ? 0x7f800000 | (bits & 0x3ff) << 13 : __float_as_uint(v);
    return __uint_as_float(magnitude | (bits & 0x8000) << 16);
}
MF_DEVICE float mf_f16_low(u32 two)
{
    return mf_f16(two & 0xffff);
}
MF_DEVICE float mf_f16_high(u32 two)
{
    return mf_f16(two >> 16);
}

/* e4m3 has 4 bits of exponent around 7, no infinities, and one NaN of each sign. As f16 every value is a normal one. */
MF_DEVICE u32 mf_fp8_to_f16(u32 code)
{
    const u32 sign = (code & 0x80) << 8, e = code >> 3 & 15, m = code & 7;
    if ((code & 0x7f) == 0x7f)
        return sign | 0x7fff;
    if (e > 0)
        return sign | (e + 8) << 10 | m << 7;
    if (m == 0)
        return sign;
    const u32 top = 31 - __builtin_clz(m); /* m · 2^-9 */
    return sign | (top + 6) << 10 | (m << (10 - top) & 1023);
}
MF_DEVICE u32 mf_fp8_to_f16_pair(u32 four, int half)
{
    const u32 two = half ? four >> 16 : four;
    return mf_fp8_to_f16(two & 0xff) | mf_fp8_to_f16(two >> 8 & 0xff) << 16;
}
MF_DEVICE u32 mf_fp8_bits(float f)
{
    const u32 sign = __float_as_uint(f) >> 24 & 0x80;
    float a = fabsf(f);
    if (f != f)
        return 0x7f;
    a = fminf(a, 448.0f);
    if (a < 0x1p-6f)
        return sign | (u32)rintf(a * 0x1p9f); /* 8 steps are the least normal value */
    int e;
    const u32 m = (u32)rintf(frexpf(a, &e) * 16); /* 8 to 16; 16 carries into the exponent */
    return sign | (((u32)(e + 6) << 3) + (m - 8));
}
MF_DEVICE u32 mf_fp8_pair(float low, float high)
{
    return mf_fp8_bits(low) | mf_fp8_bits(high) << 8;
}
MF_DEVICE float mf_divide(float a, float b)
{
    return a / b;
}

/* ---- time, and between blocks ---- */

MF_HIDDEN u64 mf_clock_ns()
{
    return mf_emulator->clock_ns(mf_emulator);
}
MF_HIDDEN void mf_pause()
{
    mf_emulator->pause(mf_emulator);
}

MF_HIDDEN void mf_grid_arrive(u32 *barrier, u32 *ret_generation)
{
    __syncthreads();
    if (mf_now_thread().x == 0) {
        *ret_generation = barrier[1];
        if (++barrier[0] == mf_now_grid_dim().x) {
            barrier[0] = 0;
            barrier[1]++;
        }
    }
}
MF_HIDDEN void mf_grid_wait(u32 *barrier, u32 generation)
{
    while (mf_now_thread().x == 0 && *(volatile u32 *)(barrier + 1) == generation)
        mf_pause();
    __syncthreads();
}

#if MF_EMULATOR == 32
#    include "emulator_nvidia.h"
#endif
