/* pair on GPUs: both stages of the grouped GEMM in one launch by Hopper's core (kernels/hip/pair.hip), from tokens that are sorted and
 * quantised to rows that are added to y, which is zeroed before or on the way. Names: family_hip_both.h. */
#include <errno.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/text.h"
#include "kernels/family_hip_both.h"
#include "kernels/fusion.h"
#include "kernels/hip/args.h"

#define ALIGN 256
/* Tokens from which on y is zeroed on the way: with fewer, memory has no time for it in stage 1, but while the sort runs. */
#define ZERO_FROM 2048

static const struct mf_hip_both_variant variants[] = {
    {32, 256, false, false, false}, {48, 256, false, false, false}, {64, 256, false, false, false},
    {80, 256, false, false, false}, {96, 256, false, false, true},  {128, 256, false, false, true},
    {64, 128, true, false, false},  {64, 256, false, true, false},  {128, 256, false, true, true},
    {64, 256, true, true, false},
};
static const struct mf_hip_both_family both = {"pair", variants, MF_ARRAY_LEN(variants), NULL};

struct mf_kernel {
    struct mf_hip_function function; /* first */
    struct mf_shape shape;
    struct mf_hip_both config;
    struct mf_hip_stage up, down;
    struct mf_hip_hopper_order up_order, down_order;
    struct mf_grid grid;
};

/* ---- steps ---- */

static bool is_allowed(const struct mf_shape *s, mf_ops ops, int32_t block_m, struct mf_refusal *no)
{
    const struct mf_fusion_caps caps = {
        .prologue = MF_OP_BIT(MF_OP_GATHER),
        .epilogue = MF_OP_BIT(MF_OP_WEIGHT) | MF_OP_BIT(MF_OP_ACT) | MF_OP_BIT(MF_OP_QUANT2) |
                    MF_OP_BIT(MF_OP_COMBINE),
        .whole_rows = true,
        .both_gemms = true,
        .accumulates = true,
    };
    return mf_cpu_may_cover(s, ops, block_m, &caps, no);
}

/* The workspace: h, and what is counted of its tiles. */
enum { H, H_SCALE, MADE, N_PLACES };

static int64_t n_made(const struct mf_hip_both *c, const struct mf_shape *s)
{
    return mf_padded_rows(s, c->v.block_m) / c->v.block_m + MF_HIP_MADE_OF_BLOCK;
}
static uint64_t lay_out(const struct mf_hip_both *c, const struct mf_shape *s, uint64_t ret[N_PLACES])
{
    uint64_t scale, h = mf_hip_both_h(c, s, &scale), at = 0;
    const uint64_t bytes[N_PLACES] = {[H] = h, [H_SCALE] = scale, [MADE] = (uint64_t)n_made(c, s) * 4};
    for (int i = 0; i < N_PLACES; i++) {
        ret[i] = at;
        at += (bytes[i] + ALIGN - 1) / ALIGN * ALIGN;
    }
    return at;
}

/* What both stages' steps are: x, the sort, w1, w2, then biases of layers that have them, and y. */
static struct mf_step describe(const struct mf_hip_both *c, const struct mf_shape *shape)
{
    const struct mf_hip_stage up_stage = mf_hip_both_stage(c, shape, 1),
                              down_stage = mf_hip_both_stage(c, shape, 2);
    const struct mf_step up = mf_hip_stage_step(&up_stage, both.name, shape),
                         down = mf_hip_stage_step(&down_stage, both.name, shape);
    struct mf_step s = {.stage = MF_STAGE_ONE,
                        .block_m = c->v.block_m,
                        .covers = up.covers | down.covers,
                        .flops = up.flops + down.flops,
                        .bytes = up.bytes + down.bytes,
                        .reorder_tolerance = down.reorder_tolerance};
    uint64_t places[N_PLACES];
    (void)mf_copy(s.family, sizeof(s.family), both.name);
    mf_hip_both_name(c, shape, s.name);
    s.workspace_bytes = lay_out(c, shape, places) + ALIGN;
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

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct mf_refusal no;
    enum mf_hip_format format;
    struct mf_hip_both c;
    if (!mf_hip_both_takes(f->name, device, shape, &format, &no))
        return offer->reject(offer, f->name, f->name, no.rule, "%s", no.reason);
    for (size_t i = 0; mf_hip_both_nth(&both, format, i, &c); i++) {
        if (c.zeroes && shape->token < ZERO_FROM)
            continue;
        const struct mf_step step = describe(&c, shape);
        int r = mf_hip_both_legal(&c, device, shape, &no) && is_allowed(shape, step.covers, step.block_m, &no)
                    ? offer->step(offer, &step)
                    : offer->reject(offer, f->name, step.name, no.rule, "%s", no.reason);
        if (r < 0)
            return r;
    }
    return 0;
}

