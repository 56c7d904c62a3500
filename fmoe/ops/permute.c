/* Permutations by expert ids (vLLM, CANN) and their inverse. */
#include "fmoe/ops/private.h"

#include "kernels/gpu/src/ops/ops_args.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/permute_ascend.h"
#include "kernels/ops/permute_vllm.h"

struct mf_op_rows fmoe_ops_gpu_rows(const struct fmoe_op_rows *r)
{
    return (struct mf_op_rows){r->from, r->to, (int32_t)r->bytes, mf_hip_unit(r->from, r->to, r->bytes)};
}

int fmoe_ops_check_rows(int64_t n, size_t bytes, struct fmoe_error *error)
{
    if (bytes < 1 || bytes > INT32_MAX || n > INT32_MAX / (int64_t)(bytes / 32 + 1))
        return fmoe_fail(error, -EINVAL,
                         "%lld rows of %zu bytes: expected 1 byte or more, and fewer than 2^31 pieces of 32 "
                         "bytes; split the batch",
                         (long long)n, bytes);
    return 0;
}

/* ---- GPU ---- */

int fmoe_ops_launch_gather(const struct fmoe_ops *o, const struct mf_op_gather_args *a, void *stream)
{
    /* without rows, one block still copies the indices */
    int64_t warps = MF_MAX(a->n, 1) * ((a->rows.bytes / a->rows.unit + o->wave - 1) / o->wave);
    const struct fmoe_ops_launch l = {
        .module = FMOE_OPS_PERMUTE,
        .function = FMOE_OPS_PERMUTE_GATHER,
        .blocks = fmoe_ops_blocks(o, FMOE_OPS_PERMUTE, warps, FMOE_OPS_RESIDENT),
        .stream = stream,
    };

    return fmoe_ops_launch(o, &l, a, sizeof(*a));
}

/* Warps of work to copy the rows of all tokens, in pieces of 512 bytes. */
static int64_t pieces_of(const struct mf_op_permute_args *a)
{
    return (int64_t)a->token * ((a->rows[0].bytes + 511) / 512);
}

/* With few routes every block sorts all of them, so that one launch does everything. */
static int launch_permute(const struct fmoe_ops *o, struct mf_op_permute_args *a, void *stream)
{
    const bool few = a->sort.slices == 1;
    const struct fmoe_ops_launch l = {
        .module = FMOE_OPS_PERMUTE,
        .function = few ? FMOE_OPS_PERMUTE_SORT : FMOE_OPS_PERMUTE_ROWS,
        .blocks = fmoe_ops_blocks(o, FMOE_OPS_PERMUTE, pieces_of(a), few ? 1 : FMOE_OPS_RESIDENT),
        .shared = few ? fmoe_ops_sort_shared(o, &a->sort) : 0,
        .stream = stream,
    };
    int r = few && l.blocks > 0 ? 0 : fmoe_ops_sort_launch(o, &a->sort, stream);

    return r < 0 ? r : fmoe_ops_launch(o, &l, a, sizeof(*a));
}

static int permute_on_gpu(const struct fmoe_ops *o, const struct fmoe_op_permute *p)
{
    int64_t n = p->routes.tokens * p->routes.topk;
    struct mf_op_permute_args a = {
        .sort = {.map = p->expert_map,
                 .sorted_ids = p->permuted_idx,
                 .row_of = p->inv_permuted_idx,
                 .first_row = (long long *)(void *)p->first_token_offset,
                 .rows = n,
                 .bins = p->n_local,
                 .block = 1,
                 .pad = (int32_t)n,
                 .none = (int32_t)n},
        .row_of = p->inv_permuted_idx,
        .token = (int32_t)p->routes.tokens,
        .topk = p->routes.topk,
        .n_rows = p->n_rows,
        .last = (int32_t)n,
    };

    for (int i = 0; i < p->n_rows; i++)
        a.rows[i] = fmoe_ops_gpu_rows(&p->rows[i]);
    fmoe_ops_sort_prepare(&p->routes, p->workspace, &a.sort);
    return launch_permute(o, &a, p->stream);
}

/* ---- vLLM ---- */

