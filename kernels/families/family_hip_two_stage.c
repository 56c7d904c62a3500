/* Family two_stage on GPUs: the two stages of the grouped GEMM (kernels/gpu/src/tile.hip and
 * tile_hopper.hip). Step names:
 *
 *     s1_bf16_silu_m16_n128_s5_w4x1[_w][_gu1][_q][_zero]   gather+gemm1+act, writes h
 *     s2_bf16_m16_n128_s5_w4x1_z|zw|y                      gemm2, writes z, weighted z, or adds to y
 *     s1_bf16_silu_m32_n128_bt_p128                        stage 1 with weights in layout panel128
 *     s2_bf16_m32_n128_bt_p128_y                           stage 2 with weights in layout panel128
 *
 *     m16    rows per expert block                 n128   weight rows per tile
 *     s5     stages of the ring buffer; without s5, as many as fit shared memory
 *     _w     routing weight applied before act     _gu1, _gu16r   gate and up of w1 are interleaved
 *     _q     quantised h, in groups of 128 columns _zero  y is zeroed as well
 *
 * The core follows:
 *     w4x1   warps over weight rows x tokens (tile.hip)
 *     d4x1   the same on AMD; weights are loaded directly into registers
 *     g2     warpgroups using WGMMA (tile.hip)
 *     b      tile_hopper.hip, two consumer warpgroups share each tile
 *     bt     tile_hopper.hip, the warpgroups process alternate tiles
 *     bs, bts   b and bt with tokens as the rows of the product
 *     bsk    bs, keeping the weights in shared memory for consecutive token tiles */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/families/family_hip.h"
#include "kernels/families/family_hip_hopper.h"
#include "kernels/families/family_hip_stage.h"
#include "kernels/gpu/src/args.h"

#define SLICE       128
#define STAGES_MIN  2
#define KEPT_BLOCKS 4 /* consecutive token tiles for which stage 2 keeps its weights in shared memory */
/* minimum token count of steps that zero y; with fewer tokens zeroing takes negligible time */
#define ZERO_FROM 1024

enum core {
    MMA,          /* w: tile.hip with MMA or MFMA */
    GROUPS,       /* g: tile.hip with WGMMA */
    HOPPER,       /* b; HOPPER to SWAPPED_KEPT use tile_hopper.hip */
    HOPPER_TURNS, /* bt */
    SWAPPED,      /* bs: tokens are the rows of the product; 1x128 scales only */
    SWAPPED_TURNS,
    SWAPPED_KEPT, /* bsk: keeps its weights for several token tiles; stage 2 with a small inter_dim */
    DIRECT,       /* d: tile.hip on AMD, weights loaded directly into registers */
};

struct variant {
    enum core core;
    int block_m, block_n;
    int stages; /* 0: as many as fit shared memory */
    int warps_n, warps_m;
    int blocks;        /* resident blocks per SM or CU; limited by registers */
    bool block_scales; /* true: has registers for the second accumulators that 1x128 scales need */
};

