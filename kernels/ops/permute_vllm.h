/* moe_permute as vllm-project/vllm defines it (csrc/moe/moe_permute_unpermute_op.cu).
 *
 *   first_token_offset  int64 [n_local + 1]   first row of each local expert, last the rows in use
 *   inv_permuted_idx    int32 [tokens, topk]  row of each route, -1 for routes of other ranks
 *   m_indices           int32 [rows]          local expert of each row; padding and tail hold -1
 *   permuted            [rows, ...]           token rows, and their scales where there are any
 *
 * With align, every expert's rows begin at a multiple of it (DeepGEMM's contiguous layout); rows of padding are not
 * written. Remote experts, -1 in expert_map, get no row. Local numbers are below n_local, in any order. Rows in use are
 * at most tokens·topk + n_local·(align - 1), rounded up to align. unpermute is mf_unpermute_rows() by the same
 * inverse: routes without a row are skipped, never multiplied by 0, so that rows nobody wrote reach no sum. */
#pragma once

#include "kernels/cpu/blocks.h"
#include "kernels/ops/permute.h"

struct mf_vllm_permute {
    const void *ids; /* [tokens, topk], int32 or int64 */
    bool wide;       /* int64 */
    int64_t tokens;
    int32_t topk, experts, n_local;
    const int32_t *expert_map; /* [experts] or NULL: n_local is experts */
    int32_t align;             /* 1: none */
    struct mf_row_copy copies[2];
    int n_copies;
    bool stream;
};

struct mf_vllm_permuted {
    int64_t *first_token_offset;
    int32_t *inv_permuted_idx;
    int32_t *m_indices; /* may be NULL */
};

int64_t mf_vllm_rows(const struct mf_vllm_permute *p);
size_t mf_vllm_workspace(enum mf_sort sort, const struct mf_vllm_permute *p, int threads);
/* -EINVAL or -EOVERFLOW with the sentence in *ret_why (static text); nothing is written then. */
int mf_vllm_permute(enum mf_sort sort, const struct mf_vllm_permute *p, int threads, void *workspace,
                    const struct mf_vllm_permuted *out, const char **ret_why);
