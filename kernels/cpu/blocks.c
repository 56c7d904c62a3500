#include "kernels/cpu/blocks.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/device.h"
#include "kernels/core/tensors.h"
#include "kernels/core/vector.h"

MF_NAMES_DEFINE(mf_sort, MF_SORT_, MF_SORT_MAP);

struct job {
    enum mf_sort sort;
    const struct mf_routes *r;
    const struct mf_blocks *out;
    int32_t *counts; /* serial, scatter: [n_bins]; stages, stable: [lanes, n_bins]; one: [n_bins] */
    int32_t *starts; /* stages: [n_bins] */
    uint64_t *seen;  /* one: one bit per bin, set if it has routes */
    int32_t *bins;   /* one: [routes] */
    uint16_t *ranks; /* one: [routes] */
    int64_t rows;
};

/* ---- one route ---- */

MF_VECTOR_INLINE int32_t bin_at(const struct mf_routes *r, int64_t i, bool wide, bool mapped)
{
    int64_t id = wide ? ((const int64_t *)r->ids)[i] : ((const int32_t *)r->ids)[i];
    id = (int64_t)((uint64_t)id - (uint64_t)r->first);
    if ((uint64_t)id >= (uint64_t)r->n_experts)
        return -1;
    int32_t bin = mapped ? r->bin_of[id] : (int32_t)id;
    return bin < r->n_bins ? bin : -1;
}

/* Calls a body with two constants: whether ids are int64, and whether bin_of is used. */
#define BY_KIND(body, r, ...)                                                                     \
    do {                                                                                          \
        if ((r)->wide)                                                                            \
            (r)->bin_of ? body(r, __VA_ARGS__, true, true) : body(r, __VA_ARGS__, true, false);   \
        else                                                                                      \
            (r)->bin_of ? body(r, __VA_ARGS__, false, true) : body(r, __VA_ARGS__, false, false); \
    } while (0)

MF_VECTOR_INLINE void store_route(const struct mf_blocks *out, int64_t token, int32_t slot, int64_t i,
                                  int32_t row)
{
    if (out->row_of)
        out->row_of[i] = row;
    if (out->valid)
        out->valid[i] = row < 0 ? -1 : (int32_t)i;
    if (row < 0)
        return;
    if (out->ids)
        out->ids[row] = out->packed ? mf_pack_id((int32_t)token, slot) : (int32_t)i;
    if (out->weights)
        out->weights[row] = out->bf16_weights ? mf_bf16_to_float(((const uint16_t *)out->route_weights)[i])
                                              : ((const float *)out->route_weights)[i];
}

MF_VECTOR_INLINE void count_body(const struct mf_routes *r, int64_t from, int64_t to, int32_t *counts,
                                 bool wide, bool mapped)
{
    for (int64_t i = from * r->topk; i < to * r->topk; i++) {
        int32_t bin = bin_at(r, i, wide, mapped);
        if (bin >= 0)
            counts[bin]++;
    }
}

/* Counts the routes of the tokens in [from, to) by bin and adds the numbers to `counts`. */
static void count(const struct mf_routes *r, int64_t from, int64_t to, int32_t *counts)
{
    BY_KIND(count_body, r, from, to, counts);
}

MF_VECTOR_INLINE void place_body(const struct mf_routes *r, const struct mf_blocks *out, int64_t from,
                                 int64_t to, int32_t *next, bool wide, bool mapped)
{
    int64_t i = from * r->topk;
    for (int64_t t = from; t < to; t++) {
        for (int32_t j = 0; j < r->topk; j++, i++) {
            int32_t bin = bin_at(r, i, wide, mapped);
            store_route(out, t, j, i, bin < 0 ? -1 : next[bin]++);
        }
    }
}

/* Stores the routes of the tokens in [from, to), each in the next row of its bin. */
static void place(const struct mf_routes *r, const struct mf_blocks *out, int64_t from, int64_t to,
                  int32_t *next)
{
    BY_KIND(place_body, r, out, from, to, next);
}

MF_VECTOR_INLINE void place_atomic_body(const struct mf_routes *r, const struct mf_blocks *out, int64_t from,
                                        int64_t to, int32_t *next, bool wide, bool mapped)
{
    int64_t i = from * r->topk;
    for (int64_t t = from; t < to; t++) {
        for (int32_t j = 0; j < r->topk; j++, i++) {
            int32_t bin = bin_at(r, i, wide, mapped);
            store_route(out, t, j, i, bin < 0 ? -1 : __atomic_fetch_add(&next[bin], 1, __ATOMIC_RELAXED));
        }
    }
}