static int find(const struct mf_device_info *device, const struct mf_shape *s, const char *name,
                struct mf_hip_both *ret, struct mf_code *ret_code)
{
    struct mf_refusal no;
    enum mf_hip_format format;
    if (strncmp(name, "pair_", 5) != 0)
        return -EINVAL;
    if (!mf_hip_both_takes(both.name, device, s, &format, &no) ||
        !mf_hip_both_find(&both, format, device, s, name, ret))
        return -ENOTSUP;
    *ret_code = (struct mf_code){.source = "pair.hip", .function = "mf_pair"};
    mf_hip_both_define(ret_code, ret, device, s);
    return 0;
}

static int code(const struct mf_device_info *device, const struct mf_shape *shape, const char *name,
                struct mf_code *ret)
{
    struct mf_hip_both c;
    return find(device, shape, name, &c, ret);
}

/* ---- launches ---- */

/* LDS stays as it was opened: the ring's slices are part of the code. */
static void retoken(struct mf_kernel *k, int64_t token)
{
    const struct mf_device_info *device = &k->function.device->info;
    k->shape.token = token;
    k->up_order = mf_hip_hopper_order_of(&k->up, &k->shape, device, true);
    k->down_order = mf_hip_hopper_order_of(&k->down, &k->shape, device, true);
}

static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret)
{
    struct mf_hip_both c;
    struct mf_code source;
    (void)f;
    int r = find(&device->info, shape, name, &c, &source);
    if (r < 0)
        return r;
    struct mf_kernel *k;
    r = mf_hip_kernel_new(device, &source, sizeof(*k), &k);
    if (r < 0)
        return r;
    k->shape = *shape;
    k->config = c;
    k->up = mf_hip_both_stage(&c, shape, 1);
    k->down = mf_hip_both_stage(&c, shape, 2);
    k->grid = mf_hip_persistent_grid(&device->info, MF_HIP_HOPPER_THREADS, 1,
                                     mf_hip_both_lds(&c, &device->info, shape));
    k->grid.early = true;
    retoken(k, shape->token);
    *ret = k;
    return 0;
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_shape *s = &k->shape;
    struct mf_device *device = k->function.device;
    uint64_t places[N_PLACES];
    uint8_t *base = (uint8_t *)(((uintptr_t)l->workspace + ALIGN - 1) / ALIGN * ALIGN);
    (void)lay_out(&k->config, s, places);
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
                                 .n_made = (int32_t)n_made(&k->config, s)};
    a.up = mf_hip_hopper_args(&k->up, s, &device->info, &up, &k->up_order);
    a.down = mf_hip_hopper_args(&k->down, s, &device->info, &down, &k->down_order);
    a.up.y = k->config.zeroes ? l->gives[0].part[0] : NULL;
    int r = mf_hip_hopper_map(&k->up, s, device, &up, &a.up);
    if (r == 0)
        r = mf_hip_hopper_map(&k->down, s, device, &down, &a.down);
    return r < 0 ? r : mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

const struct mf_family mf_family_hip_pair = {
    .api = MF_FAMILY_API,
    .name = "pair",
    .device_kind = "hip",
    .enumerate = enumerate,
    .open = open_step,
    .launch = launch,
    .close = mf_hip_kernel_close,
    .retoken = retoken,
    .code = code,
    .shares = true,
};
