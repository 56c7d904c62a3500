/* Families two_stage_mx and two_stage_int4 on GPUs: the two stages with 4-bit or microscaled weights
 * (kernels/gpu/src/mx.hip), and with 4-bit weights on Hopper (kernels/gpu/src/hopper/mx_hopper.hip). The
 * families differ only in the weights they accept. Step names:
 *
 *     s1_bf16_mxfp4_silu_m16_n128_k256_s4_w4x1[_w][_gu1]   gather+gemm1+act, writes bf16 h
 *     s2_bf16_mxfp4_m16_n128_k256_s4_w4x1_z|zw             gemm2, writes z or weighted z
 *     s1_bf16_mxfp4_silu_m64_n256_b                        stage 1 on the Hopper core
 *     s2_bf16_mxfp4_m16_n256_b2_z|zw|y                     stage 2 on the Hopper core; y: adds to y
 *
 *     m16    rows per expert block                 n128   weight rows per tile
 *     k256   elements of K per stage               s4     stages of the ring buffer
 *     w4x1   warps over weight rows x tokens       d4x1   the same on AMD, weights loaded into registers
 *     b, b2  two warpgroups share a tile; as many stages as fit shared memory; b2: two blocks per SM
 *     _w     routing weight before act             _gu1, _gu16r   gate and up of w1 are interleaved */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/codec.h"
#include "kernels/families/family_hip_hopper.h"

#define PART    128 /* elements of K per part of a stage (kernels/gpu/src/mx.hip) */
#define QUARTER 32  /* elements of a weight row per copy */
/* Maximum block_m x block_n on AMD with interleaved gate and up; larger tiles spill registers on gfx90a. */
#define TURNS_MAX (64 * 128)
#define X_MAX     (INT64_C(16) << 32) /* the offset of a row of x is a 32-bit count of 16-byte units */

#define STAGES_MIN 2
#define BARRIERS   (2 * MF_HIP_HOPPER_STAGES * 8)
#define HOPPER_X   256 /* bytes of a token row per stage of the Hopper core */

struct variant {
    int block_m, block_n;
    int parts; /* per stage */
    int stages;
    int warps_n, warps_m;
    int blocks;     /* resident blocks per SM or CU; limited by registers */
    bool is_hopper; /* mx_hopper.hip; only block_m, block_n and blocks apply */
};

#define MX(m, n, slice, ring, wn, wm, at_once)                                                    \
    {                                                                                             \
        .block_m = m, .block_n = n, .parts = slice, .stages = ring, .warps_n = wn, .warps_m = wm, \
        .blocks = at_once,                                                                        \
    }
#define HOPPER(m, n, at_once)                                             \
    {                                                                     \
        .block_m = m, .block_n = n, .blocks = at_once, .is_hopper = true, \
    }

/* clang-format off */
static const struct variant variants[] = {
    MX(16, 64, 1, 6, 2, 1, 4),  MX(16, 64, 2, 4, 4, 1, 3),  MX(16, 128, 1, 4, 4, 1, 4),
    MX(16, 128, 1, 6, 4, 1, 2), MX(16, 128, 2, 3, 4, 1, 2), MX(16, 128, 2, 4, 4, 1, 2),
    MX(16, 256, 1, 4, 8, 1, 2), MX(16, 256, 1, 4, 4, 1, 2), MX(16, 256, 1, 3, 4, 1, 3),
    MX(16, 256, 2, 4, 8, 1, 1), MX(32, 128, 1, 4, 4, 1, 3), MX(32, 128, 1, 6, 4, 1, 2),
    MX(32, 256, 1, 4, 8, 1, 2), MX(32, 256, 1, 4, 4, 1, 2), MX(48, 128, 1, 4, 4, 1, 2),
    MX(48, 256, 1, 4, 8, 1, 1), MX(64, 128, 1, 4, 4, 1, 2), MX(64, 128, 1, 3, 4, 2, 2),
    MX(64, 256, 1, 4, 8, 1, 1), MX(96, 128, 1, 3, 4, 2, 1), MX(128, 128, 1, 3, 4, 2, 1),
    HOPPER(16, 128, 2), HOPPER(16, 256, 2), HOPPER(16, 256, 1), HOPPER(16, 512, 1), HOPPER(32, 256, 1),
    HOPPER(64, 256, 1), HOPPER(64, 512, 1),
};
/* AMD variants have two stages: one stage is read while the other stage is filled. */
static const struct variant amd_variants[] = {
    MX(16, 64, 1, 2, 4, 1, 4),  MX(16, 128, 1, 2, 4, 1, 2), MX(16, 256, 1, 2, 4, 1, 1),
    MX(16, 128, 2, 2, 4, 1, 1), MX(32, 64, 1, 2, 4, 1, 2),  MX(32, 128, 1, 2, 4, 1, 2),
    MX(64, 128, 1, 2, 4, 1, 1),
};
/* clang-format on */

