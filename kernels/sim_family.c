/* The family of the sim device: a space of the size and shape of AITER's for every format of its shipped tables. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/layer.h"
#include "common/text.h"
#include "kernels/sim.h"

static const int32_t block_ms[] = {16, 32, 64, 128, 256};
static const int32_t tile_ns[] = {32, 64, 128, 256};
static const char *const layouts[] = {"row", "panel16"};

/* What a shape's formats mean, and the sizes that steps are charged for. */
struct plan {
    const struct mf_shape *shape;
    const struct mf_device_info *device;
    struct mf_offer *offer;
    enum mf_format format_a, format_w;
    enum mf_scale scale_a, scale_w;
    bool quantised;  /* x and h are turned into format_a */
    double rows, n1; /* T·k; columns of gemm1 */
    double active;   /* experts expected to get a token, uniform routing */
};

static enum mf_format format_of(enum mf_dtype dtype)
{
    switch (dtype) {
    case MF_DTYPE_BF16:
        return MF_FORMAT_BF16;
    case MF_DTYPE_FP16:
        return MF_FORMAT_FP16;
    case MF_DTYPE_FP8_E4M3FN:
        return MF_FORMAT_FP8FN;
    case MF_DTYPE_FP8_E4M3FNUZ:
        return MF_FORMAT_FP8FNUZ;
    case MF_DTYPE_INT8:
        return MF_FORMAT_INT8;
    case MF_DTYPE_INT4:
        return MF_FORMAT_INT4;
    case MF_DTYPE_FP4X2:
        return MF_FORMAT_FP4;
    case MF_DTYPE_N_:
        break;
    }
    return MF_FORMAT_BF16;
}

static enum mf_scale scale_of(enum mf_qtype type, bool weight)
{
    switch (type) {
    case MF_QTYPE_PER_TENSOR:
        return MF_SCALE_PER_TENSOR;
    case MF_QTYPE_PER_TOKEN:
        return MF_SCALE_PER_TOKEN;
    case MF_QTYPE_PER_1X32:
        return MF_SCALE_PER_1X32;
    case MF_QTYPE_PER_1X16:
        return MF_SCALE_PER_1X16;
    case MF_QTYPE_PER_1X128:
        return weight ? MF_SCALE_PER_128X128 : MF_SCALE_PER_1X128;
    case MF_QTYPE_NO:
    case MF_QTYPE_N_:
        break;
    }
    return MF_SCALE_NONE;
}

static struct plan make_plan(const struct mf_device_info *device, const struct mf_shape *s,
                             struct mf_offer *offer)
{
    struct plan p = {.shape = s,
                     .device = device,
                     .offer = offer,
                     .rows = (double)(s->token * s->topk),
                     .n1 = (s->use_g1u1 ? 2.0 : 1.0) * s->inter_dim};
    bool typed = s->q_type != MF_QTYPE_NO;
    p.quantised = typed && s->q_dtype_a != s->dtype;
    p.format_a = p.quantised ? format_of(s->q_dtype_a) : MF_FORMAT_BF16;
    p.scale_a = p.quantised ? scale_of(s->q_type, false) : MF_SCALE_NONE;
    p.format_w = typed ? format_of(s->q_dtype_w) : MF_FORMAT_BF16;
    p.scale_w = typed && s->q_dtype_w != s->dtype ? scale_of(s->q_type, true) : MF_SCALE_NONE;
    p.active = s->expert * (1.0 - pow(1.0 - (double)s->topk / s->expert, (double)s->token));
    p.active = MF_MAX(p.active, 1.0);
    return p;
}

static struct mf_artifact artifact(enum mf_tensor tensor, enum mf_format format, enum mf_scale scale,
                                   const char *order, int32_t block)
{
    struct mf_artifact a = {.tensor = tensor, .format = format, .scale = scale, .block = block};
    (void)mf_copy(a.order, sizeof(a.order), order);
    return a;
}

