/* Measures data movement on the CPU, at the widths of common models, and prints `name value unit` lines.
 * There are 128 experts, 8 slots per token and uniform routing; the buffers are many times larger than the
 * last-level cache. Every round runs the peak-rate loops and the kernels one after the other. A figure is the
 * median of the ratios of the rounds.
 *
 *   copy            MB/s of a streaming copy; only written bytes are counted
 *   read            MB/s of a plain read
 *   write_mix       MB/s written by copying each row to 8 consecutive places: a permutation without an index
 *
 *   permute_over_copy      bytes that permute (with the sort) writes per second, divided by those of the
 *                          copy. A copy reads as many bytes as it writes. A permutation reads one eighth
 *                          of the bytes it writes, so the ratio can exceed 1. k1 is the same with one slot
 *                          per token, where a permutation also reads as many bytes as it writes.
 *   permute_over_mix       bytes that permute writes per second, divided by those of the write mix
 *   permute_traffic_over_copy  bytes that permute reads and writes per second, divided by those of the copy
 *   unpermute_over_read    bytes that unpermute reads per second, divided by those of the read
 *   permute_over_naive     time of stable argsort, slice, division and gather, in one pass each, divided by
 *                          the time of permute
 *   sort_share_of_permute  time of the sort divided by the time of permute */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/base/cleanup.h"
#include "common/base/stats.h"
#include "kernels/core/device.h"
#include "kernels/core/philox.h"
#include "kernels/cpu/blocks.h"
#include "kernels/ops/permute.h"

#define EXPERTS 128
#define ROUNDS  9
#define BYTES   ((size_t)256 << 20) /* size of the rows in expert order, in bytes */