static int permute_on_cpu(const struct fmoe_op_permute *p, struct fmoe_error *error)
{
    int64_t n = p->routes.tokens * p->routes.topk;
    struct mf_vllm_permute v = {
        .ids = p->routes.ids,
        .wide = p->routes.ids_type == FMOE_INT64,
        .tokens = p->routes.tokens,
        .topk = p->routes.topk,
        .experts = p->routes.experts,
        .n_local = p->n_local,
        .expert_map = p->expert_map,
        .align = 1,
        .n_copies = p->n_rows,
    };
    const struct mf_vllm_permuted out = {.first_token_offset = p->first_token_offset,
                                         .inv_permuted_idx = p->inv_permuted_idx};
    const char *why;
    int r;

    for (int i = 0; i < p->n_rows; i++)
        v.copies[i] = (struct mf_row_copy){p->rows[i].from, p->rows[i].to, p->rows[i].bytes};
    r = mf_vllm_permute(MF_SORT_STABLE, &v, fmoe_ops_cpu_threads(&p->routes), p->workspace, &out, &why);
    if (r < 0)
        return fmoe_fail(error, -EINVAL, "%s", why);
    for (int64_t i = p->first_token_offset[p->n_local]; i < n; i++)
        p->permuted_idx[i] = (int32_t)n;
    for (int64_t i = 0; i < n; i++) {
        if (p->inv_permuted_idx[i] >= 0)
            p->permuted_idx[p->inv_permuted_idx[i]] = (int32_t)i;
        else
            p->inv_permuted_idx[i] = (int32_t)n;
    }
    return 0;
}

int fmoe_op_permute(struct fmoe_ops *o, const struct fmoe_op_permute *p, struct fmoe_error *error)
{
    int r = fmoe_ops_check_routes(o, &p->routes, error);

    if (r == 0 && (p->n_rows < 0 || p->n_rows > 2 || p->n_local < 1 || p->n_local > p->routes.experts))
        r = fmoe_fail(error, -EINVAL,
                      "n_rows %d, n_local %d: expected at most 2 tensors, and 1 to %d local experts",
                      p->n_rows, p->n_local, p->routes.experts);
    for (int i = 0; r == 0 && i < p->n_rows; i++)
        r = fmoe_ops_check_rows(p->routes.tokens, p->rows[i].bytes, error);
    if (r == 0)
        r = fmoe_ops_begin(o, error);
    if (r < 0)
        return r;
    return fmoe_ops_end(o, fmoe_ops_on_gpu(o) ? permute_on_gpu(o, p) : permute_on_cpu(p, error), error);
}

/* ---- CANN ---- */

static int check_ep(const struct fmoe_op_permute_ep *p, struct fmoe_error *error)
{
    int64_t n = p->routes.tokens * p->routes.topk;

    if (p->first < 0 || p->last < p->first || p->last > n)
        return fmoe_fail(error, -EINVAL, "rows %lld to %lld: expected a range within the %lld routes",
                         (long long)p->first, (long long)p->last, (long long)n);
    if (p->padded_mode && (p->first != 0 || p->routes.topk != 1 || p->probs))
        return fmoe_fail(error, -EINVAL, "padded_mode: expected no range, no probs and topk 1");
    return fmoe_ops_check_rows(p->padded_mode ? p->last : p->routes.tokens, p->rows.bytes, error);
}

static int gather_on_gpu(const struct fmoe_ops *o, const struct fmoe_op_permute_ep *p)
{
    const struct mf_op_gather_args a = {
        .rows = fmoe_ops_gpu_rows(&p->rows),
        .index = p->routes.ids,
        .copy = p->sorted_indices,
        .n = p->last,
        .n_copied = p->routes.tokens,
        .wide = p->routes.ids_type == FMOE_INT64,
    };

    return fmoe_ops_launch_gather(o, &a, p->stream);
}

static int ep_on_gpu(const struct fmoe_ops *o, const struct fmoe_op_permute_ep *p)
{
    struct mf_op_permute_args a = {
        .sort = {.row_of = p->sorted_indices, .bins = p->routes.experts, .block = 1, .none = -1},
        .row_of = p->sorted_indices,
        .rows = {fmoe_ops_gpu_rows(&p->rows)},
        .probs = p->probs,
        .out_probs = p->probs ? p->out_probs : NULL,
        .token = (int32_t)p->routes.tokens,
        .topk = p->routes.topk,
        .n_rows = 1,
        .first = (int32_t)p->first,
        .last = (int32_t)p->last,
    };

    fmoe_ops_sort_prepare(&p->routes, p->workspace, &a.sort);
    return launch_permute(o, &a, p->stream);
}