static struct mf_artifact x_plain(void)
{
    return artifact(MF_TENSOR_X, MF_FORMAT_BF16, MF_SCALE_NONE, "token", 0);
}

static struct mf_artifact x_of(const struct plan *p)
{
    return artifact(MF_TENSOR_X, p->format_a, p->scale_a, "token", 0);
}

static struct mf_artifact h_of(const struct plan *p, int32_t block_m, bool quantised)
{
    return quantised ? artifact(MF_TENSOR_H, p->format_a, p->scale_a, "sorted", block_m)
                     : artifact(MF_TENSOR_H, MF_FORMAT_BF16, MF_SCALE_NONE, "sorted", block_m);
}

static struct mf_artifact sorted_of(int32_t block_m)
{
    return artifact(MF_TENSOR_SORTED, MF_FORMAT_INDEX, MF_SCALE_NONE, "sorted", block_m);
}

static struct mf_artifact topk_of(void)
{
    return artifact(MF_TENSOR_TOPK, MF_FORMAT_INDEX, MF_SCALE_NONE, "token", 0);
}

static struct mf_artifact y_of(bool zeroed)
{
    struct mf_artifact y = artifact(MF_TENSOR_Y, MF_FORMAT_BF16, MF_SCALE_NONE, "token", 0);
    y.zeroed = zeroed;
    return y;
}

static struct mf_step step_of(enum mf_stage stage, mf_ops covers, int32_t block_m)
{
    struct mf_step step = {.family = "sim", .stage = stage, .covers = covers, .block_m = block_m};
    return step;
}

static void need(struct mf_step *step, struct mf_artifact a)
{
    step->needs[step->n_needs++] = a;
}

static void give(struct mf_step *step, struct mf_artifact a)
{
    step->gives[step->n_gives++] = a;
}

static double bytes_of(enum mf_dtype dtype, double elements)
{
    return elements * mf_dtype_bits(dtype) / 8;
}

/* Weights of the active experts, once. */
static double weight_bytes(const struct plan *p, double n, double k)
{
    return bytes_of(p->format_w == MF_FORMAT_BF16 ? MF_DTYPE_BF16 : p->shape->q_dtype_w, p->active * n * k);
}

static int offer_moves(const struct plan *p)
{
    const struct mf_shape *s = p->shape;
    double T = (double)s->token, H = s->model_dim, I = s->inter_dim;
    int r = 0;
    for (size_t i = 0; r == 0 && i < MF_ARRAY_LEN(block_ms); i++) {
        struct mf_step sort = step_of(MF_STAGE_MOVE, MF_OP_BIT(MF_OP_SORT), block_ms[i]);
        mf_say(sort.name, sizeof(sort.name), "sim_sort_m%d", block_ms[i]);
        need(&sort, topk_of());
        give(&sort, sorted_of(block_ms[i]));
        sort.bytes = 16 * p->rows;
        r = p->offer->step(p->offer, &sort);
        if (r < 0 || !p->quantised)
            continue;
        struct mf_step quant = step_of(MF_STAGE_MOVE, MF_OP_BIT(MF_OP_QUANT2), block_ms[i]);
        mf_say(quant.name, sizeof(quant.name), "sim_quant2_m%d", block_ms[i]);
        need(&quant, h_of(p, block_ms[i], false));
        need(&quant, sorted_of(block_ms[i]));
        give(&quant, h_of(p, block_ms[i], true));
        quant.bytes = p->rows * I * 3;
        r = p->offer->step(p->offer, &quant);
    }
    if (r == 0 && p->quantised) {
        struct mf_step quant = step_of(MF_STAGE_MOVE, MF_OP_BIT(MF_OP_QUANT1), 0);
        mf_say(quant.name, sizeof(quant.name), "sim_quant1");
        need(&quant, x_plain());
        give(&quant, x_of(p));
        quant.bytes = T * H * 3;
        r = p->offer->step(p->offer, &quant);
    }
    if (r == 0) {
        struct mf_step zero = step_of(MF_STAGE_MOVE, 0, 0);
        mf_say(zero.name, sizeof(zero.name), "sim_zero");
        give(&zero, y_of(true));
        zero.bytes = T * H * 2;
        r = p->offer->step(p->offer, &zero);
    }
    if (r == 0) {
        struct mf_step combine = step_of(MF_STAGE_MOVE, MF_OP_BIT(MF_OP_COMBINE), 0);
        mf_say(combine.name, sizeof(combine.name), "sim_combine");
        need(&combine, artifact(s->doweight_stage1 ? MF_TENSOR_Z : MF_TENSOR_ZW, MF_FORMAT_BF16,
                                MF_SCALE_NONE, "slot", 0));
        give(&combine, y_of(false));
        combine.bytes = p->rows * H * 2 + T * H * 2;
        r = p->offer->step(p->offer, &combine);
    }
    return r;
}