/* clang-format off */
static const struct variant variants[] = {
    {MMA, 16, 64, 6, 2, 1, 4, true},       {MMA, 16, 64, 8, 4, 1, 3, true},
    {MMA, 16, 128, 4, 4, 1, 3, true},      {MMA, 16, 128, 6, 4, 1, 2, true},
    {MMA, 16, 256, 3, 8, 1, 2, true},      {MMA, 16, 256, 6, 8, 1, 1, true},
    {MMA, 32, 64, 6, 4, 1, 3, true},       {MMA, 32, 128, 4, 4, 1, 2, true},
    {MMA, 32, 128, 5, 4, 1, 2, true},      {MMA, 48, 128, 4, 4, 1, 2, true},
    {MMA, 64, 128, 3, 4, 2, 2, true},      {MMA, 128, 128, 3, 4, 2, 2, true},
    {MMA, 128, 256, 4, 4, 2, 1, false},
    {GROUPS, 16, 128, 6, 8, 1, 2, true},   {GROUPS, 16, 256, 3, 16, 1, 2, true},
    {GROUPS, 16, 256, 6, 16, 1, 1, true},  {GROUPS, 32, 128, 5, 8, 1, 2, true},
    {GROUPS, 32, 256, 5, 16, 1, 1, true},  {GROUPS, 48, 128, 4, 8, 1, 2, true},
    {GROUPS, 64, 128, 4, 8, 1, 2, true},   {GROUPS, 64, 256, 5, 16, 1, 1, true},
    {GROUPS, 96, 128, 3, 8, 1, 2, true},   {GROUPS, 96, 128, 4, 8, 1, 1, true},
    {GROUPS, 96, 256, 4, 16, 1, 1, true},  {GROUPS, 128, 128, 3, 8, 1, 2, true},
    {GROUPS, 128, 128, 6, 8, 1, 1, true},  {GROUPS, 128, 256, 4, 16, 1, 1, true},
    {HOPPER, 32, 128, 0, 12, 1, 1, true},  {HOPPER, 32, 256, 0, 12, 1, 1, true},
    {HOPPER, 48, 256, 0, 12, 1, 1, true},  {HOPPER, 64, 128, 0, 12, 1, 1, true},
    {HOPPER, 64, 256, 0, 12, 1, 1, true},  {HOPPER, 80, 256, 0, 12, 1, 1, true},
    {HOPPER, 96, 256, 0, 12, 1, 1, true},  {HOPPER, 128, 128, 0, 12, 1, 1, true},
    {HOPPER, 128, 256, 0, 12, 1, 1, true},
    {HOPPER_TURNS, 32, 128, 0, 12, 1, 1, true}, {HOPPER_TURNS, 64, 128, 0, 12, 1, 1, true},
    {HOPPER_TURNS, 64, 256, 0, 12, 1, 1, true}, {HOPPER_TURNS, 96, 128, 0, 12, 1, 1, true},
    {HOPPER_TURNS, 128, 128, 0, 12, 1, 1, true},
    {SWAPPED, 64, 256, 0, 12, 1, 1, true}, {SWAPPED, 128, 128, 0, 12, 1, 1, true},
    {SWAPPED, 128, 256, 0, 12, 1, 1, true},
    {SWAPPED_TURNS, 64, 128, 0, 12, 1, 1, true}, {SWAPPED_TURNS, 64, 256, 0, 12, 1, 1, true},
    {SWAPPED_KEPT, 128, 256, 0, 12, 1, 1, true},
};
/* clang-format on */

/* AMD variants have two stages: one stage is read while the other stage is filled. */
#define AMD(m, n, wn, wm, at_once, how)                                                           \
    {                                                                                             \
        .block_m = m, .block_n = n, .stages = 2, .warps_n = wn, .warps_m = wm, .blocks = at_once, \
        .block_scales = (m) * (n) < 128 * 256, .core = how                                        \
    }
/* clang-format off */
static const struct variant amd_variants[] = {
    AMD(16, 64, 4, 1, 4, DIRECT),      AMD(16, 128, 4, 1, 4, DIRECT),     AMD(16, 256, 4, 1, 2, DIRECT),
    AMD(32, 64, 4, 1, 4, DIRECT),      AMD(32, 128, 4, 1, 3, DIRECT),     AMD(32, 256, 4, 1, 2, DIRECT),
    AMD(48, 128, 4, 1, 2, DIRECT),     AMD(64, 128, 4, 1, 2, DIRECT),     AMD(64, 256, 8, 1, 1, DIRECT),
    AMD(96, 128, 4, 1, 2, DIRECT),     AMD(128, 128, 4, 1, 1, DIRECT),
    AMD(16, 64, 4, 1, 3, MMA),         AMD(16, 128, 4, 1, 1, MMA),        AMD(32, 64, 4, 1, 2, MMA),
    AMD(32, 128, 4, 1, 1, MMA),        AMD(64, 64, 2, 2, 2, MMA),         AMD(64, 128, 2, 2, 1, MMA),
    AMD(96, 128, 2, 2, 1, MMA),        AMD(128, 64, 2, 2, 1, MMA),        AMD(128, 128, 2, 2, 1, MMA),
    /* these variants need the larger LDS of gfx950 */
    AMD(128, 256, 4, 2, 1, MMA), AMD(128, 256, 8, 1, 1, DIRECT),
};
/* clang-format on */

