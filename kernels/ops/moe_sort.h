/* moe_sorting as ROCm/aiter defines it (aiter/fused_moe.py, csrc/include/moe_sorting_opus.h).
 *
 *   sorted_ids      int32 [rows]      slot << 24 | token; padding topk << 24 | tokens
 *   sorted_weights  float [rows]      the route's weight; padding 0
 *   expert_ids      int32 [rows / B]  local number of each block's expert; only blocks in use are written
 *   num_valid       int32 [2]         rows in use; tokens of this rank
 *   moe_buf         [tokens, H]       optional: zeroed in the same call, for a GEMM that adds into it
 *   reverse_sorted  int32 [tokens, topk] optional: row of each route, -1 for those without
 *
 * mask is binary: an expert is of this rank where it is not 0, and its local number is how many such experts come
 * before it. A map with -1 for remote experts is no mask (all of it is "true"), so values other than 0 and 1 are
 * refused. A range of experts can be said without a mask. Routes of remote experts, and of ids that name no expert, get no row; experts without routes get no block;
 * tokens ascend within an expert, slots within a token. An expert that a token names twice keeps both routes (AITER's
 * one-shot kernel loses one).
 *
 * local_tokens is how many rows of topk_ids are in use, which a dispatch knows only on the device; the others are not
 * read. Limits are those of the packing: tokens below 2^24, so that the padding is no token, and topk up to 255. */
#pragma once

#include "kernels/cpu/blocks.h"

struct mf_moe_sort {
    const void *ids; /* [tokens, topk], int32 or int64 */
    bool wide;       /* int64 */
    const float *weights;
    int64_t tokens;
    int32_t topk, experts, block;
    const int32_t *mask;    /* [experts] or NULL: all are of this rank */
    int32_t first, n_local; /* in place of a mask: first … first + n_local - 1 are; n_local 0: no range */
    const int32_t *local_tokens; /* [1] or NULL: all tokens */
};

struct mf_moe_sort_out {
    int32_t *sorted_ids, *expert_ids, *num_valid;
    float *sorted_weights;
    int32_t *reverse_sorted;
    void *moe_buf;
    size_t moe_buf_bytes;
};

/* What AITER allocates: tokens·topk + experts·B - topk, at least the rows that any routing needs. */
int64_t mf_moe_sort_rows(const struct mf_moe_sort *s);
size_t mf_moe_sort_workspace(enum mf_sort sort, const struct mf_moe_sort *s, int threads);
/* -EINVAL or -EOVERFLOW with the sentence in *ret_why (static text); nothing is written then. */
int mf_moe_sort(enum mf_sort sort, const struct mf_moe_sort *s, int threads, void *workspace,
                const struct mf_moe_sort_out *out, const char **ret_why);