struct variant {
    int32_t block_m, tile_n;
    const char *layout;
    int version;
    bool fused; /* stage 1: writes h quantised; stage 2: adds into y */
};

static int offer_stage1(const struct plan *p, const struct variant *v)
{
    const struct mf_shape *s = p->shape;
    mf_ops covers = MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT);
    if (s->doweight_stage1)
        covers |= MF_OP_BIT(MF_OP_WEIGHT);
    if (v->fused)
        covers |= MF_OP_BIT(MF_OP_QUANT2);
    struct mf_step step = step_of(MF_STAGE_STAGE1, covers, v->block_m);
    mf_say(step.name, sizeof(step.name), "sim_s1_m%d_n%d_%s_v%d%s", v->block_m, v->tile_n, v->layout,
           v->version, v->fused ? "_q" : "");
    need(&step, x_of(p));
    need(&step, sorted_of(v->block_m));
    need(&step, artifact(MF_TENSOR_W1, p->format_w, p->scale_w, v->layout, 0));
    give(&step, h_of(p, v->block_m, v->fused));
    step.flops = 2 * p->rows * s->model_dim * p->n1;
    step.bytes = weight_bytes(p, p->n1, s->model_dim) + bytes_of(s->q_dtype_a, p->rows * s->model_dim) +
                 2 * p->rows * s->inter_dim;
    return p->offer->step(p->offer, &step);
}

static int offer_stage2(const struct plan *p, const struct variant *v)
{
    const struct mf_shape *s = p->shape;
    mf_ops covers = MF_OP_BIT(MF_OP_GEMM2);
    if (!s->doweight_stage1)
        covers |= MF_OP_BIT(MF_OP_WEIGHT);
    if (v->fused)
        covers |= MF_OP_BIT(MF_OP_COMBINE);
    struct mf_step step = step_of(MF_STAGE_STAGE2, covers, v->block_m);
    mf_say(step.name, sizeof(step.name), "sim_s2_m%d_n%d_%s_v%d_%s", v->block_m, v->tile_n, v->layout,
           v->version, v->fused ? "atomic" : "slot");
    need(&step, h_of(p, v->block_m, p->quantised));
    need(&step, sorted_of(v->block_m));
    need(&step, artifact(MF_TENSOR_W2, p->format_w, p->scale_w, v->layout, 0));
    if (v->fused) {
        need(&step, y_of(true));
        give(&step, y_of(false));
        step.reorder_tolerance = 0.01;
    } else {
        give(&step, artifact(s->doweight_stage1 ? MF_TENSOR_Z : MF_TENSOR_ZW, MF_FORMAT_BF16, MF_SCALE_NONE,
                             "slot", 0));
    }
    step.flops = 2 * p->rows * s->model_dim * s->inter_dim;
    step.bytes = weight_bytes(p, s->model_dim, s->inter_dim) +
                 bytes_of(s->q_dtype_a, p->rows * s->inter_dim) + 2 * p->rows * s->model_dim;
    return p->offer->step(p->offer, &step);
}