static int ep_on_cpu(const struct fmoe_op_permute_ep *p, struct fmoe_error *error)
{
    const int64_t range[2] = {p->first, p->last};
    const struct mf_ascend a = {
        .indices = p->routes.ids,
        .wide = p->routes.ids_type == FMOE_INT64,
        .tokens = p->padded_mode ? p->routes.experts : p->routes.tokens,
        .topk = p->routes.topk,
        .range = p->padded_mode ? NULL : range,
        .num_out_tokens = p->padded_mode ? p->last : 0,
        .padded_mode = p->padded_mode != 0,
        .padded_rows = p->padded_mode ? p->routes.tokens : 0,
    };
    const struct mf_ascend_permuted out = {p->rows.to, p->sorted_indices, p->out_probs};
    const char *why;
    int r = mf_ascend_permute(&a, p->rows.from, p->rows.bytes, p->probs, fmoe_ops_cpu_threads(&p->routes),
                              p->workspace, &out, &why);

    return r < 0 ? fmoe_fail(error, r, "%s", why) : 0;
}

int fmoe_op_permute_ep(struct fmoe_ops *o, const struct fmoe_op_permute_ep *p, struct fmoe_error *error)
{
    int r =
        p->padded_mode ? fmoe_ops_check_ids(&p->routes, error) : fmoe_ops_check_routes(o, &p->routes, error);

    if (r == 0)
        r = check_ep(p, error);
    if (r == 0)
        r = fmoe_ops_begin(o, error);
    if (r < 0)
        return r;
    if (!fmoe_ops_on_gpu(o))
        return fmoe_ops_end(o, ep_on_cpu(p, error), error);
    return fmoe_ops_end(o, p->padded_mode ? gather_on_gpu(o, p) : ep_on_gpu(o, p), error);
}

/* ---- unpermute ---- */

static int launch_unpermute(const struct fmoe_ops *o, struct mf_op_unpermute_args *a, void *stream)
{
    a->by_eight = mf_hip_unit(a->from, a->to, (size_t)a->width * 2) == 16;
    int64_t columns = (int64_t)o->wave * (a->by_eight ? 8 : 1);
    int64_t warps = a->token * ((a->width + columns - 1) / columns);
    const struct fmoe_ops_launch l = {
        .module = FMOE_OPS_PERMUTE,
        .function = FMOE_OPS_PERMUTE_BACK,
        .blocks = fmoe_ops_blocks(o, FMOE_OPS_PERMUTE, warps, FMOE_OPS_RESIDENT),
        .stream = stream,
    };

    return fmoe_ops_launch(o, &l, a, sizeof(*a));
}

static int unpermute_on_gpu(const struct fmoe_ops *o, const struct fmoe_op_unpermute *u)
{
    struct mf_op_unpermute_args a = {
        .from = u->from,
        .to = u->to,
        .row_of = u->row_of,
        .probs = u->probs,
        .token = (int32_t)u->tokens,
        .topk = u->topk,
        .first = (int32_t)u->first,
        .last = (int32_t)u->last,
        .width = u->width,
    };

    return launch_unpermute(o, &a, u->stream);
}

static int unpermute_on_cpu(const struct fmoe_op_unpermute *u)
{
    const struct mf_unpermute back = {
        .row_of = u->row_of,
        .tokens = u->tokens,
        .topk = u->topk,
        .first = u->first,
        .last = u->last,
        .from = u->from,
        .width = (size_t)u->width,
        .probs = u->probs,
        .to = u->to,
    };

    mf_unpermute_rows(&back, mf_pool_threads_for(u->tokens * u->width));
    return 0;
}

int fmoe_op_unpermute(struct fmoe_ops *o, const struct fmoe_op_unpermute *u, struct fmoe_error *error)
{
    int r;

    if (u->topk < 1 || u->width < 1 || u->tokens < 0 || u->tokens > INT32_MAX / u->topk || u->first < 0 ||
        u->last < u->first || u->last > INT32_MAX)
        return fmoe_fail(error, -EINVAL,
                         "%lld tokens, topk %d, width %d, rows %lld to %lld: expected topk and width from 1, "
                         "fewer than 2^31 routes, and a range of rows",
                         (long long)u->tokens, u->topk, u->width, (long long)u->first, (long long)u->last);
    r = fmoe_ops_check_rows(u->tokens, (size_t)u->width * 2, error);
    if (r == 0)
        r = fmoe_ops_begin(o, error);
    if (r < 0)
        return r;
    return fmoe_ops_end(o, fmoe_ops_on_gpu(o) ? unpermute_on_gpu(o, u) : unpermute_on_cpu(u), error);
}

