/* Primitives for NVIDIA: PTX for sm_80 and, for 8-bit floats, sm_89. */
#pragma once

#include "nvidia_plain.h"

/* Programmatic dependent launch. A launch whose grid sets programmatic_launch (kernels/core/device.h) starts
 * while the previous launch still runs. mf_begin waits until the previous launch has ended and its writes are
 * visible, and lets the next launch start. Before mf_begin a kernel may only access memory that the previous
 * launch does not write. */
MF_DEVICE void mf_pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
MF_DEVICE void mf_pdl_trigger()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
MF_DEVICE void mf_begin()
{
    mf_pdl_wait();
    mf_pdl_trigger();
}
/* Discards a 128-byte line from L2 without writing it back; its contents become undefined. */
#define MF_FORGETS_LINES 1
MF_DEVICE void mf_discard_line(void *global)
{
    asm volatile("discard.global.L2 [%0], 128;\n" ::"l"(global) : "memory");
}
/* Executes 256 KB of straight-line code, with instructions of 16 bytes. The code is larger than the
 * instruction cache of an SM. */
MF_DEVICE float mf_run_code(float v)
{
#define MF_CODE_1  "fma.rn.f32 %0, %0, %0, 0f3F800000;\n"
#define MF_CODE_4  MF_CODE_1 MF_CODE_1 MF_CODE_1 MF_CODE_1
#define MF_CODE_16 MF_CODE_4 MF_CODE_4 MF_CODE_4 MF_CODE_4
#define MF_CODE_64 MF_CODE_16 MF_CODE_16 MF_CODE_16 MF_CODE_16
    MF_UNROLL
    for (int i = 0; i < 256; i++)
        asm volatile(MF_CODE_64 : "+f"(v));
    return v;
}
/* Prefetches `bytes` contiguous bytes into L2. `bytes` is a multiple of 16. */
MF_DEVICE void mf_prefetch_l2(const void *global, u32 bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(global), "r"(bytes) : "memory");
#else
    (void)global, (void)bytes;
#endif
}

/* Launch bounds: threads per block, and blocks per SM. */
#define MF_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)

MF_DEVICE float mf_shuffle_xor(float v, int mask)
{
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
MF_DEVICE i32 mf_shuffle_xor(i32 v, int mask)
{
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
MF_DEVICE i32 mf_shuffle_up(i32 v, int delta)
{
    return __shfl_up_sync(0xffffffffu, v, delta);
}
/* Returns the mask of the lanes that hold the same value as this lane. All values must be below BOUND. Uses
 * one vote per bit, because match.any takes time proportional to the number of distinct values. */
template <u32 BOUND> MF_DEVICE u64 mf_match(u32 v)
{
    u32 same = 0xffffffffu;
    MF_UNROLL
    for (u32 bit = 1; bit < BOUND; bit <<= 1) {
        const u32 ones = __ballot_sync(0xffffffffu, v & bit);
        same &= v & bit ? ones : ~ones;
    }
    return same;
}
MF_DEVICE int mf_popcount(u64 v)
{
    return __popcll(v);
}
MF_DEVICE void mf_wave_sync()
{
    __syncwarp();
}

/* Atomically adds to a counter in shared memory. */
MF_DEVICE void mf_add_shared(i32 *lds, i32 v)
{
    (void)atomicAdd(lds, v);
}

/* ---- cp.async: global to shared memory ---- */

/* Copies 16 bytes. If `valid` is false, writes zeros and does not read global memory. */
MF_DEVICE void mf_copy_async_16(void *lds, const void *global, bool valid)
{
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"((u32)__cvta_generic_to_shared(lds)),
        "l"(global), "r"(valid ? 16 : 0)
        : "memory");
}
MF_DEVICE void mf_copy_async_4(void *lds, const void *global, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"((u32)__cvta_generic_to_shared(lds)),
                 "l"(global), "r"(valid ? 4 : 0)
                 : "memory");
}
MF_DEVICE void mf_copy_async_up_to_4(void *lds, const void *global, i32 bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"((u32)__cvta_generic_to_shared(lds)),
                 "l"(global), "r"(bytes)
                 : "memory");
}
/* mf_copy_commit() closes a group of copies. mf_copy_wait<N>() waits until at most N groups are in flight. */
MF_DEVICE void mf_copy_commit()
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int N> MF_DEVICE void mf_copy_wait()
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

/* Loads 16 bytes that are read only once and so are not kept in L1. The asm is volatile, so that the compiler
 * issues the load here. */
