/* Family sim of the sim device: a search space similar to that of AITER, for every format in the tables that
 * AITER ships. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/layer.h"
#include "kernels/sim/sim.h"
#include "kernels/sim/sim_plan.h"

static const int32_t block_ms[] = {16, 32, 64, 128, 256};
static const int32_t tile_ns[] = {32, 64, 128, 256};
static const char *const layouts[] = {"row", "panel16"};

static struct mf_step step_of(enum mf_stage stage, mf_ops covers, int32_t block_m)
{
    struct mf_step step = {.family = "sim", .stage = stage, .covers = covers, .block_m = block_m};
    return step;
}

static int offer_moves(const struct mf_sim_plan *p)
{
    const struct mf_shape *s = p->shape;
    double T = (double)s->token, H = s->model_dim, I = s->inter_dim;
    int r = 0;
    for (size_t i = 0; r == 0 && i < MF_ARRAY_LEN(block_ms); i++) {
        struct mf_step sort = step_of(MF_STAGE_MOVE, MF_OP_BIT(MF_OP_SORT), block_ms[i]);
        mf_format(sort.name, sizeof(sort.name), "sim_sort_m%d", block_ms[i]);
        mf_sim_need(&sort, mf_sim_topk());
        mf_sim_give(&sort, mf_sim_sorted(block_ms[i]));
        sort.bytes = 16 * p->rows;
        r = p->offer->step(p->offer, &sort);
        if (r < 0 || !p->quantised)
            continue;
        struct mf_step quant = step_of(MF_STAGE_MOVE, MF_OP_BIT(MF_OP_QUANT2), block_ms[i]);
        mf_format(quant.name, sizeof(quant.name), "sim_quant2_m%d", block_ms[i]);
        mf_sim_need(&quant, mf_sim_h(p, block_ms[i], false));
        mf_sim_need(&quant, mf_sim_sorted(block_ms[i]));
        mf_sim_give(&quant, mf_sim_h(p, block_ms[i], true));
        quant.bytes = p->rows * I * 3;
        r = p->offer->step(p->offer, &quant);
    }
    if (r == 0 && p->quantised) {
        struct mf_step quant = step_of(MF_STAGE_MOVE, MF_OP_BIT(MF_OP_QUANT1), 0);
        mf_format(quant.name, sizeof(quant.name), "sim_quant1");
        mf_sim_need(&quant, mf_sim_x_plain());
        mf_sim_give(&quant, mf_sim_x(p));
        quant.bytes = T * H * 3;
        r = p->offer->step(p->offer, &quant);
    }
    if (r == 0) {
        struct mf_step zero = step_of(MF_STAGE_MOVE, 0, 0);
        mf_format(zero.name, sizeof(zero.name), "sim_zero");
        mf_sim_give(&zero, mf_sim_y(true));
        zero.bytes = T * H * 2;
        r = p->offer->step(p->offer, &zero);
    }
    if (r == 0) {
        struct mf_step combine = step_of(MF_STAGE_MOVE, MF_OP_BIT(MF_OP_COMBINE), 0);
        mf_format(combine.name, sizeof(combine.name), "sim_combine");
        mf_sim_need(&combine, mf_sim_tensor_spec(s->doweight_stage1 ? MF_TENSOR_Z : MF_TENSOR_ZW,
                                                 MF_FORMAT_BF16, MF_SCALE_NONE, "slot", 0));
        mf_sim_give(&combine, mf_sim_y(false));
        combine.bytes = p->rows * H * 2 + T * H * 2;
        r = p->offer->step(p->offer, &combine);
    }
    return r;
}

struct variant {
    int32_t block_m, tile_n;
    const char *layout;
    int version;
    bool fused; /* true: stage 1 writes quantised h, or stage 2 accumulates into y */
};

