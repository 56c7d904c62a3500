/* Family aiter of the sim device: AITER's kernels (kernels/aiter/aiter.h) as steps, under their own names.
 * --families aiter selects this family in place of family sim. The family of a step is the AITER generator
 * that offers it. */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/layer.h"
#include "kernels/aiter/aiter.h"
#include "kernels/aiter/aiter_lists.h"
#include "kernels/core/family.h"
#include "kernels/sim/sim_plan.h"

static const int32_t block_ms[] = {16, 32, 64, 128};

struct aiter_offer {
    /* must be the first member, because the callbacks cast its address to this struct */
    struct mf_aiter_sink sink;
    const struct mf_sim_plan *plan;
    size_t n_kernels;
};

/* All AITER families read the same pre-shuffled weights, so any pair of stage kernels works with the same
 * copy of the weights. */
static struct mf_tensor_spec weight(const struct mf_sim_plan *p, enum mf_tensor tensor)
{
    return mf_sim_tensor_spec(tensor, p->format_w, p->scale_w, "shuffled", 0);
}

/* Returns the tensor spec of h. The v2 and mxmoe kernels have row orders of their own for h. */
static struct mf_tensor_spec intermediate(const struct mf_sim_plan *p, const struct mf_aiter_kernel *k,
                                          bool quantised)
{
    struct mf_tensor_spec h = mf_sim_h(p, k->block_m, quantised);
    if (k->flags & (MF_AITER_V2 | MF_AITER_MXMOE))
        (void)mf_copy(h.order, sizeof(h.order), k->flags & MF_AITER_V2 ? "sorted_v2" : "sorted_mxmoe");
    return h;
}

static struct mf_tensor_spec hidden(const struct mf_sim_plan *p, const struct mf_aiter_kernel *k)
{
    struct mf_tensor_spec x = k->flags & MF_AITER_XBF16 ? mf_sim_x_plain() : mf_sim_x(p);
    if (k->flags & MF_AITER_PERTOKEN)
        x.scale = MF_SCALE_PER_TOKEN;
    return x;
}

static void give_output(struct mf_step *step, unsigned flags)
{
    if (flags & MF_AITER_ATOMIC) {
        mf_sim_need(step, mf_sim_y(true));
        step->reorder_tolerance = 0.01;
    }
    mf_sim_give(step, mf_sim_y(false));
}

static void make_stage1(const struct mf_sim_plan *p, const struct mf_aiter_kernel *k, struct mf_step *step)
{
    const struct mf_shape *s = p->shape;
    bool fused = p->quantised && k->flags & MF_AITER_FUSED;
    step->covers = MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT);
    step->covers |=
        (s->doweight_stage1 ? MF_OP_BIT(MF_OP_WEIGHT) : 0) | (fused ? MF_OP_BIT(MF_OP_QUANT2) : 0);
    mf_sim_need(step, hidden(p, k));
    mf_sim_need(step, mf_sim_sorted(k->block_m));
    mf_sim_need(step, weight(p, MF_TENSOR_W1));
    mf_sim_give(step, intermediate(p, k, fused));
    step->flops = 2 * p->rows * s->model_dim * p->n1;
    step->bytes = mf_sim_weight_bytes(p, p->n1, s->model_dim) +
                  mf_sim_bytes(s->q_dtype_a, p->rows * s->model_dim) +
                  mf_sim_bytes(fused ? s->q_dtype_a : MF_DTYPE_BF16, p->rows * s->inter_dim);
}

static void make_stage2(const struct mf_sim_plan *p, const struct mf_aiter_kernel *k, struct mf_step *step)
{
    const struct mf_shape *s = p->shape;
    step->covers = MF_OP_BIT(MF_OP_GEMM2) | MF_OP_BIT(MF_OP_COMBINE);
    step->covers |= s->doweight_stage1 ? 0 : MF_OP_BIT(MF_OP_WEIGHT);
    mf_sim_need(step, intermediate(p, k, p->quantised));
    mf_sim_need(step, mf_sim_sorted(k->block_m));
    mf_sim_need(step, weight(p, MF_TENSOR_W2));
    give_output(step, k->flags);
    step->flops = 2 * p->rows * s->model_dim * s->inter_dim;
    step->bytes = mf_sim_weight_bytes(p, s->model_dim, s->inter_dim) +
                  mf_sim_bytes(s->q_dtype_a, p->rows * s->inter_dim) + 2 * p->rows * s->model_dim;
}

