/* Top-k routers. */
#include "fmoe/ops/private.h"

#include <stdlib.h>

#include "kernels/core/quant.h"
#include "kernels/core/router.h"
#include "kernels/gpu/src/ops/ops_args.h"

#define GROUPS_MAX 64 /* as in router.c and ops_route.hip */

static int route_on_gpu(const struct fmoe_ops *o, const struct fmoe_op_route *q)
{
    const struct mf_op_route_args a = {
        .logits = q->logits,
        .bias = q->bias,
        .hash = q->hash,
        .weights = q->weights,
        .ids = q->ids,
        .scale = q->scale,
        .sum_floor = q->sum_floor,
        .token = (int32_t)q->tokens,
        .experts = q->experts,
        .topk = q->topk,
        .score = q->score,
        .renormalised = q->renormalised,
        .groups = q->groups,
        .groups_kept = q->groups_kept,
        .masked_to_zero = q->masked_to_zero,
        .half = q->logits_type == FMOE_BFLOAT16,
        .wide = q->ids_type == FMOE_INT64,
    };
    size_t of_warp = (2 * (size_t)q->experts + (size_t)q->topk + GROUPS_MAX) * sizeof(float);
    const struct fmoe_ops_launch l = {
        .module = FMOE_OPS_ROUTE,
        .blocks = fmoe_ops_blocks(o, FMOE_OPS_ROUTE, q->tokens, 8),
        .shared = of_warp * (size_t)(fmoe_ops_threads(FMOE_OPS_ROUTE) / o->wave),
        .stream = q->stream,
    };

    return fmoe_ops_launch(o, &l, &a, sizeof(a));
}

struct routing {
    const struct fmoe_op_route *q;
    struct mf_router_rule rule;
    double *scratch; /* per thread: 2 * experts values, then the logits and the ids of a token */
    size_t of_thread;
    _Atomic int failed;
};

static int route_token(const struct routing *x, int64_t t, double *scratch)
{
    const struct fmoe_op_route *q = x->q;
    float *logits = (float *)(void *)(scratch + 2 * (size_t)q->experts);
    int32_t *ids = (int32_t *)(void *)(logits + q->experts);
    const struct mf_route_in in = {
        .logits = logits,
        .bias = q->bias,
        .hash = q->hash ? q->hash + t * q->topk : NULL,
        .n_experts = q->experts,
        .topk = q->topk,
    };
    int r;

    for (int32_t e = 0; e < q->experts; e++)
        logits[e] = q->logits_type == FMOE_BFLOAT16
                        ? mf_bf16_to_float(((const uint16_t *)q->logits)[t * q->experts + e])
                        : ((const float *)q->logits)[t * q->experts + e];
    r = mf_route(&x->rule, &in, scratch, ids, q->weights + t * q->topk);
    for (int32_t j = 0; r == 0 && j < q->topk; j++) {
        if (q->ids_type == FMOE_INT64)
            ((int64_t *)q->ids)[t * q->topk + j] = ids[j];
        else
            ((int32_t *)q->ids)[t * q->topk + j] = ids[j];
    }
    return r;
}

static void route_thread(void *context, int thread, int n_threads)
{
    struct routing *x = context;
    int64_t n = x->q->tokens;

    for (int64_t t = n * thread / n_threads; t < n * (thread + 1) / n_threads; t++) {
        if (route_token(x, t, x->scratch + (size_t)thread * x->of_thread) < 0)
            x->failed = 1;
    }
}

static int route_on_cpu(const struct fmoe_op_route *q, struct fmoe_error *error)
{
    int threads = mf_pool_threads_for(q->tokens * q->experts);
    struct routing x = {
        .q = q,
        .rule = {.score = (enum mf_router_score)q->score,
                 .biased = q->bias,
                 .renormalised = q->renormalised,
                 .hashed = q->hash,
                 .masked_to_zero = q->masked_to_zero,
                 .groups = q->groups,
                 .groups_kept = q->groups_kept,
                 .sum_floor = (double)q->sum_floor,
                 .scale = (double)q->scale},
        .of_thread = 3 * (size_t)q->experts + (size_t)q->topk + 8,
    };
    _cleanup_(mf_freep) double *scratch = calloc((size_t)threads * x.of_thread, sizeof(*scratch));

    if (!scratch)
        return fmoe_fail(error, -ENOMEM, "out of memory");
    x.scratch = scratch;
    mf_pool_run(route_thread, &x, threads);
    return x.failed ? fmoe_fail(error, -EINVAL, "hash: expected experts from 0 to %d", q->experts - 1) : 0;
}

static int check_route(const struct fmoe_ops *o, const struct fmoe_op_route *q, struct fmoe_error *error)
{
    if ((q->logits_type != FMOE_FLOAT32 && q->logits_type != FMOE_BFLOAT16) ||
        (q->ids_type != FMOE_INT32 && q->ids_type != FMOE_INT64))
        return fmoe_fail(
            error, -EINVAL,
            "logits_type %d, ids_type %d: expected FMOE_FLOAT32 or FMOE_BFLOAT16, and FMOE_INT32 "
            "or FMOE_INT64",
            q->logits_type, q->ids_type);
    if (q->tokens < 0 || q->experts < 1 || q->topk < 1 || q->topk > q->experts ||
        q->tokens > INT32_MAX / q->experts)
        return fmoe_fail(error, -EINVAL,
                         "%lld tokens, %d experts, topk %d: expected topk from 1 to experts, and fewer than "
                         "2^31 logits",
                         (long long)q->tokens, q->experts, q->topk);
    if (fmoe_ops_on_gpu(o) && q->experts > MF_OP_BINS_MAX)
        return fmoe_fail(error, -EINVAL, "%d experts: a GPU routes to at most %d", q->experts,
                         MF_OP_BINS_MAX);
    if (q->score < FMOE_SOFTMAX || q->score > FMOE_SQRT_SOFTPLUS)
        return fmoe_fail(error, -EINVAL, "score %d: expected a value of enum fmoe_score", q->score);
    if (q->groups != 0 && (q->groups < 1 || q->groups > GROUPS_MAX || q->experts % q->groups != 0 ||
                           q->experts < 2 * q->groups || q->groups_kept < 1 || q->groups_kept > q->groups))
        return fmoe_fail(
            error, -EINVAL,
            "%d groups of which %d are kept, for %d experts: expected at most %d groups of equal "
            "size, of two experts or more",
            q->groups, q->groups_kept, q->experts, GROUPS_MAX);
    return 0;
}

int fmoe_op_route(struct fmoe_ops *o, const struct fmoe_op_route *q, struct fmoe_error *error)
{
    int r = check_route(o, q, error);

    if (r == 0)
        r = fmoe_ops_begin(o, error);
    if (r < 0)
        return r;
    return fmoe_ops_end(o, fmoe_ops_on_gpu(o) ? route_on_gpu(o, q) : route_on_cpu(q, error), error);
}
