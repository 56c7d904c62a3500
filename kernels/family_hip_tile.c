/* tile on GPUs: the two stages of kernels/hip/tile.hip. A step's name is its parameters:
 *
 *     s1_bf16_silu_m16_n128_s5_w4x1[_w][_q]     gather+gemm1+act into bf16 h; _w: routing weight before act; _q: into
 *                                               quantised h, where a tile has whole groups of 128 columns
 *     s2_bf16_m16_n128_s5_w4x1_z|zw             gemm2 into z, or weighted z
 *
 * m rows of an expert block, n weight rows of a tile, s slices in the ring, w waves over weight rows x tokens; g in place of
 * w: groups of four waves with Hopper's wgmma. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/text.h"
#include "kernels/family_hip.h"
#include "kernels/fusion.h"
#include "kernels/hip/args.h"

#define SLICE 128

struct variant {
    int block_m, block_n, stages, warps_n, warps_m;
    int blocks;        /* of an SM at once; what registers allow */
    bool block_scales; /* has room for the second sums that scales of 1x128 need */
    bool wgmma;
};

/* clang-format off */
static const struct variant variants[] = {
    {16,  64,  6, 2, 1, 4, true,  false}, {16,  64,  8, 4, 1, 3, true,  false}, {16,  128, 4, 4, 1, 3, true,  false},
    {16,  128, 6, 4, 1, 2, true,  false}, {16,  256, 3, 8, 1, 2, true,  false}, {16,  256, 6, 8, 1, 1, true,  false},
    {32,  64,  6, 4, 1, 3, true,  false}, {32,  128, 4, 4, 1, 2, true,  false}, {32,  128, 5, 4, 1, 2, true,  false},
    {48,  128, 4, 4, 1, 2, true,  false}, {64,  128, 3, 4, 2, 2, true,  false}, {128, 128, 3, 4, 2, 2, true,  false},
    {128, 256, 4, 4, 2, 1, false, false},
    {16,  128, 6, 8,  1, 2, true, true},  {16,  256, 3, 16, 1, 2, true, true},  {16,  256, 6, 16, 1, 1, true, true},
    {32,  128, 5, 8,  1, 2, true, true},  {32,  256, 5, 16, 1, 1, true, true},  {48,  128, 4, 8,  1, 2, true, true},
    {64,  128, 4, 8,  1, 2, true, true},  {64,  256, 5, 16, 1, 1, true, true},  {96,  128, 3, 8,  1, 2, true, true},
    {96,  128, 4, 8,  1, 1, true, true},  {96,  256, 4, 16, 1, 1, true, true},  {128, 128, 3, 8,  1, 2, true, true},
    {128, 128, 6, 8,  1, 1, true, true},  {128, 256, 4, 16, 1, 1, true, true},  {192, 128, 5, 8,  1, 1, false, true},
    {192, 256, 3, 16, 1, 1, false, true}, {256, 128, 4, 8,  1, 1, false, true},
};
/* clang-format on */

/* AMD: two slices, one that is read and one that lands. */
#define AMD(m, n, wn, wm, at_once)                                                                \
    {                                                                                             \
        .block_m = m, .block_n = n, .stages = 2, .warps_n = wn, .warps_m = wm, .blocks = at_once, \
        .block_scales = true                                                                      \
    }
/* clang-format off */
static const struct variant amd_variants[] = {
    AMD(16, 64, 4, 1, 3),  AMD(16, 128, 4, 1, 1), AMD(16, 128, 8, 1, 1), AMD(32, 64, 4, 1, 2),  AMD(32, 128, 4, 1, 1),
    AMD(48, 128, 4, 1, 1), AMD(64, 64, 2, 2, 2),  AMD(64, 128, 2, 2, 1), AMD(96, 128, 2, 2, 1), AMD(128, 64, 2, 2, 1),
    AMD(128, 128, 2, 2, 1),
    /* of gfx950's larger LDS */
    AMD(16, 256, 8, 1, 1), AMD(32, 256, 8, 1, 1), AMD(64, 256, 4, 2, 1), AMD(128, 256, 4, 2, 1),
};
/* clang-format on */

