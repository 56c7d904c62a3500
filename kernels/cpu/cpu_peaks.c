#include "kernels/cpu/device_cpu.h"

#include "kernels/cpu/ops.h"
#include "kernels/cpu/peaks.h"
#include "kernels/cpu/pool.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* The measurements are interleaved in passes, because another program may occupy a core for as long as one
 * measurement takes. */
#define PASSES  4
#define READ_MS 36
/* bytes per read, few enough that other programs do not disturb every read */
#define WINDOW     (8u << 20)
#define COMPUTE_MS 4
/* minimum number of runs, even if COMPUTE_MS has passed, because a run in which a thread waits for its core
 * is useless */
#define COMPUTE_RUNS_MIN 8

struct work {
    const struct mf_cpu_peak_loops *loops;
    const char *memory;
    size_t bytes;
    long rounds;
    bool bf16;
};

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void read_part(void *context, int thread, int n_threads)
{
    const struct work *w = context;
    size_t lines = w->bytes / 4096, from = lines * (size_t)thread / (size_t)n_threads;
    size_t to = lines * (size_t)(thread + 1) / (size_t)n_threads;

    w->loops->read(w->memory + from * 4096, (to - from) * 4096);
}

static void touch_part(void *context, int thread, int n_threads)
{
    const struct work *w = context;
    size_t pages = w->bytes / 4096, from = pages * (size_t)thread / (size_t)n_threads;
    size_t to = pages * (size_t)(thread + 1) / (size_t)n_threads;

    for (size_t p = from; p < to; p++)
        ((volatile char *)w->memory)[p * 4096] = (char)p;
}

static void compute_part(void *context, int thread, int n_threads)
{
    const struct work *w = context;

    (void)thread;
    (void)n_threads;
    (w->bf16 ? w->loops->bf16 : w->loops->f32)(w->rounds);
}

static void empty_job(void *context, int thread, int n_threads)
{
    (void)context;
    (void)thread;
    (void)n_threads;
}

/* Buffer of the read measurement: four times the last-level cache, 64 MiB to 1 GiB. Windows are read in
 * rotation, so that each window has left the cache before it is read again. */
struct buffer {
    struct work all;
    void *memory;
    size_t at; /* offset of the next window */
};

static int buffer_new(const struct mf_cpu_peak_loops *loops, uint64_t llc_bytes, struct buffer *ret)
{
    size_t bytes = llc_bytes * 4 < (64u << 20)  ? 64u << 20
                   : llc_bytes * 4 > (1u << 30) ? 1u << 30
                                                : (size_t)llc_bytes * 4;
    struct work all = {.loops = loops, .bytes = bytes / WINDOW * WINDOW};

    void *memory = mmap(NULL, all.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return -ENOMEM;
    (void)madvise(memory, all.bytes, MADV_HUGEPAGE);
    all.memory = memory;
    mf_pool_run(touch_part, &all, mf_pool_threads());
    *ret = (struct buffer){.all = all, .memory = memory};
    return 0;
}

/* Returns the read bandwidth of the best window, in GB/s. */
static double measure_read(struct buffer *b)
{
    struct work w = b->all;
    double best = 0.0, end = now_s() + READ_MS * 1e-3;

    w.bytes = WINDOW;
    for (size_t n = 0; n < 8 || now_s() < end; n++) {
        w.memory = b->all.memory + b->at;
        b->at = (b->at + WINDOW) % b->all.bytes;
        double from = now_s();
        mf_pool_run(read_part, &w, mf_pool_threads());
        double gbs = (double)WINDOW / (now_s() - from) * 1e-9;
        /* the first window may still be in the cache */
        if (n > 0 && gbs > best)
            best = gbs;
    }
    return best;
}

static double measure_compute(const struct mf_cpu_peak_loops *loops, bool bf16)
{
    struct work w = {.loops = loops, .rounds = 20000, .bf16 = bf16};
    double flops = (bf16 ? loops->bf16_flops : loops->f32_flops) * (double)w.rounds * mf_pool_threads(),
           best = 0.0;
    double end = now_s() + COMPUTE_MS * 1e-3;

    for (int n = 0; n < COMPUTE_RUNS_MIN || now_s() < end; n++) {
        double from = now_s();
        mf_pool_run(compute_part, &w, mf_pool_threads());
        double gflops = flops / (now_s() - from) * 1e-9;
        best = gflops > best ? gflops : best;
    }
    return best;
}

static double measure_gap_us(void)
{
    double best = 1e9;

    for (int pass = 0; pass < 8; pass++) {
        double from = now_s();
        for (int i = 0; i < 50; i++)
            mf_pool_run(empty_job, NULL, mf_pool_threads());
        double us = (now_s() - from) * 1e6 / 50;
        best = us < best ? us : best;
    }
    return best;
}

int mf_cpu_peaks_measure(enum mf_isa isa, uint64_t llc_bytes, struct mf_cpu_peaks *ret)
{
    const struct mf_cpu_peak_loops *loops = mf_cpu_peak_loops(isa);
    struct mf_cpu_peaks best = {.gap_us = 1e9};
    struct buffer buffer;
    cpu_set_t before;

    mf_pool_pin_caller(&before);
    mf_pool_wake();
    int r = buffer_new(loops, llc_bytes, &buffer);
    for (int pass = 0; pass < PASSES && r == 0; pass++) {
        best.mem_read_gbs = fmax(best.mem_read_gbs, measure_read(&buffer));
        best.f32_gflops = fmax(best.f32_gflops, measure_compute(loops, false));
        best.bf16_gflops = fmax(best.bf16_gflops, measure_compute(loops, true));
        best.gap_us = fmin(best.gap_us, measure_gap_us());
    }
    if (r == 0) {
        (void)munmap(buffer.memory, buffer.all.bytes);
        *ret = best;
    }
    if (CPU_COUNT(&before) > 0)
        (void)sched_setaffinity(0, sizeof(before), &before);
    return r;
}
