/* Groups routes into expert blocks. This counting sort, with five algorithms, is used by every CPU sort and
 * permutation.
 *
 * A route is one of a token's k choices; its flat index is i = token·k + slot. Routes are grouped by bin (an
 * expert, or its local number). Bins are in ascending order, and each bin's rows are rounded up to a multiple
 * of `block`. struct mf_blocks selects the outputs and whether ids are flat or packed. kernels/ops/align.h
 * (vLLM) and kernels/ops/moe_sort.h (AITER) use this sort to build the output formats of those libraries.
 *
 *   serial    one thread counts, computes the layout and places the routes
 *   one       one thread, for few routes: one bit per bin marks the bins that have routes, and the count also
 *             stores each route's rank
 *   stages    four stages, one lane per bin: each lane counts a slice of the tokens, columns are summed, one
 *             thread computes the layout, lanes place their routes (sgl-project/sglang,
 *             moe_align_block_size, its first Triton version)
 *   stable    one slice and one histogram per thread, one scan over all histograms, then threads place
 *             their routes
 *   scatter   threads count into one histogram and take rows from shared atomic counters: the order within
 *             a bin is not deterministic
 *
 * All algorithms except scatter keep a bin's routes in flat order, so their results are bitwise equal. A
 * route gets no row if its id is outside [first, first + n_experts) or its expert has no bin. If a token has
 * the same id twice, both routes get a row.
 *
 * Threads: a call runs on the pool (kernels/core/device.h) and returns when the sort is complete. It
 * allocates nothing. With one thread, `serial` and `one` run in the calling thread, so code that already runs
 * on the pool may call them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"

/* clang-format off */
#define MF_SORT_MAP(X, P) \
    X(P, SERIAL, "serial") X(P, ONE, "one") X(P, STAGES, "stages") X(P, STABLE, "stable") \
    X(P, SCATTER, "scatter")
/* clang-format on */
MF_NAMES_DECLARE(mf_sort, MF_SORT_, MF_SORT_MAP);

#define MF_SORT_ONE_ROUTES 1024 /* maximum routes of `one`, so that its ranks stay in the L1 cache */
/* maximum bins of `stages`, whose matrix is bins x bins: 4 MiB at this limit */
#define MF_SORT_STAGES_BINS 1024
#define MF_SORT_THREADS     256 /* maximum threads of every algorithm */

struct mf_routes {
    const void *ids; /* [tokens, topk], int32 or int64 */
    bool wide;       /* true: ids are int64; false: int32 */
    int64_t tokens;
    int32_t topk;
    int32_t first, n_experts; /* valid ids are in [first, first + n_experts) */
    const int32_t *bin_of;    /* [n_experts], indexed by id - first; -1: no bin; NULL: bin = id - first */
    int32_t n_bins;
};

/* Outputs of a sort. Every pointer may be NULL. */
struct mf_blocks {
    int32_t block;
    bool packed;               /* true: ids are slot << 24 | token; false: flat indices */
    int32_t pad;               /* value of ids in padding rows */
    int32_t *ids;              /* [rows] */
    int32_t *experts;          /* [rows / block] */
    const int32_t *name;       /* [n_bins]: value of `experts` for a bin; NULL: the bin number */
    const void *route_weights; /* float, or bf16 if bf16_weights */
    bool bf16_weights;
    float *weights;  /* [rows]: routing weights of the routes, 0 in padding rows */
    int32_t *row_of; /* [tokens·topk]: -1 for routes without a row */
    int32_t *valid;  /* [tokens·topk]: the flat index, -1 for routes without a row */
    int64_t *first;  /* [n_bins + 1]: first row of each bin, then the number of rows in use */
    /* memory to fill with zeros during the sort; if one thread sorts, the other threads fill this memory */
    char *zeroed;
    size_t zeroed_bytes;
};

/* True if the algorithm supports these sizes. Otherwise *ret_why is set to a static sentence that names the
 * limit. */
bool mf_sort_supports(enum mf_sort sort, int64_t routes, int32_t n_bins, int threads, const char **ret_why);
/* Returns the bytes of workspace, a multiple of 64. The caller aligns the workspace to 64 bytes. */
size_t mf_blocks_workspace(enum mf_sort sort, int64_t routes, int32_t n_bins, int threads);
/* Returns the number of rows in use. Returns -EINVAL if mf_sort_supports() is false or a size is below 1 (0
 * tokens are valid), and -EOVERFLOW if the row count exceeds INT32_MAX. Nothing is written after an error. */
int64_t mf_blocks_sort(enum mf_sort sort, const struct mf_routes *routes, const struct mf_blocks *out,
                       int threads, void *workspace);
