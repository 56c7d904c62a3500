/* More words, of Hopper alone (PTX of sm_90a): copies in bulk that complete on barriers in LDS, and registers that waves hand
 * to each other. Only sources for Hopper alone know them. */
#pragma once

#include "corner.h"

/* ---- barriers in LDS: a phase ends with its last arrival and its last byte ---- */

MF_DEVICE u32 mf_lds_at(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
MF_DEVICE void mf_barrier_init(u64 *b, i32 arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(mf_lds_at(b)), "r"(arrivals) : "memory");
}
MF_DEVICE void mf_barrier_arrive(u64 *b)
{
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }\n" ::"r"(mf_lds_at(b))
                 : "memory");
}
/* Arrives, and says how many bytes bulk copies will bring before the phase ends. */
MF_DEVICE void mf_barrier_expect(u64 *b, i32 bytes)
{
    asm volatile(
        "{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }\n" ::"r"(mf_lds_at(b)),
        "r"(bytes)
        : "memory");
}
/* Arrives when all of this thread's mf_copy_async so far have landed. */
MF_DEVICE void mf_barrier_arrive_copied(u64 *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(mf_lds_at(b)) : "memory");
}
/* Waits for the end of the phase of that parity; the phase before the first has parity 1 and has ended. */
MF_DEVICE void mf_barrier_wait(u64 *b, u32 parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(mf_lds_at(b)),
                 "r"(parity)
                 : "memory");
}
/* Of `threads` threads that name the same number; 0 is __syncthreads()'s. */
MF_DEVICE void mf_group_sync(i32 number, i32 threads)
{
    asm volatile("bar.sync %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}
/* Counts this thread as there and goes on. */
MF_DEVICE void mf_group_arrive(i32 number, i32 threads)
{
    asm volatile("bar.arrive %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}

/* ---- copies in bulk ---- */

/* Asks the last cache for a box. */
MF_DEVICE void mf_ask_cache_5(const mf_hip_map *map, const mf_corner &at)
{
    asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];\n" ::"l"(map),
                 "r"(at.c0), "r"(at.c1), "r"(at.c2), "r"(at.c3), "r"(at.c4)
                 : "memory");
}
/* A box of a tensor to LDS; its bytes count on the barrier, zeros for what lies outside of the tensor included. once: nobody
 * reads it again, so the last cache gives it up before what others share. */
MF_DEVICE void mf_bulk_load_5(void *lds, const mf_hip_map *map, u64 *b, const mf_corner &at, bool once)
{
    if (once) {
        asm volatile("{ .reg .b64 p; createpolicy.fractional.L2::evict_first.b64 p, 1.0;\n"
                     "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], p; }\n" ::"r"(mf_lds_at(lds)),
                     "l"(map), "r"(mf_lds_at(b)), "r"(at.c0), "r"(at.c1), "r"(at.c2), "r"(at.c3), "r"(at.c4)
                     : "memory");
        return;
    }
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];\n" ::"r"(mf_lds_at(lds)),
                 "l"(map), "r"(mf_lds_at(b)), "r"(at.c0), "r"(at.c1), "r"(at.c2), "r"(at.c3), "r"(at.c4)
                 : "memory");
}
MF_DEVICE void mf_bulk_load_2(void *lds, const mf_hip_map *map, u64 *b, i32 c0, i32 c1)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];\n" ::"r"(mf_lds_at(lds)),
                 "l"(map), "r"(mf_lds_at(b)), "r"(c0), "r"(c1)
                 : "memory");
}
/* A run of bytes to LDS, a multiple of 16. */
MF_DEVICE void mf_bulk_load(void *lds, const void *global, i32 bytes, u64 *b)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
            mf_lds_at(lds)),
        "l"(global), "r"(bytes), "r"(mf_lds_at(b))
        : "memory");
}
/* A run of bytes from LDS, a multiple of 16, in the background; before LDS is written again: mf_bulk_wait_read. */
MF_DEVICE void mf_bulk_store(void *global, const void *lds, i32 bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(global),
                 "r"(mf_lds_at(lds)), "r"(bytes)
                 : "memory");
}
MF_DEVICE void mf_bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
/* Until what this thread stored or added in bulk is in memory. */
MF_DEVICE void mf_bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}
/* But for the last N groups. */
template <int N = 0> MF_DEVICE void mf_bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(N) : "memory");
}

