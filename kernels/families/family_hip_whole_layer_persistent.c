/* Family whole_layer_persistent on GPUs: the whole layer in one launch of the Hopper core
 * (kernels/gpu/src/hopper/layer.hip), for token counts large enough for matrix instructions.
 * family_hip_both.h describes the step names. */
#include "common/base/cleanup.h"
#include "kernels/families/family_hip_both.h"
#include "kernels/families/family_hip_whole.h"
#include "kernels/gpu/src/args.h"

/* Every thread block sorts all slots redundantly. */
#define SLOTS_MAX 8192

static const struct mf_hip_both_variant variants[] = {
    {32, 256, false, false, false}, {64, 256, false, false, false}, {96, 256, false, false, false},
    {64, 256, false, true, false},  {128, 256, false, true, false}, {32, 128, false, false, false},
    {96, 128, true, false, false},  {32, 128, true, false, false},  {64, 256, true, true, false},
};

/* Returns the bytes for the number of row blocks and the expert of each row block. */
static int experts_bytes(const struct mf_shape *s, int block_m)
{
    return (int)(mf_padded_rows(s, block_m) / block_m + 2) * 4;
}

/* ---- legality ---- */

/* Checks that do not depend on the variant. */
static bool takes(const struct mf_device_info *device, const struct mf_shape *s,
                  enum mf_hip_format *ret_format, struct mf_refusal *no)
{
    if (!mf_hip_both_takes("whole_layer_persistent", device, s, ret_format, no))
        return false;
    if (*ret_format == MF_HIP_FP8_BLOCK && s->model_dim % 128)
        mf_refuse(no, "divisibility",
                  "model_dim %d is not a multiple of 128 (remainder %d): x is quantised in groups of 128",
                  s->model_dim, s->model_dim % 128);
    else if (s->token * s->topk > SLOTS_MAX)
        mf_refuse(no, "tokens_max",
                  "token is %lld with topk %d; every thread block sorts all slots, which is limited to %d",
                  (long long)s->token, s->topk, SLOTS_MAX);
    else if (s->expert > MF_HIP_HOPPER_THREADS)
        mf_refuse(no, "experts", "expert is %d; the sort uses one thread per expert, %d at most", s->expert,
                  MF_HIP_HOPPER_THREADS);
    else
        return mf_hip_whole_allowed(s, 0, no);
    return false;
}

/* ---- steps ---- */

/* Workspace sections: h, quantised x, sorted order, counters. */
enum { H, H_SCALE, X, X_SCALE, ORDER, DONE, TAKEN, N_PLACES };

static uint64_t lay_out(const struct mf_hip_both *c, const struct mf_shape *s, uint64_t ret[N_PLACES])
{
    bool quantised = s->q_type != MF_QTYPE_NO;
    uint64_t rows = (uint64_t)mf_padded_rows(s, c->v.block_m), T = (uint64_t)s->token;
    uint64_t wide = (uint64_t)s->model_dim, scale, h = mf_hip_both_h(c, s, &scale);
    const uint64_t bytes[N_PLACES] = {
        [H] = h,
        [H_SCALE] = scale,
        [X] = quantised ? T * wide : 0,
        [X_SCALE] = quantised ? T * (wide / 128) * 4 : 0,
        [ORDER] = rows * 8,
        [DONE] = rows / (uint64_t)c->v.block_m * 4,
        [TAKEN] = 2 * 4,
    };
    return mf_hip_both_lay_out(bytes, N_PLACES, ret);
}

static struct mf_step describe(const struct mf_hip_both *c, const struct mf_shape *shape)
{
    struct mf_step s = mf_hip_whole_step(c->family->name, shape, c->sliced);
    uint64_t places[N_PLACES];
    mf_hip_both_name(c, shape, s.name);
    s.block_m = c->v.block_m;
    s.reorder_tolerance = mf_hip_stage_reorder_tolerance(shape);
    s.workspace_bytes = lay_out(c, shape, places);
    return s;
}