static const struct variant *variants_of(const struct mf_device_info *device, size_t *ret_n)
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    *ret_n = machine->copies_held ? MF_ARRAY_LEN(amd_variants) : MF_ARRAY_LEN(variants);
    return machine->copies_held ? amd_variants : variants;
}

enum out { TO_H, TO_HQ, TO_Z, TO_ZW };
static const char *const out_words[] = {[TO_H] = "", [TO_HQ] = "_q", [TO_Z] = "_z", [TO_ZW] = "_zw"};

struct config {
    int stage; /* 1, 2 */
    const struct variant *v;
    enum out out;
};

struct mf_kernel {
    struct mf_shape shape;
    struct config config;
    enum mf_hip_format format;
    struct mf_hip_function function;
    struct mf_grid grid;
};

/* ---- legality and names ---- */

static bool weighs(const struct config *c, const struct mf_shape *s)
{
    return c->stage == 1 ? s->doweight_stage1 : c->out == TO_ZW;
}

static mf_ops covers_of(const struct mf_shape *s, const struct config *c)
{
    mf_ops weight = weighs(c, s) ? MF_OP_BIT(MF_OP_WEIGHT) : 0;
    if (c->stage == 1)
        return MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT) | weight |
               (c->out == TO_HQ ? MF_OP_BIT(MF_OP_QUANT2) : 0);
    return MF_OP_BIT(MF_OP_GEMM2) | weight;
}

static int columns_of(const struct config *c)
{
    return c->stage == 1 ? c->v->block_n / 2 : c->v->block_n;
}

static uint32_t shared_bytes(const struct mf_hip_machine *machine, const struct config *c,
                             enum mf_hip_format format)
{
    const struct variant *v = c->v;
    int slice = (v->block_n + v->block_m) * SLICE + (format == MF_HIP_FP8_BLOCK ? (v->block_m + 8) * 4 : 0);
    slice = (slice + 1023) / 1024 * 1024;
    int ring = v->stages * slice, out = v->block_m * (columns_of(c) + 8) * 2;
    return (uint32_t)(machine->copies_held ? MF_MAX(ring, out) : ring + out);
}

static void print_name(const struct config *c, const struct mf_shape *s, char buf[MF_STEP_NAME_MAX])
{
    const struct variant *v = c->v;
    char format[MF_FORMAT_WORD_MAX], waves[24];
    mf_cpu_format_word(s, format);
    if (v->wgmma)
        mf_say(waves, sizeof(waves), "g%d", v->warps_n / 4);
    else
        mf_say(waves, sizeof(waves), "w%dx%d", v->warps_n, v->warps_m);
    if (c->stage == 1)
        mf_say(buf, MF_STEP_NAME_MAX, "s1_%s_%s_m%d_n%d_s%d_%s%s%s", format, mf_cpu_act_word(s), v->block_m,
               v->block_n, v->stages, waves, s->doweight_stage1 ? "_w" : "", out_words[c->out]);
    else
        mf_say(buf, MF_STEP_NAME_MAX, "s2_%s_m%d_n%d_s%d_%s%s", format, v->block_m, v->block_n, v->stages,
               waves, out_words[c->out]);
}

