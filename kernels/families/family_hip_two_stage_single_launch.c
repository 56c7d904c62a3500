/* Family two_stage_single_launch on GPUs: both stages of the grouped GEMM in one launch of the Hopper core
 * (kernels/gpu/src/hopper/pair.hip). Input: sorted, quantised tokens. Output: rows accumulated into y, which
 * the launch or an earlier step zeroes. family_hip_both.h describes the step names. */
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/layer.h"
#include "kernels/families/family_hip_both.h"
#include "kernels/fusion/fusion.h"
#include "kernels/gpu/src/args.h"

/* Minimum token count for which this launch may zero y. With fewer tokens an earlier step zeroes y, because
 * HBM is idle during the sort but not during stage 1. */
#define ZERO_FROM 2048

static const struct mf_hip_both_variant variants[] = {
    {32, 256, false, false, false}, {48, 256, false, false, false}, {64, 256, false, false, false},
    {80, 256, false, false, false}, {96, 256, false, false, true},  {128, 256, false, false, true},
    {64, 128, true, false, false},  {64, 256, false, true, false},  {128, 256, false, true, true},
    {64, 256, true, true, false},
};

struct plan {
    struct mf_hip_both config;
    struct mf_hip_stage up, down;
    struct mf_hip_hopper_order up_order, down_order;
};

/* ---- steps ---- */

/* Workspace sections: h, the scales of h, counters of completed tiles. */
enum { H, H_SCALE, MADE, N_PLACES };

static int64_t n_made(const struct mf_hip_both *c, const struct mf_shape *s)
{
    return mf_padded_rows(s, c->v.block_m) / c->v.block_m + MF_HIP_MADE_OF_BLOCK;
}
static uint64_t lay_out(const struct mf_hip_both *c, const struct mf_shape *s, uint64_t ret[N_PLACES])
{
    uint64_t scale, h = mf_hip_both_h(c, s, &scale);
    const uint64_t bytes[N_PLACES] = {[H] = h, [H_SCALE] = scale, [MADE] = (uint64_t)n_made(c, s) * 4};
    return mf_hip_both_lay_out(bytes, N_PLACES, ret);
}

/* Combines the steps of both stages. Inputs (`needs`): x, sorted, w1, w2, then b1 and b2 if the layer has
 * them, then y. */
static struct mf_step describe(const struct mf_hip_both *c, const struct mf_shape *shape)
{
    const struct mf_hip_stage up_stage = mf_hip_both_stage(c, shape, 1),
                              down_stage = mf_hip_both_stage(c, shape, 2);
    const struct mf_step up = mf_hip_stage_step(&up_stage, c->family->name, shape),
                         down = mf_hip_stage_step(&down_stage, c->family->name, shape);
    struct mf_step s = {.stage = MF_STAGE_ONE,
                        .block_m = c->v.block_m,
                        .covers = up.covers | down.covers,
                        .flops = up.flops + down.flops,
                        .bytes = up.bytes + down.bytes,
                        .reorder_tolerance = down.reorder_tolerance};
    uint64_t places[N_PLACES];
    (void)mf_copy(s.family, sizeof(s.family), c->family->name);
    mf_hip_both_name(c, shape, s.name);
    s.workspace_bytes = lay_out(c, shape, places);
    mf_step_need(&s, up.needs[0]);
    mf_step_need(&s, up.needs[1]);
    mf_step_need(&s, up.needs[2]);
    mf_step_need(&s, down.needs[2]);
    if (shape->has_b1)
        mf_step_need(&s, up.needs[3]);
    if (shape->has_b2)
        mf_step_need(&s, down.needs[3]);
    if (c->zeroes)
        s.bytes += (double)shape->token * shape->model_dim * 2;
    else
        mf_step_need(&s, mf_hip_zeroed_y());
    mf_step_give(&s, down.gives[0]);
    return s;
}

static bool takes(const struct mf_device_info *device, const struct mf_shape *s,
                  enum mf_hip_format *ret_format, struct mf_refusal *no)
{
    const struct mf_fusion_caps caps = {
        .prologue = MF_OP_BIT(MF_OP_GATHER),
        .epilogue = MF_OP_BIT(MF_OP_WEIGHT) | MF_OP_BIT(MF_OP_ACT) | MF_OP_BIT(MF_OP_QUANT2) |
                    MF_OP_BIT(MF_OP_COMBINE),
        .whole_rows = true,
        .both_gemms = true,
        .accumulates = true,
    };
    mf_ops before = MF_OP_BIT(MF_OP_SORT) | MF_OP_BIT(MF_OP_QUANT1);
    return mf_hip_both_takes("two_stage_single_launch", device, s, ret_format, no) &&
           mf_cpu_may_cover(s, mf_layer_ops(s) & ~before, 1, &caps, no);
}

