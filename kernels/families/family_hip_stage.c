#include "kernels/families/family_hip_stage.h"

#include <math.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/layer.h"
#include "kernels/fusion/fusion.h"

#define BOX   128 /* bytes per row in a TMA box, except for 4-bit weights */
#define PANEL 128 /* rows per panel of layout panel128, which stores BOX bytes of a row contiguously */

/* Relative change of a row when one bf16 addition is reordered. */
#define ADDED_APART 0x1p-8

const char *mf_hip_out_word(enum mf_hip_out out)
{
    static const char *const words[] = {[MF_HIP_TO_H] = "",
                                        [MF_HIP_TO_HQ] = "_q",
                                        [MF_HIP_TO_Z] = "_z",
                                        [MF_HIP_TO_ZW] = "_zw",
                                        [MF_HIP_TO_Y] = "_y"};
    return words[out];
}

/* True if the stage multiplies by the routing weight. */
static bool weighs(const struct mf_hip_stage *st, const struct mf_shape *s)
{
    return st->stage == 1 ? s->doweight_stage1
                          : st->out == MF_HIP_TO_ZW || (st->out == MF_HIP_TO_Y && !s->doweight_stage1);
}

static bool has_bias(const struct mf_hip_stage *st, const struct mf_shape *s)
{
    return st->stage == 1 ? s->has_b1 : s->has_b2;
}

static mf_ops covers_of(const struct mf_hip_stage *st, const struct mf_shape *s)
{
    mf_ops weight = weighs(st, s) ? MF_OP_BIT(MF_OP_WEIGHT) : 0;
    if (st->stage == 1)
        return MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT) | weight |
               (st->out == MF_HIP_TO_HQ ? MF_OP_BIT(MF_OP_QUANT2) : 0);
    return MF_OP_BIT(MF_OP_GEMM2) | weight | (st->out == MF_HIP_TO_Y ? MF_OP_BIT(MF_OP_COMBINE) : 0);
}

bool mf_hip_stage_exists(const struct mf_hip_stage *st, const struct mf_shape *s)
{
    bool first = st->out == MF_HIP_TO_H || st->out == MF_HIP_TO_HQ;
    return first == (st->stage == 1) && (st->out != MF_HIP_TO_ZW || !s->doweight_stage1) &&
           (st->out != MF_HIP_TO_HQ || s->q_type == MF_QTYPE_PER_1X128);
}

bool mf_hip_stage_allowed(const struct mf_hip_stage *st, const struct mf_shape *s, struct mf_refusal *no)
{
    struct mf_fusion_caps caps = {
        .prologue = MF_OP_BIT(MF_OP_GATHER),
        .epilogue = MF_OP_BIT(MF_OP_WEIGHT) | MF_OP_BIT(MF_OP_ACT) | MF_OP_BIT(MF_OP_QUANT2),
        .block_n = mf_hip_stage_columns(st),
    };
    if (st->out == MF_HIP_TO_Y) {
        caps.epilogue |= MF_OP_BIT(MF_OP_COMBINE);
        caps.accumulates = true;
    }
    return mf_cpu_may_cover(s, covers_of(st, s), st->block_m, &caps, no);
}

static void describe_stage1(const struct mf_hip_stage *st, const struct mf_shape *shape, struct mf_step *s)
{
    double slots = mf_cpu_slots(shape), H = shape->model_dim, I = shape->inter_dim;
    s->stage = MF_STAGE_STAGE1;
    mf_step_need(s, mf_plain_x(shape));
    mf_step_need(s, mf_cpu_sorted(st->block_m));
    mf_step_need(s, mf_plain_w(shape, MF_TENSOR_W1, mf_hip_weights_order(shape, MF_TENSOR_W1, st->sliced)));
    if (shape->has_b1)
        mf_step_need(s, mf_plain_bias(MF_TENSOR_B1));
    mf_step_give(s, st->out == MF_HIP_TO_HQ ? mf_plain_h(shape, st->block_m)
                                            : mf_cpu_bf16(MF_TENSOR_H, "sorted", st->block_m));
    if (st->zeroes)
        mf_step_give(s, mf_hip_zeroed_y());
    s->flops = slots * 2 * H * (double)mf_gemm1_cols(shape);
    s->bytes = mf_layer_expected_active(shape) * mf_cpu_expert_bytes(shape, MF_TENSOR_W1) +
               (double)shape->token * mf_cpu_row_bytes(shape, (int64_t)H) +
               slots * (st->out == MF_HIP_TO_HQ ? mf_cpu_row_bytes(shape, (int64_t)I) : I * 2) +
               (st->zeroes ? (double)shape->token * H * 2 : 0);
}

