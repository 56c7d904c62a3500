/* moe_align_block_size and moe_sorting. */
#include "fmoe/ops/private.h"

#include "kernels/gpu/src/ops/ops_args.h"
#include "kernels/ops/align.h"
#include "kernels/ops/moe_sort.h"
#include "kernels/ops/permute_ascend.h"

static int64_t routes_of(const struct fmoe_op_routes *r)
{
    return r->tokens * r->topk;
}

static bool has_valid_sizes(const struct fmoe_op_routes *r)
{
    return r->topk >= 1 && r->experts >= 1 && r->tokens >= 0 && r->tokens <= INT32_MAX / r->topk;
}

int fmoe_ops_check_ids(const struct fmoe_op_routes *r, struct fmoe_error *error)
{
    if (r->ids_type != FMOE_INT32 && r->ids_type != FMOE_INT64)
        return fmoe_fail(error, -EINVAL, "ids_type %d: expected FMOE_INT32 or FMOE_INT64", r->ids_type);
    if (!has_valid_sizes(r))
        return fmoe_fail(error, -EINVAL,
                         "%lld tokens, topk %d, %d experts: expected topk and experts from 1, and fewer than "
                         "2^31 routes",
                         (long long)r->tokens, r->topk, r->experts);
    return 0;
}

int fmoe_ops_check_routes(const struct fmoe_ops *o, const struct fmoe_op_routes *r, struct fmoe_error *error)
{
    int check = fmoe_ops_check_ids(r, error);

    if (check == 0 && fmoe_ops_on_gpu(o) && r->experts > MF_OP_BINS_MAX)
        return fmoe_fail(error, -EINVAL, "%d experts: a GPU sorts at most %d", r->experts, MF_OP_BINS_MAX);
    return check;
}

int fmoe_ops_cpu_threads(const struct fmoe_op_routes *r)
{
    return mf_pool_threads_for(routes_of(r));
}

static int32_t slices_of(const struct fmoe_op_routes *r)
{
    int64_t n = (routes_of(r) + MF_OP_SLICE_IDS - 1) / MF_OP_SLICE_IDS;

    return (int32_t)MF_MAX(MF_MIN(n, (int64_t)MF_OP_SLICES_MAX), 1);
}

static size_t bins_bytes(const struct fmoe_op_routes *r)
{
    return ((size_t)r->experts * sizeof(int32_t) + 63) / 64 * 64;
}

size_t fmoe_ops_sort_bytes(const struct fmoe_op_routes *r)
{
    return bins_bytes(r) * (size_t)slices_of(r);
}

size_t fmoe_op_sort_workspace(const struct fmoe_ops *o, const struct fmoe_op_routes *r)
{
    const struct mf_ascend ascend = {.tokens = r->tokens, .topk = r->topk};
    size_t map;

    if (fmoe_ops_check_routes(o, r, NULL) < 0)
        return 0;
    if (fmoe_ops_on_gpu(o))
        return fmoe_ops_sort_bytes(r);
    map = bins_bytes(r) +
          mf_blocks_workspace(MF_SORT_STABLE, routes_of(r), r->experts, fmoe_ops_cpu_threads(r));
    return (MF_MAX(map, mf_ascend_workspace(&ascend)) + 63) / 64 * 64;
}

/* ---- GPU ---- */

void fmoe_ops_sort_prepare(const struct fmoe_op_routes *r, void *workspace, struct mf_op_sort_args *a)
{
    a->ids = r->ids;
    a->wide = r->ids_type == FMOE_INT64;
    a->token = (int32_t)r->tokens;
    a->topk = r->topk;
    a->experts = r->experts;
    a->slices = slices_of(r);
    a->sorters = a->slices > 1 ? a->slices : MF_OP_SORTERS;
    a->counts = workspace;
}

size_t fmoe_ops_sort_shared(const struct fmoe_ops *o, const struct mf_op_sort_args *a)
{
    size_t warps = (size_t)(fmoe_ops_threads(FMOE_OPS_SORT) / o->wave);

    return ((size_t)a->experts + (size_t)a->bins * (warps + 3) + warps) * sizeof(int32_t);
}

