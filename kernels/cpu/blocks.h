/* Routes into blocks of experts: the counting sort under every sort and permutation of the CPU, in five algorithms.
 *
 * A route is one of a token's k choices; its flat index is i = token·k + slot. Routes are grouped by bin (an expert, or
 * a local number for it), bins ascending, each bin's rows rounded up to a multiple of `block`. What comes out, and
 * whether rows hold flat or packed ids, is up to struct mf_blocks; the contracts that libraries know are made of it in
 * kernels/ops/align.h (vLLM) and kernels/ops/moe_sort.h (AITER).
 *
 *   serial    one thread counts, lays out, places
 *   one       one thread, few routes: a bin without routes costs one bit, ranks are kept from the count
 *   stages    four stages with a lane for each bin: a lane counts its slice, columns are summed, one thread lays out,
 *             lanes place (sgl-project/sglang, moe_align_block_size, its first Triton version)
 *   stable    a slice and a histogram for each thread, one scan over both, then threads place
 *   scatter   threads count into one histogram and draw rows from shared counters: order inside a bin is by chance
 *
 * All but scatter keep a bin's routes in flat order, so their results are the same bits. Routes whose id lies outside
 * first … first + n_experts - 1, or whose expert has no bin, get no row. An id that a token has twice keeps both routes.
 *
 * Thread rule: a call runs on the pool (kernels/core/device.h) and returns when it is done; nothing is allocated. `serial` and
 * `one` with one thread run in the caller, so that a kernel on the pool may call them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"

/* clang-format off */
#define MF_SORT_MAP(X, P) \
    X(P, SERIAL, "serial") X(P, ONE, "one") X(P, STAGES, "stages") X(P, STABLE, "stable") X(P, SCATTER, "scatter")
/* clang-format on */
MF_NAMES_DECLARE(mf_sort, MF_SORT_, MF_SORT_MAP);

#define MF_SORT_ONE_ROUTES  1024 /* most routes of `one`: its ranks stay in the first cache */
#define MF_SORT_STAGES_BINS 1024 /* most bins of `stages`: its matrix has a row for each, 4 MiB here */
#define MF_SORT_THREADS     256  /* most threads of any */

struct mf_routes {
    const void *ids; /* [tokens, topk], int32 or int64 */
    bool wide;       /* int64 */
    int64_t tokens;
    int32_t topk;
    int32_t first, n_experts; /* ids first … first + n_experts - 1 name experts */
    const int32_t *bin_of;    /* [n_experts], by id - first: -1 for no bin; NULL: an expert is its own bin */
    int32_t n_bins;
};

/* Every pointer may be NULL. */
struct mf_blocks {
    int32_t block;
    bool packed;         /* ids are slot << 24 | token; else flat */
    int32_t pad;         /* what rows of padding hold */
    int32_t *ids;        /* [rows] */
    int32_t *experts;    /* [rows / block] */
    const int32_t *name; /* [n_bins]: what experts calls a bin; NULL: its number */
    const float *route_weights;
    float *weights;  /* [rows]: those of the routes, 0 in padding */
    int32_t *row_of; /* [tokens·topk]: -1 for routes without a row */
    int32_t *valid;  /* [tokens·topk]: the flat index itself, -1 for routes without a row */
    int64_t *first;  /* [n_bins + 1]: first row of each bin, then rows in use */
    char *zeroed;    /* filled with zeros on the way; where one thread sorts, by the others */
    size_t zeroed_bytes;
};

/* Whether the algorithm takes so many routes and bins; if not, *ret_why is a sentence's end ("… takes up to …"). */
bool mf_sort_takes(enum mf_sort sort, int64_t routes, int32_t n_bins, int threads, const char **ret_why);
/* Bytes, a multiple of 64; 64-byte aligned when handed in. */
size_t mf_blocks_workspace(enum mf_sort sort, int64_t routes, int32_t n_bins, int threads);
/* -> rows in use. -EINVAL: mf_sort_takes() says no, or a size below 1 (0 routes are fine); -EOVERFLOW: rows that
 * 31 bits do not count. Nothing is written then. */
int64_t mf_blocks_sort(enum mf_sort sort, const struct mf_routes *routes, const struct mf_blocks *out,
                       int threads, void *workspace);
