#include "kernels/ops/permute_vllm.h"

#include <errno.h>

#include "common/base/cleanup.h"

int64_t mf_vllm_rows(const struct mf_vllm_permute *p)
{
    return (p->tokens * p->topk + (int64_t)p->n_local * (p->align - 1) + p->align - 1) / p->align * p->align;
}

size_t mf_vllm_workspace(enum mf_sort sort, const struct mf_vllm_permute *p, int threads)
{
    return mf_blocks_workspace(sort, p->tokens * p->topk, p->n_local, threads);
}

static const char *find_error(const struct mf_vllm_permute *p)
{
    if (p->tokens < 0 || p->topk < 1)
        return "topk_ids: expected [tokens, topk] with topk of 1 or more";
    if (p->experts < 1 || p->n_local < 1 || p->n_local > p->experts)
        return "n_local_expert: expected 1 to n_expert";
    if (!p->expert_map && p->n_local != p->experts)
        return "expert_map: required if n_local_expert is less than n_expert";
    if (p->align < 1)
        return "align_block_size: expected 1 or more";
    for (int32_t e = 0; p->expert_map && e < p->experts; e++) {
        if (p->expert_map[e] < -1 || p->expert_map[e] >= p->n_local)
            return "expert_map: expected a local number below n_local_expert for each expert, or -1";
    }
    return NULL;
}

/* Sets m_indices: the local expert of each row, or -1 for padding and tail. */
static void mark_rows(const struct mf_vllm_permute *p, const struct mf_vllm_permuted *out)
{
    for (int64_t row = 0; row < mf_vllm_rows(p); row++)
        out->m_indices[row] = -1;
    for (int64_t i = 0; i < p->tokens * p->topk; i++) {
        int64_t id = p->wide ? ((const int64_t *)p->ids)[i] : ((const int32_t *)p->ids)[i];
        if (out->inv_permuted_idx[i] >= 0)
            out->m_indices[out->inv_permuted_idx[i]] = p->expert_map ? p->expert_map[id] : (int32_t)id;
    }
}

int mf_vllm_permute(enum mf_sort sort, const struct mf_vllm_permute *p, int threads, void *workspace,
                    const struct mf_vllm_permuted *out, const char **ret_why)
{
    *ret_why = find_error(p);
    if (*ret_why || !mf_sort_supports(sort, p->tokens * p->topk, p->n_local, threads, ret_why))
        return -EINVAL;
    struct mf_routes routes = {
        .ids = p->ids,
        .wide = p->wide,
        .tokens = p->tokens,
        .topk = p->topk,
        .n_experts = p->experts,
        .bin_of = p->expert_map,
        .n_bins = p->n_local,
    };
    struct mf_blocks blocks = {
        .block = p->align,
        .row_of = out->inv_permuted_idx,
        .first = out->first_token_offset,
    };
    int64_t rows = mf_blocks_sort(sort, &routes, &blocks, threads, workspace);
    if (rows < 0) {
        *ret_why = "topk_ids: routes plus padding are more rows than int32 can count; split the batch";
        return (int)rows;
    }
    if (out->m_indices)
        mark_rows(p, out);
    struct mf_permute rows_of = {
        .row_of = out->inv_permuted_idx,
        .tokens = p->tokens,
        .topk = p->topk,
        .last = rows,
        .copies = {p->copies[0], p->copies[1]},
        .n_copies = p->n_copies,
        .stream = p->stream,
    };
    mf_permute_rows(&rows_of, threads);
    return 0;
}
