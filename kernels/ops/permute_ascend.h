/* MoeTokenPermuteWithEP and MoeTokenUnpermuteWithEP as CANN defines them (hiascend.com, aclnnMoeTokenPermuteWithEp).
 *
 *   first = argsort(indices), stable;  inverse = argsort(first)
 *   permute     i with r0 <= inverse[i] < r1:  out[inverse[i] - r0] = tokens[i / k], out_probs[…] = probs[i]
 *   unpermute   out[t] = sum over j of probs[t, j] · permuted[inverse[t·k + j] - r0], rows outside the range add 0
 *
 * sorted_indices is the inverse, of all n = T·k routes whatever the range is. A range is the rows of the expert groups
 * that lie on one side of an exchange: the outer permutation; without one it is the inner. Without a range
 * num_out_tokens says how many rows are kept: 0 all, more than 0 the first so many, less all but the last so many
 * (where a Python slice does the same), and probs are not used, as in CANN, which then runs MoeTokenPermute.
 * padded_mode: indices list the token of each row, expert by expert with a fixed capacity; sorted_indices is a copy.
 *
 * indices [3 1 4 2 5 3] give first [1 3 0 5 2 4] and inverse [2 0 4 1 5 3]. The inverse is made by one counting pass
 * over ids below 4096, two over larger ones; nothing is sorted twice. n and ids are below 16,777,215, k up to 512. */
#pragma once

#include "kernels/ops/permute.h"

struct mf_ascend {
    const void *indices; /* [tokens, topk]: experts; padded_mode: [rows] tokens, and topk is 1 */
    bool wide;           /* int64 */
    int64_t tokens;      /* padded_mode: of the input */
    int32_t topk;
    const int64_t *range;   /* [2] or NULL */
    int64_t num_out_tokens; /* without a range */
    bool padded_mode;
    int64_t padded_rows; /* padded_mode: entries of indices */
    bool stream;
};

/* Rows that leave; negative errno with the sentence in *ret_why for what the contract refuses. */
int64_t mf_ascend_rows(const struct mf_ascend *a, const char **ret_why);
size_t mf_ascend_workspace(const struct mf_ascend *a);

/* tokens [T], row_bytes each, to out; probs float [T, k] or NULL. sorted_indices has T·k entries (padded_mode:
 * padded_rows). -EINVAL with the sentence; nothing is written then. */
struct mf_ascend_permuted {
    void *tokens;
    int32_t *sorted_indices;
    float *probs;
};
int mf_ascend_permute(const struct mf_ascend *a, const void *tokens, size_t row_bytes, const float *probs,
                      int threads, void *workspace, const struct mf_ascend_permuted *out,
                      const char **ret_why);

/* Rows of bf16, width each, back to [T, width]; restore_tokens is T of padded_mode (restoreShape), where a token's rows
 * are added in the order of sorted_indices. workspace: T·width floats in padded_mode, else none. */
struct mf_ascend_unpermute {
    const uint16_t *permuted;
    const int32_t *sorted_indices;
    const float *probs; /* [T, k] or NULL */
    int64_t tokens;
    int32_t topk;
    int64_t rows;         /* of permuted */
    const int64_t *range; /* [2] or NULL */
    size_t width;
    bool padded_mode; /* then topk is 1, and tokens is restoreShape's first */
};
int mf_ascend_unpermute(const struct mf_ascend_unpermute *u, int threads, float *workspace, uint16_t *to,
                        const char **ret_why);
