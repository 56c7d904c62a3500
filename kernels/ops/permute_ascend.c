#include "kernels/ops/permute_ascend.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/quant.h"

/* largest id and number of routes: CANN sorts ids as floats, which represent integers up to 2^24 exactly */
#define ID_MAX     16777214
#define TOPK_MAX   512
#define RADIX_BITS 12
#define RADIX      (1 << RADIX_BITS)

static int64_t index_at(const struct mf_ascend *a, int64_t i)
{
    return a->wide ? ((const int64_t *)a->indices)[i] : ((const int32_t *)a->indices)[i];
}

static int64_t routes_of(const struct mf_ascend *a)
{
    return a->padded_mode ? a->padded_rows : a->tokens * a->topk;
}

static const char *find_error(const struct mf_ascend *a)
{
    if (a->tokens < 0 || a->padded_rows < 0)
        return "tokens: expected 0 or more rows";
    if (a->topk < 1 || a->topk > TOPK_MAX)
        return "topk: expected 1 to 512 indices per token";
    if (routes_of(a) > ID_MAX)
        return "indices: expected fewer than 16777215; split the batch";
    if (a->range && (a->range[0] < 0 || a->range[1] < a->range[0] || a->range[1] > routes_of(a)))
        return "range: expected the first row and the row after the last, within the routes";
    if (a->padded_mode && (a->range || a->topk != 1))
        return "paddedMode: expected no range and topk 1";
    int64_t end = a->padded_mode ? a->tokens : ID_MAX + 1;
    for (int64_t i = 0; i < routes_of(a); i++) {
        if (index_at(a, i) < 0 || index_at(a, i) >= end)
            return a->padded_mode
                       ? "indices: in paddedMode expected the token of each row, 0 to tokens - 1"
                       : "indices: expected experts from 0 to 16777214; exclude remote routes with the range";
    }
    return NULL;
}

static struct mf_permute row_range(const struct mf_ascend *a)
{
    int64_t n = routes_of(a), keep = a->num_out_tokens;
    struct mf_permute p = {.tokens = a->tokens, .topk = a->topk, .stream = a->stream};
    if (a->range) {
        p.first = a->range[0];
        p.last = a->range[1];
    } else if (keep > 0) {
        p.last = MF_MIN(keep, n);
    } else {
        p.last = MF_MAX(n + keep, 0);
    }
    return p;
}

int64_t mf_ascend_rows(const struct mf_ascend *a, const char **ret_why)
{
    *ret_why = find_error(a);
    if (*ret_why)
        return -EINVAL;
    return row_range(a).last - row_range(a).first;
}

/* Returns the bytes of space for the counters and, if ids have two digits, for an order of all routes. */
size_t mf_ascend_workspace(const struct mf_ascend *a)
{
    return (RADIX + (size_t)routes_of(a)) * sizeof(int32_t);
}

static void prefix(int32_t *counts)
{
    int32_t next = 0;
    for (int i = 0; i < RADIX; i++) {
        int32_t n = counts[i];
        counts[i] = next;
        next += n;
    }
}

/* Computes the row of each route by a stable radix sort of the ids. Ids of one digit require one pass. Ids of
 * two digits require two passes: the first pass orders the routes by the low digit, and the second pass goes
 * through them in that order and sorts by the high digit. */
static void invert_stable_sort(const struct mf_ascend *a, int32_t *workspace, int32_t *inverse)
{
    int64_t n = routes_of(a), top = 0;
    int32_t *counts = workspace, *order = workspace + RADIX;
    memset(counts, 0, RADIX * sizeof(*counts));
    for (int64_t i = 0; i < n; i++) {
        top = MF_MAX(top, index_at(a, i));
        counts[index_at(a, i) % RADIX]++;
    }
    prefix(counts);
    if (top < RADIX) {
        for (int64_t i = 0; i < n; i++)
            inverse[i] = counts[index_at(a, i)]++;
        return;
    }
    for (int64_t i = 0; i < n; i++)
        order[counts[index_at(a, i) % RADIX]++] = (int32_t)i;
    memset(counts, 0, RADIX * sizeof(*counts));
    for (int64_t i = 0; i < n; i++)
        counts[index_at(a, i) / RADIX]++;
    prefix(counts);
    for (int64_t i = 0; i < n; i++)
        inverse[order[i]] = counts[index_at(a, order[i]) / RADIX]++;
}

