/* Primitives for AMD: waves of 64 lanes, MFMA of CDNA 2 (gfx90a) and CDNA 3 (gfx942).
 *
 * This file is compiled by hipRTC, which includes HIP's headers, or by plain clang, where amd_bare.h replaces
 * them. Asynchronous copies to LDS move only four bytes per lane. Copies are therefore staged in registers:
 * loads are issued early, and the loaded data are written to LDS later, with computation in between. */
#pragma once

#if !defined(__HIPCC_RTC__) && !defined(HIP_INCLUDE_HIP_HIP_RUNTIME_H) && !defined(MF_EMULATOR)
#    include "amd_bare.h"
#endif

#define MF_WAVE 64
/* Goes before a loop whose body holds many registers. clang would unroll short loops and keep the registers
 * of all iterations. */
#define MF_LOOP _Pragma("unroll 1")
/* Launch bounds: threads per block and blocks per CU. The number of blocks per CU is passed to the compiler
 * as waves per SIMD; a CU has four SIMDs. */
#define MF_BOUNDS(threads, blocks)                                \
    __attribute__((amdgpu_flat_work_group_size(threads, threads), \
                   amdgpu_waves_per_eu(MF_MAX(1, (threads) / MF_WAVE * (blocks) / 4))))

/* Vector types that g++, which compiles this file for the tests' emulator, also supports. */
typedef u32 mf_u32x4 __attribute__((vector_size(16)));
typedef float mf_f32x4 __attribute__((vector_size(16)));
typedef i32 mf_i32x4 __attribute__((vector_size(16)));
typedef short mf_i16x4 __attribute__((vector_size(8)));
typedef _Float16 mf_f16x4 __attribute__((vector_size(8)));
typedef _Float16 mf_f16x2 __attribute__((vector_size(4)));

/* Executes 128 KB of straight-line code, with instructions of 8 bytes. The code is larger than the
 * instruction cache that two CUs share. */
MF_DEVICE float mf_run_code(float v)
{
#ifndef MF_EMULATOR
    asm volatile(".rept 16384\nv_fma_f32 %0, %0, %0, 1.0\n.endr\n" : "+v"(v));
#endif
    return v;
}

/* ---- lanes ---- */

MF_DEVICE int mf_lane()
{
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}
/* Returns the value of lane `from`. Uses the LDS crossbar but no LDS memory. */
MF_DEVICE i32 mf_shuffle(i32 v, int from)
{
    return __builtin_amdgcn_ds_bpermute(from * 4, v);
}
MF_DEVICE float mf_shuffle_xor(float v, int mask)
{
    return __builtin_bit_cast(float, mf_shuffle(__builtin_bit_cast(i32, v), mf_lane() ^ mask));
}
MF_DEVICE i32 mf_shuffle_xor(i32 v, int mask)
{
    return mf_shuffle(v, mf_lane() ^ mask);
}
/* Returns the value of the lane that is `delta` below this one. Lanes with an index below `delta` get their
 * own value. */
MF_DEVICE i32 mf_shuffle_up(i32 v, int delta)
{
    const int lane = mf_lane();
    return mf_shuffle(v, lane < delta ? lane : lane - delta);
}
MF_DEVICE u64 mf_ballot(bool v)
{
    return __builtin_amdgcn_uicmp((u32)v, 0u, 33 /* not equal */);
}
/* Returns the mask of the lanes that hold the same value as this lane. All values must be below BOUND. */
template <u32 BOUND> MF_DEVICE u64 mf_match(u32 v)
{
    u64 same = mf_ballot(true);
    MF_UNROLL
    for (u32 bit = 1; bit < BOUND; bit <<= 1) {
        const u64 ones = mf_ballot(v & bit);
        same &= v & bit ? ones : ~ones;
    }
    return same;
}
MF_DEVICE int mf_popcount(u64 v)
{
    return __builtin_popcountll(v);
}
/* The lanes of a wave run in lockstep and LDS keeps the order of a wave's accesses, so only the compiler
 * needs a fence. */