static void make_one(const struct mf_sim_plan *p, const struct mf_aiter_kernel *k, struct mf_step *step)
{
    const struct mf_shape *s = p->shape;
    mf_ops before = MF_OP_BIT(MF_OP_SORT) | MF_OP_BIT(MF_OP_QUANT1);
    if (k->flags & MF_AITER_FLAT)
        before &= ~MF_OP_BIT(MF_OP_SORT);
    if (k->flags & MF_AITER_XBF16 || !p->quantised)
        before &= ~MF_OP_BIT(MF_OP_QUANT1);
    step->covers = mf_layer_ops(s) & ~before;
    mf_sim_need(step, hidden(p, k));
    mf_sim_need(step, k->flags & MF_AITER_FLAT ? mf_sim_topk() : mf_sim_sorted(k->block_m));
    mf_sim_need(step, weight(p, MF_TENSOR_W1));
    mf_sim_need(step, weight(p, MF_TENSOR_W2));
    give_output(step, k->flags);
    step->flops = mf_layer_flops(s);
    step->bytes = mf_layer_min_bytes(s, (int64_t)p->active);
    /* A FLAT kernel reads the weights again for each token, because it processes tokens one by one. */
    if (k->flags & MF_AITER_FLAT && k->block_m == 0)
        step->bytes += mf_sim_weight_bytes(p, p->n1 + s->inter_dim, s->model_dim) * (p->rows / p->active - 1);
}

static int offer_kernel(struct mf_aiter_sink *sink, const struct mf_aiter_kernel *k)
{
    struct aiter_offer *o = (struct aiter_offer *)sink;
    const struct mf_sim_plan *p = o->plan;
    struct mf_step step = {.stage = k->stage, .block_m = k->block_m, .ksplit = k->ksplit};
    (void)mf_copy(step.name, sizeof(step.name), k->name);
    (void)mf_copy(step.family, sizeof(step.family), k->family);
    if (k->stage == MF_STAGE_STAGE1)
        make_stage1(p, k, &step);
    else if (k->stage == MF_STAGE_STAGE2)
        make_stage2(p, k, &step);
    else
        make_one(p, k, &step);
    o->n_kernels++;
    return p->offer->step(p->offer, &step);
}