int fmoe_ops_sort_launch(const struct fmoe_ops *o, const struct mf_op_sort_args *a, void *stream)
{
    int64_t zeroing = (a->zeroed_bytes + MF_OP_ZERO_BYTES - 1) / MF_OP_ZERO_BYTES;
    size_t shared = fmoe_ops_sort_shared(o, a);
    const struct fmoe_ops_launch count = {FMOE_OPS_SORT, FMOE_OPS_SORT_COUNT, a->slices, shared, stream};
    const struct fmoe_ops_launch sort = {FMOE_OPS_SORT, FMOE_OPS_SORT_ALL, a->sorters + zeroing, shared,
                                         stream};
    int r = a->slices > 1 ? fmoe_ops_launch(o, &count, a, sizeof(*a)) : 0;

    return r < 0 ? r : fmoe_ops_launch(o, &sort, a, sizeof(*a));
}

/* ---- moe_align_block_size ---- */

int64_t fmoe_op_align_rows(int64_t routes, int32_t experts, int32_t block, int whole_blocks)
{
    if (routes < 0 || routes > INT32_MAX || experts < 1 || block < 1)
        return 0;
    return mf_align_rows(routes, experts, block, whole_blocks != 0);
}

static int check_align(const struct fmoe_op_align *a, struct fmoe_error *error)
{
    int64_t rows;

    if (a->block < 1)
        return fmoe_fail(error, -EINVAL, "block %d: expected 1 or more rows per block", a->block);
    rows = mf_align_rows(routes_of(&a->routes), a->routes.experts, a->block, false);
    if (a->rows < rows || a->rows > INT32_MAX)
        return fmoe_fail(error, -EINVAL, "%lld rows of sorted_ids: expected %lld or more, and less than 2^31",
                         (long long)a->rows, (long long)rows);
    return 0;
}

static int align_on_gpu(const struct fmoe_ops *o, const struct fmoe_op_align *a)
{
    struct mf_op_sort_args args = {
        .map = a->ignore_remote ? a->expert_map : NULL,
        .names = a->ignore_remote ? NULL : a->expert_map,
        .sorted_ids = a->sorted_ids,
        .block_experts = a->expert_ids,
        .num_rows = a->num_post_pad,
        .valid = a->scatter_idx,
        .rows = a->rows,
        .bins = a->routes.experts,
        .block = a->block,
        .pad = (int32_t)routes_of(&a->routes),
    };

    fmoe_ops_sort_prepare(&a->routes, a->workspace, &args);
    return fmoe_ops_sort_launch(o, &args, a->stream);
}

static int align_on_cpu(const struct fmoe_op_align *a, struct fmoe_error *error)
{
    const struct mf_align align = {
        .ids = a->routes.ids,
        .wide = a->routes.ids_type == FMOE_INT64,
        .tokens = a->routes.tokens,
        .topk = a->routes.topk,
        .experts = a->routes.experts,
        .block = a->block,
        .expert_map = a->expert_map,
        .ignore_remote = a->ignore_remote != 0,
    };
    const struct mf_align_out out = {a->sorted_ids, a->expert_ids, a->num_post_pad, a->scatter_idx};
    int64_t rows = mf_align_rows(routes_of(&a->routes), a->routes.experts, a->block, false);
    const char *why;
    int r =
        mf_align_blocks(MF_SORT_STABLE, &align, fmoe_ops_cpu_threads(&a->routes), a->workspace, &out, &why);

    if (r < 0)
        return fmoe_fail(error, -EINVAL, "%s", why);
    for (int64_t i = rows; i < a->rows; i++)
        a->sorted_ids[i] = (int32_t)routes_of(&a->routes);
    for (int64_t b = (rows + a->block - 1) / a->block; b < (a->rows + a->block - 1) / a->block; b++)
        a->expert_ids[b] = -1;
    return 0;
}

int fmoe_op_align(struct fmoe_ops *o, const struct fmoe_op_align *a, struct fmoe_error *error)
{
    int r = fmoe_ops_check_routes(o, &a->routes, error);

    if (r == 0)
        r = check_align(a, error);
    if (r == 0)
        r = fmoe_ops_begin(o, error);
    if (r < 0)
        return r;
    return fmoe_ops_end(o, fmoe_ops_on_gpu(o) ? align_on_gpu(o, a) : align_on_cpu(a, error), error);
}