static const struct mf_hip_both_family both = {
    .name = "two_stage_single_launch",
    .word = "pair",
    .source = "pair.hip",
    .function = "mf_pair",
    .variants = variants,
    .n_variants = MF_ARRAY_LEN(variants),
    .zero_from = ZERO_FROM,
    .takes = takes,
    .describe = describe,
};

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    (void)f;
    return mf_hip_both_enumerate(&both, device, shape, offer);
}

/* ---- launches ---- */

static int find(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *shape,
                const char *name, void *ret_plan)
{
    struct plan *plan = ret_plan;
    (void)f;
    int r = mf_hip_both_find(&both, device, shape, name, &plan->config);
    if (r < 0)
        return r;
    plan->up = mf_hip_both_stage(&plan->config, shape, 1);
    plan->down = mf_hip_both_stage(&plan->config, shape, 2);
    return 0;
}

static void write_code(const struct mf_device_info *device, const struct mf_shape *shape, const void *plan,
                       struct mf_code *ret)
{
    mf_hip_both_code(&((const struct plan *)plan)->config, device, shape, ret);
}

static void set_grid(struct mf_kernel *k)
{
    const struct plan *plan = k->plan;
    const struct mf_device_info *device = &k->function.device->info;
    k->grid = mf_hip_persistent_grid(device, MF_HIP_HOPPER_THREADS, 1,
                                     mf_hip_both_lds(&plan->config, device, &k->shape));
    k->grid.programmatic_launch = true;
}

/* Does not change shared memory, because the number of stages is compiled in. */
static void set_token_count(struct mf_kernel *k)
{
    struct plan *plan = k->plan;
    const struct mf_device_info *device = &k->function.device->info;
    plan->up_order = mf_hip_hopper_order_of(&plan->up, &k->shape, device, true);
    plan->down_order = mf_hip_hopper_order_of(&plan->down, &k->shape, device, true);
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct plan *plan = k->plan;
    const struct mf_shape *s = &k->shape;
    struct mf_device *device = k->function.device;
    uint64_t places[N_PLACES];
    uint8_t *base = mf_hip_both_workspace(l);
    (void)lay_out(&plan->config, s, places);
    const struct mf_tensor_ref h = {.part = {base + places[H], base + places[H_SCALE]}};
    struct mf_tensor_ref up_needs[] = {l->needs[0], l->needs[1], l->needs[2], {.part = {NULL}}},
                         down_needs[] = {h, l->needs[1], l->needs[3], {.part = {NULL}}};
    if (s->has_b1)
        up_needs[3] = l->needs[4];
    if (s->has_b2)
        down_needs[3] = l->needs[4 + s->has_b1];
    const struct mf_launch up = {.needs = up_needs, .gives = &h},
                           down = {.needs = down_needs, .gives = l->gives};
    struct mf_hip_pair_args a = {.made = (uint32_t *)(base + places[MADE]),
                                 .n_made = (int32_t)n_made(&plan->config, s)};
    a.up = mf_hip_hopper_args(&plan->up, s, &device->info, &up, &plan->up_order);
    a.down = mf_hip_hopper_args(&plan->down, s, &device->info, &down, &plan->down_order);
    a.up.y = plan->config.zeroes ? l->gives[0].part[0] : NULL;
    int r = mf_hip_hopper_map(&plan->up, s, device, &up, &a.up);
    if (r == 0)
        r = mf_hip_hopper_map(&plan->down, s, device, &down, &a.down);
    return r < 0 ? r : mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static const struct mf_hip_steps steps = {
    .plan_bytes = sizeof(struct plan),
    .find = find,
    .code = write_code,
    .open = set_grid,
    .set_token_count = set_token_count,
};

const struct mf_family mf_family_hip_two_stage_single_launch =
    MF_HIP_FAMILY(.name = "two_stage_single_launch", .enumerate = enumerate, .launch = launch,
                  .hip_steps = &steps);