/* Does the same as place(), but `next` is shared by all threads and updated atomically. */
static void place_atomic(const struct mf_routes *r, const struct mf_blocks *out, int64_t from, int64_t to,
                         int32_t *next)
{
    BY_KIND(place_atomic_body, r, out, from, to, next);
}

/* ---- one bin ---- */

/* Writes the blocks and the padding rows of one bin, which has n routes and whose rows begin at `first`.
 * Returns the row after the bin. */
static int32_t lay_out(const struct mf_blocks *out, int32_t bin, int32_t n, int32_t first)
{
    int32_t end = first + (n + out->block - 1) / out->block * out->block;
    int32_t name = out->name ? out->name[bin] : bin;
    for (int32_t b = first / out->block; out->experts && b < end / out->block; b++)
        out->experts[b] = name;
    for (int32_t row = first + n; out->ids && row < end; row++)
        out->ids[row] = out->pad;
    for (int32_t row = first + n; out->weights && row < end; row++)
        out->weights[row] = 0;
    return end;
}

/* Replaces each bin's count by the bin's first row. Returns the number of rows in use. */
static int32_t lay_out_all(const struct mf_blocks *out, int32_t *counts, int32_t n_bins)
{
    int32_t rows = 0;
    for (int32_t b = 0; b < n_bins; b++) {
        int32_t n = counts[b];
        counts[b] = rows;
        if (out->first)
            out->first[b] = rows;
        rows = lay_out(out, b, n, rows);
    }
    if (out->first)
        out->first[n_bins] = rows;
    return rows;
}

/* ---- the algorithms: one thread's part of each ---- */

static void sort_serial(struct job *j)
{
    memset(j->counts, 0, (size_t)j->r->n_bins * sizeof(*j->counts));
    count(j->r, 0, j->r->tokens, j->counts);
    j->rows = lay_out_all(j->out, j->counts, j->r->n_bins);
    place(j->r, j->out, 0, j->r->tokens, j->counts);
}

MF_VECTOR_INLINE void rank_body(const struct mf_routes *r, struct job *j, bool wide, bool mapped)
{
    for (int64_t i = 0; i < r->tokens * r->topk; i++) {
        int32_t bin = bin_at(r, i, wide, mapped);
        j->bins[i] = bin;
        if (bin < 0)
            continue;
        uint64_t *word = &j->seen[bin / 64], bit = (uint64_t)1 << (bin % 64);
        if (!(*word & bit))
            j->counts[bin] = 0;
        *word |= bit;
        j->ranks[i] = (uint16_t)j->counts[bin]++;
    }
}

static void sort_few(struct job *j)
{
    const struct mf_routes *r = j->r;
    int32_t rows = 0, next_first = 0, words = (r->n_bins + 63) / 64;
    memset(j->seen, 0, (size_t)words * sizeof(*j->seen));
    BY_KIND(rank_body, r, j);
    for (int32_t w = 0; w < words; w++) {
        for (uint64_t left = j->seen[w]; left; left &= left - 1) {
            int32_t bin = w * 64 + __builtin_ctzll(left), n = j->counts[bin];
            j->counts[bin] = rows;
            for (; j->out->first && next_first <= bin; next_first++)
                j->out->first[next_first] = rows;
            rows = lay_out(j->out, bin, n, rows);
        }
    }
    for (; j->out->first && next_first <= r->n_bins; next_first++)
        j->out->first[next_first] = rows;
    for (int64_t t = 0, i = 0; t < r->tokens; t++) {
        for (int32_t slot = 0; slot < r->topk; slot++, i++) {
            int32_t bin = j->bins[i];
            store_route(j->out, t, slot, i, bin < 0 ? -1 : j->counts[bin] + j->ranks[i]);
        }
    }
    j->rows = rows;
}

struct slice {
    int64_t from, to;
};

static struct slice slice_of(int64_t n, int64_t part, int64_t n_parts)
{
    return (struct slice){n * part / n_parts, n * (part + 1) / n_parts};
}

/* Stage 2 of `stages`: replaces each lane's count of a bin by the sum of the earlier lanes' counts, and
 * writes the total of the bin to `starts`. */
static void sum_columns(struct job *j, struct slice bins)
{
    int32_t n_bins = j->r->n_bins;
    for (int64_t b = bins.from; b < bins.to; b++)
        j->starts[b] = 0;
    for (int32_t lane = 0; lane < n_bins; lane++) {
        int32_t *row = j->counts + (size_t)lane * (size_t)n_bins;
        for (int64_t b = bins.from; b < bins.to; b++) {
            int32_t n = row[b];
            row[b] = j->starts[b];
            j->starts[b] += n;
        }
    }
}