/* Copies rows of `tokens` in the order of `indices`. */
static void gather_padded(const struct mf_ascend *a, const char *tokens, size_t row_bytes, int64_t rows,
                          const struct mf_ascend_permuted *out)
{
    mf_copy_fn copy = mf_row_copier(a->stream);
    for (int64_t i = 0; i < rows; i++)
        copy((char *)out->tokens + (size_t)i * row_bytes, tokens + (size_t)index_at(a, i) * row_bytes,
             row_bytes);
    mf_row_copy_fence();
    for (int64_t i = 0; i < a->padded_rows; i++)
        out->sorted_indices[i] = (int32_t)index_at(a, i);
}

int mf_ascend_permute(const struct mf_ascend *a, const void *tokens, size_t row_bytes, const float *probs,
                      int threads, void *workspace, const struct mf_ascend_permuted *out,
                      const char **ret_why)
{
    *ret_why = find_error(a);
    if (*ret_why)
        return -EINVAL;
    struct mf_permute p = row_range(a);
    if (a->padded_mode) {
        gather_padded(a, tokens, row_bytes, p.last, out);
        return 0;
    }
    invert_stable_sort(a, workspace, out->sorted_indices);
    p.row_of = out->sorted_indices;
    p.copies[0] = (struct mf_row_copy){tokens, out->tokens, row_bytes};
    p.n_copies = 1;
    p.probs = a->range ? probs : NULL;
    p.out_probs = p.probs ? out->probs : NULL;
    mf_permute_rows(&p, threads);
    return 0;
}

static const char *find_unpermute_error(const struct mf_ascend_unpermute *u)
{
    if (u->tokens < 0 || u->rows < 0 || u->width < 1)
        return "restoreShape: expected the number of tokens and a row width of 1 or more";
    if (u->topk < 1 || u->topk > TOPK_MAX)
        return "numTopK: expected 1 to 512";
    if (u->range && (u->range[0] < 0 || u->range[1] - u->range[0] != u->rows))
        return "range: expected as many rows as permutedTokens has";
    if (u->padded_mode && (u->range || u->topk != 1 || u->probs))
        return "paddedMode: expected no range, no probs and topk 1";
    for (int64_t i = 0; u->padded_mode && i < u->rows; i++) {
        if (u->sorted_indices[i] < 0 || u->sorted_indices[i] >= u->tokens)
            return "sortedIndices: in paddedMode expected the token of each row, within restoreShape";
    }
    return NULL;
}

static void add_padded(const struct mf_ascend_unpermute *u, float *sums, uint16_t *to)
{
    memset(sums, 0, (size_t)u->tokens * u->width * sizeof(*sums));
    for (int64_t r = 0; r < u->rows; r++) {
        float *sum = sums + (size_t)u->sorted_indices[r] * u->width;
        for (size_t i = 0; i < u->width; i++)
            sum[i] += mf_bf16_to_float(u->permuted[(size_t)r * u->width + i]);
    }
    mf_bf16_from_floats(sums, (size_t)u->tokens * u->width, to);
}

int mf_ascend_unpermute(const struct mf_ascend_unpermute *u, int threads, float *workspace, uint16_t *to,
                        const char **ret_why)
{
    *ret_why = find_unpermute_error(u);
    if (*ret_why)
        return -EINVAL;
    if (u->padded_mode) {
        add_padded(u, workspace, to);
        return 0;
    }
    struct mf_unpermute back = {
        .row_of = u->sorted_indices,
        .tokens = u->tokens,
        .topk = u->topk,
        .first = u->range ? u->range[0] : 0,
        .last = u->range ? u->range[1] : u->rows,
        .from = u->permuted,
        .width = u->width,
        .probs = u->probs,
        .to = to,
    };
    mf_unpermute_rows(&back, threads);
    return 0;
}
