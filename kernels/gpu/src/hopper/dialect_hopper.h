/* Hopper-only primitives (PTX for sm_90a): mbarriers, TMA and bulk copies, register reallocation, stmatrix.
 * Include only in Hopper sources. */
#pragma once

#include "tma_coord.h"

/* ---- mbarriers: a phase ends with its last arrival and its last expected byte ---- */

MF_DEVICE u32 mf_shared_address(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
MF_DEVICE void mf_mbarrier_init(u64 *b, i32 arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(mf_shared_address(b)), "r"(arrivals)
                 : "memory");
}
MF_DEVICE void mf_mbarrier_arrive(u64 *b)
{
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }\n" ::"r"(mf_shared_address(b))
                 : "memory");
}
/* Arrives at an mbarrier, and announces the number of bytes that bulk copies will write before the phase
 * ends. */
MF_DEVICE void mf_mbarrier_arrive_expect_tx(u64 *b, i32 bytes)
{
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }\n" ::"r"(
                     mf_shared_address(b)),
                 "r"(bytes)
                 : "memory");
}
/* Schedules this thread's arrival at an mbarrier for the time when all its earlier cp.async copies have
 * completed. */
MF_DEVICE void mf_mbarrier_arrive_cp_async(u64 *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(mf_shared_address(b))
                 : "memory");
}
/* Waits until the phase of the given parity has ended. The phase before the first phase has parity 1 and
 * counts as ended. */
MF_DEVICE void mf_mbarrier_wait(u64 *b, u32 parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(mf_shared_address(b)),
                 "r"(parity)
                 : "memory");
}
/* Named barrier of `threads` threads; barrier 0 is __syncthreads(). */
MF_DEVICE void mf_named_barrier_sync(i32 barrier_id, i32 threads)
{
    asm volatile("bar.sync %0, %1;\n" ::"r"(barrier_id), "r"(threads) : "memory");
}
/* Arrives at a named barrier without waiting. */
MF_DEVICE void mf_named_barrier_arrive(i32 barrier_id, i32 threads)
{
    asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier_id), "r"(threads) : "memory");
}

/* ---- TMA and bulk copies ---- */

/* Prefetches a box of a tensor into L2. */
MF_DEVICE void mf_tma_prefetch_5d(const mf_hip_map *map, const mf_tma_coord &at)
{
    asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];\n" ::"l"(map),
                 "r"(at.c0), "r"(at.c1), "r"(at.c2), "r"(at.c3), "r"(at.c4)
                 : "memory");
}
/* Loads a box into shared memory by TMA. The mbarrier counts the bytes of the box, including zeros for
 * elements outside the tensor. evict_first: true if no other block reads the box, so that L2 evicts it before
 * data that several blocks read. */
MF_DEVICE void mf_tma_load_5d(void *lds, const mf_hip_map *map, u64 *b, const mf_tma_coord &at,
                              bool evict_first)
{
    if (evict_first) {
        asm volatile(
            "{ .reg .b64 p; createpolicy.fractional.L2::evict_first.b64 p, 1.0;\n"
            "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], p; }\n" ::"r"(mf_shared_address(lds)),
            "l"(map), "r"(mf_shared_address(b)), "r"(at.c0), "r"(at.c1), "r"(at.c2), "r"(at.c3), "r"(at.c4)
            : "memory");
        return;
    }
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];\n" ::"r"(mf_shared_address(lds)),
                 "l"(map), "r"(mf_shared_address(b)), "r"(at.c0), "r"(at.c1), "r"(at.c2), "r"(at.c3),
                 "r"(at.c4)
                 : "memory");
}
MF_DEVICE void mf_tma_load_2d(void *lds, const mf_hip_map *map, u64 *b, i32 c0, i32 c1)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];\n" ::"r"(mf_shared_address(lds)),
                 "l"(map), "r"(mf_shared_address(b)), "r"(c0), "r"(c1)
                 : "memory");
}
/* Starts a bulk load of `bytes` contiguous bytes. `bytes` is a multiple of 16. */
MF_DEVICE void mf_bulk_load(void *lds, const void *global, i32 bytes, u64 *b)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
            mf_shared_address(lds)),
        "l"(global), "r"(bytes), "r"(mf_shared_address(b))
        : "memory");
}
/* Starts a bulk store of `bytes` contiguous bytes. `bytes` is a multiple of 16. mf_bulk_wait_read must be
 * called before the source is overwritten. */