static const struct variant *variants_of(const struct mf_device_info *device, size_t *ret_n)
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    *ret_n = machine->copies_held ? MF_ARRAY_LEN(amd_variants) : MF_ARRAY_LEN(variants);
    return machine->copies_held ? amd_variants : variants;
}

static bool is_hopper(const struct variant *v)
{
    return v->core >= HOPPER && v->core <= SWAPPED_KEPT;
}
static bool is_swapped(const struct variant *v)
{
    return v->core >= SWAPPED && v->core <= SWAPPED_KEPT;
}
static bool takes_turns(const struct variant *v)
{
    return v->core == HOPPER_TURNS || v->core == SWAPPED_TURNS;
}

/* True if stage 1 also exists in a form that zeroes y: Hopper cores with large token tiles. */
static bool zeroes(const struct variant *v)
{
    return is_hopper(v) && v->block_m >= 64;
}

struct config {
    struct mf_hip_stage st;
    const struct variant *v;
};

static struct mf_hip_hopper hopper_of(const struct variant *v)
{
    return (struct mf_hip_hopper){takes_turns(v), is_swapped(v)};
}
struct plan {
    struct config config;
    enum mf_hip_format format;
    struct mf_hip_hopper_order order;
};

/* ---- legality and names ---- */

/* Returns the weight rows per stage of the ring buffer, or 0 if weights are kept outside it or loaded
 * directly into registers. */
static int ring_rows(const struct variant *v)
{
    return v->core == SWAPPED_KEPT || v->core == DIRECT ? 0 : v->block_n;
}
/* Returns the bytes of one stage of the ring buffer. */
static int stage_bytes(const struct variant *v, enum mf_hip_format format)
{
    if (is_hopper(v))
        return mf_hip_hopper_stage_bytes(v->block_m, ring_rows(v), format);
    int scales = mf_hip_by_block(format) ? v->block_m + 8 : 0;
    return ((ring_rows(v) + v->block_m) * SLICE + scales * 4 + 1023) / 1024 * 1024;
}
/* Returns the bytes outside the ring buffer: the output tile and, for Hopper cores, mbarriers and kept
 * weights. */
static int extra_bytes(const struct config *c, const struct mf_shape *s)
{
    int kept = c->v->core == SWAPPED_KEPT ? mf_hip_hopper_k_slices(s) * c->v->block_n * SLICE : 0;
    if (is_hopper(c->v))
        return mf_hip_hopper_out_bytes(hopper_of(c->v), &c->st, s) +
               (c->st.zeroes ? MF_HIP_HOPPER_ZEROS : 0) + kept;
    return c->v->block_m * (mf_hip_stage_columns(&c->st) + 8) * 2;
}
static int stages_of(const struct mf_hip_machine *machine, const struct config *c, const struct mf_shape *s,
                     enum mf_hip_format format)
{
    int fits = (machine->shared_block - extra_bytes(c, s)) / stage_bytes(c->v, format);
    return c->v->stages ? c->v->stages : MF_MIN(fits, MF_HIP_HOPPER_STAGES);
}
static uint32_t shared_bytes(const struct mf_hip_machine *machine, const struct config *c,
                             const struct mf_shape *s, enum mf_hip_format format)
{
    int ring = stages_of(machine, c, s, format) * stage_bytes(c->v, format), out = extra_bytes(c, s);
    return (uint32_t)(machine->copies_held ? MF_MAX(ring, out) : ring + out);
}

static enum mf_tensor weights_of(const struct config *c)
{
    return c->st.stage == 1 ? MF_TENSOR_W1 : MF_TENSOR_W2;
}

