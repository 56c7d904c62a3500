/* layer on GPUs: the whole layer in one launch by Hopper's core (kernels/hip/layer.hip), for tokens that matrix instructions
 * multiply.
 *
 *     layer_fp8fn_128_silu_m32_n256_b[_w][_gu1|_p128]     block_m, weight rows of a tile; b, bt, bs, bts as tile has them; _p128: of
 *                                                   weights that lie as panel128 */
#include <errno.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/text.h"
#include "kernels/family_hip_hopper.h"
#include "kernels/family_hip_whole.h"
#include "kernels/hip/args.h"

/* Every block sorts all of them for itself. */
#define SLOTS_MAX  8192
#define STAGES_MIN 3
#define ALIGN      256

struct variant {
    int block_m, block_n;
    bool turns, swapped;
    bool block_scales; /* has room for the second sums that scales of 1x128 need */
};
static const struct variant variants[] = {
    {32, 256, false, false, true}, {64, 256, false, false, true},  {96, 256, false, false, true},
    {64, 256, false, true, true},  {128, 256, false, true, true},  {32, 128, false, false, true},
    {64, 128, false, false, true}, {96, 128, true, false, true},   {32, 128, true, false, true},
    {64, 256, true, true, true},   {128, 256, false, false, true},
};

struct config {
    const struct variant *v;
    bool sliced; /* w1 and w2 lie as panel128 */
};

/* All variants of weights as they are in checkpoints, then all of them in slices. */
#define CONFIGS (2 * MF_ARRAY_LEN(variants))
static struct config nth_config(size_t i)
{
    return (struct config){&variants[i % MF_ARRAY_LEN(variants)], i >= MF_ARRAY_LEN(variants)};
}

struct mf_kernel {
    struct mf_hip_function function; /* first */
    struct mf_shape shape;
    struct config config;
    struct mf_grid grid;
};

/* ---- names, legality ---- */

static void print_name(const struct config *c, const struct mf_shape *s, char buf[MF_STEP_NAME_MAX])
{
    const struct variant *v = c->v;
    char format[MF_FORMAT_WORD_MAX];
    const char *w1 = mf_hip_weights_word(s, MF_TENSOR_W1, c->sliced);
    mf_cpu_format_word(s, format);
    mf_say(buf, MF_STEP_NAME_MAX, "layer_%s_%s_m%d_n%d_b%s%s%s%s%s", format, mf_cpu_act_word(s), v->block_m,
           v->block_n, v->turns ? "t" : "", v->swapped ? "s" : "", s->doweight_stage1 ? "_w" : "",
           *w1 ? "_" : "", w1);
}

static struct mf_hip_stage stage_of(const struct config *c, const struct mf_shape *s, int stage)
{
    enum mf_hip_out h = s->q_type == MF_QTYPE_NO ? MF_HIP_TO_H : MF_HIP_TO_HQ;
    return (struct mf_hip_stage){stage,         mf_hip_stage_halves(stage, s), c->v->block_m,
                                 c->v->block_n, stage == 1 ? h : MF_HIP_TO_Y,  false,
                                 c->sliced};
}

/* Bytes of LDS beside the ring: out, and the expert of each block of rows. */
static int out_bytes(const struct config *c, const struct mf_shape *s)
{
    const struct variant *v = c->v;
    struct mf_hip_stage up = stage_of(c, s, 1), down = stage_of(c, s, 2);
    int columns = MF_MAX(mf_hip_stage_columns(&up), mf_hip_stage_columns(&down));
    return mf_hip_hopper_out(v->block_m, columns, false, v->turns) +
           (int)(mf_padded_rows(s, v->block_m) / v->block_m + 2) * 4;
}
static int stages_of(const struct mf_hip_machine *machine, const struct config *c, const struct mf_shape *s,
                     enum mf_hip_format format)
{
    int fits =
        (machine->shared_block - out_bytes(c, s)) / mf_hip_hopper_slice(c->v->block_m, c->v->block_n, format);
    return MF_MIN(fits, MF_HIP_HOPPER_STAGES);
}