static int offer_one(const struct plan *p, int32_t block_m, bool flat)
{
    const struct mf_shape *s = p->shape;
    mf_ops before = MF_OP_BIT(MF_OP_QUANT1) | (flat ? 0 : MF_OP_BIT(MF_OP_SORT));
    if (!p->quantised)
        before &= ~MF_OP_BIT(MF_OP_QUANT1);
    struct mf_step step = step_of(MF_STAGE_ONE, mf_layer_ops(s) & ~before, block_m);
    mf_say(step.name, sizeof(step.name), "sim_one_m%d_%s", block_m, flat ? "flat" : "sorted");
    need(&step, x_of(p));
    need(&step, flat ? topk_of() : sorted_of(block_m));
    need(&step, artifact(MF_TENSOR_W1, p->format_w, p->scale_w, "panel16", 0));
    need(&step, artifact(MF_TENSOR_W2, p->format_w, p->scale_w, "panel16", 0));
    give(&step, y_of(false));
    step.flops = mf_layer_flops(s);
    step.bytes = mf_layer_floor_bytes(s, (int64_t)p->active);
    /* Every block of rows reads both weights: no reuse across the columns of a stage. */
    step.bytes *= 1.0 + (double)s->token / 64;
    return p->offer->step(p->offer, &step);
}

static int offer_ones(const struct plan *p)
{
    const struct mf_shape *s = p->shape;
    struct mf_offer *o = p->offer;
    if (s->token > 1024)
        return o->reject(
            o, "sim", "sim_one_*", "tokens",
            "a one-launch layer keeps its rows on chip: %lld tokens are more than the 1024 that fit",
            (long long)s->token);
    if (p->format_w == MF_FORMAT_INT4)
        return o->reject(o, "sim", "sim_one_*", "dtype", "no one-launch kernel unpacks %s weights",
                         mf_dtype_name(s->q_dtype_w));
    int r = 0;
    for (size_t i = 0; r == 0 && i < 3; i++) {
        r = offer_one(p, block_ms[i], false);
        if (r == 0 && i == 0)
            r = offer_one(p, block_ms[i], true);
    }
    return r;
}

/* The rule and the sentence when a tile of that size is not legal; 1: it is. */
static int check_tile(const struct plan *p, int32_t block_m, int32_t tile_n)
{
    const struct mf_shape *s = p->shape;
    struct mf_offer *o = p->offer;
    char kernel[48];
    mf_say(kernel, sizeof(kernel), "sim_s?_m%d_n%d_*", block_m, tile_n);
    int r = 0;
    if (s->inter_dim % tile_n != 0)
        r = o->reject(o, "sim", kernel, "divisibility",
                      "inter_dim %d is no multiple of the tile's %d columns", s->inter_dim, tile_n);
    else if (s->model_dim % tile_n != 0)
        r = o->reject(o, "sim", kernel, "divisibility",
                      "model_dim %d is no multiple of the tile's %d columns", s->model_dim, tile_n);
    else if (block_m > 16 && p->rows / p->active * 32 < block_m)
        r = o->reject(o, "sim", kernel, "padding",
                      "an expert gets %.1f rows on average: %.0f%% of a block of %d would be padding",
                      p->rows / p->active, 100 - 100 * p->rows / p->active / block_m, block_m);
    else
        return 1;
    return r;
}

static int offer_variants(const struct plan *p, int32_t block_m, int32_t tile_n)
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
        return offer->reject(offer, "sim", "sim_*", "dtype",
                             "hidden states have to be torch.bfloat16, not %s", mf_dtype_name(shape->dtype));
    struct plan p = make_plan(device, shape, offer);
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
    .name = "sim",
    .device_kind = "sim",
    .enumerate = sim_enumerate,
    .open = sim_open_step,
    .launch = sim_launch,
    .close = sim_close,
};
