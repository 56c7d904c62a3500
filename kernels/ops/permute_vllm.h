/* moe_permute as defined by vllm-project/vllm (csrc/moe/moe_permute_unpermute_op.cu).
 *
 *   first_token_offset  int64 [n_local + 1]   first row of each local expert; last: rows in use
 *   inv_permuted_idx    int32 [tokens, topk]  row of each route, -1 for remote routes
 *   m_indices           int32 [rows]          local expert of each row; -1 in padding and tail
 *   permuted            [rows, ...]           token rows, and their scales if present
 *
 * With `align`, every expert's rows begin at a multiple of `align` (DeepGEMM's contiguous layout); padding
 * rows are not written. Remote experts, which have -1 in expert_map, get no rows. The local experts are
 * numbered in [0, n_local), in any order. At most tokens·topk + n_local·(align - 1) rows, rounded up to
 * `align`, are in use. The matching unpermute is mf_unpermute_rows() with inv_permuted_idx as row_of. It
 * skips routes without a row instead of multiplying an arbitrary row by 0, so that the contents of
 * uninitialised rows never affect a sum. */
#pragma once

#include "kernels/cpu/blocks.h"
#include "kernels/ops/permute.h"

struct mf_vllm_permute {
    const void *ids; /* [tokens, topk], int32 or int64 */
    bool wide;       /* ids are int64 */
    int64_t tokens;
    int32_t topk, experts, n_local;
    const int32_t *expert_map; /* [experts], or NULL: n_local equals experts */
    int32_t align;             /* 1: no alignment */
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
/* Returns 0. For invalid arguments returns -EINVAL or -EOVERFLOW with the reason in *ret_why (static text),
 * and writes nothing else. */
int mf_vllm_permute(enum mf_sort sort, const struct mf_vllm_permute *p, int threads, void *workspace,
                    const struct mf_vllm_permuted *out, const char **ret_why);