MF_DEVICE void mf_wave_sync()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

/* AMD has no programmatic dependent launch: launches run one after the other. */
MF_DEVICE void mf_begin()
{
}
MF_DEVICE void mf_prefetch_l2(const void *global, u32 bytes)
{
    (void)global, (void)bytes;
}

/* ---- memory ---- */

/* Atomically adds to a counter in LDS. */
MF_DEVICE void mf_add_shared(i32 *lds, i32 v)
{
    (void)__hip_atomic_fetch_add(lds, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

MF_DEVICE mf_16b mf_16b_of(mf_u32x4 v)
{
    return mf_16b{v[0], v[1], v[2], v[3]};
}

/* Casts a pointer to global memory, because a load through a generic pointer also waits for LDS. */
template <typename T> MF_DEVICE const __attribute__((address_space(1))) T *mf_global(const void *p)
{
    return (const __attribute__((address_space(1))) T *)p;
}

/* Two-phase copies: `copy` holds a thread's data between start and finish. The ring buffer has two stages:
 * one stage is read while the next copy is written to the other stage. */
#define MF_COPY_HELD 1
struct mf_copy_16 {
    mf_u32x4 bytes;
};
struct mf_copy_4 {
    u32 bytes;
};
/* Copies 16 bytes. If `valid` is false, writes zeros and does not read global memory. */
MF_DEVICE void mf_copy_start_16(mf_copy_16 &copy, void *lds, const void *global, bool valid)
{
    (void)lds;
    copy.bytes = mf_u32x4{0, 0, 0, 0};
    if (valid)
        copy.bytes = *mf_global<mf_u32x4>(global);
}
MF_DEVICE void mf_copy_start_4(mf_copy_4 &copy, void *lds, const void *global, bool valid)
{
    (void)lds;
    copy.bytes = 0;
    if (valid)
        copy.bytes = *mf_global<u32>(global);
}
/* Copies the first `bytes` bytes of a word and fills the rest with zeros. If `bytes` is 0, does not read
 * global memory. */
MF_DEVICE void mf_copy_start_up_to_4(mf_copy_4 &copy, void *lds, const void *global, i32 bytes)
{
    mf_copy_start_4(copy, lds, global, bytes >= 4);
    for (i32 i = 0; bytes < 4 && i < bytes; i++)
        copy.bytes |= (u32)mf_global<u8>(global)[i] << 8 * i;
}
MF_DEVICE void mf_copy_finish_16(const mf_copy_16 &copy, void *lds)
{
    *(mf_u32x4 *)lds = copy.bytes;
}
MF_DEVICE void mf_copy_finish_4(const mf_copy_4 &copy, void *lds)
{
    *(u32 *)lds = copy.bytes;
}
MF_DEVICE void mf_copy_get_16(const mf_copy_16 &copy, u32 (&ret)[4])
{
    ret[0] = copy.bytes[0];
    ret[1] = copy.bytes[1];
    ret[2] = copy.bytes[2];
    ret[3] = copy.bytes[3];
}
MF_DEVICE u32 mf_copy_get_4(const mf_copy_4 &copy)
{
    return copy.bytes;
}
/* Does nothing: AMD has no copy groups, and an instruction that uses a register waits for the load of the
 * register. */
MF_DEVICE void mf_copy_commit()
{
}
template <int N> MF_DEVICE void mf_copy_wait()
{
}

/* Loads 16 bytes that are read only once. */
MF_DEVICE mf_16b mf_load_once(const void *p)
{
    return mf_16b_of(__builtin_nontemporal_load(mf_global<mf_u32x4>(p)));
}

/* ---- matrix instructions ---- */

/* Loads 16 contiguous bytes into a lane's registers, the only layout that the matrix instructions below need.
 */
MF_DEVICE void mf_load_matrix_4(u32 (&r)[4], const void *lds)
{
    const mf_u32x4 v = *(const mf_u32x4 *)lds;
    r[0] = v[0];
    r[1] = v[1];
    r[2] = v[2];
    r[3] = v[3];
}

/* Compute d[16x16] += a[16xK]·b[Kx16]. Lane l holds row l % 16 of a and column l % 16 of b. Along K, lane l
 * holds the quarter l / 16 of the range of one instruction. Of d, lane l holds rows 4·(l / 16) to 4·(l / 16)
 * + 3 of column l % 16.
 *
 * Source: AMD's matrix instruction calculator, v_mfma_f32_16x16x16_bf16_1k, v_mfma_f32_16x16x16_f16,
 * v_mfma_f32_16x16x32_fp8_fp8 and the int8 instructions. A[i][k] is in lane i + 16·(k / 4) or i + 16·(k / 8),
 * B[k][j] likewise in lane j + 16·(k / 4) or j + 16·(k / 8), and D[i][j] in register i % 4 of lane j + 16·(i
 * / 4).
 *
 * A lane holds 16 contiguous bytes along K of each operand, and several instructions each use some of these
 * bytes. The order along K is therefore permuted, but in the same way for both operands, so the product is
 * the same. */
#define MF_MMA_COLS  16 /* columns of d */
#define MF_MMA_BYTES 64 /* bytes along K that one operand load covers and that are then multiplied */
#define MF_MMA_A     4  /* registers per lane */
#define MF_MMA_B     4
/* Accumulator i of a lane is in row mf_mma_row() + i % 2 · MF_MMA_ROW_STEP + i / 2 · MF_MMA_APART and in
 * column mf_mma_col() + i % 2 · MF_MMA_COL_STEP. */
#define MF_MMA_ROW_STEP 1
#define MF_MMA_COL_STEP 0
#define MF_MMA_APART    2
MF_DEVICE int mf_mma_row(int lane)
{
    return (lane >> 4) * 4;
}
MF_DEVICE int mf_mma_col(int lane)
{
    return lane & 15;
}
template <typename T> MF_DEVICE T mf_two(u32 low, u32 high)
{
    return __builtin_bit_cast(T, (u64)high << 32 | low);
}
MF_DEVICE void mf_mma_bf16(float (&d)[4], const u32 (&a)[MF_MMA_A], const u32 (&b)[MF_MMA_B])
{
    mf_f32x4 sum = {d[0], d[1], d[2], d[3]};
    MF_UNROLL
    for (int i = 0; i < 4; i += 2)
        sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(mf_two<mf_i16x4>(a[i], a[i + 1]),
                                                        mf_two<mf_i16x4>(b[i], b[i + 1]), sum, 0, 0, 0);
    MF_UNROLL
    for (int i = 0; i < 4; i++)
        d[i] = sum[i];
}
MF_DEVICE void mf_mma_f16(float (&d)[4], const u32 (&a)[MF_MMA_A], const u32 (&b)[MF_MMA_B])
{
    mf_f32x4 sum = {d[0], d[1], d[2], d[3]};
    MF_UNROLL
    for (int i = 0; i < 4; i += 2)
        sum = __builtin_amdgcn_mfma_f32_16x16x16f16(mf_two<mf_f16x4>(a[i], a[i + 1]),
                                                    mf_two<mf_f16x4>(b[i], b[i + 1]), sum, 0, 0, 0);
    MF_UNROLL
    for (int i = 0; i < 4; i++)
        d[i] = sum[i];
}
/* int8: CDNA 2 has v_mfma_i32_16x16x16i8, with four elements per lane. CDNA 3 has v_mfma_i32_16x16x32_i8
 * instead. */
MF_DEVICE void mf_mma_s8(i32 (&d)[4], const u32 (&a)[MF_MMA_A], const u32 (&b)[MF_MMA_B])
{
    mf_i32x4 sum = {d[0], d[1], d[2], d[3]};
#ifdef __gfx90a__
    MF_UNROLL
    for (int i = 0; i < 4; i++)
        sum = __builtin_amdgcn_mfma_i32_16x16x16i8((i32)a[i], (i32)b[i], sum, 0, 0, 0);
#else
    MF_UNROLL
    for (int i = 0; i < 4; i += 2)
        sum = __builtin_amdgcn_mfma_i32_16x16x32_i8(mf_two<i64>(a[i], a[i + 1]), mf_two<i64>(b[i], b[i + 1]),
                                                    sum, 0, 0, 0);
#endif
    MF_UNROLL
    for (int i = 0; i < 4; i++)
        d[i] = sum[i];
}
/* CDNA 3 has matrix instructions only for its own e4m3 (bias 8). OCP's e4m3 is therefore converted to f16. */
#if defined(MF_FNUZ) && defined(__gfx942__)
#    define MF_MMA_FP8 1
MF_DEVICE void mf_mma_fp8(float (&d)[4], const u32 (&a)[MF_MMA_A], const u32 (&b)[MF_MMA_B])
{
    mf_f32x4 sum = {d[0], d[1], d[2], d[3]};
    MF_UNROLL
    for (int i = 0; i < 4; i += 2)
        sum = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(mf_two<i64>(a[i], a[i + 1]),
                                                         mf_two<i64>(b[i], b[i + 1]), sum, 0, 0, 0);
    MF_UNROLL
    for (int i = 0; i < 4; i++)
        d[i] = sum[i];
}
#endif

/* ---- conversions ---- */

/* v_perm_b32 selects bytes of its second operand by index. Index 12 gives a zero byte. */
#define MF_SOFT_PAIR(four, half) __builtin_amdgcn_perm(0, four, (half) ? 0x0c030c02u : 0x0c010c00u)
#include "soft.h"
#ifdef MF_FNUZ
#    define MF_FP8_BIAS 8
#else
#    define MF_FP8_BIAS 7
#endif

/* Returns two floats as a word of two bf16, the first in the low half. */
MF_DEVICE u32 mf_bf16_pair(float low, float high)
{
    return mf_soft_bf16(low) | mf_soft_bf16(high) << 16;
}
/* Returns one half of a word of two bf16 as a float. `up` is the left shift that moves this half to the upper
 * half: 16 or 0. */
MF_DEVICE float mf_half_bf16(u32 two, int up)
{
    return __builtin_bit_cast(float, two << up & 0xffff0000u);
}
/* Returns a·b + c for words of two bf16, elementwise. The sums are computed in floats, and only the upper
 * half of each float is kept, so each result must be exact in bf16. */
MF_DEVICE u32 mf_bf16_fma(u32 a, u32 b, u32 c)
{
    const u32 low = __builtin_bit_cast(
        u32, __builtin_fmaf(mf_half_bf16(a, 16), mf_half_bf16(b, 16), mf_half_bf16(c, 16)));
    const u32 high =
        __builtin_bit_cast(u32, __builtin_fmaf(mf_half_bf16(a, 0), mf_half_bf16(b, 0), mf_half_bf16(c, 0)));
    return high | low >> 16;
}
/* Converts two of the four e4m3 in a word, bytes 2·half and 2·half + 1, to f16. The conversion is exact. */
MF_DEVICE u32 mf_fp8_to_f16_pair(u32 four, int half)
{
    const _Float16 unit = (_Float16)(float)(1 << (15 - MF_FP8_BIAS));
    return __builtin_bit_cast(u32, __builtin_bit_cast(mf_f16x2, mf_soft_fp8_spread(four, half, MF_FP8_BIAS)) *
                                       mf_f16x2{unit, unit});
}
/* Converts eight of a lane's sixteen e4m3 to f16, which are enough for two instructions. `half` selects the
 * eight. */
MF_DEVICE void mf_fp8_half(const u32 (&q)[4], int half, u32 (&f)[4])
{
    f[0] = mf_fp8_to_f16_pair(q[2 * half], 0);
    f[1] = mf_fp8_to_f16_pair(q[2 * half], 1);
    f[2] = mf_fp8_to_f16_pair(q[2 * half + 1], 0);
    f[3] = mf_fp8_to_f16_pair(q[2 * half + 1], 1);
}
MF_DEVICE void mf_fp8_half_a(const u32 (&q)[MF_MMA_A], int half, u32 (&f)[MF_MMA_A])
{
    mf_fp8_half(q, half, f);
}
MF_DEVICE void mf_fp8_half_b(const u32 (&q)[MF_MMA_B], int half, u32 (&f)[MF_MMA_B])
{
    mf_fp8_half(q, half, f);
}
/* Returns two floats as two bytes of e4m3, the first in the low byte. */
MF_DEVICE u32 mf_fp8_pair(float low, float high)
{
    return mf_soft_fp8(low, MF_FP8_BIAS) | mf_soft_fp8(high, MF_FP8_BIAS) << 8;
}
MF_DEVICE float mf_f16_low(u32 two)
{
    return (float)__builtin_bit_cast(mf_f16x2, two)[0];
}
MF_DEVICE float mf_f16_high(u32 two)
{
    return (float)__builtin_bit_cast(mf_f16x2, two)[1];
}

MF_DEVICE float mf_sigmoid(float x)
{
    return __builtin_amdgcn_rcpf(1.0f + __expf(-x));
}

/* Returns a / b, correctly rounded, as the quantisation formats require. hipRTC and clang both compile a
 * division this way by default. */
MF_DEVICE float mf_divide(float a, float b)
{
    return a / b;
}

/* Returns 1 / x, like the function in dialect_nvidia.h. A true division can be used, because it has no branch
 * on AMD. */
MF_DEVICE float mf_inverse_near(float x)
{
    return mf_divide(1.0f, x);
}

/* mf_times() and mf_plus() round their result; the compiler must not contract a product and a sum into an
 * FMA. */
template <typename T> MF_DEVICE T mf_times(T a, T b)
{
#pragma clang fp contract(off)
    return a * b;
}
template <typename T> MF_DEVICE T mf_plus(T a, T b)
{
#pragma clang fp contract(off)
    return a + b;
}

/* ---- time ---- */

/* Reads a 100 MHz counter. On GPUs with a slower counter, delays take longer; no measurement uses this clock.
 */
MF_DEVICE u64 mf_clock_ns()
{
    return __builtin_amdgcn_s_memrealtime() * 10;
}
MF_DEVICE void mf_pause()
{
    __builtin_amdgcn_s_sleep(2);
}

/* ---- between blocks ---- */

/* Grid barrier for a grid that is co-resident. The counter and the generation are zero when the code object
 * is loaded; the last block to arrive resets the counter. */
MF_DEVICE void mf_grid_arrive(u32 *barrier, u32 *ret_generation)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 generation = __hip_atomic_load(barrier + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
        const u32 old = __hip_atomic_fetch_add(barrier, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
        if (old == gridDim.x - 1) {
            __hip_atomic_store(barrier, 0u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
            (void)__hip_atomic_fetch_add(barrier + 1, 1u, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
        }
        *ret_generation = generation;
    }
}
MF_DEVICE void mf_grid_wait(u32 *barrier, u32 generation)
{
    if (threadIdx.x == 0) {
        while (__hip_atomic_load(barrier + 1, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) == generation)
            mf_pause();
    }
    __syncthreads();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
}
/* These functions load 4 or 16 bytes that another block wrote before the grid barrier. */
MF_DEVICE i32 mf_load_shared_by_grid_4(const void *p)
{
    return *mf_global<i32>(p);
}
MF_DEVICE mf_16b mf_load_shared_by_grid(const void *p)
{
    return mf_16b_of(*mf_global<mf_u32x4>(p));
}