MF_DEVICE void mf_bulk_store(void *global, const void *lds, i32 bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(global),
                 "r"(mf_shared_address(lds)), "r"(bytes)
                 : "memory");
}
MF_DEVICE void mf_bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
/* Waits until this thread's bulk stores are complete in global memory. */
MF_DEVICE void mf_bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}
/* Waits until the sources of all but the last N groups of bulk stores have been read. */
template <int N = 0> MF_DEVICE void mf_bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(N) : "memory");
}

/* Returns the index of the SM that runs this thread. */
MF_DEVICE i32 mf_sm_id()
{
    u32 sm;
    asm("mov.u32 %0, %%smid;\n" : "=r"(sm));
    return (i32)sm;
}
MF_DEVICE u64 mf_cycles()
{
    u64 now;
    asm volatile("mov.u64 %0, %%clock64;\n" : "=l"(now)::"memory");
    return now;
}
/* Returns the upper 32 bits of a product. */
MF_DEVICE u32 mf_product_high(u32 a, u32 b)
{
    return __umulhi(a, b);
}
/* Atomically increments *count and returns the old value, with relaxed order. */
MF_DEVICE u32 mf_fetch_increment(u32 *count)
{
    u32 before;
    asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], 1;\n" : "=r"(before) : "l"(count) : "memory");
    return before;
}
/* Atomically increments *count and returns the old value, with acquire-release order. The writes of earlier
 * callers become visible, and also the writes of threads that synchronised with these callers. */
MF_DEVICE u32 mf_fetch_increment_acq_rel(u32 *count)
{
    u32 before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;\n" : "=r"(before) : "l"(count) : "memory");
    return before;
}

/* Adds eight bf16 to global memory at an address that is a multiple of 16; each sum is rounded. */
MF_DEVICE void mf_red_add_8(void *global, const mf_16b &v)
{
    asm volatile("red.relaxed.gpu.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};\n" ::"l"(global),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* ---- global memory that one block writes and that bulk copies of another block read ---- */

/* Orders this thread's generic-proxy writes before bulk copies by threads that synchronise with this thread.
 */
MF_DEVICE void mf_fence_proxy_async()
{
    asm volatile("fence.proxy.async;\n" ::: "memory");
}
/* Increments `count`, the number of parts that are in memory. The new part may have been written by any
 * thread that has synchronised with this thread. */
MF_DEVICE void mf_signal_part(u32 *count)
{
    mf_fence_proxy_async();
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(count) : "memory");
}
/* Increments two counts that both include the same new part. */
MF_DEVICE void mf_signal_part_and_total(u32 *count, u32 *all)
{
    mf_fence_proxy_async();
    asm volatile("fence.acq_rel.gpu;\n" ::: "memory");
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;\n" ::"l"(count) : "memory");
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;\n" ::"l"(all) : "memory");
}
/* Returns true if `count` has reached `parts`. The data of these parts are then visible to this thread. */
MF_DEVICE bool mf_parts_ready(const u32 *count, u32 parts)
{
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(v) : "l"(count) : "memory");
    mf_fence_proxy_async();
    return v >= parts;
}
/* Spins until `count` reaches `parts`. */
MF_DEVICE void mf_wait_parts(const u32 *count, u32 parts)
{
    while (!mf_parts_ready(count, parts))
        ;
}
/* Makes this thread's writes visible to bulk copies of any block after a grid barrier. */
MF_DEVICE void mf_publish_writes()
{
    mf_fence_proxy_async();
    __threadfence();
}

/* ---- registers and fragments ---- */

/* Returns the value of the lane with index `from` modulo the warp size. */
template <typename T> MF_DEVICE T mf_shuffle(T v, i32 from)
{
    return __shfl_sync(0xffffffffu, v, from);
}
/* Tells the compiler that a value is warp-uniform, so that values computed from it go to uniform registers,
 * which WGMMA descriptors use. */
MF_DEVICE i32 mf_warp_uniform(i32 v)
{
    return mf_shuffle(v, 0);
}
/* Sets this warpgroup's registers per thread to N (setmaxnreg). */
template <int N> MF_DEVICE void mf_registers_dealloc()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
}
template <int N> MF_DEVICE void mf_registers_alloc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
}
/* Stores four 8x8 matrices of 16-bit elements from the register layout of mf_load_matrix_4. Lane l passes the
 * address of row l % 8 of matrix l / 8. */
MF_DEVICE void mf_stmatrix_4(void *lds, const u32 (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                     mf_shared_address(lds)),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
/* Does the same as mf_stmatrix_4, but transposed: lane l passes the address of column l % 8 of matrix l / 8.
 */
MF_DEVICE void mf_stmatrix_trans_4(void *lds, const u32 (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                     mf_shared_address(lds)),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