static const struct mf_hip_both_family both = {
    .name = "whole_layer_persistent",
    .word = "layer",
    .source = "layer.hip",
    .function = "mf_layer",
    .variants = variants,
    .n_variants = MF_ARRAY_LEN(variants),
    .lds = experts_bytes,
    .takes = takes,
    .describe = describe,
};

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    (void)f;
    return mf_hip_both_enumerate(&both, device, shape, offer);
}

/* ---- launches; the plan is a struct mf_hip_both ---- */

static int find(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *shape,
                const char *name, void *ret_plan)
{
    (void)f;
    return mf_hip_both_find(&both, device, shape, name, ret_plan);
}

static void write_code(const struct mf_device_info *device, const struct mf_shape *shape, const void *plan,
                       struct mf_code *ret)
{
    mf_hip_both_code(plan, device, shape, ret);
    mf_hip_define_rank(ret, shape);
}

/* Launches one block per SM, because all blocks must be resident at once. Shared memory is the same for all
 * token counts, because the number of stages is compiled in. */
static void set_grid(struct mf_kernel *k)
{
    const struct mf_device_info *device = &k->function.device->info;
    uint32_t shared = mf_hip_both_lds(k->plan, device, &k->shape);
    k->grid = (struct mf_grid){(uint32_t)device->cores, 1, 1, MF_HIP_HOPPER_THREADS, shared, true, true};
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_hip_both *plan = k->plan;
    const struct mf_shape *s = &k->shape;
    struct mf_device *device = k->function.device;
    const struct mf_hip_stage up = mf_hip_both_stage(plan, s, 1), down = mf_hip_both_stage(plan, s, 2);
    bool quantised = s->q_type != MF_QTYPE_NO;
    uint64_t places[N_PLACES];
    uint8_t *base = mf_hip_both_workspace(l);
    (void)lay_out(plan, s, places);
    int64_t rows = mf_padded_rows(s, plan->v.block_m);
    struct mf_hip_layer_args a = {
        .up = {.x = quantised ? base + places[X] : l->needs[0].part[0],
               .x_scale = quantised ? (const float *)(base + places[X_SCALE]) : NULL,
               .w = l->needs[2].part[0],
               .w_scale = l->needs[2].part[1],
               .bias = mf_hip_whole_bias(l, s, MF_TENSOR_B1),
               .out = base + places[H],
               .out_scale = quantised ? (float *)(base + places[H_SCALE]) : NULL,
               .token = (int32_t)s->token,
               .columns = mf_hip_stage_tile_columns(&up, s, &device->info)},
        .down = {.x = base + places[H],
                 .x_scale = quantised ? (const float *)(base + places[H_SCALE]) : NULL,
                 .w = l->needs[3].part[0],
                 .w_scale = l->needs[3].part[1],
                 .bias = mf_hip_whole_bias(l, s, MF_TENSOR_B2),
                 .out = l->gives[0].part[0],
                 .token = (int32_t)s->token,
                 .columns = mf_hip_stage_tile_columns(&down, s, &device->info)},
        .ids = l->needs[1].part[0],
        .weights = l->needs[1].part[1],
        .x = l->needs[0].part[0],
        .sorted_ids = (int32_t *)(base + places[ORDER]),
        .sorted_weights = (float *)(base + places[ORDER]) + rows,
        .done = (unsigned int *)(base + places[DONE]),
        .taken = (unsigned int *)(base + places[TAKEN]),
        .rows = (int32_t)rows,
        .token = (int32_t)s->token,
        .types = mf_hip_route_types(l),
    };
    int bits = quantised ? 8 : 16;
    int r = mf_hip_stage_map_weights(&up, s, device, bits, l->needs[2].part[0], &a.w1);
    if (r == 0)
        r = mf_hip_stage_map_weights(&down, s, device, bits, l->needs[3].part[0], &a.w2);
    if (r == 0)
        r = mf_hip_map_h(device, &down, s, base + places[H], &a.h_map);
    return r < 0 ? r : mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static const struct mf_hip_steps steps = {
    .plan_bytes = sizeof(struct mf_hip_both),
    .find = find,
    .code = write_code,
    .open = set_grid,
};

const struct mf_family mf_family_hip_whole_layer_persistent =
    MF_HIP_FAMILY(.name = "whole_layer_persistent", .enumerate = enumerate, .launch = launch,
                  .hip_steps = &steps);
