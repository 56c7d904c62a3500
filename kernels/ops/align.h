/* moe_align_block_size as vllm-project/vllm defines it (vllm/model_executor/layers/fused_moe/moe_align_block_size.py).
 *
 *   sorted_ids    int32 [P]            flat index token·topk + slot; padding and tail hold tokens·topk
 *   expert_ids    int32 [ceil(P / B)]  expert of each block of B rows; tail holds -1
 *   num_post_pad  int32 [1]            rows in use: each expert's routes rounded up to B
 *   scatter_idx   int32 [tokens, topk] optional: the flat index, -1 for routes that were dropped
 *
 * Routes with ids outside 0 … experts - 1 are dropped. Where a rank holds some experts only, expert_map has a local
 * number for each global one, -1 for another rank's, in any order; then either
 *   ignore_remote   remote routes are dropped, blocks carry local numbers
 *   or not          all routes get rows, and the blocks of remote experts carry -1: the GEMM writes zeros or skips them
 * In both the tail of expert_ids is -1 and is not looked up in the map.
 *
 * An example: E 5, B 4, ids {2 3 4, 1 2 4, 1 3 4, 1 2 3} gives P 27, sorted_ids 3 6 9 12 | 0 4 10 12 | 1 7 11 12 |
 * 2 5 8 12 | 12 …, expert_ids 1 2 3 4 -1 -1 -1, num_post_pad 16. */
#pragma once

#include "kernels/cpu/blocks.h"

struct mf_align {
    const void *ids; /* [tokens, topk], int32 or int64 */
    bool wide;       /* int64 */
    int64_t tokens;
    int32_t topk, experts, block;
    const int32_t *expert_map; /* [experts] or NULL */
    int32_t
        first; /* without a map: ids count from here on, so that a rank's range of experts is sorted alone */
    bool ignore_remote;
    bool whole_blocks; /* P is rounded up to a multiple of B */
};

struct mf_align_out {
    int32_t *sorted_ids, *expert_ids, *num_post_pad;
    int32_t *scatter_idx; /* may be NULL */
};

/* P: routes + E·(B - 1), rounded up when asked; with fewer routes than experts at most routes·B. */
int64_t mf_align_rows(int64_t routes, int32_t experts, int32_t block, bool whole_blocks);
size_t mf_align_workspace(enum mf_sort sort, const struct mf_align *a, int threads);
/* -EINVAL or -EOVERFLOW with the sentence in *ret_why (static text); nothing is written then. */
int mf_align_blocks(enum mf_sort sort, const struct mf_align *a, int threads, void *workspace,
                    const struct mf_align_out *out, const char **ret_why);

/* The same for activations that lie by expert already, [experts, rows_max, ...] with counts[e] rows of each in use:
 * ids are e·rows_max + i, padding and tail experts·rows_max; P is experts·(rows_max rounded up to B). */
int64_t mf_align_batched_rows(int32_t experts, int32_t rows_max, int32_t block);
int mf_align_batched(const int32_t *counts, int32_t experts, int32_t rows_max, int32_t block,
                     const struct mf_align_out *out, const char **ret_why);