/* Number of the unit that this runs on. */
MF_DEVICE i32 mf_unit()
{
    u32 unit;
    asm("mov.u32 %0, %%smid;\n" : "=r"(unit));
    return (i32)unit;
}
MF_DEVICE u64 mf_cycles()
{
    u64 now;
    asm volatile("mov.u64 %0, %%clock64;\n" : "=l"(now)::"memory");
    return now;
}
/* The upper 32 bits of a product. */
MF_DEVICE u32 mf_product_high(u32 a, u32 b)
{
    return __umulhi(a, b);
}
/* How many were taken before this one, of a count in memory. */
MF_DEVICE u32 mf_take_one(u32 *count)
{
    u32 before;
    asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], 1;\n" : "=r"(before) : "l"(count) : "memory");
    return before;
}
/* How many have ended before this one: what they, and whom they met, had counted by then is seen. */
MF_DEVICE u32 mf_end_one(u32 *count)
{
    u32 before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;\n" : "=r"(before) : "l"(count) : "memory");
    return before;
}

/* Eight bf16, at 16 bytes, are added to what is there, each rounded. */
MF_DEVICE void mf_add_8(void *global, const mf_16b &v)
{
    asm volatile("red.relaxed.gpu.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};\n" ::"l"(global),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* ---- rows that one block writes and another reads in bulk ---- */

/* What this thread wrote is seen by copies in bulk of whoever meets it. */
MF_DEVICE void mf_written_for_bulk()
{
    asm volatile("fence.proxy.async;\n" ::: "memory");
}
/* One more part of what `count` counts is in memory, written before by any thread that has met this one. */
MF_DEVICE void mf_part_done(u32 *count)
{
    mf_written_for_bulk();
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(count) : "memory");
}
/* The same of two counts, of which a part is one. */
MF_DEVICE void mf_part_done_of_two(u32 *count, u32 *all)
{
    mf_written_for_bulk();
    asm volatile("fence.acq_rel.gpu;\n" ::: "memory");
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;\n" ::"l"(count) : "memory");
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;\n" ::"l"(all) : "memory");
}
/* Are so many? */
MF_DEVICE bool mf_parts_are_there(const u32 *count, u32 parts)
{
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(v) : "l"(count) : "memory");
    mf_written_for_bulk();
    return v >= parts;
}
/* Until they are. */
MF_DEVICE void mf_parts_wait(const u32 *count, u32 parts)
{
    while (!mf_parts_are_there(count, parts))
        ;
}
/* What this thread wrote to memory is seen by whoever reads it in bulk after a barrier of the grid. */
MF_DEVICE void mf_written_for_all()
{
    mf_written_for_bulk();
    __threadfence();
}

/* ---- registers and fragments ---- */

/* What lane `from` of the wave has; from: modulo a wave's lanes. */
template <typename T> MF_DEVICE T mf_of_lane(T v, i32 from)
{
    return __shfl_sync(0xffffffffu, v, from);
}
/* A number that is the same in all lanes of a wave, as the compiler then knows: what is made of it is counted once for the wave, in
 * the registers that matrix instructions take their operands' places from. */
MF_DEVICE i32 mf_of_wave(i32 v)
{
    return mf_of_lane(v, 0);
}
/* A group of four waves has N registers a thread from here on. */
template <int N> MF_DEVICE void mf_registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
}
template <int N> MF_DEVICE void mf_registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
}
/* Four 8x8 matrices of 16-bit elements as mf_load_matrix_4 has them in its lanes; lane l names row l % 8 of matrix l / 8. */
MF_DEVICE void mf_store_4(void *lds, const u32 (&r)[4])
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(mf_lds_at(lds)),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}
/* The same, each turned: the row that lane l names is column l % 8 of matrix l / 8. */
MF_DEVICE void mf_store_turned_4(void *lds, const u32 (&r)[4])
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(mf_lds_at(lds)),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}
