/* Rows on their way into expert order and back: the two loops under every permute, gather, unpermute and combine.
 *
 * Both go by the inverse map, row_of[token·topk + slot] = row in expert order or -1, so that each token row is read
 * once and written to all of its places, and no index is divided. The floor of a permutation is its writes: T·k rows
 * at the speed that memory takes them, beside T rows read; that of an unpermutation is T·k rows read, T written.
 * Streaming stores keep the rows that are written out of the caches, which pays as soon as they would not stay there
 * anyway; a caller whose next kernel finds them in a cache asks for plain ones.
 *
 * Thread rule: a call runs on the pool and returns when it is done; nothing is allocated. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows of one tensor; scales of quantised rows are a second one. */
struct mf_row_copy {
    const void *from;
    void *to;
    size_t bytes; /* of a row */
};

struct mf_permute {
    const int32_t *row_of; /* [tokens, topk] */
    int64_t tokens;
    int32_t topk;
    int64_t first, last; /* rows of expert order that are written, the first to row 0 of `to` */
    struct mf_row_copy copies[2];
    int n_copies;
    const float *probs; /* [tokens, topk], with out_probs [last - first]; or NULL */
    float *out_probs;
    bool stream;
};
void mf_permute_rows(const struct mf_permute *p, int threads);

/* to[t] = sum over the slots j of probs[t, j] · from[row_of[t, j] - first], j ascending, in fp32, rounded to bf16 once.
 * Routes without a row or outside first … last - 1 add nothing: their rows and probs are not read, whatever they hold. A
 * token without any gets zeros. */
struct mf_unpermute {
    const int32_t *row_of; /* [tokens, topk] */
    int64_t tokens;
    int32_t topk;
    int64_t first, last;
    const uint16_t *from; /* bf16 [last - first, width] */
    size_t width;
    const float *probs; /* [tokens, topk]; NULL: all 1 */
    uint16_t *to;       /* bf16 [tokens, width] */
    bool stream;
};
void mf_unpermute_rows(const struct mf_unpermute *u, int threads);

/* One row, around the caches where `stream`. */
typedef void (*mf_copy_fn)(void *to, const void *from, size_t bytes);
mf_copy_fn mf_row_copier(bool stream);
/* Before other threads read what a thread wrote by streaming copies. */
void mf_row_copy_fence(void);