static const struct variant *variants_of(const struct mf_device_info *device, size_t *ret_n)
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    *ret_n = machine->copies_held ? MF_ARRAY_LEN(amd_variants) : MF_ARRAY_LEN(variants);
    return machine->copies_held ? amd_variants : variants;
}

struct config {
    struct mf_hip_stage st;
    const struct variant *v;
};

struct plan {
    struct config config;
    int32_t tile_columns;
};

/* ---- legality and names ---- */

static struct mf_codecs codecs_of(const struct mf_shape *s)
{
    struct mf_codecs c = {0};
    const char *why;
    (void)mf_codecs_of_shape(s, &c, &why);
    return c;
}

/* Returns the 32-bit words of scales per row and part, plus one word if the scales of a row do not start on a
 * word. */
static int scale_words(const struct config *c, const struct mf_shape *s)
{
    const struct mf_codec *w = codecs_of(s).w;
    if (w->group_cols == 0)
        return 0;
    return PART / w->group_cols * w->scale_bytes / 4 +
           (mf_hip_stage_length(&c->st, s) / w->group_cols * w->scale_bytes % 4 != 0);
}

static int hopper_stage_bytes(const struct config *c, const struct mf_shape *s)
{
    const struct variant *v = c->v;
    return (v->block_n * (MF_HIP_NARROW_BOX + scale_words(c, s) * 4) + v->block_m * HOPPER_X + 1023) / 1024 *
           1024;
}
static int hopper_extra_bytes(const struct config *c)
{
    return c->v->block_m * (mf_hip_stage_columns(&c->st) + 8) * 2 + BARRIERS;
}
static int stages_of(const struct mf_hip_machine *machine, const struct config *c, const struct mf_shape *s)
{
    if (!c->v->is_hopper)
        return c->v->stages;
    int share = machine->shared_unit / c->v->blocks - machine->shared_extra;
    int fit = (MF_MIN(share, machine->shared_block) - hopper_extra_bytes(c)) / hopper_stage_bytes(c, s);
    return MF_MAX(MF_MIN(fit, MF_HIP_HOPPER_STAGES), STAGES_MIN);
}

/* Returns the bytes of shared memory. If the device copies directly to shared memory, the ring buffer holds
 * 4- and 8-bit tokens before their conversion, with one word of scales per 16 bytes. Two bf16 copies of the
 * tokens then lie outside the ring buffer. If copies are staged in registers (copies_held), the ring buffer
 * holds bf16 and is reused as the output tile. */
static uint32_t shared_bytes(const struct mf_hip_machine *machine, const struct config *c,
                             const struct mf_shape *s)
{
    const struct variant *v = c->v;
    const struct mf_codecs codecs = codecs_of(s);
    if (v->is_hopper)
        return (uint32_t)(stages_of(machine, c, s) * hopper_stage_bytes(c, s) + hopper_extra_bytes(c));
    bool held = machine->copies_held, narrow = codecs.a->bits < 16 && !held;
    int weights = held ? 0 : v->block_n * PART * codecs.w->bits / 8;
    int raw = v->block_m * PART * codecs.a->bits / 128 * (codecs.a->group_cols > 0 ? 20 : 16);
    int tokens = v->block_m * PART * 2;
    int part = (narrow ? raw : tokens) + weights + v->block_n * scale_words(c, s) * 4;
    int ring = v->stages * v->parts * part + (narrow ? 2 * v->parts * tokens : 0);
    int out = v->block_m * (mf_hip_stage_columns(&c->st) + 8) * 2;
    return (uint32_t)(held ? MF_MAX(ring, out) : ring + out);
}