double mf_hip_stage_reorder_tolerance(const struct mf_shape *s)
{
    return ADDED_APART * sqrt(s->topk);
}

static void describe_stage2(const struct mf_hip_stage *st, const struct mf_shape *shape, struct mf_step *s)
{
    double slots = mf_cpu_slots(shape), H = shape->model_dim, I = shape->inter_dim;
    s->stage = MF_STAGE_STAGE2;
    mf_step_need(s, mf_plain_h(shape, st->block_m));
    mf_step_need(s, mf_cpu_sorted(st->block_m));
    mf_step_need(s, mf_plain_w(shape, MF_TENSOR_W2, mf_hip_weights_order(shape, MF_TENSOR_W2, st->sliced)));
    if (shape->has_b2)
        mf_step_need(s, mf_plain_bias(MF_TENSOR_B2));
    if (st->out == MF_HIP_TO_Y) {
        mf_step_need(s, mf_hip_zeroed_y());
        mf_step_give(s, mf_cpu_bf16(MF_TENSOR_Y, "token", 0));
        s->reorder_tolerance = mf_hip_stage_reorder_tolerance(shape);
    } else {
        mf_step_give(s, mf_cpu_bf16(st->out == MF_HIP_TO_Z ? MF_TENSOR_Z : MF_TENSOR_ZW, "slot", 0));
    }
    s->flops = slots * 2 * H * I;
    s->bytes = mf_layer_expected_active(shape) * mf_cpu_expert_bytes(shape, MF_TENSOR_W2) +
               slots * mf_cpu_row_bytes(shape, (int64_t)I) +
               (st->out == MF_HIP_TO_Y ? (double)shape->token : slots) * H * 2;
}

struct mf_step mf_hip_stage_step(const struct mf_hip_stage *st, const char *family,
                                 const struct mf_shape *shape)
{
    struct mf_step s = {.block_m = st->block_m, .covers = covers_of(st, shape)};
    (void)mf_copy(s.family, sizeof(s.family), family);
    if (st->stage == 1)
        describe_stage1(st, shape, &s);
    else
        describe_stage2(st, shape, &s);
    return s;
}

void mf_hip_stage_define(struct mf_code *c, const struct mf_hip_stage *st, const struct mf_shape *s)
{
    mf_code_define(c, "MF_STAGE=%d", st->stage);
    mf_code_define(c, "MF_N=%d", mf_hip_stage_width(st, s));
    mf_code_define(c, "MF_D=%d", mf_hip_stage_length(st, s));
    mf_code_define(c, "MF_K=%d", s->topk);
    mf_code_define(c, "MF_WEIGHT=%d", weighs(st, s));
    mf_code_define(c, "MF_HALVES=%d", st->halves);
    mf_code_define(c, "MF_BM=%d", st->block_m);
    mf_code_define(c, "MF_BN=%d", st->block_n);
    if (has_bias(st, s))
        mf_code_define(c, "MF_BIAS");
    if (st->out == MF_HIP_TO_HQ)
        mf_code_define(c, "MF_QUANT");
    if (st->out == MF_HIP_TO_Y)
        mf_code_define(c, "MF_ADD");
    mf_hip_define_fnuz(c, s);
    if (st->stage == 1) {
        mf_hip_define_gate_up(c, s);
        mf_hip_define_activation(c, s);
    }
}