__attribute__((format(printf, 5, 6))) static int pass_no(struct mf_aiter_sink *sink, const char *family,
                                                         const char *kernel, const char *rule,
                                                         const char *format, ...)
{
    struct mf_offer *o = ((struct aiter_offer *)sink)->plan->offer;
    char reason[MF_REASON_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    return o->reject(o, family, kernel, rule, "%s", reason);
}

/* --- host steps: the data movement of AITER's fused_moe() around its kernels -------------------------- */

static struct mf_step host_step(enum mf_aiter_host host, mf_ops covers, int32_t block_m, double bytes)
{
    struct mf_step step = {.family = "host", .covers = covers, .block_m = block_m, .bytes = bytes};
    mf_aiter_host_step(host, block_m, step.name);
    return step;
}

/* Besides sorting, moe_sorting zeroes the output. */
static int offer_sort(const struct mf_sim_plan *p, int32_t block_m)
{
    double y_bytes = 2.0 * (double)p->shape->token * p->shape->model_dim;
    struct mf_step sort =
        host_step(MF_AITER_HOST_SORT, MF_OP_BIT(MF_OP_SORT), block_m, 16 * p->rows + y_bytes);
    mf_sim_need(&sort, mf_sim_topk());
    mf_sim_give(&sort, mf_sim_sorted(block_m));
    mf_sim_give(&sort, mf_sim_y(true));
    return p->offer->step(p->offer, &sort);
}

static int offer_quant2(const struct mf_sim_plan *p, int32_t block_m)
{
    double elements = p->rows * p->shape->inter_dim;
    struct mf_step quant = host_step(MF_AITER_HOST_QUANT2, MF_OP_BIT(MF_OP_QUANT2), block_m,
                                     2 * elements + mf_sim_bytes(p->shape->q_dtype_a, elements));
    mf_sim_need(&quant, mf_sim_h(p, block_m, false));
    mf_sim_need(&quant, mf_sim_sorted(block_m));
    mf_sim_give(&quant, mf_sim_h(p, block_m, true));
    return p->offer->step(p->offer, &quant);
}

static int offer_quant1(const struct mf_sim_plan *p)
{
    double elements = (double)p->shape->token * p->shape->model_dim;
    struct mf_step quant = host_step(MF_AITER_HOST_QUANT1, MF_OP_BIT(MF_OP_QUANT1), 0,
                                     2 * elements + mf_sim_bytes(p->shape->q_dtype_a, elements));
    mf_sim_need(&quant, mf_sim_x_plain());
    mf_sim_give(&quant, mf_sim_x(p));
    return p->offer->step(p->offer, &quant);
}

static int offer_zero(const struct mf_sim_plan *p)
{
    struct mf_step zero =
        host_step(MF_AITER_HOST_ZERO, 0, 0, 2.0 * (double)p->shape->token * p->shape->model_dim);
    mf_sim_give(&zero, mf_sim_y(true));
    return p->offer->step(p->offer, &zero);
}

static int offer_host_steps(const struct mf_sim_plan *p)
{
    int r = offer_zero(p);
    if (r >= 0 && p->quantised)
        r = offer_quant1(p);
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(block_ms); i++) {
        r = offer_sort(p, block_ms[i]);
        if (r >= 0 && p->quantised)
            r = offer_quant2(p, block_ms[i]);
    }
    return r;
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    (void)f;
    struct mf_sim_plan plan = mf_sim_plan_make(device, shape, offer);
    struct aiter_offer o = {.sink = {.kernel = offer_kernel, .no = pass_no}, .plan = &plan};
    const char *folder = getenv(MF_AITER_FOLDER_ENV);
    char why[MF_REASON_MAX];
    _cleanup_(mf_buf_release) struct mf_buf text;
    mf_buf_init(&text, MF_AITER_LISTS_MAX);
    if (folder && *folder && mf_aiter_tree_read(folder, &text, why) < 0)
        return offer->reject(offer, "aiter", "*", "folder", "--aiter-dir %s", why);
    const struct mf_aiter_lists own = {.text = text.data, .own = true};
    struct mf_aiter_layer layer = {
        .gfx = device->class.gfx, .shape = shape, .lists = text.len > 0 ? &own : NULL};
    int r = mf_aiter_enumerate(&layer, &o.sink);
    return r < 0 || o.n_kernels == 0 ? r : offer_host_steps(&plan);
}

/* Not supported, because a simulated step is neither opened nor launched (worker/runner/sim_unit.c). */
static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret)
{
    (void)f;
    (void)device;
    (void)shape;
    (void)ret;
    return mf_aiter_is_step(name) ? -ENOTSUP : -EINVAL;
}

static int launch(struct mf_kernel *kernel, const struct mf_launch *args)
{
    (void)kernel;
    (void)args;
    return -ENOTSUP;
}

static struct mf_kernel *close_step(struct mf_kernel *kernel)
{
    (void)kernel;
    return NULL;
}

const struct mf_family mf_family_aiter = {
    .api = MF_FAMILY_API,
    .name = "aiter",
    .device_kind = "sim",
    .enumerate = enumerate,
    .open = open_step,
    .launch = launch,
    .close = close_step,
    .aiter_name = mf_aiter_is_step,
};
