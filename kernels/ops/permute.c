#include "kernels/ops/permute.h"

#include <string.h>
#if defined(__x86_64__)
#    include <immintrin.h>
#endif

#include "common/base/cleanup.h"
#include "kernels/core/device.h"
#include "kernels/core/quant.h"
#include "kernels/core/vector.h"

/* ---- copy of one row with streaming stores ---- */

static void copy_plain(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

#if defined(__x86_64__)

/* Returns the number of bytes before the first cache line boundary in `to`, but at most `bytes`. */
static size_t head_bytes(const void *to, size_t bytes)
{
    size_t head = (64 - (uintptr_t)to % 64) % 64;
    return head < bytes ? head : bytes;
}

__attribute__((target("avx512f"))) static void copy_avx512(void *to, const void *from, size_t bytes)
{
    size_t i = head_bytes(to, bytes);
    memcpy(to, from, i);
    for (; i + 256 <= bytes; i += 256) {
        const char *f = (const char *)from + i;
        char *t = (char *)to + i;
        __m512i a = _mm512_loadu_si512(f), b = _mm512_loadu_si512(f + 64);
        __m512i c = _mm512_loadu_si512(f + 128), d = _mm512_loadu_si512(f + 192);
        _mm512_stream_si512((void *)t, a);
        _mm512_stream_si512((void *)(t + 64), b);
        _mm512_stream_si512((void *)(t + 128), c);
        _mm512_stream_si512((void *)(t + 192), d);
    }
    for (; i + 64 <= bytes; i += 64)
        _mm512_stream_si512((void *)((char *)to + i), _mm512_loadu_si512((const char *)from + i));
    memcpy((char *)to + i, (const char *)from + i, bytes - i);
}

/* Fills a cache line with four SSE2 stores. Every x86-64 CPU has SSE2. */
static void copy_sse2(void *to, const void *from, size_t bytes)
{
    size_t i = head_bytes(to, bytes);
    memcpy(to, from, i);
    for (; i + 64 <= bytes; i += 64) {
        const __m128i *f = (const void *)((const char *)from + i);
        __m128i *t = (void *)((char *)to + i);
        __m128i a = _mm_loadu_si128(f), b = _mm_loadu_si128(f + 1), c = _mm_loadu_si128(f + 2),
                d = _mm_loadu_si128(f + 3);
        _mm_stream_si128(t, a);
        _mm_stream_si128(t + 1, b);
        _mm_stream_si128(t + 2, c);
        _mm_stream_si128(t + 3, d);
    }
    memcpy((char *)to + i, (const char *)from + i, bytes - i);
}

mf_copy_fn mf_row_copier(bool stream)
{
    return !stream ? copy_plain : mf_isa_best() == MF_ISA_AVX512 ? copy_avx512 : copy_sse2;
}

void mf_row_copy_fence(void)
{
    _mm_sfence();
}

#else

mf_copy_fn mf_row_copier(bool stream)
{
    (void)stream;
    return copy_plain;
}

void mf_row_copy_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#endif

/* ---- permute ---- */

struct permutation {
    const struct mf_permute *p;
    mf_copy_fn copy;
};

static void permute_token(const struct permutation *x, int64_t t, int64_t from, int64_t to)
{
    const struct mf_permute *p = x->p;
    for (int64_t i = from; i < to; i++) {
        int64_t row = p->row_of[i];
        if (row < p->first || row >= p->last)
            continue;
        row -= p->first;
        for (int c = 0; c < p->n_copies; c++) {
            const struct mf_row_copy *copy = &p->copies[c];
            x->copy((char *)copy->to + (size_t)row * copy->bytes,
                    (const char *)copy->from + (size_t)t * copy->bytes, copy->bytes);
        }
        if (p->out_probs)
            p->out_probs[row] = p->probs[i];
    }
}

/* Divides the routes, instead of the tokens, among the threads, so that several threads can share a token
 * with many slots. */
static void permute_thread(void *context, int thread, int n_threads)
{
    const struct permutation *x = context;
    int64_t topk = x->p->topk, n = x->p->tokens * topk;
    int64_t from = n * thread / n_threads, to = n * (thread + 1) / n_threads;
    for (int64_t i = from; i < to;) {
        int64_t t = i / topk, end = MF_MIN((t + 1) * topk, to);
        permute_token(x, t, i, end);
        i = end;
    }
    mf_row_copy_fence();
}

void mf_permute_rows(const struct mf_permute *p, int threads)
{
    struct permutation x = {p, mf_row_copier(p->stream)};
    mf_pool_run(permute_thread, &x, threads);
}

/* ---- unpermute ---- */

#define LANES 64 /* elements summed at once: two cache lines of bf16, four vectors of 16 floats */
/* columns that are summed over all slots at a time, few enough to stay in the L1 cache */
#define PIECE_COLS 4096

typedef float v16 __attribute__((vector_size(64)));
typedef uint32_t v16u __attribute__((vector_size(64)));

/* Rounds floats to bf16. The result is in the high half of each word; the low half is undefined. Arguments
 * are passed by reference because the ABI of vectors passed by value depends on the instruction set. */
MF_VECTOR_INLINE void round_bf16(const v16 *f, v16u *ret)
{
    v16u u = (v16u)*f, nan = (v16u)((u & 0x7fffffff) > 0x7f800000);
    *ret = (nan & (u | 0x400000)) | (~nan & (u + 0x7fff + (u >> 16 & 1)));
}

/* Computes y[i] = sum of w[j] · rows[j][i] for i < n. Each word holds two elements, the element with the even
 * index in the low half. Prefetches the n_next rows of the next token. */
MF_VECTOR_BODY(static, void, sum_rows,
               (const uint16_t *const *rows, const float *w, int k, const uint16_t *const *next, int n_next,
                size_t n, uint16_t *y),
               (rows, w, k, next, n_next, n, y), {
                   size_t i = 0;
                   for (; i + LANES <= n; i += LANES) {
                       v16 even[2] = {{0}, {0}}, odd[2] = {{0}, {0}};
                       for (int j = 0; j < n_next; j++) {
                           __builtin_prefetch(next[j] + i, 0, 2);
                           __builtin_prefetch(next[j] + i + LANES / 2, 0, 2);
                       }
                       for (int j = 0; j < k; j++) {
                           v16u pairs[2];
                           __builtin_memcpy(pairs, rows[j] + i, sizeof(pairs));
                           for (int v = 0; v < 2; v++) {
                               even[v] += w[j] * (v16)(pairs[v] << 16);
                               odd[v] += w[j] * (v16)(pairs[v] & 0xffff0000);
                           }
                       }
                       for (int v = 0; v < 2; v++) {
                           v16u low, high;
                           round_bf16(&even[v], &low);
                           round_bf16(&odd[v], &high);
                           low = low >> 16 | (high & 0xffff0000);
                           __builtin_memcpy(y + i + v * 32, &low, sizeof(low));
                       }
                   }
                   for (; i < n; i++) {
                       v16 sum = {0};
                       v16u out;
                       for (int j = 0; j < k; j++)
                           sum[0] += w[j] * mf_bf16_to_float(rows[j][i]);
                       round_bf16(&sum, &out);
                       y[i] = (uint16_t)(out[0] >> 16);
                   }
               })

#define SLOTS 32 /* maximum number of rows that one call of sum_rows adds */

struct sources {
    const uint16_t *row[SLOTS];
    float weight[SLOTS];
    int n;
};

/* Collects the rows of a token's slots, at most SLOTS rows, starting at slot `from`. Returns the slot after
 * the last slot that was examined. */
static int32_t find_sources(const struct mf_unpermute *u, int64_t t, int32_t from, struct sources *s)
{
    int32_t j = from;
    for (s->n = 0; j < u->topk && s->n < SLOTS; j++) {
        int64_t row = u->row_of[t * u->topk + j];
        if (row < u->first || row >= u->last)
            continue;
        s->row[s->n] = u->from + (size_t)(row - u->first) * u->width;
        s->weight[s->n++] = u->probs ? u->probs[t * u->topk + j] : 1;
    }
    return j;
}

/* Sums a token's rows in fp32 if it has more than SLOTS of them, for at most PIECE_COLS columns. */
static void sum_many(const struct mf_unpermute *u, int64_t t, size_t from, size_t n, uint16_t *to)
{
    float sum[PIECE_COLS];
    struct sources s;
    memset(sum, 0, n * sizeof(*sum));
    for (int32_t j = 0; j < u->topk;) {
        j = find_sources(u, t, j, &s);
        for (int r = 0; r < s.n; r++) {
            for (size_t i = 0; i < n; i++)
                sum[i] += s.weight[r] * mf_bf16_to_float(s.row[r][from + i]);
        }
    }
    mf_bf16_from_floats(sum, n, to);
}

struct restoration {
    const struct mf_unpermute *u;
    mf_copy_fn copy;
};

static void unpermute_token(const struct restoration *x, int64_t t, bool has_next, size_t from, size_t to)
{
    const struct mf_unpermute *u = x->u;
    struct sources now, next = {.n = 0};
    uint16_t piece[PIECE_COLS] __attribute__((aligned(64)));
    bool many = find_sources(u, t, 0, &now) < u->topk;
    if (has_next)
        (void)find_sources(u, t + 1, 0, &next);
    for (size_t at = from; at < to; at += PIECE_COLS) {
        size_t n = MF_MIN((size_t)PIECE_COLS, to - at);
        uint16_t *out = u->to + (size_t)t * u->width + at;
        const uint16_t *rows[SLOTS], *next_rows[SLOTS];
        for (int j = 0; j < now.n; j++)
            rows[j] = now.row[j] + at;
        for (int j = 0; j < next.n; j++)
            next_rows[j] = next.row[j] + at;
        if (many)
            sum_many(u, t, at, n, piece);
        else
            sum_rows(rows, now.weight, now.n, next_rows, next.n, n, piece);
        x->copy(out, piece, n * sizeof(*piece));
    }
}

/* Divides the tokens among the threads or, if there are few tokens, the columns. Both divisions give the same
 * sums. */
static void unpermute_thread(void *context, int thread, int n_threads)
{
    const struct restoration *x = context;
    int64_t n = x->u->tokens, t0 = 0, t1 = n;
    size_t width = x->u->width, pieces = (width + LANES - 1) / LANES, from = 0, to = width;
    if (n >= 8 * (int64_t)n_threads) {
        t0 = n * thread / n_threads;
        t1 = n * (thread + 1) / n_threads;
    } else {
        from = pieces * (size_t)thread / (size_t)n_threads * LANES;
        to = MF_MIN(pieces * (size_t)(thread + 1) / (size_t)n_threads * LANES, width);
    }
    for (int64_t t = t0; t < t1 && from < to; t++)
        unpermute_token(x, t, t + 1 < t1, from, to);
    mf_row_copy_fence();
}

void mf_unpermute_rows(const struct mf_unpermute *u, int threads)
{
    struct restoration x = {u, mf_row_copier(u->stream)};
    mf_pool_run(unpermute_thread, &x, threads);
}