static void print_name(const struct mf_hip_machine *machine, const struct config *c, const struct mf_shape *s,
                       char buf[MF_STEP_NAME_MAX])
{
    const struct variant *v = c->v;
    char format[MF_FORMAT_WORD_MAX], core[32];
    const char *gate_up = c->st.stage == 1 ? mf_hip_weights_word(s, MF_TENSOR_W1, false) : "";
    mf_cpu_format_word(s, format);
    if (v->is_hopper)
        mf_format(core, sizeof(core), "%s", v->blocks == 2 ? "b2" : "b");
    else
        mf_format(core, sizeof(core), "k%d_s%d_%s%dx%d", v->parts * PART, v->stages,
                  machine->copies_held ? "d" : "w", v->warps_n, v->warps_m);
    mf_format(buf, MF_STEP_NAME_MAX, "s%d_%s%s%s_m%d_n%d_%s%s%s%s%s", c->st.stage, format,
              c->st.stage == 1 ? "_" : "", c->st.stage == 1 ? mf_cpu_act_word(s) : "", v->block_m, v->block_n,
              core, c->st.stage == 1 && s->doweight_stage1 ? "_w" : "", *gate_up ? "_" : "", gate_up,
              mf_hip_out_word(c->st.out));
}

/* Largest block_m of mx.hip with 4-bit weights on sm_90. For larger blocks, core b takes half the time of
 * mx.hip (H200). */
#define MX_TOKENS_MAX 32

static bool is_legal(const struct config *c, const struct mf_shape *s, const struct mf_device_info *device,
                     struct mf_refusal *no)
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    const struct mf_codecs codecs = codecs_of(s);
    int64_t rows = c->st.stage == 1 ? s->token : mf_padded_rows(s, c->v->block_m);
    int64_t bytes = rows * mf_hip_stage_length(&c->st, s) * (c->v->is_hopper ? 16 : codecs.a->bits) / 8;
    int columns = mf_hip_stage_columns(&c->st);
    uint32_t shared = shared_bytes(machine, c, s);
    no->rule = NULL;
    bool is_sm_90 = strcmp(device->class.gfx, "sm_90") == 0;
    if (c->v->is_hopper && !is_sm_90)
        mf_refuse(no, "arch", "WGMMA requires sm_90; the device is %s", device->class.gfx);
    else if (c->v->is_hopper && codecs.w->bits != 4)
        mf_refuse(no, "format", "weights have %d bits; cores b and b2 support 4-bit weights only",
                  codecs.w->bits);
    else if (!c->v->is_hopper && is_sm_90 && codecs.w->bits == 4 && c->v->block_m > MX_TOKENS_MAX)
        mf_refuse(no, "slower",
                  "block_m is %d; above %d tokens per block, core b takes half the time with 4-bit weights",
                  c->v->block_m, MX_TOKENS_MAX);
    else if (c->st.out == MF_HIP_TO_Y && codecs.w->format == MF_FORMAT_INT4 && codecs.w->group_cols > 0)
        mf_refuse(no, "accuracy",
                  "int4 weights with group scales: the rounding errors of the weights and of the additions "
                  "to y together "
                  "exceed the tolerance of a row");
    else if (!c->v->is_hopper && c->st.out == MF_HIP_TO_Y)
        mf_refuse(no, "accumulates", "only cores b and b2 can add rows to y");
    else if (mf_hip_stage_length(&c->st, s) % QUARTER)
        mf_refuse(no, "divisibility", "K is %d (remainder %d): weight rows are copied %d elements at a time",
                  mf_hip_stage_length(&c->st, s), mf_hip_stage_length(&c->st, s) % QUARTER, QUARTER);
    else if (bytes >= X_MAX)
        mf_refuse(no, "offsets", "the rows have %lld bytes; the kernel addresses up to %lld bytes",
                  (long long)bytes, (long long)X_MAX);
    else if (columns > mf_hip_stage_width(&c->st, s) && columns > 64)
        mf_refuse(no, "divisibility", "a tile has %d columns, but the output of stage %d has only %d",
                  columns, c->st.stage, mf_hip_stage_width(&c->st, s));
    else if (machine->copies_held && c->st.stage == 1 && *mf_hip_weights_word(s, MF_TENSOR_W1, false) &&
             c->v->block_m * c->v->block_n >= TURNS_MAX)
        mf_refuse(no, "registers",
                  "gate and up are interleaved; addressing their rows leaves too few registers for %d x %d "
                  "accumulators",
                  c->v->block_n, c->v->block_m);
    else if (shared > (uint32_t)machine->shared_block)
        mf_refuse(no, "lds", "%d stages and the output tile need %u bytes of shared memory; a block has %d",
                  stages_of(machine, c, s), shared, machine->shared_block);
    return !no->rule;
}