static void sort_stages(struct job *j, int thread, int n_threads)
{
    const struct mf_routes *r = j->r;
    size_t n_bins = (size_t)r->n_bins;
    struct slice lanes = slice_of(r->n_bins, thread, n_threads);
    for (int64_t lane = lanes.from; lane < lanes.to; lane++) {
        struct slice tokens = slice_of(r->tokens, lane, r->n_bins);
        int32_t *row = j->counts + (size_t)lane * n_bins;
        memset(row, 0, n_bins * sizeof(*row));
        count(r, tokens.from, tokens.to, row);
    }
    mf_pool_barrier();
    sum_columns(j, lanes);
    mf_pool_barrier();
    if (thread == 0)
        j->rows = lay_out_all(j->out, j->starts, r->n_bins);
    mf_pool_barrier();
    for (int64_t lane = lanes.from; lane < lanes.to; lane++) {
        struct slice tokens = slice_of(r->tokens, lane, r->n_bins);
        int32_t *row = j->counts + (size_t)lane * n_bins;
        if (tokens.from == tokens.to)
            continue;
        for (size_t b = 0; b < n_bins; b++)
            row[b] += j->starts[b];
        place(r, j->out, tokens.from, tokens.to, row);
    }
}

/* Replaces each thread's count of a bin by the first row of the thread's routes: within a bin, the routes of
 * thread 0 come first, then those of thread 1, and so on. Returns the number of rows in use. */
static int32_t lay_out_slices(struct job *j, int n_threads)
{
    int32_t rows = 0, n_bins = j->r->n_bins;
    for (int32_t b = 0; b < n_bins; b++) {
        int32_t next = rows;
        for (int t = 0; t < n_threads; t++) {
            int32_t *cell = j->counts + (size_t)t * (size_t)n_bins + b, n = *cell;
            *cell = next;
            next += n;
        }
        if (j->out->first)
            j->out->first[b] = rows;
        rows = lay_out(j->out, b, next - rows, rows);
    }
    if (j->out->first)
        j->out->first[n_bins] = rows;
    return rows;
}

static void sort_stable(struct job *j, int thread, int n_threads)
{
    const struct mf_routes *r = j->r;
    int32_t *own = j->counts + (size_t)thread * (size_t)r->n_bins;
    struct slice tokens = slice_of(r->tokens, thread, n_threads);
    memset(own, 0, (size_t)r->n_bins * sizeof(*own));
    count(r, tokens.from, tokens.to, own);
    mf_pool_barrier();
    if (thread == 0)
        j->rows = lay_out_slices(j, n_threads);
    mf_pool_barrier();
    place(r, j->out, tokens.from, tokens.to, own);
}

/* Each thread counts into its own histogram, then adds that histogram to the shared histogram with one atomic
 * addition per bin. */
static void sort_scatter(struct job *j, int thread, int n_threads)
{
    const struct mf_routes *r = j->r;
    size_t n_bins = (size_t)r->n_bins;
    int32_t *own = j->counts + (size_t)(thread + 1) * n_bins;
    struct slice tokens = slice_of(r->tokens, thread, n_threads);
    if (thread == 0)
        memset(j->counts, 0, n_bins * sizeof(*own));
    memset(own, 0, n_bins * sizeof(*own));
    count(r, tokens.from, tokens.to, own);
    mf_pool_barrier();
    for (size_t b = 0; b < n_bins; b++) {
        if (own[b] > 0)
            (void)__atomic_fetch_add(&j->counts[b], own[b], __ATOMIC_RELAXED);
    }
    mf_pool_barrier();
    if (thread == 0)
        j->rows = lay_out_all(j->out, j->counts, r->n_bins);
    mf_pool_barrier();
    place_atomic(r, j->out, tokens.from, tokens.to, j->counts);
}

static void zero_fill(const struct mf_blocks *out, int part, int n_parts)
{
    struct slice lines = slice_of((int64_t)((out->zeroed_bytes + 63) / 64), part, n_parts);
    size_t from = (size_t)lines.from * 64, to = MF_MIN((size_t)lines.to * 64, out->zeroed_bytes);
    if (out->zeroed && from < to)
        memset(out->zeroed + from, 0, to - from);
}