static void print_name(const struct config *c, const struct mf_shape *s, char buf[MF_STEP_NAME_MAX])
{
    const struct variant *v = c->v;
    char format[MF_FORMAT_WORD_MAX], waves[24], stages[16] = "";
    const char *w = mf_hip_weights_word(s, weights_of(c), c->st.sliced);
    mf_cpu_format_word(s, format);
    if (v->stages)
        mf_format(stages, sizeof(stages), "_s%d", v->stages);
    if (v->core == MMA || v->core == DIRECT)
        mf_format(waves, sizeof(waves), "%s%dx%d", v->core == DIRECT ? "d" : "w", v->warps_n, v->warps_m);
    else if (v->core == GROUPS)
        mf_format(waves, sizeof(waves), "g%d", v->warps_n / 4);
    else
        mf_format(waves, sizeof(waves), "b%s%s%s", takes_turns(v) ? "t" : "", is_swapped(v) ? "s" : "",
                  v->core == SWAPPED_KEPT ? "k" : "");
    if (c->st.stage == 1)
        mf_format(buf, MF_STEP_NAME_MAX, "s1_%s_%s_m%d_n%d%s_%s%s%s%s%s%s", format, mf_cpu_act_word(s),
                  v->block_m, v->block_n, stages, waves, s->doweight_stage1 ? "_w" : "", *w ? "_" : "", w,
                  mf_hip_out_word(c->st.out), c->st.zeroes ? "_zero" : "");
    else
        mf_format(buf, MF_STEP_NAME_MAX, "s2_%s_m%d_n%d%s_%s%s%s%s", format, v->block_m, v->block_n, stages,
                  waves, *w ? "_" : "", w, mf_hip_out_word(c->st.out));
}

static bool is_legal(const struct config *c, const struct mf_shape *s, enum mf_hip_format format,
                     const struct mf_device_info *device, struct mf_refusal *no)
{
    const struct variant *v = c->v;
    int columns = mf_hip_stage_columns(&c->st), n = mf_hip_stage_width(&c->st, s);
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    int threads = v->warps_n * v->warps_m * machine->wave;
    uint32_t shared = shared_bytes(machine, c, s, format);
    no->rule = NULL;
    if (v->core != MMA && v->core != DIRECT && strcmp(device->class.gfx, "sm_90") != 0)
        mf_refuse(no, "arch", "WGMMA requires sm_90; the device is %s", device->class.gfx);
    else if (v->core != MMA && v->core != DIRECT && mf_hip_is_int8(format))
        mf_refuse(no, "q_dtype",
                  "activations are int8; cores g and b support bf16 and fp8 only, core w supports int8");
    else if (c->st.out == MF_HIP_TO_HQ && mf_hip_is_int8(format))
        mf_refuse(no, "q_dtype", "stage 1 cannot write h as int8; write bf16 and quantise it with quant2");
    else if (is_hopper(v) && c->st.stage == 1 && mf_hip_hopper_refuses_x(s, no))
        return false;
    else if (c->st.sliced && !mf_hip_may_panel128(s, weights_of(c), no))
        return false;
    else if (c->st.out == MF_HIP_TO_Y && !is_hopper(v))
        mf_refuse(no, "accumulates", "only cores b, bt, bs, bts and bsk can add rows to y");
    else if (is_swapped(v) && !mf_hip_by_block(format))
        mf_refuse(no, "format",
                  "cores bs, bts and bsk require 1x128 scales, which they apply to the partial sums of each "
                  "stage");
    else if (v->core == SWAPPED_KEPT && mf_hip_hopper_k_slices(s) > MF_HIP_HOPPER_SHORT)
        mf_refuse(no, "lds", "core bsk keeps at most %d x 128 bytes of each weight row; inter_dim is %d",
                  MF_HIP_HOPPER_SHORT, s->inter_dim);
    else if (c->st.out == MF_HIP_TO_HQ && columns % 128)
        mf_refuse(no, "divisibility",
                  "a tile has %d columns (remainder %d): groups of 128 columns must not cross tiles", columns,
                  columns % 128);
    else if (columns > n && columns > 64)
        mf_refuse(no, "divisibility", "a tile has %d columns, but the output of stage %d has only %d",
                  columns, c->st.stage, n);
    else if (stages_of(machine, c, s, format) < STAGES_MIN || shared > (uint32_t)machine->shared_block)
        mf_refuse(no, "lds",
                  "%d stages of %d weight rows and %d token rows and %d further bytes exceed the %d bytes of "
                  "shared "
                  "memory of a block",
                  MF_MAX(v->stages, STAGES_MIN), ring_rows(v), v->block_m, extra_bytes(c, s),
                  machine->shared_block);
    else if (mf_hip_by_block(format) && !v->block_scales)
        mf_refuse(no, "registers",
                  "1x128 scales need a second set of accumulators; a tile of %d x %d on %d warps leaves no "
                  "registers "
                  "for it",
                  v->block_n, v->block_m, v->warps_n * v->warps_m);
    else if (mf_hip_by_block(format) && c->st.halves == 2 && s->inter_dim % 128)
        mf_refuse(no, "divisibility",
                  "inter_dim %d is not a multiple of 128 (remainder %d): with 128x128 scales, the rows of up "
                  "must start a new scale block",
                  s->inter_dim, s->inter_dim % 128);
    else if (mf_hip_by_block(format) && !is_hopper(v) && threads < v->block_m + 8)
        mf_refuse(no, "threads", "%d threads cannot copy the %d scales of a stage, one per thread", threads,
                  v->block_m + 8);
    return !no->rule;
}