struct mf_hip_tile_args mf_hip_stage_args(const struct mf_hip_stage *st, const struct mf_shape *s,
                                          const struct mf_launch *l)
{
    const struct mf_tensor_ref *x = &l->needs[0], *sorted = &l->needs[1], *w = &l->needs[2];
    return (struct mf_hip_tile_args){
        .x = x->part[0],
        .x_scale = x->part[1],
        .w = w->part[0],
        .w_scale = w->part[1],
        .x_global = x->part[2],
        .w_global = w->part[2],
        .bias = has_bias(st, s) ? l->needs[3].part[0] : NULL,
        .sorted_ids = sorted->part[0],
        .sorted_weights = sorted->part[1],
        .experts = sorted->part[2],
        .num_valid = sorted->part[3],
        .out = l->gives[0].part[0],
        .out_scale = st->out == MF_HIP_TO_HQ ? l->gives[0].part[1] : NULL,
        .token = (int32_t)s->token,
    };
}

int32_t mf_hip_stage_tile_columns(const struct mf_hip_stage *st, const struct mf_shape *s,
                                  const struct mf_device_info *device)
{
    int columns = mf_hip_stage_columns(st), all = (mf_hip_stage_width(st, s) + columns - 1) / columns;
    int64_t bytes = s->token * columns * 2;
    if (st->out != MF_HIP_TO_Y)
        return all;
    return (int32_t)MF_MAX(1, MF_MIN((int64_t)device->llc_bytes / 3 / bytes, all));
}

int mf_hip_stage_map_weights(const struct mf_hip_stage *st, const struct mf_shape *s,
                             struct mf_device *device, int bits, void *w, struct mf_hip_weights *ret)
{
    uint64_t bytes = bits == 16 ? 2 : 1, row = (uint64_t)mf_hip_stage_length(st, s) * (uint64_t)bits / 8;
    uint64_t N = (uint64_t)mf_hip_stage_width(st, s), halves = (uint64_t)st->halves;
    int gate_rows = st->stage == 1 ? mf_hip_w1_layout(s)->gate_rows : 0;
    uint64_t turn = gate_rows > 0 ? (uint64_t)gate_rows : N; /* rows from a gate row to its up row */
    uint32_t columns = (uint32_t)mf_hip_stage_columns(st);
    struct mf_tma_tensor t = {
        .at = w,
        .element_bytes = (int)bytes,
        .unswizzled = bits == 4,
        .rank = 5,
        .length = {row / bytes, 8, halves, N / 8, (uint64_t)s->expert},
        .stride = {bytes, row, turn * row, 8 * row, halves * N * row},
        .box = {bits == 4 ? MF_HIP_NARROW_BOX : (uint32_t)(BOX / bytes), 8, (uint32_t)halves, columns / 8, 1},
    };
    struct mf_hip_weights weights = {.slice_0 = (int32_t)t.box[0], .log_panel = 31};
    if (st->sliced) {
        const uint32_t each = MF_MIN(columns, PANEL);
        t.length[0] = BOX / bytes;
        t.length[3] = PANEL / 8 * (row / BOX);
        t.length[4] = (uint64_t)s->expert * halves * N / PANEL;
        t.stride[1] = BOX;
        t.stride[3] = 8 * BOX;
        t.stride[4] = PANEL * row;
        t.box[3] = each / 8;
        t.box[4] = columns / each;
        weights.slice_0 = 0;
        weights.slice_3 = PANEL / 8;
        weights.log_panel = __builtin_ctz(PANEL);
    } else if (gate_rows == 1) {
        t.stride[1] *= 2;
        t.stride[3] *= 2;
    } else if (gate_rows > 1) {
        t.length[3] = turn / 8;
        t.length[4] = (uint64_t)s->expert * N / turn;
        t.stride[4] = 2 * turn * row;
        t.box[3] = (uint32_t)(turn / 8);
        t.box[4] = columns / (uint32_t)gate_rows;
        weights.log_panel = __builtin_ctz((unsigned)gate_rows);
    }
    weights.panels = (int32_t)(t.length[4] / (uint64_t)s->expert);
    int r = device->ops->tensor_map(device, &t, &weights.map);
    if (r == 0)
        *ret = weights;
    return r;
}
