#include "kernels/sim/sim_plan.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

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

struct mf_sim_plan mf_sim_plan_make(const struct mf_device_info *device, const struct mf_shape *s,
                                    struct mf_offer *offer)
{
    struct mf_sim_plan p = {.shape = s,
                            .device = device,
                            .offer = offer,
                            .rows = (double)(s->token * s->topk) * mf_shape_local_fraction(s),
                            .n1 = (s->use_g1u1 ? 2.0 : 1.0) * s->inter_dim};
    bool typed = s->q_type != MF_QTYPE_NO;
    p.quantised = typed && s->q_dtype_a != s->dtype;
    p.format_a = p.quantised ? format_of(s->q_dtype_a) : MF_FORMAT_BF16;
    p.scale_a = p.quantised ? scale_of(s->q_type, false) : MF_SCALE_NONE;
    p.format_w = typed ? format_of(s->q_dtype_w) : MF_FORMAT_BF16;
    p.scale_w = typed && s->q_dtype_w != s->dtype ? scale_of(s->q_type, true) : MF_SCALE_NONE;
    p.active = MF_MAX(mf_layer_expected_active(s), 1.0);
    return p;
}

struct mf_tensor_spec mf_sim_tensor_spec(enum mf_tensor tensor, enum mf_format format, enum mf_scale scale,
                                         const char *order, int32_t block)
{
    struct mf_tensor_spec a = {.tensor = tensor, .format = format, .scale = scale, .block = block};
    (void)mf_copy(a.order, sizeof(a.order), order);
    return a;
}

struct mf_tensor_spec mf_sim_x_plain(void)
{
    return mf_sim_tensor_spec(MF_TENSOR_X, MF_FORMAT_BF16, MF_SCALE_NONE, "token", 0);
}

struct mf_tensor_spec mf_sim_x(const struct mf_sim_plan *p)
{
    return mf_sim_tensor_spec(MF_TENSOR_X, p->format_a, p->scale_a, "token", 0);
}

struct mf_tensor_spec mf_sim_h(const struct mf_sim_plan *p, int32_t block_m, bool quantised)
{
    return quantised ? mf_sim_tensor_spec(MF_TENSOR_H, p->format_a, p->scale_a, "sorted", block_m)
                     : mf_sim_tensor_spec(MF_TENSOR_H, MF_FORMAT_BF16, MF_SCALE_NONE, "sorted", block_m);
}

struct mf_tensor_spec mf_sim_sorted(int32_t block_m)
{
    return mf_sim_tensor_spec(MF_TENSOR_SORTED, MF_FORMAT_INDEX, MF_SCALE_NONE, "sorted", block_m);
}

struct mf_tensor_spec mf_sim_topk(void)
{
    return mf_sim_tensor_spec(MF_TENSOR_TOPK, MF_FORMAT_INDEX, MF_SCALE_NONE, "token", 0);
}

struct mf_tensor_spec mf_sim_y(bool zeroed)
{
    struct mf_tensor_spec y = mf_sim_tensor_spec(MF_TENSOR_Y, MF_FORMAT_BF16, MF_SCALE_NONE, "token", 0);
    y.zeroed = zeroed;
    return y;
}

void mf_sim_need(struct mf_step *step, struct mf_tensor_spec a)
{
    step->needs[step->n_needs++] = a;
}

void mf_sim_give(struct mf_step *step, struct mf_tensor_spec a)
{
    step->gives[step->n_gives++] = a;
}

double mf_sim_bytes(enum mf_dtype dtype, double elements)
{
    return elements * mf_dtype_bits(dtype) / 8;
}

double mf_sim_weight_bytes(const struct mf_sim_plan *p, double n, double k)
{
    return mf_sim_bytes(p->format_w == MF_FORMAT_BF16 ? MF_DTYPE_BF16 : p->shape->q_dtype_w,
                        p->active * n * k);
}