struct walk {
    const char *family;
    const struct mf_device_info *device;
    const struct mf_shape *shape;
    struct mf_offer *offer;
    const char *name; /* name of the wanted step */
    struct config found;
};
typedef int (*each_fn)(struct walk *w, const struct config *c);

static int each(struct walk *w, int stage, each_fn f)
{
    size_t n;
    const struct variant *of = variants_of(w->device, &n);
    for (size_t i = 0; i < n; i++) {
        for (enum mf_hip_out out = MF_HIP_TO_H; out <= MF_HIP_TO_Y; out++) {
            struct config c = {{stage, mf_hip_stage_halves(stage, w->shape), of[i].block_m, of[i].block_n,
                                out, false, false},
                               &of[i]};
            int r = mf_hip_stage_exists(&c.st, w->shape) ? f(w, &c) : 0;
            if (r != 0)
                return r;
        }
    }
    return 0;
}

/* ---- steps ---- */

static int offer_step(struct walk *w, const struct config *c)
{
    struct mf_refusal no;
    char name[MF_STEP_NAME_MAX];
    print_name(mf_hip_machine_of(w->device), c, w->shape, name);
    if (is_legal(c, w->shape, w->device, &no) && mf_hip_stage_allowed(&c->st, w->shape, &no)) {
        struct mf_step step = mf_hip_stage_step(&c->st, w->family, w->shape);
        (void)mf_copy(step.name, sizeof(step.name), name);
        return w->offer->step(w->offer, &step);
    }
    return w->offer->reject(w->offer, w->family, name, no.rule, "%s", no.reason);
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct walk w = {.family = f->name, .device = device, .shape = shape, .offer = offer};
    struct mf_refusal no;
    if (!mf_hip_family_takes(f->name, device, shape, NULL, &no))
        return offer->reject(offer, f->name, f->name, no.rule, "%s", no.reason);
    int r = each(&w, 1, offer_step);
    return r < 0 ? r : each(&w, 2, offer_step);
}

static int match_name(struct walk *w, const struct config *c)
{
    char name[MF_STEP_NAME_MAX];
    print_name(mf_hip_machine_of(w->device), c, w->shape, name);
    if (strcmp(name, w->name) != 0)
        return 0;
    w->found = *c;
    return 1;
}

static int find(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *shape,
                const char *name, void *ret_plan)
{
    struct walk w = {.family = f->name, .device = device, .shape = shape, .name = name};
    struct mf_refusal no;
    if (strncmp(name, "s1_", 3) != 0 && strncmp(name, "s2_", 3) != 0)
        return -EINVAL;
    if (!mf_hip_family_takes(f->name, device, shape, NULL, &no) || each(&w, name[1] - '0', match_name) != 1 ||
        !is_legal(&w.found, shape, device, &no))
        return -ENOTSUP;
    ((struct plan *)ret_plan)->config = w.found;
    return 0;
}

/* ---- from a step to a launch ---- */

static const char *element_of(const struct mf_codec *c)
{
    return c->format == MF_FORMAT_BF16   ? "BF16"
           : c->format == MF_FORMAT_FP4  ? "FP4"
           : c->format == MF_FORMAT_INT4 ? "INT4"
                                         : "FP8";
}