MF_DEVICE mf_16b mf_load_once(const void *p)
{
    mf_16b v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Orders earlier generic-proxy writes to shared memory, and mbarrier initialisation, before later WGMMAs
 * and bulk copies (sm_90). */
MF_DEVICE void mf_async_fence()
{
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

/* ---- matrix instructions ---- */

/* Loads four 8x8 matrices of 16-bit elements. Lane l passes the address of row l % 8 of matrix l / 8. From
 * each of the four matrices, lane l receives elements 2·(l % 4) and 2·(l % 4) + 1 of row l / 4 (PTX ISA,
 * ldmatrix). */
MF_DEVICE void mf_load_matrix_4(u32 (&r)[4], const void *lds)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((u32)__cvta_generic_to_shared(lds))
                 : "memory");
}
MF_DEVICE void mf_load_matrix_2(u32 (&r)[2], const void *lds)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"((u32)__cvta_generic_to_shared(lds))
                 : "memory");
}

/* Computes d[16x8] += a[16x16]·b[16x8]. With g = l / 4 and t = l % 4, lane l holds:
 *
 *   a  rows g and g + 8 of columns 2t, 2t + 1 (a0, a1) and of columns 2t + 8, 2t + 9 (a2, a3)
 *   b  rows 2t, 2t + 1 and 2t + 8, 2t + 9 of column g
 *   d  columns 2t, 2t + 1 of row g (d0, d1) and of row g + 8 (d2, d3)
 *
 * (PTX ISA, mma.m16n8k16) */
MF_DEVICE void mf_mma_bf16(float (&d)[4], const u32 (&a)[MF_MMA_A], const u32 (&b)[MF_MMA_B])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
MF_DEVICE void mf_mma_f16(float (&d)[4], const u32 (&a)[MF_MMA_A], const u32 (&b)[MF_MMA_B])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* Computes d[16x8] += a[16x32]·b[32x8] of int8, with four elements per register. With g and t as for
 * mf_mma_bf16, lane l holds:
 *
 *   a  rows g and g + 8 of columns 4t to 4t + 3 (a0, a1) and of columns 4t + 16 to 4t + 19 (a2, a3)
 *   b  rows 4t to 4t + 3 and 4t + 16 to 4t + 19 of column g
 *
 * (PTX ISA, mma.m16n8k32) */
MF_DEVICE void mf_mma_s8(i32 (&d)[4], const u32 (&a)[MF_MMA_A], const u32 (&b)[MF_MMA_B])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};\n"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* WGMMA (sm_90a): a warpgroup multiplies 64 rows of one operand by N rows of the other along 32 bytes of K.
 * Both operands are in shared memory, as rows of 128 bytes that begin at a multiple of 1024. The 16-byte
 * chunk c of a row is stored at c ^ (row % 8), which is the 128-byte swizzle. Of the result, lane l of warp w
 * gets columns 8·j + 2·(l % 4) and 8·j + 2·(l % 4) + 1 in two rows: row 16·w + l / 4 in d[j][0..1], and the
 * row eight below in d[j][2..3], as with mf_mma_bf16 (PTX ISA, wgmma.mma_async). */
#if defined(MF_WGMMA)
MF_DEVICE u64 mf_wgmma_descriptor(const void *lds)
{
    const u64 at = (u32)__cvta_generic_to_shared(lds);
    return ((at & 0x3ffff) >> 4) | ((u64)1 << 16) | ((u64)(1024 >> 4) << 32) | ((u64)1 << 62);
}
MF_DEVICE void mf_wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
MF_DEVICE void mf_wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
/* Compiler fence for an accumulator or operand register: the compiler moves no access to the register across
 * it. */
MF_DEVICE void mf_wgmma_fence_operand(float &d)
{
    asm volatile("" : "+f"(d)::"memory");
}
MF_DEVICE void mf_wgmma_fence_operand(u32 &w)
{
    asm volatile("" : "+r"(w));
}
template <int N> MF_DEVICE void mf_wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}
#    include "wgmma.h"
#endif

/* ---- conversions ---- */

