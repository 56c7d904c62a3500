#include "server/choose/least_time.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/net/wire_bounds.h"
#include "server/choose/least_routes.h"

/* tolerance for clock errors and for ceilings that were measured on a busy machine */
#define CEILING_SLACK 1.1
/* Shortest run of a kernel with a GEMM, in us. A GPU takes 1 to 2 us for an empty kernel, even if a graph
 * launches it. On a CPU, 0.02 us are about 80 cycles, the latency of one read from memory. */
#define GEMM_US_MIN_GPU 0.5
#define GEMM_US_MIN_CPU 0.02
/* Data that a cache holds may be read faster than from memory, at most this many times as fast.
 *
 * GPU: the L2 cache of an H200 holds 50 MB and reads less than 10 TB/s, twice as fast as its memory
 * (4.8 TB/s). The L2 caches of an MI300X read 34 TB/s (128 bytes per clock from each of 128 channels at
 * 2.1 GHz), 6.5 times as fast as its memory (5.3 TB/s). L1 caches and shared memory start each launch empty.
 *
 * CPU: an L2 cache reads at most 64 bytes per clock: 128 cores at 4 GHz read 33 TB/s, 53 times as fast as
 * 12 channels of DDR5-6400 (614 GB/s). An L1 cache is twice as fast, but what it holds (48 KB) takes only
 * 0.1 us, less than the launch of a kernel on several threads. */
#define CACHE_SPEED_GPU 20.0
#define CACHE_SPEED_CPU 100.0
/* Sizes of all caches, as a multiple of the reported last-level cache. GPU: the L2 caches of CDNA 3 add an
 * eighth to the Infinity Cache. CPU: a device reports one of its L3 caches; processors have up to 32, and at
 * most one for each thread. */
#define CACHES_GPU     2
#define CACHES_CPU_MAX 32

static double bits_per_expert(const struct mf_shape *s, mf_ops ops)
{
    return mf_layer_expert_elements(s, ops) * mf_dtype_bits(s->q_dtype_w);
}

void mf_work_add(struct mf_work *to, const struct mf_shape *s, const struct mf_routing *routing, mf_ops ops)
{
    struct mf_least_routes least = mf_least_routes(routing, s);
    double hidden = (double)s->token * s->model_dim * mf_dtype_bits(s->dtype) / 8;
    bool reads = ops & MF_OP_BIT(MF_OP_QUANT1), writes = ops & MF_OP_BIT(MF_OP_COMBINE);
    to->gemm |= (ops & (MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_GEMM2))) != 0;
    to->flops += 2 * least.routes * mf_layer_expert_elements(s, ops);
    to->weight_bytes += least.active * bits_per_expert(s, ops) / 8;
    /* With expert parallelism, a kernel may skip tokens without local experts */
    if (s->expert == mf_shape_global_experts(s))
        to->token_bytes += hidden * (reads + writes);
    to->activations = s->q_dtype_a;
}

static double launch_us(const struct mf_work *work, const struct mf_ceilings *c)
{
    if (!work->gemm)
        return MF_TIME_US_MIN;
    return c->cpu_threads ? GEMM_US_MIN_CPU : GEMM_US_MIN_GPU;
}

/* Returns the size of all caches in bytes, or more. */
static double cache_bytes(const struct mf_ceilings *c)
{
    int n = c->cpu_threads ? MF_MIN(c->cpu_threads, CACHES_CPU_MAX) : CACHES_GPU;
    return n * c->llc_bytes;
}

double mf_least_us(const struct mf_work *work, const struct mf_ceilings *c, char why[MF_REASON_MAX])
{
    double uncached = fmax(0, work->weight_bytes - cache_bytes(c));
    double gflops = work->gemm ? CEILING_SLACK * c->dtype_gflops[work->activations] : 0;
    double speed = c->cpu_threads ? CACHE_SPEED_CPU : CACHE_SPEED_GPU;
    /* rate: in GFLOP/s or GB/s; 0: unknown */
    const struct {
        double amount, rate;
        const char *limit, *unit;
    } bounds[] = {
        {work->flops, gflops, "peak", "GFLOP"},
        {uncached, CEILING_SLACK * c->mem_read_gbs, "memory bandwidth", "GB"},
        {work->weight_bytes + work->token_bytes, speed * c->mem_read_gbs, "cache bandwidth", "GB"},
    };
    double least = launch_us(work, c);
    mf_format(why, MF_REASON_MAX, "no %s is faster", work->gemm ? "GEMM" : "kernel");
    for (size_t i = 0; i < MF_ARRAY_LEN(bounds); i++) {
        double us = bounds[i].rate > 0 ? bounds[i].amount / (bounds[i].rate * 1e3) : 0;
        if (us <= least)
            continue;
        least = us;
        mf_format(why, MF_REASON_MAX, "%.4g %s at the device's %s of at most %.4g %s/s",
                  bounds[i].amount * 1e-9, bounds[i].unit, bounds[i].limit, bounds[i].rate, bounds[i].unit);
    }
    return least;
}
