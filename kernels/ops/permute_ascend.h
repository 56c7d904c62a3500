/* MoeTokenPermuteWithEP and MoeTokenUnpermuteWithEP as defined by CANN (hiascend.com,
 * aclnnMoeTokenPermuteWithEp).
 *
 *   first = argsort(indices), stable;  inverse = argsort(first)
 *   permute     i with r0 <= inverse[i] < r1:  out[inverse[i] - r0] = tokens[i / k], out_probs[…] = probs[i]
 *   unpermute   out[t] = sum over j of probs[t, j] · permuted[inverse[t·k + j] - r0] over rows in the range
 *
 * sorted_indices is the inverse of all n = T·k routes, independent of the range. With a range (the outer
 * permutation of an exchange) only the rows of the expert groups on one side of the exchange are processed.
 * Without a range (the inner permutation) num_out_tokens selects the rows to keep, as a Python slice does: 0
 * keeps all rows, n > 0 the first n, n < 0 all but the last -n. Without a range, CANN runs MoeTokenPermute,
 * which ignores probs; this implementation ignores them too.
 *
 * padded_mode: indices lists the token of each row, expert by expert with a fixed capacity; sorted_indices is
 * a copy of indices.
 *
 * Example: indices [3 1 4 2 5 3] give first [1 3 0 5 2 4] and inverse [2 0 4 1 5 3]. Computing the inverse
 * takes one counting pass for ids below 4096, two passes for larger ids. n and ids are below 16,777,215, k is
 * at most 512. */
#pragma once

#include "kernels/ops/permute.h"

struct mf_ascend {
    const void *indices; /* [tokens, topk]: experts; padded_mode: [padded_rows]: tokens, and topk is 1 */
    bool wide;           /* indices are int64 */
    int64_t tokens;      /* padded_mode: tokens of the input */
    int32_t topk;
    const int64_t *range;   /* [2] or NULL */
    int64_t num_out_tokens; /* used without a range */
    bool padded_mode;
    int64_t padded_rows; /* padded_mode: number of indices */
    bool stream;
};

/* Returns the number of output rows, or -EINVAL with the reason in *ret_why (static text). */
int64_t mf_ascend_rows(const struct mf_ascend *a, const char **ret_why);
size_t mf_ascend_workspace(const struct mf_ascend *a);

/* Output of mf_ascend_permute, which copies `tokens` [T], row_bytes each, to out. probs is float [T, k] or
 * NULL. sorted_indices has T·k entries (padded_mode: padded_rows). Returns -EINVAL with the reason in
 * *ret_why and writes nothing in this case. */
struct mf_ascend_permuted {
    void *tokens;
    int32_t *sorted_indices;
    float *probs;
};
int mf_ascend_permute(const struct mf_ascend *a, const void *tokens, size_t row_bytes, const float *probs,
                      int threads, void *workspace, const struct mf_ascend_permuted *out,
                      const char **ret_why);

/* Input of mf_ascend_unpermute, which adds bf16 rows of `width` elements to [T, width]. In padded_mode,
 * `tokens` is T (the first number of restoreShape), and a token's rows are added in the order of
 * sorted_indices. The workspace has T·width floats in padded_mode; otherwise it is unused. */
struct mf_ascend_unpermute {
    const uint16_t *permuted;
    const int32_t *sorted_indices;
    const float *probs; /* [T, k] or NULL */
    int64_t tokens;
    int32_t topk;
    int64_t rows;         /* rows of permuted */
    const int64_t *range; /* [2] or NULL */
    size_t width;
    bool padded_mode; /* requires topk 1; `tokens` is the first number of restoreShape */
};
int mf_ascend_unpermute(const struct mf_ascend_unpermute *u, int threads, float *workspace, uint16_t *to,
                        const char **ret_why);
