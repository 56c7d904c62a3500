/* moe_align_block_size as defined by vllm-project/vllm
 * (vllm/model_executor/layers/fused_moe/moe_align_block_size.py).
 *
 *   sorted_ids    int32 [P]            flat index token·topk + slot; tokens·topk in padding and tail
 *   expert_ids    int32 [ceil(P / B)]  expert of each block of B rows; -1 in the tail
 *   num_post_pad  int32 [1]            rows in use: each expert's number of routes, rounded up to B, summed
 *   scatter_idx   int32 [tokens, topk] optional: the flat index of each route, -1 for dropped routes
 *
 * The padding completes an expert's last block; the tail follows the rows in use. Routes with ids outside [0,
 * experts) are dropped. If a rank holds only some experts, expert_map maps the global number of each expert
 * to its local number, or to -1 if the expert is remote. Local numbers may be in any order. Remote routes are
 * handled in one of two ways:
 *   ignore_remote true    remote routes are dropped; blocks contain local numbers
 *   ignore_remote false   all routes get rows; blocks of remote experts contain -1, and the GEMM skips these
 *                         blocks or writes zeros
 * In both cases the tail of expert_ids is -1.
 *
 * Example: 5 experts, B = 4 and ids {2 3 4, 1 2 4, 1 3 4, 1 2 3} give P 27, sorted_ids 3 6 9 12 | 0 4 10 12 |
 * 1 7 11 12 | 2 5 8 12 | 12 …, expert_ids 1 2 3 4 -1 -1 -1, num_post_pad 16. */
#pragma once

#include "kernels/cpu/blocks.h"

struct mf_align {
    const void *ids; /* [tokens, topk], int32 or int64 */
    bool wide;       /* ids are int64 */
    int64_t tokens;
    int32_t topk, experts, block;
    const int32_t *expert_map; /* [experts] or NULL */
    int32_t first;             /* without a map: ids outside [first, first + experts) are dropped */
    bool ignore_remote;
    bool whole_blocks; /* true: P is rounded up to a multiple of B */
};

struct mf_align_out {
    int32_t *sorted_ids, *expert_ids, *num_post_pad;
    int32_t *scatter_idx; /* may be NULL */
};

/* Returns P. P is routes + E·(B - 1), rounded up to a multiple of B if whole_blocks is set. If there are
 * fewer routes than experts, P is at most routes·B. */
int64_t mf_align_rows(int64_t routes, int32_t experts, int32_t block, bool whole_blocks);
size_t mf_align_workspace(enum mf_sort sort, const struct mf_align *a, int threads);
/* Returns 0. For invalid arguments returns -EINVAL or -EOVERFLOW with the reason in *ret_why (static text),
 * and writes nothing else. */
int mf_align_blocks(enum mf_sort sort, const struct mf_align *a, int threads, void *workspace,
                    const struct mf_align_out *out, const char **ret_why);

/* Aligns activations [experts, rows_max, ...] that are already grouped by expert and have counts[e] rows in
 * use for expert e. The id of row i of expert e is e·rows_max + i. Padding and tail hold experts·rows_max. P
 * is experts·R, where R is rows_max rounded up to a multiple of B. */
int64_t mf_align_batched_rows(int32_t experts, int32_t rows_max, int32_t block);
int mf_align_batched(const int32_t *counts, int32_t experts, int32_t rows_max, int32_t block,
                     const struct mf_align_out *out, const char **ret_why);
