/* Copies rows into expert order and back. All permute, gather, unpermute and combine operators use these two
 * loops.
 *
 * Both loops use the inverse map: row_of[token·topk + slot] is the route's row in expert order, or -1.
 * Therefore each token's row is read once and written to all its places, and no index requires a division.
 * The memory traffic is minimal: a permutation reads T rows and writes T·k rows; an unpermutation reads T·k
 * rows and writes T rows. Streaming stores bypass the caches, which is faster unless the written rows would
 * stay in a cache. Request plain stores if the next kernel reads the rows from a cache.
 *
 * A call runs on the threads of the CPU pool, returns when all rows are written, and allocates nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows of one tensor to copy. The scales of quantised rows are a second mf_row_copy. */
struct mf_row_copy {
    const void *from;
    void *to;
    size_t bytes; /* bytes per row */
};

struct mf_permute {
    const int32_t *row_of; /* [tokens, topk] */
    int64_t tokens;
    int32_t topk;
    int64_t first, last; /* rows [first, last) of expert order are written; row `first` is row 0 of `to` */
    struct mf_row_copy copies[2];
    int n_copies;
    const float *probs; /* [tokens, topk], or NULL; copied to out_probs [last - first] */
    float *out_probs;
    bool stream;
};
void mf_permute_rows(const struct mf_permute *p, int threads);

/* Parameters of mf_unpermute_rows, which computes to[t] = sum over the slots j of probs[t, j] ·
 * from[row_of[t, j] - first], in ascending order of j, in fp32, rounded once to bf16. Routes without a row or
 * with a row outside [first, last) are skipped; their rows and probs are not read. A token without routes
 * gets a row of zeros. */
struct mf_unpermute {
    const int32_t *row_of; /* [tokens, topk] */
    int64_t tokens;
    int32_t topk;
    int64_t first, last;
    const uint16_t *from; /* bf16 [last - first, width] */
    size_t width;
    const float *probs; /* [tokens, topk]; NULL: all probs are 1 */
    uint16_t *to;       /* bf16 [tokens, width] */
    bool stream;
};
void mf_unpermute_rows(const struct mf_unpermute *u, int threads);

/* mf_row_copier returns a function that copies one row, with streaming stores if `stream` is set. */
typedef void (*mf_copy_fn)(void *to, const void *from, size_t bytes);
mf_copy_fn mf_row_copier(bool stream);
/* Makes the calling thread's streaming copies visible to other threads. */
void mf_row_copy_fence(void);