static void run_thread(void *context, int thread, int n_threads)
{
    struct job *j = context;
    switch (j->sort) {
    case MF_SORT_SERIAL:
    case MF_SORT_ONE:
        if (thread == 0)
            j->sort == MF_SORT_ONE ? sort_few(j) : sort_serial(j);
        if (thread > 0 || n_threads == 1)
            zero_fill(j->out, n_threads > 1 ? thread - 1 : 0, n_threads > 1 ? n_threads - 1 : 1);
        return;
    case MF_SORT_STAGES:
        sort_stages(j, thread, n_threads);
        break;
    case MF_SORT_STABLE:
        sort_stable(j, thread, n_threads);
        break;
    case MF_SORT_SCATTER:
        sort_scatter(j, thread, n_threads);
        break;
    case MF_SORT_N_:
        break;
    }
    zero_fill(j->out, thread, n_threads);
}

/* ---- public functions ---- */

bool mf_sort_supports(enum mf_sort sort, int64_t routes, int32_t n_bins, int threads, const char **ret_why)
{
    *ret_why = NULL;
    if (threads < 1 || threads > MF_SORT_THREADS)
        *ret_why = "sorts support 1 to 256 threads";
    else if (sort == MF_SORT_ONE && routes > MF_SORT_ONE_ROUTES)
        *ret_why =
            "sort algorithm 'one' supports up to 1024 routes, because their ranks must fit the L1 cache";
    else if (sort == MF_SORT_STAGES && n_bins > MF_SORT_STAGES_BINS)
        *ret_why = "sort algorithm 'stages' supports up to 1024 experts, because its matrix has experts x "
                   "experts cells";
    return *ret_why == NULL;
}

static size_t whole_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Returns the number of counter arrays, each with n_bins counters. */
static size_t count_rows(enum mf_sort sort, int32_t n_bins, int threads)
{
    return sort == MF_SORT_STAGES    ? (size_t)n_bins
           : sort == MF_SORT_STABLE  ? (size_t)threads
           : sort == MF_SORT_SCATTER ? (size_t)threads + 1
                                     : 1;
}

size_t mf_blocks_workspace(enum mf_sort sort, int64_t routes, int32_t n_bins, int threads)
{
    size_t bins = (size_t)n_bins;
    size_t bytes = whole_lines(count_rows(sort, n_bins, threads) * bins * sizeof(int32_t));
    if (sort == MF_SORT_STAGES)
        bytes += whole_lines(bins * sizeof(int32_t));
    if (sort == MF_SORT_ONE)
        bytes += whole_lines((bins + 63) / 64 * sizeof(uint64_t)) +
                 whole_lines((size_t)routes * sizeof(int32_t)) +
                 whole_lines((size_t)routes * sizeof(uint16_t));
    return bytes;
}

/* Returns the maximum number of rows that n routes need in n_bins bins, a multiple of `block`. Every bin that
 * can have a route may end in a partial block. */
static int64_t most_rows(int64_t routes, int32_t n_bins, int32_t block)
{
    int64_t last = MF_MIN((int64_t)n_bins, routes);
    return (routes + last * (block - 1) + block - 1) / block * block;
}

static void carve(struct job *j, int threads, char *at)
{
    size_t bins = (size_t)j->r->n_bins, routes = (size_t)(j->r->tokens * j->r->topk);
    j->counts = (int32_t *)(void *)at;
    at += whole_lines(count_rows(j->sort, j->r->n_bins, threads) * bins * sizeof(int32_t));
    j->starts = (int32_t *)(void *)at;
    if (j->sort != MF_SORT_ONE)
        return;
    j->seen = (uint64_t *)(void *)at;
    at += whole_lines((bins + 63) / 64 * sizeof(uint64_t));
    j->bins = (int32_t *)(void *)at;
    j->ranks = (uint16_t *)(void *)(at + whole_lines(routes * sizeof(int32_t)));
}

int64_t mf_blocks_sort(enum mf_sort sort, const struct mf_routes *r, const struct mf_blocks *out, int threads,
                       void *workspace)
{
    struct job j = {.sort = sort, .r = r, .out = out};
    const char *why;
    if (r->tokens < 0 || r->topk < 1 || r->n_experts < 1 || r->n_bins < 1 || out->block < 1 ||
        !mf_sort_supports(sort, r->tokens * r->topk, r->n_bins, threads, &why))
        return -EINVAL;
    if (most_rows(r->tokens * r->topk, r->n_bins, out->block) > INT32_MAX)
        return -EOVERFLOW;
    threads = MF_MIN(threads, mf_pool_threads());
    carve(&j, threads, workspace);
    /* these algorithms run in the calling thread, which may already run on the pool */
    if (threads == 1 && (sort == MF_SORT_SERIAL || sort == MF_SORT_ONE))
        run_thread(&j, 0, 1);
    else
        mf_pool_run(run_thread, &j, threads);
    return j.rows;
}