static bool is_legal(const struct config *c, const struct mf_shape *s, enum mf_hip_format format,
                     const struct mf_device_info *device, struct mf_refusal *no)
{
    const struct variant *v = c->v;
    int columns = columns_of(c), n = c->stage == 1 ? s->inter_dim : s->model_dim;
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    int threads = v->warps_n * v->warps_m * machine->wave;
    uint32_t shared = shared_bytes(machine, c, format);
    no->rule = NULL;
    if (v->wgmma && strcmp(device->class.gfx, "sm_90") != 0)
        mf_refuse(no, "arch", "wgmma is an instruction of sm_90; the device is %s", device->class.gfx);
    else if (c->out == TO_HQ && columns % 128)
        mf_refuse(no, "divisibility", "a tile has %d columns; groups of 128 are quantised within one tile",
                  columns);
    else if (columns > n && columns > 64)
        mf_refuse(no, "divisibility", "a tile has %d columns and stage %d only %d", columns, c->stage, n);
    else if (shared > (uint32_t)machine->shared_block)
        mf_refuse(no, "lds", "%d slices of %d + %d rows need %u bytes of LDS; a block has %d", v->stages,
                  v->block_n, v->block_m, shared, machine->shared_block);
    else if (format == MF_HIP_FP8_BLOCK && !v->block_scales)
        mf_refuse(
            no, "registers",
            "scales of 1x128 need a second set of sums; %d x %d rows over %d waves leave no registers for it",
            v->block_n, v->block_m, v->warps_n * v->warps_m);
    else if (format == MF_HIP_FP8_BLOCK && (c->stage == 1 && s->inter_dim % 128))
        mf_refuse(no, "divisibility",
                  "inter_dim is %d: with scales of 128x128 the rows of up have to start a block of their own "
                  "(remainder "
                  "%d)",
                  s->inter_dim, s->inter_dim % 128);
    else if (format == MF_HIP_FP8_BLOCK && threads < v->block_m + 8)
        mf_refuse(no, "threads", "%d threads copy %d scales of a slice, one each", threads, v->block_m + 8);
    return !no->rule;
}

/* Whether the rules of fusion let a stage cover what it does. */
static bool may_cover(const struct mf_shape *s, const struct config *c, struct mf_refusal *no)
{
    static const struct mf_fusion_caps caps = {
        .prologue = MF_OP_BIT(MF_OP_GATHER),
        .epilogue = MF_OP_BIT(MF_OP_WEIGHT) | MF_OP_BIT(MF_OP_ACT) | MF_OP_BIT(MF_OP_QUANT2),
    };
    struct mf_fusion_caps own = caps;
    own.block_n = columns_of(c);
    struct mf_fusion_question q = {.ops = covers_of(s, c), .block_m = c->v->block_m, .caps = &own};
    struct mf_fusion_verdict v;
    if (mf_fusion_allows(s, &q, &v))
        return true;
    mf_refuse(no, v.rule, "%s", v.reason);
    return false;
}

struct walk {
    const struct mf_device_info *device;
    const struct mf_shape *shape;
    enum mf_hip_format format;
    struct mf_offer *offer;
    const char *name; /* searched for */
    struct config found;
};
typedef int (*each_fn)(struct walk *w, const struct config *c);

static int each(struct walk *w, int stage, each_fn f)
{
    const struct mf_shape *s = w->shape;
    size_t n;
    const struct variant *of = variants_of(w->device, &n);
    for (size_t i = 0; i < n; i++) {
        for (enum out out = stage == 1 ? TO_H : TO_Z; out <= (stage == 1 ? TO_HQ : TO_ZW); out++) {
            struct config c = {.stage = stage, .v = &of[i], .out = out};
            if ((out == TO_ZW && s->doweight_stage1) || (out == TO_HQ && s->q_type != MF_QTYPE_PER_1X128))
                continue;
            int r = f(w, &c);
            if (r != 0)
                return r;
        }
    }
    return 0;
}

/* ---- steps ---- */

