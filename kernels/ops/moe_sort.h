/* moe_sorting as defined by ROCm/aiter (aiter/fused_moe.py, csrc/include/moe_sorting_opus.h).
 *
 *   sorted_ids      int32 [rows]      slot << 24 | token; padding topk << 24 | tokens
 *   sorted_weights  float [rows]      the route's weight; padding 0
 *   expert_ids      int32 [rows / B]  local number of each block's expert; only blocks in use are written
 *   num_valid       int32 [2]         rows in use; tokens of this rank
 *   moe_buf         [tokens, H]       optional: zeroed in the same call, for a GEMM that adds to it
 *   reverse_sorted  int32 [tokens, topk] optional: row of each route, -1 for routes without a row
 *
 * mask is binary: an expert is local if its value is 1, and its local number is the number of local experts
 * before it. In a map with -1 for remote experts, every entry would count as local; values other than 0 and 1
 * are therefore rejected. A range of experts needs no mask. Routes of remote experts and of invalid ids get
 * no row; experts without routes get no block. Tokens ascend within an expert, slots within a token. If a
 * token has the same expert twice, both routes get a row (AITER's one-shot kernel loses one).
 *
 * local_tokens is the number of rows of topk_ids in use, which a dispatch knows only on the device; the other
 * rows are not read. The packing limits tokens to below 2^24, so that the padding is not a valid token, and
 * topk to 255. */
#pragma once

#include "kernels/cpu/blocks.h"

struct mf_moe_sort {
    const void *ids; /* [tokens, topk], int32 or int64 */
    bool wide;       /* ids are int64 */
    const float *weights;
    int64_t tokens;
    int32_t topk, experts, block;
    const int32_t *mask; /* [experts], or NULL: all are local */
    /* instead of a mask: experts first … first + n_local - 1 are local; n_local 0: no range */
    int32_t first, n_local;
    const int32_t *local_tokens; /* [1], or NULL: all tokens */
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
/* Returns -EINVAL or -EOVERFLOW with the reason in *ret_why (static text) and writes nothing in these cases.
 */
int mf_moe_sort(enum mf_sort sort, const struct mf_moe_sort *s, int threads, void *workspace,
                const struct mf_moe_sort_out *out, const char **ret_why);