struct bench {
    size_t row; /* size of a row in bytes */
    int64_t tokens;
    int topk;
    int threads;
    int32_t *ids, *row_of, *first, *order;
    float *probs;
    char *x, *sorted, *y;
    void *workspace;
    struct {
        uint32_t expert;
        int32_t route;
    } * pairs;
    uint64_t sum; /* prevents the compiler from removing the read */
};

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *pages(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        exit(1);
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

/* ---- peak-rate loops ---- */

static void copy_thread(void *context, int thread, int n_threads)
{
    const struct bench *b = context;
    size_t n = BYTES / (size_t)n_threads / 4096 * 4096, at = n * (size_t)thread;
    mf_row_copier(true)(b->sorted + at, b->x + at, n);
    mf_row_copy_fence();
}

static void mix_thread(void *context, int thread, int n_threads)
{
    const struct bench *b = context;
    mf_copy_fn copy = mf_row_copier(true);
    for (int64_t t = b->tokens * thread / n_threads; t < b->tokens * (thread + 1) / n_threads; t++) {
        for (int j = 0; j < b->topk; j++)
            copy(b->sorted + (size_t)(t * b->topk + j) * b->row, b->x + (size_t)t * b->row, b->row);
    }
    mf_row_copy_fence();
}

typedef uint64_t v8 __attribute__((vector_size(64)));

static void read_thread(void *context, int thread, int n_threads)
{
    struct bench *b = context;
    size_t n = BYTES / (size_t)n_threads / 4096 * 4096;
    const v8 *at = (const v8 *)(const void *)(b->sorted + n * (size_t)thread);
    v8 sum[4] = {{0}};
    for (size_t i = 0; i < n / 64; i += 4) {
        for (size_t k = 0; k < 4; k++) {
            __builtin_prefetch((const char *)(at + i + k) + 4096, 0, 2);
            sum[k] ^= at[i + k];
        }
    }
    (void)__atomic_fetch_add(&b->sum, (sum[0] ^ sum[1] ^ sum[2] ^ sum[3])[0], __ATOMIC_RELAXED);
}

/* ---- kernels under test ---- */

static void sort(struct bench *b)
{
    struct mf_routes routes = {
        .ids = b->ids, .tokens = b->tokens, .topk = b->topk, .n_experts = EXPERTS, .n_bins = EXPERTS};
    struct mf_blocks blocks = {.block = 1, .row_of = b->row_of};
    if (mf_blocks_sort(MF_SORT_STABLE, &routes, &blocks, b->threads, b->workspace) != b->tokens * b->topk)
        exit(1);
}

static void permute(struct bench *b)
{
    struct mf_permute p = {.row_of = b->row_of,
                           .tokens = b->tokens,
                           .topk = b->topk,
                           .last = b->tokens * b->topk,
                           .copies = {{b->x, b->sorted, b->row}},
                           .n_copies = 1,
                           .stream = true};
    sort(b);
    mf_permute_rows(&p, b->threads);
}

static void unpermute(struct bench *b)
{
    struct mf_unpermute u = {.row_of = b->row_of,
                             .tokens = b->tokens,
                             .topk = b->topk,
                             .last = b->tokens * b->topk,
                             .from = (const uint16_t *)(const void *)b->sorted,
                             .width = b->row / 2,
                             .probs = b->probs,
                             .to = (uint16_t *)(void *)b->y,
                             .stream = true};
    mf_unpermute_rows(&u, b->threads);
}

/* ---- the chain of operators of frameworks without a fused kernel ---- */

static int by_expert(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    if (x[0] != y[0])
        return x[0] < y[0] ? -1 : 1;
    return x[1] < y[1] ? -1 : 1;
}

static void gather_thread(void *context, int thread, int n_threads)
{
    const struct bench *b = context;
    int64_t n = b->tokens * b->topk;
    for (int64_t r = n * thread / n_threads; r < n * (thread + 1) / n_threads; r++)
        memcpy(b->sorted + (size_t)r * b->row, b->x + (size_t)b->order[r] * b->row, b->row);
}

static void naive(struct bench *b)
{
    int64_t n = b->tokens * b->topk;
    for (int64_t i = 0; i < n; i++) {
        b->pairs[i].expert = (uint32_t)b->ids[i];
        b->pairs[i].route = (int32_t)i;
    }
    qsort(b->pairs, (size_t)n, sizeof(*b->pairs), by_expert);
    for (int64_t i = 0; i < n; i++) /* slice of a rank that holds all experts */
        b->order[i] = b->pairs[i].route;
    for (int64_t i = 0; i < n; i++)
        b->order[i] /= b->topk;
    mf_pool_run(gather_thread, b, b->threads);
}

/* ---- rounds ---- */

static void copy(struct bench *b)
{
    mf_pool_run(copy_thread, b, b->threads);
}

static void mix(struct bench *b)
{
    mf_pool_run(mix_thread, b, b->threads);
}

static void read_all(struct bench *b)
{
    mf_pool_run(read_thread, b, b->threads);
}

enum { COPY, MIX, PERMUTE, READ, UNPERMUTE, NAIVE, SORT, N_RUNS };

static void (*const runs[N_RUNS])(struct bench *) = {copy, mix, permute, read_all, unpermute, naive, sort};

/* times[run][round]; the first round is a warm-up and is discarded. */
static void measure(struct bench *b, double times[N_RUNS][ROUNDS])
{
    for (int round = -1; round < ROUNDS; round++) {
        for (int i = 0; i < N_RUNS; i++) {
            double from = now();
            runs[i](b);
            if (round >= 0)
                times[i][round] = (now() - from) * 1e6;
        }
    }
}

static double best(double times[N_RUNS][ROUNDS], int run)
{
    double us = times[run][0];
    for (int i = 1; i < ROUNDS; i++)
        us = times[run][i] < us ? times[run][i] : us;
    return us;
}

/* Returns the median over the rounds of the ratio of two runs' times. Memory speed changes within seconds, so
 * each ratio is of two times in one round. */
static double ratio(double times[N_RUNS][ROUNDS], int over, int under)
{
    double r[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        r[i] = times[over][i] / times[under][i];
    return mf_median(r, ROUNDS);
}

static void make(struct bench *b, int64_t width, int topk)
{
    b->row = (size_t)width * 2;
    b->topk = topk;
    b->tokens = (int64_t)(BYTES / b->row) / topk;
    size_t n = (size_t)(b->tokens * topk);
    for (size_t i = 0; i < n; i++) {
        uint32_t at = mf_philox(1, i / (size_t)topk, 0).v[0] % EXPERTS;
        b->ids[i] = (int32_t)((at + (uint32_t)(i % (size_t)topk) * 37) % EXPERTS);
        b->probs[i] = 1.0f / (float)topk;
    }
}

static void report(int64_t width)
{
    struct bench b = {.threads = mf_pool_threads()};
    size_t routes = BYTES / ((size_t)width * 2) + 8;
    double t[N_RUNS][ROUNDS], one[N_RUNS][ROUNDS];
    b.ids = pages(routes * 4);
    b.row_of = pages(routes * 4);
    b.order = pages(routes * 4);
    b.probs = pages(routes * 4);
    b.pairs = pages(routes * sizeof(*b.pairs));
    b.workspace = pages(mf_blocks_workspace(MF_SORT_STABLE, (int64_t)routes, EXPERTS, b.threads));
    b.x = pages(BYTES);
    b.sorted = pages(BYTES);
    b.y = pages(BYTES);
    for (size_t i = 0; i < BYTES / 2; i++) { /* no zeros: memory may be faster with them */
        ((uint16_t *)(void *)b.x)[i] = (uint16_t)(0x3f00 + i % 251);
        ((uint16_t *)(void *)b.y)[i] = 1;
    }
    make(&b, width, 8);
    measure(&b, t);
    make(&b, width, 1);
    measure(&b, one);
    double bytes = (double)BYTES;
    long long H = (long long)width;
    printf("copy.H%lld %.0f MB/s\nread.H%lld %.0f MB/s\nwrite_mix.H%lld %.0f MB/s\n", H,
           bytes / best(t, COPY), H, bytes / best(t, READ), H, bytes / best(t, MIX));
    printf("permute_over_copy.H%lld %.3f ratio\n", H, ratio(t, COPY, PERMUTE));
    printf("permute_over_copy_k1.H%lld %.3f ratio\n", H, ratio(one, COPY, PERMUTE));
    printf("permute_over_mix.H%lld %.3f ratio\n", H, ratio(t, MIX, PERMUTE));
    printf("permute_traffic_over_copy.H%lld %.3f ratio\n", H, ratio(t, COPY, PERMUTE) * 9 / 16);
    printf("unpermute_over_read.H%lld %.3f ratio\n", H, ratio(t, READ, UNPERMUTE));
    printf("permute_over_naive.H%lld %.2f ratio\n", H, ratio(t, NAIVE, PERMUTE));
    printf("sort_share_of_permute.H%lld %.3f ratio\n", H, ratio(t, SORT, PERMUTE));
    (void)fflush(stdout);
    (void)munmap(b.x, BYTES);
    (void)munmap(b.sorted, BYTES);
    (void)munmap(b.y, BYTES);
}

int main(void)
{
    report(2048);
    report(7168);
    return 0;
}