struct walk {
    const struct mf_device_info *device;
    const struct mf_shape *shape;
    enum mf_hip_format format;
    struct mf_offer *offer;
    const char *name; /* name of the wanted step */
    struct config found;
};
typedef int (*each_fn)(struct walk *w, const struct config *c);

/* Calls f for both weight layouts (checkpoint, panel128) and, for stage 1, with and without zeroing y. */
static int each_way(struct walk *w, struct config *c, each_fn f)
{
    bool first = c->st.stage == 1;
    for (int sliced = 0; sliced <= (is_hopper(c->v) && mf_hip_reads_panel128(w->device)); sliced++) {
        for (int zero = 0; zero <= (first && zeroes(c->v)); zero++) {
            c->st.sliced = sliced;
            c->st.zeroes = zero;
            int r = f(w, c);
            if (r != 0)
                return r;
        }
    }
    return 0;
}

static int each(struct walk *w, int stage, each_fn f)
{
    const struct mf_shape *s = w->shape;
    size_t n;
    const struct variant *of = variants_of(w->device, &n);
    for (size_t i = 0; i < n; i++) {
        if (of[i].core == SWAPPED_KEPT && stage == 1)
            continue;
        for (enum mf_hip_out out = MF_HIP_TO_H; out <= MF_HIP_TO_Y; out++) {
            struct config c = {
                {stage, mf_hip_stage_halves(stage, s), of[i].block_m, of[i].block_n, out, false, false},
                &of[i]};
            int r = mf_hip_stage_exists(&c.st, s) ? each_way(w, &c, f) : 0;
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
    if (c->st.zeroes && w->shape->token < ZERO_FROM)
        return 0;
    print_name(c, w->shape, name);
    if (is_legal(c, w->shape, w->format, w->device, &no) && mf_hip_stage_allowed(&c->st, w->shape, &no)) {
        struct mf_step step = mf_hip_stage_step(&c->st, "two_stage", w->shape);
        (void)mf_copy(step.name, sizeof(step.name), name);
        return w->offer->step(w->offer, &step);
    }
    return w->offer->reject(w->offer, "two_stage", name, no.rule, "%s", no.reason);
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct walk w = {.device = device, .shape = shape, .offer = offer};
    struct mf_refusal no;
    if (!mf_hip_family_takes("two_stage", device, shape, &w.format, &no))
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

static int find(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *shape,
                const char *name, void *ret_plan)
{
    struct plan *plan = ret_plan;
    struct walk w = {.device = device, .shape = shape, .name = name};
    struct mf_refusal no;
    if (strncmp(name, "s1_", 3) != 0 && strncmp(name, "s2_", 3) != 0)
        return -EINVAL;
    if (!mf_hip_family_takes(f->name, device, shape, &w.format, &no) ||
        each(&w, name[1] - '0', match_name) != 1 || !is_legal(&w.found, shape, w.format, device, &no))
        return -ENOTSUP;
    plan->config = w.found;
    plan->format = w.format;
    return 0;
}

/* ---- from a step to a launch ---- */

static void write_code(const struct mf_device_info *device, const struct mf_shape *s, const void *plan,
                       struct mf_code *ret)
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    const struct config *c = &((const struct plan *)plan)->config;
    enum mf_hip_format format = ((const struct plan *)plan)->format;
    const struct variant *v = c->v;
    *ret = is_hopper(v) ? (struct mf_code){.source = "tile_hopper.hip", .function = "mf_tile_hopper"}
                        : (struct mf_code){.source = "tile.hip", .function = "mf_tile"};
    mf_hip_stage_define(ret, &c->st, s);
    mf_code_define(ret, "MF_FORMAT=%d", (int)format);
    mf_code_define(ret, "MF_STAGES=%d", stages_of(machine, c, s, format));
    if (is_hopper(v)) {
        mf_code_define(ret, "MF_PINGPONG=%d", takes_turns(v));
        mf_code_define(ret, "MF_SWAP=%d", is_swapped(v));
        if (v->core == SWAPPED_KEPT)
            mf_code_define(ret, "MF_WEIGHT_REUSE=%d", KEPT_BLOCKS);
        if (c->st.zeroes)
            mf_code_define(ret, "MF_ZERO");
    } else {
        mf_code_define(ret, "MF_WARPS_N=%d", v->warps_n);
        mf_code_define(ret, "MF_WARPS_M=%d", v->warps_m);
        mf_code_define(ret, "MF_BLOCKS=%d", v->blocks);
    }
    if (v->core == GROUPS)
        mf_code_define(ret, "MF_WGMMA");
    if (v->core == DIRECT)
        mf_code_define(ret, "MF_DIRECT");
}

static void set_grid(struct mf_kernel *k)
{
    const struct plan *plan = k->plan;
    const struct variant *v = plan->config.v;
    const struct mf_device_info *device = &k->function.device->info;
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    k->grid = mf_hip_persistent_grid(device, v->warps_n * v->warps_m * machine->wave, v->blocks,
                                     shared_bytes(machine, &plan->config, &k->shape, plan->format));
    k->grid.programmatic_launch = true; /* because all cores start with mf_begin */
}

static void set_token_count(struct mf_kernel *k)
{
    struct plan *plan = k->plan;
    plan->order = mf_hip_hopper_order_of(&plan->config.st, &k->shape, &k->function.device->info, false);
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct plan *plan = k->plan;
    const struct mf_hip_stage *st = &plan->config.st;
    struct mf_device *device = k->function.device;
    struct mf_hip_bulk_args a = mf_hip_hopper_args(st, &k->shape, &device->info, l, &plan->order);
    a.y = st->zeroes ? l->gives[1].part[0] : NULL;
    if (!is_hopper(plan->config.v))
        return mf_hip_launch(&k->function, &k->grid, &a.tile, sizeof(a.tile));
    int r = mf_hip_hopper_map(st, &k->shape, device, l, &a);
    return r < 0 ? r : mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static const struct mf_hip_steps steps = {
    .plan_bytes = sizeof(struct plan),
    .find = find,
    .code = write_code,
    .open = set_grid,
    .set_token_count = set_token_count,
};

const struct mf_family mf_family_hip_two_stage =
    MF_HIP_FAMILY(.name = "two_stage", .enumerate = enumerate, .launch = launch, .hip_steps = &steps);