/* Returns two floats as a word of two bf16, rounded to nearest even, the first in the low half. */
MF_DEVICE u32 mf_bf16_pair(float low, float high)
{
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
/* Returns a·b + c for words of two bf16, elementwise. Each result must be exact in bf16. */
MF_DEVICE u32 mf_bf16_fma(u32 a, u32 b, u32 c)
{
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
#define MF_LARGER_2
MF_DEVICE u32 mf_larger_2(u32 a, u32 b)
{
    u32 r;
    asm("{ .reg .b32 a, b; abs.bf16x2 a, %1; abs.bf16x2 b, %2; max.NaN.bf16x2 %0, a, b; }\n"
        : "=r"(r)
        : "r"(a), "r"(b));
    return r;
}
/* Converts two of the four e4m3 in a word, bytes 2·half and 2·half + 1, to f16. The conversion is exact. */
MF_DEVICE u32 mf_fp8_to_f16_pair(u32 four, int half)
{
    u32 r;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, lo; }\n"
        : "=r"(r)
        : "r"(half ? four >> 16 : four));
    return r;
}
/* Returns two floats as two bytes of e4m3, rounded to nearest even and saturating, the first in the low byte.
 */
MF_DEVICE u32 mf_fp8_pair(float low, float high)
{
    u16 r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(r) : "f"(high), "f"(low));
    return r;
}
MF_DEVICE float mf_f16_low(u32 two)
{
    float r;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.f32.f16 %0, lo; }\n" : "=f"(r) : "r"(two));
    return r;
}
MF_DEVICE float mf_f16_high(u32 two)
{
    float r;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.f32.f16 %0, hi; }\n" : "=f"(r) : "r"(two));
    return r;
}

/* Returns a / b, correctly rounded, as the quantisation formats require. */
MF_DEVICE float mf_divide(float a, float b)
{
    return __fdiv_rn(a, b);
}

/* Uses the hardware's approximations of 2^x and 1/x, because a true division contains a branch, and the
 * compiler interleaves no instructions across a branch. */
MF_DEVICE float mf_sigmoid(float x)
{
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(e) : "f"(x * -1.442695041f));
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(1.0f + e));
    return r;
}

/* Returns 1 / x, rounded to one of the two adjacent floats, without the branch of a true division. x and its
 * inverse must be normal. Infinity yields 0. */
MF_DEVICE float mf_inverse_near(float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
    const float left = fmaf(-r, x, 1.0f);
    return left == left ? fmaf(r, left, r) : r;
}

/* mf_times() and mf_plus() round their result; the compiler must not contract a product and a sum into an
 * FMA. */
MF_DEVICE float mf_times(float a, float b)
{
    return __fmul_rn(a, b);
}
MF_DEVICE float mf_plus(float a, float b)
{
    return __fadd_rn(a, b);
}
MF_DEVICE double mf_times(double a, double b)
{
    return __dmul_rn(a, b);
}
MF_DEVICE double mf_plus(double a, double b)
{
    return __dadd_rn(a, b);
}

/* ---- time ---- */

MF_DEVICE u64 mf_clock_ns()
{
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;\n" : "=l"(t));
    return t;
}
MF_DEVICE void mf_pause()
{
    __nanosleep(100);
}

/* ---- between blocks ---- */

/* Grid barrier for a grid that is co-resident. The counter and the generation are zero when the code object
 * is loaded; the last block to arrive resets the counter. One thread per block arrives, for all threads with
 * which it has synchronised. The generation changes when all blocks have arrived. */
MF_DEVICE u32 mf_grid_generation(const u32 *barrier)
{
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(v) : "l"(barrier + 1) : "memory");
    return v;
}
MF_DEVICE void mf_grid_count(u32 *barrier)
{
    u32 old;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;\n" : "=r"(old) : "l"(barrier) : "memory");
    if (old == gridDim.x - 1) {
        asm volatile("st.relaxed.gpu.global.u32 [%0], 0;\n" ::"l"(barrier) : "memory");
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(barrier + 1) : "memory");
    }
}
/* Arrives at the grid barrier. All threads of each block must call this function. */
MF_DEVICE void mf_grid_arrive(u32 *barrier, u32 *ret_generation)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        *ret_generation = mf_grid_generation(barrier);
        mf_grid_count(barrier);
    }
}
MF_DEVICE void mf_grid_wait(u32 *barrier, u32 generation)
{
    if (threadIdx.x == 0) {
        while (mf_grid_generation(barrier) == generation)
            ;
    }
    __syncthreads();
}
/* These functions load 4 or 16 bytes that another block wrote before the grid barrier. */
MF_DEVICE i32 mf_load_shared_by_grid_4(const void *p)
{
    i32 v;
    asm volatile("ld.global.cg.u32 %0, [%1];\n" : "=r"(v) : "l"(p) : "memory");
    return v;
}
MF_DEVICE mf_16b mf_load_shared_by_grid(const void *p)
{
    mf_16b v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
