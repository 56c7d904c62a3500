#include "kernels/ops/moe_sort.h"

#include <errno.h>

#include "kernels/core/tensors.h"

#define TOKENS_MAX ((1 << 24) - 1) /* `tokens` is the token number of padding and must fit into 24 bits */
#define TOPK_MAX   255

int64_t mf_moe_sort_rows(const struct mf_moe_sort *s)
{
    return s->tokens * s->topk + (int64_t)s->experts * s->block - s->topk;
}

static size_t map_bytes(const struct mf_moe_sort *s)
{
    return s->mask ? ((size_t)s->experts * sizeof(int32_t) + 63) / 64 * 64 : 0;
}

size_t mf_moe_sort_workspace(enum mf_sort sort, const struct mf_moe_sort *s, int threads)
{
    return map_bytes(s) + mf_blocks_workspace(sort, s->tokens * s->topk, s->experts, threads);
}

static const char *find_error(const struct mf_moe_sort *s)
{
    if (s->tokens < 0 || s->tokens > TOKENS_MAX)
        return "topk_ids: expected at most 16777215 tokens, because a sorted id has 24 bits for the token; "
               "split the batch";
    if (s->topk < 1 || s->topk > TOPK_MAX)
        return "topk_ids: expected 1 to 255 slots per token, because a sorted id has 8 bits for the slot";
    if (s->experts < s->topk)
        return "num_experts: expected at least topk; AITER's formula gives too few rows otherwise";
    if (s->block < 1)
        return "unit_size: expected 1 or more rows per block";
    if (s->local_tokens && (*s->local_tokens < 0 || *s->local_tokens > s->tokens))
        return "num_local_tokens: expected one number, from 0 to the number of rows of topk_ids, not a "
               "number per expert";
    if (s->n_local < 0 || s->first < 0 || (s->n_local > 0 && (s->mask || s->first > s->experts - s->n_local)))
        return "local experts: expected a mask or a range within num_experts, not both";
    for (int32_t e = 0; s->mask && e < s->experts; e++) {
        if (s->mask[e] != 0 && s->mask[e] != 1)
            return "expert_mask: expected 1 for a local expert, 0 for a remote one; a map with -1 "
                   "is not a mask";
    }
    return NULL;
}

static int32_t number_local(const struct mf_moe_sort *s, int32_t *local)
{
    int32_t n = 0;
    for (int32_t e = 0; e < s->experts; e++)
        local[e] = s->mask[e] ? n++ : -1;
    return n;
}

int mf_moe_sort(enum mf_sort sort, const struct mf_moe_sort *s, int threads, void *workspace,
                const struct mf_moe_sort_out *out, const char **ret_why)
{
    int32_t *local = s->mask ? workspace : NULL, n_local = s->n_local > 0 ? s->n_local : s->experts;
    *ret_why = find_error(s);
    if (*ret_why || !mf_sort_supports(sort, s->tokens * s->topk, n_local, threads, ret_why))
        return -EINVAL;
    if (local)
        n_local = number_local(s, local);
    int64_t tokens = s->local_tokens ? *s->local_tokens : s->tokens;
    struct mf_routes routes = {
        .ids = s->ids,
        .wide = s->wide,
        .tokens = tokens,
        .topk = s->topk,
        .first = s->n_local > 0 ? s->first : 0,
        .n_experts = s->n_local > 0 ? s->n_local : s->experts,
        .bin_of = local,
        .n_bins = n_local > 0 ? n_local : 1, /* a rank without experts gets one empty bin */
    };
    struct mf_blocks blocks = {
        .block = s->block,
        .packed = true,
        .pad = mf_pack_id((int32_t)s->tokens, s->topk),
        .ids = out->sorted_ids,
        .experts = out->expert_ids,
        .route_weights = s->weights,
        .bf16_weights = s->bf16_weights,
        .weights = out->sorted_weights,
        .row_of = out->reverse_sorted,
        .zeroed = out->moe_buf,
        .zeroed_bytes = out->moe_buf_bytes,
    };
    int64_t rows = mf_blocks_sort(sort, &routes, &blocks, threads, (char *)workspace + map_bytes(s));
    if (rows < 0) {
        *ret_why = "topk_ids: routes plus padding are more rows than int32 can count; use smaller blocks or "
                   "fewer tokens per call";
        return (int)rows;
    }
    for (int64_t i = tokens * s->topk; out->reverse_sorted && i < s->tokens * s->topk; i++)
        out->reverse_sorted[i] = -1;
    out->num_valid[0] = (int32_t)rows;
    out->num_valid[1] = (int32_t)tokens;
    return 0;
}