/* ---- unpermute, padded mode ---- */

/* Workspace on a GPU: counts of the sort, first row of each token, rows in the order of their tokens. */
static size_t counts_bytes(int64_t rows)
{
    const struct fmoe_op_routes r = {.tokens = rows, .topk = 1, .experts = MF_OP_BINS_MAX};

    return fmoe_ops_sort_bytes(&r);
}
#define STARTS_BYTES ((MF_OP_BINS_MAX + 1) * sizeof(int64_t) / 64 * 64 + 64)

static int check_padded(int64_t rows, int64_t tokens, int32_t width, struct fmoe_error *error)
{
    if (rows < 0 || rows > INT32_MAX || tokens < 0 || tokens > INT32_MAX || width < 1)
        return fmoe_fail(error, -EINVAL,
                         "%lld rows, %lld tokens, width %d: expected fewer than 2^31, and a width from 1",
                         (long long)rows, (long long)tokens, width);
    return fmoe_ops_check_rows(tokens, (size_t)width * 2, error);
}

size_t fmoe_op_padded_workspace(const struct fmoe_ops *o, int64_t rows, int64_t tokens, int32_t width)
{
    if (check_padded(rows, tokens, width, NULL) < 0)
        return 0;
    if (!fmoe_ops_on_gpu(o))
        return (size_t)tokens * (size_t)width * sizeof(float);
    return counts_bytes(rows) + STARTS_BYTES + (size_t)rows * sizeof(int32_t);
}

/* Sorts the rows of MF_OP_BINS_MAX tokens at a time by token, and adds them. */
static int add_tokens(const struct fmoe_ops *o, const struct fmoe_op_unpermute_padded *u, int64_t first)
{
    const struct fmoe_op_routes routes = {.ids = u->indices, .topk = 1, .tokens = u->rows};
    int32_t tokens = (int32_t)MF_MIN(u->tokens - first, (int64_t)MF_OP_BINS_MAX);
    char *starts = (char *)u->workspace + counts_bytes(u->rows);
    struct mf_op_sort_args sort = {.bins = tokens, .block = 1, .none = -1};
    struct mf_op_unpermute_args add = {
        .from = u->from,
        .to = (char *)u->to + first * u->width * 2,
        .token = tokens,
        .topk = 1,
        .last = (int32_t)u->rows,
        .width = u->width,
    };
    int r;

    fmoe_ops_sort_prepare(&routes, u->workspace, &sort);
    sort.first = (int32_t)first;
    sort.experts = tokens;
    sort.first_row = (long long *)(void *)starts;
    sort.sorted_ids = (mf_i32 *)(void *)(starts + STARTS_BYTES);
    r = fmoe_ops_sort_launch(o, &sort, u->stream);
    add.row_of = sort.sorted_ids;
    add.starts = sort.first_row;
    return r < 0 ? r : launch_unpermute(o, &add, u->stream);
}

static int padded_on_gpu(const struct fmoe_ops *o, const struct fmoe_op_unpermute_padded *u)
{
    int r = 0;

    for (int64_t t = 0; r == 0 && t < u->tokens; t += MF_OP_BINS_MAX)
        r = add_tokens(o, u, t);
    return r;
}

static int padded_on_cpu(const struct fmoe_op_unpermute_padded *u, struct fmoe_error *error)
{
    const struct mf_ascend_unpermute back = {
        .permuted = u->from,
        .sorted_indices = u->indices,
        .tokens = u->tokens,
        .topk = 1,
        .rows = u->rows,
        .width = (size_t)u->width,
        .padded_mode = true,
    };
    const char *why;
    int r = mf_ascend_unpermute(&back, mf_pool_threads_for(u->rows * u->width), u->workspace, u->to, &why);

    return r < 0 ? fmoe_fail(error, r, "%s", why) : 0;
}

int fmoe_op_unpermute_padded(struct fmoe_ops *o, const struct fmoe_op_unpermute_padded *u,
                             struct fmoe_error *error)
{
    int r = check_padded(u->rows, u->tokens, u->width, error);

    if (r == 0)
        r = fmoe_ops_begin(o, error);
    if (r < 0)
        return r;
    return fmoe_ops_end(o, fmoe_ops_on_gpu(o) ? padded_on_gpu(o, u) : padded_on_cpu(u, error), error);
}
