/* moe_sorting as defined by ROCm/aiter (aiter/fused_moe.py, csrc/include/moe_sorting_opus.h).
 *
 *   sorted_ids      int32 [rows]      slot << 24 | token; in padding rows: topk << 24 | tokens
 *   sorted_weights  float [rows]      the route's weight; in padding rows: 0
 *   expert_ids      int32 [rows / B]  local number of each block's expert; only blocks in use are written
 *   num_valid       int32 [2]         rows in use; tokens of this rank
 *   moe_buf         [tokens, H]       optional: zeroed in the same call, for a GEMM that adds to it
 *   reverse_sorted  int32 [tokens, topk] optional: row of each route, -1 for routes without a row
 *
 * mask is binary: an expert is local if its value is 1, and its local number is the number of local experts
 * before it. Values other than 0 and 1 are rejected. Otherwise an expert_map passed by mistake would make all
 * experts local, because its value -1 for remote experts is not 0. If the local experts are a contiguous
 * range, no mask is necessary. Routes of remote experts and of invalid ids get no row; experts without routes
 * get no block. Within an expert, tokens are in ascending order; within a token, slots are in ascending
 * order. If a token has the same expert twice, both routes get a row, although AITER's one-shot kernel loses
 * one of them.
 *
 * local_tokens is the number of rows of topk_ids in use, which a dispatch knows only on the device; the other
 * rows are not read. Because slot and token are packed into 32 bits, topk is at most 255, and `tokens`, which
 * marks padding, is below 2^24. */
#pragma once

#include "kernels/cpu/blocks.h"

struct mf_moe_sort {
    const void *ids;     /* [tokens, topk], int32 or int64 */
    bool wide;           /* ids are int64 */
    const void *weights; /* float, or bf16 if bf16_weights */
    bool bf16_weights;
    int64_t tokens;
    int32_t topk, experts, block;
    const int32_t *mask; /* [experts], or NULL: all experts are local */
    /* instead of a mask: the experts in [first, first + n_local) are local; n_local 0: no range */
    int32_t first, n_local;
    const int32_t *local_tokens; /* [1], or NULL: all rows of topk_ids are in use */
};

struct mf_moe_sort_out {
    int32_t *sorted_ids, *expert_ids, *num_valid;
    float *sorted_weights;
    int32_t *reverse_sorted;
    void *moe_buf;
    size_t moe_buf_bytes;
};

/* Returns the number of rows that AITER allocates, tokens·topk + experts·B - topk, which is enough for any
 * routing. */
int64_t mf_moe_sort_rows(const struct mf_moe_sort *s);
size_t mf_moe_sort_workspace(enum mf_sort sort, const struct mf_moe_sort *s, int threads);
/* Returns 0. For invalid arguments returns -EINVAL or -EOVERFLOW with the reason in *ret_why (static text),
 * and writes nothing else. */
int mf_moe_sort(enum mf_sort sort, const struct mf_moe_sort *s, int threads, void *workspace,
                const struct mf_moe_sort_out *out, const char **ret_why);