/* Of the shape, whatever the variant. */
static bool is_known(const struct mf_device_info *device, const struct mf_shape *s,
                     enum mf_hip_format *ret_format, struct mf_refusal *no)
{
    if (!mf_hip_family_takes("tile", device, s, ret_format, no)) /* it has the same weights */
        return false;
    if (strcmp(device->class.gfx, "sm_90") != 0)
        mf_refuse(no, "arch", "layer is written for wgmma and bulk copies of sm_90; the device is %s",
                  device->class.gfx);
    else if (*ret_format != MF_HIP_BF16 && *ret_format != MF_HIP_FP8_BLOCK)
        mf_refuse(no, "q_type", "h is quantised tile by tile, so its scales are of 1x128; or all is bf16");
    else if (*ret_format == MF_HIP_FP8_BLOCK && s->model_dim % 128)
        mf_refuse(no, "divisibility", "model_dim is %d; x is quantised in whole groups of 128 (remainder %d)",
                  s->model_dim, s->model_dim % 128);
    else if (s->token * s->topk > SLOTS_MAX)
        mf_refuse(no, "tokens_max",
                  "token is %lld with topk %d; every block sorts all slots for itself, %d at most",
                  (long long)s->token, s->topk, SLOTS_MAX);
    else if (s->expert > MF_HIP_HOPPER_THREADS)
        mf_refuse(no, "experts", "expert is %d; the sort has a thread for each, %d at most", s->expert,
                  MF_HIP_HOPPER_THREADS);
    else
        return !mf_hip_hopper_refuses_x(s, no) && mf_hip_whole_allowed(s, 0, no);
    return false;
}

static bool is_legal(const struct mf_device_info *device, const struct config *c, const struct mf_shape *s,
                     enum mf_hip_format format, struct mf_refusal *no)
{
    const struct variant *v = c->v;
    struct mf_hip_stage up = stage_of(c, s, 1), down = stage_of(c, s, 2);
    int columns = mf_hip_stage_columns(&up);
    no->rule = NULL;
    if (c->sliced && !(mf_hip_may_slice(s, MF_TENSOR_W1, no) && mf_hip_may_slice(s, MF_TENSOR_W2, no)))
        return false;
    if (v->swapped && !mf_hip_by_block(format))
        mf_refuse(no, "format",
                  "the cores bs and bts are for scales of 1x128, which they apply to a slice's sums");
    else if (mf_hip_by_block(format) && columns % 128)
        mf_refuse(no, "divisibility", "a tile has %d columns; groups of 128 are quantised within one tile",
                  columns);
    else if (columns > s->inter_dim || mf_hip_stage_columns(&down) > s->model_dim)
        mf_refuse(no, "divisibility", "tiles have %d and %d columns; inter_dim is %d and model_dim %d",
                  columns, mf_hip_stage_columns(&down), s->inter_dim, s->model_dim);
    else if (mf_hip_by_block(format) && up.halves == 2 && s->inter_dim % 128)
        mf_refuse(no, "divisibility",
                  "inter_dim is %d: with scales of 128x128 the rows of up have to start a block of their own "
                  "(remainder %d)",
                  s->inter_dim, s->inter_dim % 128);
    else if (stages_of(mf_hip_machine_of(device), c, s, format) < STAGES_MIN)
        mf_refuse(no, "lds", "%d slices of %d + %d rows do not fit a block's LDS beside %d bytes", STAGES_MIN,
                  v->block_n, v->block_m, out_bytes(c, s));
    return !no->rule;
}

/* ---- steps ---- */

/* The workspace: h, x quantised, the order, and what is counted. */
enum { H, H_SCALE, X, X_SCALE, ORDER, DONE, TAKEN, N_PLACES };

static uint64_t lay_out(const struct variant *v, const struct mf_shape *s, uint64_t ret[N_PLACES])
{
    bool quantised = s->q_type != MF_QTYPE_NO;
    uint64_t rows = (uint64_t)mf_padded_rows(s, v->block_m), T = (uint64_t)s->token;
    uint64_t I = (uint64_t)s->inter_dim, wide = (uint64_t)s->model_dim, at = 0;
    const uint64_t bytes[N_PLACES] = {
        [H] = rows * I * (quantised ? 1 : 2),
        [H_SCALE] = quantised ? rows * ((I + 127) / 128) * 4 : 0,
        [X] = quantised ? T * wide : 0,
        [X_SCALE] = quantised ? T * (wide / 128) * 4 : 0,
        [ORDER] = rows * 8,
        [DONE] = rows / (uint64_t)v->block_m * 4,
        [TAKEN] = 2 * 4,
    };
    for (int i = 0; i < N_PLACES; i++) {
        ret[i] = at;
        at += (bytes[i] + ALIGN - 1) / ALIGN * ALIGN;
    }
    return at;
}

static void describe(const struct config *c, const struct mf_shape *shape, struct mf_step *ret)
{
    struct mf_step s = mf_hip_whole_step("layer", shape, c->sliced);
    uint64_t places[N_PLACES];
    print_name(c, shape, s.name);
    s.block_m = c->v->block_m;
    s.reorder_tolerance = mf_hip_stage_reorder_tolerance(shape);
    s.workspace_bytes = lay_out(c->v, shape, places) + ALIGN;
    *ret = s;
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct mf_refusal no;
    enum mf_hip_format format;
    if (!is_known(device, shape, &format, &no))
        return offer->reject(offer, f->name, f->name, no.rule, "%s", no.reason);
    for (size_t i = 0; i < CONFIGS; i++) {
        const struct config c = nth_config(i);
        struct mf_step step;
        describe(&c, shape, &step);
        int r = is_legal(device, &c, shape, format, &no)
                    ? offer->step(offer, &step)
                    : offer->reject(offer, f->name, step.name, no.rule, "%s", no.reason);
        if (r < 0)
            return r;
    }
    return 0;
}

