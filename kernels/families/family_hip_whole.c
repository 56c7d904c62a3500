#include "kernels/families/family_hip_whole.h"

#include "common/base/text.h"
#include "common/moe/layer.h"
#include "kernels/fusion/fusion.h"

bool mf_hip_whole_allowed(const struct mf_shape *s, int64_t tokens_max, struct mf_refusal *no)
{
    const struct mf_fusion_caps caps = {
        .prologue = MF_OP_BIT(MF_OP_QUANT1) | MF_OP_BIT(MF_OP_GATHER),
        .epilogue = MF_OP_BIT(MF_OP_WEIGHT) | MF_OP_BIT(MF_OP_ACT) | MF_OP_BIT(MF_OP_QUANT2) |
                    MF_OP_BIT(MF_OP_COMBINE),
        .whole_rows = true,
        .all_rows = true,
        .both_gemms = true,
        .accumulates = true,
        .sorts = true,
        .tokens_max = tokens_max,
    };
    return mf_cpu_may_cover(s, mf_layer_ops(s), 1, &caps, no);
}

struct mf_step mf_hip_whole_step(const char *family, const struct mf_shape *shape, bool sliced)
{
    struct mf_step s = {.stage = MF_STAGE_ONE, .covers = mf_layer_ops(shape)};
    (void)mf_copy(s.family, sizeof(s.family), family);
    mf_step_need(&s, mf_cpu_bf16(MF_TENSOR_X, "token", 0));
    mf_step_need(&s, mf_cpu_topk());
    mf_step_need(&s, mf_plain_w(shape, MF_TENSOR_W1, mf_hip_weights_order(shape, MF_TENSOR_W1, sliced)));
    mf_step_need(&s, mf_plain_w(shape, MF_TENSOR_W2, mf_hip_weights_order(shape, MF_TENSOR_W2, sliced)));
    if (shape->has_b1)
        mf_step_need(&s, mf_plain_bias(MF_TENSOR_B1));
    if (shape->has_b2)
        mf_step_need(&s, mf_plain_bias(MF_TENSOR_B2));
    mf_step_give(&s, mf_cpu_bf16(MF_TENSOR_Y, "token", 0));
    s.flops = mf_layer_flops(shape);
    s.bytes = mf_layer_expected_active(shape) *
                  (mf_cpu_expert_bytes(shape, MF_TENSOR_W1) + mf_cpu_expert_bytes(shape, MF_TENSOR_W2)) +
              (double)shape->token * shape->model_dim * 4;
    return s;
}

const float *mf_hip_whole_bias(const struct mf_launch *l, const struct mf_shape *s, enum mf_tensor b)
{
    if (b == MF_TENSOR_B1)
        return s->has_b1 ? l->needs[4].part[0] : NULL;
    return s->has_b2 ? l->needs[s->has_b1 ? 5 : 4].part[0] : NULL;
}

void mf_hip_whole_define(struct mf_code *c, const struct mf_shape *s, enum mf_hip_format format)
{
    mf_code_define(c, "MF_FORMAT=%d", (int)format);
    mf_code_define(c, "MF_H=%d", s->model_dim);
    mf_code_define(c, "MF_I=%d", s->inter_dim);
    mf_code_define(c, "MF_K=%d", s->topk);
    mf_code_define(c, "MF_HALVES1=%d", s->use_g1u1 ? 2 : 1);
    if (s->has_b1)
        mf_code_define(c, "MF_BIAS1");
    if (s->has_b2)
        mf_code_define(c, "MF_BIAS2");
    mf_code_define(c, "MF_WEIGHT1=%d", s->doweight_stage1);
    mf_hip_define_gate_up(c, s);
    mf_hip_define_fnuz(c, s);
    mf_hip_define_activation(c, s);
}