static int offer_stage1(const struct mf_sim_plan *p, const struct variant *v)
{
    const struct mf_shape *s = p->shape;
    mf_ops covers = MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT);
    if (s->doweight_stage1)
        covers |= MF_OP_BIT(MF_OP_WEIGHT);
    if (v->fused)
        covers |= MF_OP_BIT(MF_OP_QUANT2);
    struct mf_step step = step_of(MF_STAGE_STAGE1, covers, v->block_m);
    mf_format(step.name, sizeof(step.name), "sim_s1_m%d_n%d_%s_v%d%s", v->block_m, v->tile_n, v->layout,
              v->version, v->fused ? "_q" : "");
    mf_sim_need(&step, mf_sim_x(p));
    mf_sim_need(&step, mf_sim_sorted(v->block_m));
    mf_sim_need(&step, mf_sim_tensor_spec(MF_TENSOR_W1, p->format_w, p->scale_w, v->layout, 0));
    mf_sim_give(&step, mf_sim_h(p, v->block_m, v->fused));
    step.flops = 2 * p->rows * s->model_dim * p->n1;
    step.bytes = mf_sim_weight_bytes(p, p->n1, s->model_dim) +
                 mf_sim_bytes(s->q_dtype_a, p->rows * s->model_dim) + 2 * p->rows * s->inter_dim;
    return p->offer->step(p->offer, &step);
}

static int offer_stage2(const struct mf_sim_plan *p, const struct variant *v)
{
    const struct mf_shape *s = p->shape;
    mf_ops covers = MF_OP_BIT(MF_OP_GEMM2);
    if (!s->doweight_stage1)
        covers |= MF_OP_BIT(MF_OP_WEIGHT);
    if (v->fused)
        covers |= MF_OP_BIT(MF_OP_COMBINE);
    struct mf_step step = step_of(MF_STAGE_STAGE2, covers, v->block_m);
    mf_format(step.name, sizeof(step.name), "sim_s2_m%d_n%d_%s_v%d_%s", v->block_m, v->tile_n, v->layout,
              v->version, v->fused ? "atomic" : "slot");
    mf_sim_need(&step, mf_sim_h(p, v->block_m, p->quantised));
    mf_sim_need(&step, mf_sim_sorted(v->block_m));
    mf_sim_need(&step, mf_sim_tensor_spec(MF_TENSOR_W2, p->format_w, p->scale_w, v->layout, 0));
    if (v->fused) {
        mf_sim_need(&step, mf_sim_y(true));
        mf_sim_give(&step, mf_sim_y(false));
        step.reorder_tolerance = 0.01;
    } else {
        mf_sim_give(&step, mf_sim_tensor_spec(s->doweight_stage1 ? MF_TENSOR_Z : MF_TENSOR_ZW, MF_FORMAT_BF16,
                                              MF_SCALE_NONE, "slot", 0));
    }
    step.flops = 2 * p->rows * s->model_dim * s->inter_dim;
    step.bytes = mf_sim_weight_bytes(p, s->model_dim, s->inter_dim) +
                 mf_sim_bytes(s->q_dtype_a, p->rows * s->inter_dim) + 2 * p->rows * s->model_dim;
    return p->offer->step(p->offer, &step);
}

static int offer_one(const struct mf_sim_plan *p, int32_t block_m, bool flat)
{
    const struct mf_shape *s = p->shape;
    mf_ops before = MF_OP_BIT(MF_OP_QUANT1) | (flat ? 0 : MF_OP_BIT(MF_OP_SORT));
    if (!p->quantised)
        before &= ~MF_OP_BIT(MF_OP_QUANT1);
    struct mf_step step = step_of(MF_STAGE_ONE, mf_layer_ops(s) & ~before, block_m);
    mf_format(step.name, sizeof(step.name), "sim_one_m%d_%s", block_m, flat ? "flat" : "sorted");
    mf_sim_need(&step, mf_sim_x(p));
    mf_sim_need(&step, flat ? mf_sim_topk() : mf_sim_sorted(block_m));
    mf_sim_need(&step, mf_sim_tensor_spec(MF_TENSOR_W1, p->format_w, p->scale_w, "panel16", 0));
    mf_sim_need(&step, mf_sim_tensor_spec(MF_TENSOR_W2, p->format_w, p->scale_w, "panel16", 0));
    mf_sim_give(&step, mf_sim_y(false));
    step.flops = mf_layer_flops(s);
    step.bytes = mf_layer_min_bytes(s, (int64_t)p->active);
    /* Every block of rows reads both weights again, because in a kernel with both GEMMs the blocks cannot
     * share weights. */
    step.bytes *= 1.0 + (double)s->token / 64;
    return p->offer->step(p->offer, &step);
}

