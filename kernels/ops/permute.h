/* Copies rows into expert order and back: the two loops behind every permute, gather, unpermute and combine.
 *
 * Both loops use the inverse map, row_of[token·topk + slot] = row in expert order or -1. Each token row is
 * read once and written to all its rows, and no index needs a division. Minimum traffic: a permutation reads
 * T rows and writes T·k; an unpermutation reads T·k rows and writes T. Streaming stores bypass the caches,
 * which is faster unless the written rows would stay in a cache. Request plain stores if the next kernel
 * reads the rows from a cache.
 *
 * Threads: a call runs on the pool and returns when it is complete. It allocates nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows of one tensor. The scales of quantised rows are a copy of their own. */
struct mf_row_copy {
    const void *from;
    void *to;
    size_t bytes; /* per row */
};

struct mf_permute {
    const int32_t *row_of; /* [tokens, topk] */
    int64_t tokens;
    int32_t topk;
    int64_t first, last; /* range of rows in expert order to write; row `first` is row 0 of `to` */
    struct mf_row_copy copies[2];
    int n_copies;
    const float *probs; /* [tokens, topk], copied to out_probs [last - first]; or NULL */
    float *out_probs;
    bool stream;
};
void mf_permute_rows(const struct mf_permute *p, int threads);

/* to[t] = sum over the slots j of probs[t, j] · from[row_of[t, j] - first], in ascending order of j, in fp32,
 * rounded once to bf16. Routes without a row or with a row outside first … last - 1 are skipped; their rows
 * and probs are not read. A token without routes becomes zeros. */
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

/* Copies one row, with streaming stores if `stream`. */
typedef void (*mf_copy_fn)(void *to, const void *from, size_t bytes);
mf_copy_fn mf_row_copier(bool stream);
/* Orders a thread's streaming copies before reads by other threads. */
void mf_row_copy_fence(void);