static void describe_stage1(const struct config *c, const struct mf_shape *shape, struct mf_step *s)
{
    double slots = (double)shape->token * shape->topk, H = shape->model_dim, I = shape->inter_dim;
    s->stage = MF_STAGE_STAGE1;
    mf_step_need(s, mf_plain_x(shape));
    mf_step_need(s, mf_cpu_sorted(c->v->block_m));
    mf_step_need(s, mf_plain_w(shape, MF_TENSOR_W1, "row"));
    mf_step_give(s, c->out == TO_HQ ? mf_plain_h(shape, c->v->block_m)
                                    : mf_cpu_bf16(MF_TENSOR_H, "sorted", c->v->block_m));
    s->flops = slots * 4 * H * I;
    s->bytes = mf_cpu_expected_active(shape) * mf_cpu_expert_bytes(shape, MF_TENSOR_W1) +
               (double)shape->token * mf_cpu_row_bytes(shape, (int64_t)H) +
               slots * (c->out == TO_HQ ? mf_cpu_row_bytes(shape, (int64_t)I) : I * 2);
}

static void describe_stage2(const struct config *c, const struct mf_shape *shape, struct mf_step *s)
{
    double slots = (double)shape->token * shape->topk, H = shape->model_dim, I = shape->inter_dim;
    s->stage = MF_STAGE_STAGE2;
    mf_step_need(s, mf_plain_h(shape, c->v->block_m));
    mf_step_need(s, mf_cpu_sorted(c->v->block_m));
    mf_step_need(s, mf_plain_w(shape, MF_TENSOR_W2, "row"));
    mf_step_give(s, mf_cpu_bf16(c->out == TO_Z ? MF_TENSOR_Z : MF_TENSOR_ZW, "slot", 0));
    s->flops = slots * 2 * H * I;
    s->bytes = mf_cpu_expected_active(shape) * mf_cpu_expert_bytes(shape, MF_TENSOR_W2) +
               slots * mf_cpu_row_bytes(shape, (int64_t)I) + slots * H * 2;
}

static void describe(const struct config *c, const struct mf_shape *shape, struct mf_step *ret)
{
    struct mf_step s = {.family = "tile", .block_m = c->v->block_m, .covers = covers_of(shape, c)};
    print_name(c, shape, s.name);
    if (c->stage == 1)
        describe_stage1(c, shape, &s);
    else
        describe_stage2(c, shape, &s);
    *ret = s;
}

static int offer_step(struct walk *w, const struct config *c)
{
    struct mf_refusal no;
    struct mf_step step;
    char name[MF_STEP_NAME_MAX];
    if (is_legal(c, w->shape, w->format, w->device, &no) && may_cover(w->shape, c, &no)) {
        describe(c, w->shape, &step);
        return w->offer->step(w->offer, &step);
    }
    print_name(c, w->shape, name);
    return w->offer->reject(w->offer, "tile", name, no.rule, "%s", no.reason);
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct walk w = {.device = device, .shape = shape, .offer = offer};
    struct mf_refusal no;
    if (!mf_hip_shape_known(device, shape, &w.format, &no))
        return offer->reject(offer, f->name, f->name, no.rule, "%s", no.reason);
    int r = each(&w, 1, offer_step);
    return r < 0 ? r : each(&w, 2, offer_step);
}

static int match_name(struct walk *w, const struct config *c)
{
    char name[MF_STEP_NAME_MAX];
    print_name(c, w->shape, name);
    if (strcmp(name, w->name) != 0)
        return 0;
    w->found = *c;
    return 1;
}

static int find(const struct mf_device_info *device, const struct mf_shape *shape, const char *name,
                struct walk *ret)
{
    struct mf_refusal no;
    *ret = (struct walk){.device = device, .shape = shape, .name = name};
    if (strncmp(name, "s1_", 3) != 0 && strncmp(name, "s2_", 3) != 0)
        return -EINVAL;
    if (!mf_hip_shape_known(device, shape, &ret->format, &no) || each(ret, name[1] - '0', match_name) != 1 ||
        !is_legal(&ret->found, shape, ret->format, device, &no))
        return -ENOTSUP;
    return 0;
}

/* ---- from a step to a launch ---- */

