/* Permutation by a routing map (Megatron-Core). */
#include "fmoe/ops/private.h"

#include "kernels/gpu/src/ops/ops_args.h"
#include "kernels/ops/permute_megatron.h"

#define SLICE_TOKENS 64
#define SLICES_MAX   128

static int32_t slices_of(int64_t tokens)
{
    int64_t n = (tokens + SLICE_TOKENS - 1) / SLICE_TOKENS;

    return (int32_t)MF_MAX(MF_MIN(n, (int64_t)SLICES_MAX), 1);
}

static bool is_valid_size(int64_t tokens, int32_t experts)
{
    return experts >= 1 && tokens >= 0 && tokens <= INT32_MAX / experts;
}

size_t fmoe_op_map_workspace(const struct fmoe_ops *o, int64_t tokens, int32_t experts)
{
    if (!fmoe_ops_on_gpu(o) || !is_valid_size(tokens, experts))
        return 0;
    return (size_t)slices_of(tokens) * (size_t)experts * sizeof(int32_t);
}

/* ---- GPU ---- */

static int make_map(const struct fmoe_ops *o, const struct fmoe_op_permute_map *p)
{
    const struct mf_op_map_args a = {
        .routing_map = p->routing_map,
        .probs = p->probs,
        .counts = p->workspace,
        .row_of = p->row_of,
        .token_of = p->token_of,
        .out_probs = p->out_probs,
        .per_expert = (long long *)(void *)p->per_expert,
        .pad_offsets = (long long *)(void *)p->pad_offsets,
        .rows = p->max_rows,
        .token = (int32_t)p->tokens,
        .experts = p->experts,
        .align = p->align,
        .capacity = p->drop_and_pad ? (int32_t)(p->num_out_tokens / p->experts) : 0,
        .limit = p->drop_and_pad ? -1 : (int32_t)MF_MIN(p->num_out_tokens, (int64_t)INT32_MAX),
        .slices = slices_of(p->tokens),
    };
    const struct fmoe_ops_launch count = {FMOE_OPS_MAP, FMOE_OPS_MAP_COUNT, a.slices, 0, p->stream};
    const struct fmoe_ops_launch place = {FMOE_OPS_MAP, FMOE_OPS_MAP_PLACE, a.slices, 0, p->stream};
    int r = fmoe_ops_launch(o, &count, &a, sizeof(a));

    return r < 0 ? r : fmoe_ops_launch(o, &place, &a, sizeof(a));
}

/* Copies every row (drop_and_pad), or writes the rows of zeros. */
static int gather_rows(const struct fmoe_ops *o, const struct fmoe_op_permute_map *p)
{
    const struct mf_op_gather_args a = {
        .rows = fmoe_ops_gpu_rows(&p->rows),
        .index = p->token_of,
        .n = p->max_rows,
        .only_zeros = !p->drop_and_pad,
    };

    return fmoe_ops_launch_gather(o, &a, p->stream);
}

static int copy_rows(const struct fmoe_ops *o, const struct fmoe_op_permute_map *p)
{
    const struct mf_op_permute_args a = {
        .row_of = p->row_of,
        .rows = {fmoe_ops_gpu_rows(&p->rows)},
        .token = (int32_t)p->tokens,
        .topk = p->experts,
        .n_rows = 1,
        .last = (int32_t)p->max_rows,
    };
    int64_t warps = p->tokens * (((int64_t)p->rows.bytes + 511) / 512);
    const struct fmoe_ops_launch l = {FMOE_OPS_PERMUTE, FMOE_OPS_PERMUTE_ROWS,
                                      fmoe_ops_blocks(o, FMOE_OPS_PERMUTE, warps, FMOE_OPS_RESIDENT), 0,
                                      p->stream};

    return fmoe_ops_launch(o, &l, &a, sizeof(a));
}

static int permute_on_gpu(const struct fmoe_ops *o, const struct fmoe_op_permute_map *p)
{
    int r = make_map(o, p);

    if (r == 0 && !p->drop_and_pad)
        r = copy_rows(o, p);
    if (r == 0 && (p->drop_and_pad || p->align > 1))
        r = gather_rows(o, p);
    return r;
}

/* ---- CPU ---- */

static struct mf_megatron megatron_of(const struct fmoe_op_permute_map *p)
{
    return (struct mf_megatron){
        .routing_map = p->routing_map,
        .probs = p->probs,
        .tokens = p->tokens,
        .experts = p->experts,
        .num_out_tokens = p->num_out_tokens,
        .drop_and_pad = p->drop_and_pad != 0,
        .align = p->align,
    };
}

static int permute_on_cpu(const struct fmoe_op_permute_map *p, struct fmoe_error *error)
{
    const struct mf_megatron m = megatron_of(p);
    const struct mf_megatron_map map = {p->row_of, p->token_of, p->out_probs, p->per_expert, p->pad_offsets};
    const struct mf_row_copy copy = {p->rows.from, p->rows.to, p->rows.bytes};
    const char *why;
    int64_t rows = mf_megatron_rows(&m, &why);

    if (rows < 0)
        return fmoe_fail(error, -EINVAL, "%s", why);
    if (rows > p->max_rows)
        return fmoe_fail(error, -EINVAL, "max_rows %lld: the routing map has %lld rows",
                         (long long)p->max_rows, (long long)rows);
    (void)mf_megatron_map(&m, &map, &why);
    mf_megatron_permute(&m, &map, rows, &copy, false, mf_pool_threads_for(p->tokens * p->experts));
    return 0;
}

static int check_map(const struct fmoe_op_permute_map *p, struct fmoe_error *error)
{
    if (!is_valid_size(p->tokens, p->experts) || p->align < 1)
        return fmoe_fail(
            error, -EINVAL,
            "%lld tokens, %d experts, align %d: expected experts and align from 1, and fewer than "
            "2^31 routes",
            (long long)p->tokens, p->experts, p->align);
    if (p->num_out_tokens < -1 ||
        (p->drop_and_pad && (p->num_out_tokens < 0 || p->align != 1 || p->num_out_tokens % p->experts != 0 ||
                             p->num_out_tokens / p->experts > p->tokens)))
        return fmoe_fail(error, -EINVAL,
                         "num_out_tokens %lld: expected -1 or more; with drop_and_pad a multiple of the "
                         "number of experts, at most `tokens` per expert, and align 1",
                         (long long)p->num_out_tokens);
    if (p->max_rows < 0 || (p->drop_and_pad && p->max_rows != p->num_out_tokens))
        return fmoe_fail(error, -EINVAL,
                         "max_rows %lld: expected 0 or more; with drop_and_pad num_out_tokens rows",
                         (long long)p->max_rows);
    return fmoe_ops_check_rows(MF_MAX(p->max_rows, p->tokens), p->rows.bytes, error);
}

int fmoe_op_permute_map(struct fmoe_ops *o, const struct fmoe_op_permute_map *p, struct fmoe_error *error)
{
    int r = check_map(p, error);

    if (r == 0)
        r = fmoe_ops_begin(o, error);
    if (r < 0)
        return r;
    return fmoe_ops_end(o, fmoe_ops_on_gpu(o) ? permute_on_gpu(o, p) : permute_on_cpu(p, error), error);
}
