#include "kernels/ops/align.h"

#include <errno.h>

#include "common/base/cleanup.h"

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

int64_t mf_align_rows(int64_t routes, int32_t experts, int32_t block, bool whole_blocks)
{
    int64_t rows = routes + (int64_t)experts * (block - 1);
    if (whole_blocks)
        rows = round_up(rows, block);
    return routes < experts ? MF_MIN(routes * block, rows) : rows;
}

size_t mf_align_workspace(enum mf_sort sort, const struct mf_align *a, int threads)
{
    return mf_blocks_workspace(sort, a->tokens * a->topk, a->experts, threads);
}

static const char *find_error(const struct mf_align *a)
{
    if (a->block < 1)
        return "block_size: expected 1 or more rows per block";
    if (a->experts < 1)
        return "num_experts: expected 1 or more; with an expert_map the global number of experts";
    if (a->topk < 1 || a->tokens < 0)
        return "topk_ids: expected [tokens, topk] with topk of 1 or more";
    for (int32_t e = 0; a->expert_map && e < a->experts; e++) {
        if (a->expert_map[e] < -1 || a->expert_map[e] >= a->experts)
            return "expert_map: expected a local number from 0 to num_experts - 1 for each expert, or -1 "
                   "for a remote one";
    }
    return NULL;
}

/* Fills the rows and blocks that follow the rows in use with padding. */
static void fill_tail(const struct mf_align_out *out, int64_t in_use, int64_t rows, int32_t block,
                      int32_t pad)
{
    for (int64_t i = in_use; i < rows; i++)
        out->sorted_ids[i] = pad;
    for (int64_t b = in_use / block; b < (rows + block - 1) / block; b++)
        out->expert_ids[b] = -1;
    *out->num_post_pad = (int32_t)in_use;
}

int mf_align_blocks(enum mf_sort sort, const struct mf_align *a, int threads, void *workspace,
                    const struct mf_align_out *out, const char **ret_why)
{
    bool dropped = a->expert_map && a->ignore_remote;
    *ret_why = find_error(a);
    if (*ret_why || !mf_sort_supports(sort, a->tokens * a->topk, a->experts, threads, ret_why))
        return -EINVAL;
    struct mf_routes routes = {
        .ids = a->ids,
        .wide = a->wide,
        .tokens = a->tokens,
        .topk = a->topk,
        .first = a->expert_map ? 0 : a->first,
        .n_experts = a->experts,
        .bin_of = dropped ? a->expert_map : NULL,
        .n_bins = a->experts,
    };
    struct mf_blocks blocks = {
        .block = a->block,
        .pad = (int32_t)(a->tokens * a->topk),
        .ids = out->sorted_ids,
        .experts = out->expert_ids,
        .name = dropped ? NULL : a->expert_map,
        .valid = out->scatter_idx,
    };
    int64_t rows = mf_align_rows(a->tokens * a->topk, a->experts, a->block, a->whole_blocks);
    int64_t in_use =
        rows > INT32_MAX ? -EOVERFLOW : mf_blocks_sort(sort, &routes, &blocks, threads, workspace);
    if (in_use < 0) {
        *ret_why = "topk_ids: routes plus padding are more rows than int32 can count; use smaller blocks or "
                   "fewer tokens per call";
        return (int)in_use;
    }
    fill_tail(out, in_use, rows, a->block, blocks.pad);
    return 0;
}

int64_t mf_align_batched_rows(int32_t experts, int32_t rows_max, int32_t block)
{
    return experts * round_up(rows_max, block);
}

int mf_align_batched(const int32_t *counts, int32_t experts, int32_t rows_max, int32_t block,
                     const struct mf_align_out *out, const char **ret_why)
{
    int32_t row = 0;
    *ret_why = NULL;
    if (experts < 1 || rows_max < 1 || block < 1)
        *ret_why = "experts, rows_max, block_size: expected 1 or more";
    else if (mf_align_batched_rows(experts, rows_max, block) > INT32_MAX)
        *ret_why = "rows_max: experts times rows_max are more rows than int32 can count; split the batch";
    for (int32_t e = 0; !*ret_why && e < experts; e++) {
        if (counts[e] < 0 || counts[e] > rows_max)
            *ret_why = "counts: expected 0 to rows_max for each expert";
    }
    if (*ret_why)
        return -EINVAL;
    int32_t pad = experts * rows_max;
    for (int32_t e = 0; e < experts; e++) {
        int32_t end = row + (int32_t)round_up(counts[e], block);
        for (int32_t b = row / block; b < end / block; b++)
            out->expert_ids[b] = e;
        for (int32_t i = 0; i < end - row; i++)
            out->sorted_ids[row + i] = i < counts[e] ? e * rows_max + i : pad;
        row = end;
    }
    fill_tail(out, row, mf_align_batched_rows(experts, rows_max, block), block, pad);
    return 0;
}