static void code_of(const struct config *c, const struct mf_shape *s, enum mf_hip_format format,
                    struct mf_code *ret)
{
    const struct variant *v = c->v;
    *ret = (struct mf_code){.source = "tile.hip", .function = "mf_tile"};
    mf_code_define(ret, "MF_STAGE=%d", c->stage);
    mf_code_define(ret, "MF_FORMAT=%d", (int)format);
    mf_code_define(ret, "MF_N=%d", c->stage == 1 ? s->inter_dim : s->model_dim);
    mf_code_define(ret, "MF_D=%d", c->stage == 1 ? s->model_dim : s->inter_dim);
    mf_code_define(ret, "MF_K=%d", s->topk);
    mf_code_define(ret, "MF_WEIGHT=%d", weighs(c, s));
    mf_code_define(ret, "MF_BM=%d", v->block_m);
    mf_code_define(ret, "MF_BN=%d", v->block_n);
    mf_code_define(ret, "MF_STAGES=%d", v->stages);
    mf_code_define(ret, "MF_WARPS_N=%d", v->warps_n);
    mf_code_define(ret, "MF_WARPS_M=%d", v->warps_m);
    mf_code_define(ret, "MF_BLOCKS=%d", v->blocks);
    if (v->wgmma)
        mf_code_define(ret, "MF_WGMMA");
    if (c->out == TO_HQ)
        mf_code_define(ret, "MF_QUANT");
    mf_hip_define_fnuz(ret, s);
    if (c->stage == 1)
        mf_hip_define_activation(ret, s);
}

static int code(const struct mf_device_info *device, const struct mf_shape *shape, const char *name,
                struct mf_code *ret)
{
    struct walk w;
    int r = find(device, shape, name, &w);
    if (r == 0)
        code_of(&w.found, shape, w.format, ret);
    return r;
}

static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret)
{
    struct walk w;
    struct mf_code c;
    (void)f;
    int r = find(&device->info, shape, name, &w);
    if (r < 0)
        return r;
    struct mf_kernel *k = calloc(1, sizeof(*k));
    if (!k)
        return -ENOMEM;
    k->shape = *shape;
    k->config = w.found;
    k->format = w.format;
    code_of(&w.found, shape, w.format, &c);
    r = mf_hip_function_open(device, &c, &k->function);
    if (r < 0) {
        free(k);
        return r;
    }
    const struct variant *v = w.found.v;
    const struct mf_hip_machine *machine = mf_hip_machine_of(&device->info);
    uint32_t shared = shared_bytes(machine, &w.found, w.format);
    uint32_t blocks = MF_MIN((uint32_t)v->blocks,
                             (uint32_t)machine->shared_unit / (shared + (uint32_t)machine->shared_extra));
    k->grid = (struct mf_grid){.x = (uint32_t)device->info.cores * MF_MAX(blocks, 1u),
                               .y = 1,
                               .z = 1,
                               .block = (uint32_t)(v->warps_n * v->warps_m * machine->wave),
                               .shared = shared};
    *ret = k;
    return 0;
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_tensor_ref *x = &l->needs[0], *sorted = &l->needs[1], *w = &l->needs[2];
    const struct mf_hip_tile_args args = {
        .x = x->part[0],
        .x_scale = x->part[1],
        .w = w->part[0],
        .w_scale = w->part[1],
        .sorted_ids = sorted->part[0],
        .sorted_weights = sorted->part[1],
        .experts = sorted->part[2],
        .num_valid = sorted->part[3],
        .out = l->gives[0].part[0],
        .out_scale = k->config.out == TO_HQ ? l->gives[0].part[1] : NULL,
        .token = (int32_t)k->shape.token,
    };
    return mf_hip_launch(&k->function, &k->grid, &args, sizeof(args));
}

static struct mf_kernel *close_step(struct mf_kernel *k)
{
    mf_hip_function_close(&k->function);
    free(k);
    return NULL;
}

const struct mf_family mf_family_hip_tile = {
    .api = MF_FAMILY_API,
    .name = "tile",
    .device_kind = "hip",
    .enumerate = enumerate,
    .open = open_step,
    .launch = launch,
    .close = close_step,
    .code = code,
};