/* ---- moe_sorting ---- */

static struct mf_moe_sort sort_of(const struct fmoe_op_moe_sort *s)
{
    return (struct mf_moe_sort){
        .ids = s->routes.ids,
        .wide = s->routes.ids_type == FMOE_INT64,
        .weights = s->weights,
        .tokens = s->routes.tokens,
        .topk = s->routes.topk,
        .experts = s->routes.experts,
        .block = s->block,
        .mask = s->expert_mask,
        .local_tokens = s->local_tokens,
    };
}

int64_t fmoe_op_moe_sort_rows(const struct fmoe_op_routes *routes, int32_t block)
{
    const struct mf_moe_sort s = {
        .tokens = routes->tokens, .topk = routes->topk, .experts = routes->experts, .block = block};

    return has_valid_sizes(routes) && block >= 1 ? mf_moe_sort_rows(&s) : 0;
}

static int sort_on_gpu(const struct fmoe_ops *o, const struct fmoe_op_moe_sort *s)
{
    struct mf_op_sort_args args = {
        .mask = s->expert_mask,
        .weights = s->weights,
        .n_local = s->local_tokens,
        .sorted_ids = s->sorted_ids,
        .sorted_weights = s->sorted_weights,
        .block_experts = s->expert_ids,
        .num_rows = s->num_valid,
        .zeroed = s->moe_buf,
        .zeroed_bytes = (long long)s->moe_buf_bytes,
        .bins = s->routes.experts,
        .block = s->block,
        .pad = mf_pack_id((int32_t)s->routes.tokens, s->routes.topk),
        .packed = 1,
    };

    fmoe_ops_sort_prepare(&s->routes, s->workspace, &args);
    return fmoe_ops_sort_launch(o, &args, s->stream);
}

static int sort_on_cpu(const struct fmoe_op_moe_sort *s, struct fmoe_error *error)
{
    const struct mf_moe_sort sort = sort_of(s);
    const struct mf_moe_sort_out out = {
        .sorted_ids = s->sorted_ids,
        .expert_ids = s->expert_ids,
        .num_valid = s->num_valid,
        .sorted_weights = s->sorted_weights,
        .moe_buf = s->moe_buf,
        .moe_buf_bytes = s->moe_buf_bytes,
    };
    const char *why;
    int r = mf_moe_sort(MF_SORT_STABLE, &sort, fmoe_ops_cpu_threads(&s->routes), s->workspace, &out, &why);

    return r < 0 ? fmoe_fail(error, -EINVAL, "%s", why) : 0;
}

static int check_moe_sort(const struct fmoe_op_moe_sort *s, struct fmoe_error *error)
{
    const struct fmoe_op_routes *r = &s->routes;

    if (s->block < 1)
        return fmoe_fail(error, -EINVAL, "block %d: expected 1 or more rows per block", s->block);
    if (r->topk > 255 || r->tokens >= 1 << 24 || r->experts < r->topk)
        return fmoe_fail(error, -EINVAL,
                         "%lld tokens, topk %d, %d experts: expected fewer than 2^24 tokens, topk of at most "
                         "255, and at least topk experts",
                         (long long)r->tokens, r->topk, r->experts);
    if (fmoe_op_moe_sort_rows(r, s->block) > INT32_MAX)
        return fmoe_fail(error, -EINVAL, "block %d: %lld rows of sorted_ids, expected fewer than 2^31",
                         s->block, (long long)fmoe_op_moe_sort_rows(r, s->block));
    if (s->moe_buf && s->moe_buf_bytes % 16 != 0)
        return fmoe_fail(error, -EINVAL, "moe_buf of %zu bytes: expected a multiple of 16", s->moe_buf_bytes);
    return 0;
}

int fmoe_op_moe_sort(struct fmoe_ops *o, const struct fmoe_op_moe_sort *s, struct fmoe_error *error)
{
    int r = fmoe_ops_check_routes(o, &s->routes, error);

    if (r == 0)
        r = check_moe_sort(s, error);
    if (r == 0)
        r = fmoe_ops_begin(o, error);
    if (r < 0)
        return r;
    return fmoe_ops_end(o, fmoe_ops_on_gpu(o) ? sort_on_gpu(o, s) : sort_on_cpu(s, error), error);
}