static int find(const struct mf_device_info *device, const struct mf_shape *s, const char *name,
                struct config *ret, enum mf_hip_format *ret_format, struct mf_code *ret_code)
{
    struct mf_refusal no;
    if (strncmp(name, "layer_", 6) != 0)
        return -EINVAL;
    if (!is_known(device, s, ret_format, &no))
        return -ENOTSUP;
    for (size_t i = 0; i < CONFIGS; i++) {
        const struct config c = nth_config(i);
        const struct variant *v = c.v;
        char own[MF_STEP_NAME_MAX];
        print_name(&c, s, own);
        if (strcmp(own, name) != 0)
            continue;
        if (!is_legal(device, &c, s, *ret_format, &no))
            return -ENOTSUP;
        *ret = c;
        *ret_code = (struct mf_code){.source = "layer.hip", .function = "mf_layer"};
        mf_hip_whole_define(ret_code, s, *ret_format, c.sliced);
        mf_code_define(ret_code, "MF_BM=%d", v->block_m);
        mf_code_define(ret_code, "MF_BN=%d", v->block_n);
        mf_code_define(ret_code, "MF_STAGES=%d", stages_of(mf_hip_machine_of(device), &c, s, *ret_format));
        mf_code_define(ret_code, "MF_TURNS=%d", v->turns);
        mf_code_define(ret_code, "MF_SWAP=%d", v->swapped);
        mf_hip_define_share(ret_code, s);
        return 0;
    }
    return -ENOTSUP;
}

static int code(const struct mf_device_info *device, const struct mf_shape *shape, const char *name,
                struct mf_code *ret)
{
    struct config c;
    enum mf_hip_format format;
    return find(device, shape, name, &c, &format, ret);
}

/* ---- launches ---- */

static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret)
{
    struct config c;
    struct mf_code source;
    enum mf_hip_format format;
    (void)f;
    int r = find(&device->info, shape, name, &c, &format, &source);
    if (r < 0)
        return r;
    struct mf_kernel *k;
    r = mf_hip_kernel_new(device, &source, sizeof(*k), &k);
    if (r < 0)
        return r;
    k->shape = *shape;
    k->config = c;
    const struct variant *v = c.v;
    int ring = stages_of(mf_hip_machine_of(&device->info), &c, shape, format) *
               mf_hip_hopper_slice(v->block_m, v->block_n, format);
    /* one block an SM, so that all of them are there at once */
    k->grid = (struct mf_grid){(uint32_t)device->info.cores,
                               1,
                               1,
                               MF_HIP_HOPPER_THREADS,
                               (uint32_t)(ring + out_bytes(&c, shape)),
                               true,
                               true};
    *ret = k;
    return 0;
}

/* LDS stays as it was opened: the ring's slices are part of the code. */
static void retoken(struct mf_kernel *k, int64_t token)
{
    k->shape.token = token;
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_shape *s = &k->shape;
    struct mf_device *device = k->function.device;
    const struct variant *v = k->config.v;
    const struct mf_hip_stage up = stage_of(&k->config, s, 1), down = stage_of(&k->config, s, 2);
    bool quantised = s->q_type != MF_QTYPE_NO;
    uint64_t places[N_PLACES];
    uint8_t *base = (uint8_t *)(((uintptr_t)l->workspace + ALIGN - 1) / ALIGN * ALIGN);
    (void)lay_out(v, s, places);
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
        .sorted_weights = (float *)(base + places[ORDER]) + mf_padded_rows(s, v->block_m),
        .done = (unsigned int *)(base + places[DONE]),
        .taken = (unsigned int *)(base + places[TAKEN]),
        .rows = (int32_t)mf_padded_rows(s, v->block_m),
        .token = (int32_t)s->token,
    };
    int bits = quantised ? 8 : 16;
    int r = mf_hip_stage_map_weights(&up, s, device, bits, l->needs[2].part[0], &a.w1_map);
    if (r == 0)
        r = mf_hip_stage_map_weights(&down, s, device, bits, l->needs[3].part[0], &a.w2_map);
    if (r == 0)
        r = mf_hip_map_h(device, &down, s, base + places[H], &a.h_map);
    return r < 0 ? r : mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

const struct mf_family mf_family_hip_layer = {
    .api = MF_FAMILY_API,
    .name = "layer",
    .device_kind = "hip",
    .enumerate = enumerate,
    .open = open_step,
    .launch = launch,
    .close = mf_hip_kernel_close,
    .retoken = retoken,
    .code = code,
    .shares = true,
};