static int offer_ones(const struct mf_sim_plan *p)
{
    const struct mf_shape *s = p->shape;
    struct mf_offer *o = p->offer;
    if (s->token > 1024)
        return o->reject(o, "sim", "sim_one_*", "tokens",
                         "%lld tokens exceed the 1024 tokens whose rows a one-launch kernel can keep on chip",
                         (long long)s->token);
    if (p->format_w == MF_FORMAT_INT4)
        return o->reject(o, "sim", "sim_one_*", "dtype", "no one-launch kernel supports %s weights",
                         mf_dtype_name(s->q_dtype_w));
    int r = 0;
    for (size_t i = 0; r == 0 && i < 3; i++) {
        r = offer_one(p, block_ms[i], false);
        if (r == 0 && i == 0)
            r = offer_one(p, block_ms[i], true);
    }
    return r;
}

/* Returns 1 if the tile is legal; otherwise rejects the tile and returns the result of the `reject` callback.
 */
static int check_tile(const struct mf_sim_plan *p, int32_t block_m, int32_t tile_n)
{
    const struct mf_shape *s = p->shape;
    struct mf_offer *o = p->offer;
    char kernel[48];
    mf_format(kernel, sizeof(kernel), "sim_s?_m%d_n%d_*", block_m, tile_n);
    int r = 0;
    if (s->inter_dim % tile_n != 0)
        r = o->reject(o, "sim", kernel, "divisibility", "inter_dim %d is not a multiple of the tile width %d",
                      s->inter_dim, tile_n);
    else if (s->model_dim % tile_n != 0)
        r = o->reject(o, "sim", kernel, "divisibility", "model_dim %d is not a multiple of the tile width %d",
                      s->model_dim, tile_n);
    else if (block_m > 16 && p->rows / p->active * 32 < block_m)
        r = o->reject(o, "sim", kernel, "padding",
                      "an expert gets %.1f rows on average, so %.0f%% of a block of %d rows would be padding",
                      p->rows / p->active, 100 - 100 * p->rows / p->active / block_m, block_m);
    else
        return 1;
    return r;
}

static int offer_variants(const struct mf_sim_plan *p, int32_t block_m, int32_t tile_n)
{
    for (size_t l = 0; l < MF_ARRAY_LEN(layouts); l++) {
        for (int version = 1; version <= 2; version++) {
            for (int fused = 0; fused <= 1; fused++) {
                struct variant v = {block_m, tile_n, layouts[l], version, fused};
                int r = fused && !p->quantised ? 0 : offer_stage1(p, &v);
                if (r == 0)
                    r = offer_stage2(p, &v);
                if (r < 0)
                    return r;
            }
        }
    }
    return 0;
}

static int sim_enumerate(const struct mf_family *f, const struct mf_device_info *device,
                         const struct mf_shape *shape, struct mf_offer *offer)
{
    (void)f;
    if (shape->dtype != MF_DTYPE_BF16)
        return offer->reject(offer, "sim", "sim_*", "dtype", "hidden states must be torch.bfloat16, not %s",
                             mf_dtype_name(shape->dtype));
    struct mf_sim_plan p = mf_sim_plan_make(device, shape, offer);
    int r = offer_moves(&p);
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(block_ms); i++) {
        for (size_t j = 0; r >= 0 && j < MF_ARRAY_LEN(tile_ns); j++) {
            r = check_tile(&p, block_ms[i], tile_ns[j]);
            if (r == 1)
                r = offer_variants(&p, block_ms[i], tile_ns[j]);
        }
    }
    return r < 0 ? r : offer_ones(&p);
}

static int sim_open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                         const char *name, struct mf_kernel **ret)
{
    (void)f;
    (void)device;
    (void)shape;
    (void)ret;
    return strncmp(name, "sim_", 4) == 0 ? -ENOTSUP : -EINVAL;
}

static int sim_launch(struct mf_kernel *kernel, const struct mf_launch *launch)
{
    (void)kernel;
    (void)launch;
    return -ENOTSUP;
}

static struct mf_kernel *sim_close(struct mf_kernel *kernel)
{
    (void)kernel;
    return NULL;
}

const struct mf_family mf_family_sim = {
    .api = MF_FAMILY_API,
    .supports_ep = true,
    .name = "sim",
    .device_kind = "sim",
    .enumerate = sim_enumerate,
    .open = sim_open_step,
    .launch = sim_launch,
    .close = sim_close,
};
