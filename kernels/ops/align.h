/* moe_align_block_size as defined by vllm-project/vllm
 * (vllm/model_executor/layers/fused_moe/moe_align_block_size.py).
 *
 *   sorted_ids    int32 [P]            flat index token·topk + slot; padding and tail hold tokens·topk
 *   expert_ids    int32 [ceil(P / B)]  expert of each block of B rows; tail holds -1
 *   num_post_pad  int32 [1]            rows in use: the routes of each expert rounded up to B, added up
 *   scatter_idx   int32 [tokens, topk] optional: the flat index, -1 for dropped routes
 *
 * Routes with ids outside 0 … experts - 1 are dropped. If a rank holds only some experts, expert_map maps
 * each global number to a local one, in any order, or to -1 for a remote expert. Remote routes are handled in
 * one of two ways:
 *   ignore_remote true    remote routes are dropped; blocks contain local numbers
 *   ignore_remote false   all routes get rows; blocks of remote experts contain -1, and the GEMM skips these
 *                         blocks or writes zeros
 * In both cases the tail of expert_ids is -1 and is not looked up in the map.
 *
 * Example: E 5, B 4, ids {2 3 4, 1 2 4, 1 3 4, 1 2 3} give P 27, sorted_ids 3 6 9 12 | 0 4 10 12 | 1 7 11 12
 * | 2 5 8 12 | 12 …, expert_ids 1 2 3 4 -1 -1 -1, num_post_pad 16. */
#pragma once

#include "kernels/cpu/blocks.h"

struct mf_align {
    const void *ids; /* [tokens, topk], int32 or int64 */
    bool wide;       /* ids are int64 */
    int64_t tokens;
    int32_t topk, experts, block;
    const int32_t *expert_map; /* [experts] or NULL */
    int32_t first;             /* if there is no map: first valid id, which selects the experts of one rank */
    bool ignore_remote;
    bool whole_blocks; /* P is rounded up to a multiple of B */
};

struct mf_align_out {
    int32_t *sorted_ids, *expert_ids, *num_post_pad;
    int32_t *scatter_idx; /* may be NULL */
};

/* Returns P: routes + E·(B - 1), rounded up to a multiple of B with whole_blocks. If there are fewer routes
 * than experts, P is at most routes·B. */
int64_t mf_align_rows(int64_t routes, int32_t experts, int32_t block, bool whole_blocks);
size_t mf_align_workspace(enum mf_sort sort, const struct mf_align *a, int threads);
/* Returns -EINVAL or -EOVERFLOW with the reason in *ret_why (static text) and writes nothing in these cases.
 */
int mf_align_blocks(enum mf_sort sort, const struct mf_align *a, int threads, void *workspace,
                    const struct mf_align_out *out, const char **ret_why);

/* Aligns activations that are already grouped by expert, [experts, rows_max, ...], with counts[e] rows in
 * use. ids are e·rows_max + i; padding and tail hold experts·rows_max; P is experts·(rows_max rounded up to
 * B). */
int64_t mf_align_batched_rows(int32_t experts, int32_t rows_max, int32_t block);
int mf_align_batched(const int32_t *counts, int32_t experts, int32_t rows_max, int32_t block,
                     const struct mf_align_out *out, const char **ret_why);