static void write_code(const struct mf_device_info *device, const struct mf_shape *s, const void *plan,
                       struct mf_code *ret)
{
    const struct config *c = &((const struct plan *)plan)->config;
    const struct variant *v = c->v;
    const struct mf_codecs codecs = codecs_of(s);
    *ret = v->is_hopper ? (struct mf_code){.source = "mx_hopper.hip", .function = "mf_mx_hopper"}
                        : (struct mf_code){.source = "mx.hip", .function = "mf_mx"};
    mf_hip_stage_define(ret, &c->st, s);
    mf_code_define(ret, "MF_W=%s", element_of(codecs.w));
    mf_code_define(ret, "MF_W_GROUP=%d", codecs.w->group_cols);
    mf_code_define(ret, "MF_X=%s", element_of(codecs.a));
    mf_code_define(ret, "MF_X_GROUP=%d", codecs.a->group_cols);
    mf_code_define(ret, "MF_STAGES=%d", stages_of(mf_hip_machine_of(device), c, s));
    if (v->is_hopper) {
        mf_code_define(ret, "MF_BLOCKS=%d", v->blocks);
        return;
    }
    mf_code_define(ret, "MF_PARTS=%d", v->parts);
    mf_code_define(ret, "MF_WARPS_N=%d", v->warps_n);
    mf_code_define(ret, "MF_WARPS_M=%d", v->warps_m);
    mf_code_define(ret, "MF_BLOCKS=%d", v->blocks);
}

static void set_grid(struct mf_kernel *k)
{
    const struct config *c = &((const struct plan *)k->plan)->config;
    const struct mf_device_info *device = &k->function.device->info;
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    const struct variant *v = c->v;
    int threads = v->is_hopper ? MF_HIP_HOPPER_THREADS : v->warps_n * v->warps_m * machine->wave;
    k->grid = mf_hip_persistent_grid(device, threads, v->blocks, shared_bytes(machine, c, &k->shape));
    k->grid.programmatic_launch = true; /* because all kernels start with mf_begin */
}

static void set_token_count(struct mf_kernel *k)
{
    struct plan *plan = k->plan;
    plan->tile_columns = mf_hip_stage_tile_columns(&plan->config.st, &k->shape, &k->function.device->info);
}

/* Returns the end of the scales of a tensor. */
static const void *scales_end(const struct mf_kernel *k, const struct mf_tensor_spec *a,
                              const struct mf_tensor_ref *ref)
{
    struct mf_part parts[MF_PARTS_MAX];
    return mf_tensor_spec_parts(a, &k->shape, parts) > 1
               ? (const char *)ref->part[1] + mf_part_bytes(&parts[1])
               : NULL;
}

static int launch_hopper(struct mf_kernel *k, const struct mf_launch *l, const struct mf_hip_mx_args *mx)
{
    struct mf_hip_bulk_args a = {.tile = mx->tile, .w_scale_end = mx->w_scale_end};
    const struct plan *plan = k->plan;
    a.tile.columns = plan->tile_columns;
    int r = mf_hip_stage_map_weights(&plan->config.st, &k->shape, k->function.device, 4, l->needs[2].part[0],
                                     &a.w);
    return r < 0 ? r : mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct config *c = &((const struct plan *)k->plan)->config;
    const struct mf_hip_stage *st = &c->st;
    const struct mf_tensor_spec x =
        st->stage == 1 ? mf_plain_x(&k->shape) : mf_plain_h(&k->shape, st->block_m);
    const struct mf_tensor_spec w =
        mf_plain_w(&k->shape, st->stage == 1 ? MF_TENSOR_W1 : MF_TENSOR_W2, "row");
    const struct mf_hip_mx_args a = {.tile = mf_hip_stage_args(st, &k->shape, l),
                                     .x_scale_end = scales_end(k, &x, &l->needs[0]),
                                     .w_scale_end = scales_end(k, &w, &l->needs[2])};
    return c->v->is_hopper ? launch_hopper(k, l, &a) : mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static const struct mf_hip_steps steps = {
    .plan_bytes = sizeof(struct plan),
    .find = find,
    .code = write_code,
    .open = set_grid,
    .set_token_count = set_token_count,
};

const struct mf_family mf_family_hip_two_stage_mx =
    MF_HIP_FAMILY(.name = "two_stage_mx", .enumerate = enumerate, .launch = launch, .hip_steps = &steps);
const struct mf_family mf_family_hip_two_stage_int4 =
    MF_HIP_FAMILY(.name = "two_stage_int4", .enumerate = enumerate, .launch = launch, .hip_steps = &steps);
