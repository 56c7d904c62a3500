/* MoeTokenPermuteWithEP and MoeTokenUnpermuteWithEP as defined by CANN (hiascend.com,
 * aclnnMoeTokenPermuteWithEp).
 *
 *   first = argsort(indices), stable;  inverse = argsort(first)
 *   permute     i with r0 <= inverse[i] < r1:  out[inverse[i] - r0] = tokens[i / k], out_probs[…] = probs[i]
 *   unpermute   out[t] = sum over j of probs[t, j] · permuted[inverse[t·k + j] - r0] over the rows in range
 *
 * sorted_indices is the inverse of all n = T·k routes, independent of the range. With a range (the outer
 * permutation of an exchange between ranks), only rows in [r0, r1) are processed, which are those of the
 * expert groups on one side of the exchange. Without a range (the inner permutation), num_out_tokens = n
 * selects the rows to keep: all rows if n = 0, the first n rows if n > 0, and all but the last -n rows if n <
 * 0. Without a range, CANN runs MoeTokenPermute, which ignores probs; this implementation ignores them too.
 *
 * With padded_mode, `indices` lists the token of each row, and every expert has the same number of rows.
 * sorted_indices is then a copy of `indices`.
 *
 * Example: indices [3 1 4 2 5 3] give first [1 3 0 5 2 4] and inverse [2 0 4 1 5 3]. The inverse is computed
 * in one counting pass if all ids are below 4096, otherwise in two passes. n and ids must be below
 * 16,777,215, and k at most 512. */
#pragma once

#include "kernels/ops/permute.h"

struct mf_ascend {
    /* [tokens, topk] expert ids; with padded_mode: [padded_rows] token numbers, and topk is 1 */
    const void *indices;
    bool wide;      /* indices are int64 */
    int64_t tokens; /* number of tokens; with padded_mode: tokens of the input */
    int32_t topk;
    const int64_t *range;   /* [2] with r0 and r1, or NULL */
    int64_t num_out_tokens; /* used only without a range */
    bool padded_mode;
    int64_t padded_rows; /* with padded_mode: length of `indices` */
    bool stream;
};

/* Returns the number of output rows, or -EINVAL with the reason in *ret_why (static text). */
int64_t mf_ascend_rows(const struct mf_ascend *a, const char **ret_why);
size_t mf_ascend_workspace(const struct mf_ascend *a);

/* Output of mf_ascend_permute, which copies `tokens` [T], row_bytes each, to out. probs is float [T, k] or
 * NULL. sorted_indices has T·k entries, or padded_rows entries with padded_mode. Returns -EINVAL with the
 * reason in *ret_why and writes nothing in this case. */
struct mf_ascend_permuted {
    void *tokens;
    int32_t *sorted_indices;
    float *probs;
};
int mf_ascend_permute(const struct mf_ascend *a, const void *tokens, size_t row_bytes, const float *probs,
                      int threads, void *workspace, const struct mf_ascend_permuted *out,
                      const char **ret_why);

/* Input of mf_ascend_unpermute, which adds bf16 rows of `width` elements to an output [T, width]. With
 * padded_mode, a token's rows are added in the order of sorted_indices, and the workspace has T·width floats.
 * Otherwise the workspace is unused. */
struct mf_ascend_unpermute {
    const uint16_t *permuted;
    const int32_t *sorted_indices;
    const float *probs; /* [T, k] or NULL */
    int64_t tokens;
    int32_t topk;
    int64_t rows;         /* number of rows in `permuted` */
    const int64_t *range; /* [2] with r0 and r1, or NULL */
    size_t width;
    bool padded_mode; /* true: topk must be 1, and `tokens` is the first number of restoreShape */
};
int mf_ascend_unpermute(const struct mf_ascend_unpermute *u, int threads, float *workspace, uint16_t *to,
                        const char **ret_why);
