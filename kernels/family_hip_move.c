/* move on GPUs: sort, the quantisations and the combine.
 *
 *     sort_m16                  stable, for any routing; blocks that meet where ids are many
 *     sort_one_m16              the same by one block, where ids are not so many that several are sure to be faster
 *     align_m16, align_many_m16 the sort as vLLM defines it, by one block or by several that do not meet
 *     from_aligned_m16          vLLM's order into that one
 *     quant1_fp8fn_128          x;  quant2_fp8fn_128_m16  h; in every format that activations have
 *     combine_z, combine_zw     z times the routing weights and summed; weighted z summed
 *     zero_y                    y for a stage 2 that adds into it */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/text.h"
#include "kernels/family_hip.h"
#include "kernels/hip/args.h"

#define SORT_THREADS 1024
#define SORT_BLOCKS  64   /* all of them resident at once on any device */
#define SORT_FEW     2048 /* ids that one block sorts sooner than several could meet */
#define ONE_MOST     8192 /* ids that one block is still tried for */
#define ALIGN_FEW    1024 /* ids that one block aligns without a rival */
#define ALIGN_BLOCKS 16   /* waves of a block, the least that any machine has */
#define THREADS      256
#define BLOCKS_SM    8
#define QUANT_BLOCKS_SM \
    6 /* of a multiprocessor at once, so that registers are few enough; all are resident */
#define NVFP4_BLOCKS_SM 4 /* the same; a group's scale is divided for, too */

enum kind {
    SORT,
    SORT_ONE,
    ALIGN,
    ALIGN_MANY,
    FROM_ALIGNED,
    QUANT1,
    QUANT2,
    COMBINE,
    COMBINE_WEIGHTED,
    ZERO,
    N_KINDS
};

/* clang-format off */
static const struct {
    const char *word, *source, *function;
} kinds[N_KINDS] = {
    [SORT]             = {"sort",         "sort.hip",         "mf_sort"},
    [SORT_ONE]         = {"sort_one",     "sort.hip",         "mf_sort"},
    [ALIGN]            = {"align",        "align.hip",        "mf_align"},
    [ALIGN_MANY]       = {"align_many",   "align.hip",        "mf_align"},
    [FROM_ALIGNED]     = {"from_aligned", "from_aligned.hip", "mf_from_aligned"},
    [QUANT1]           = {"quant1",       "quant.hip",        "mf_quant"},
    [QUANT2]           = {"quant2",       "quant.hip",        "mf_quant"},
    [COMBINE]          = {"combine_z",    "combine.hip",      "mf_combine"},
    [COMBINE_WEIGHTED] = {"combine_zw",   "combine.hip",      "mf_combine"},
    [ZERO]             = {"zero_y",       "zero.hip",         "mf_zero"},
};
/* clang-format on */

struct config {
    enum kind kind;
    int block_m; /* 0: none */
};

static const int block_ms[] = {16, 32, 48, 64, 96, 128, 192, 256};
static const int aligned_block_ms[] = {16, 64}; /* vLLM's begin at 16 rows; the ends of a range are enough */

struct mf_kernel {
    struct mf_shape shape;
    struct config config;
    struct mf_hip_function function;
    struct mf_grid grid;
};

static bool has_block(enum kind kind)
{
    return kind <= QUANT2 && kind != QUANT1;
}

static bool aligns(enum kind kind)
{
    return kind == ALIGN || kind == ALIGN_MANY;
}

static bool orders(enum kind kind)
{
    return kind == SORT || kind == SORT_ONE || aligns(kind);
}

static bool quantises(enum kind kind)
{
    return kind == QUANT1 || kind == QUANT2;
}

static const struct mf_codec *codec_of(const struct mf_shape *s)
{
    struct mf_artifact x = mf_plain_x(s);
    return mf_codec_find(x.format, x.scale);
}

static void print_name(const struct config *c, const struct mf_shape *s, char buf[MF_STEP_NAME_MAX])
{
    const char *format = quantises(c->kind) ? codec_of(s)->name : "";
    char block[16] = "";
    if (has_block(c->kind))
        mf_say(block, sizeof(block), "_m%d", c->block_m);
    mf_say(buf, MF_STEP_NAME_MAX, "%s%s%s%s", kinds[c->kind].word, *format ? "_" : "", format, block);
}

static mf_ops covers_of(const struct mf_shape *s, enum kind kind)
{
    const mf_ops covers[N_KINDS] = {
        [SORT] = MF_OP_BIT(MF_OP_SORT),
        [SORT_ONE] = MF_OP_BIT(MF_OP_SORT),
        [ALIGN] = MF_OP_BIT(MF_OP_SORT),
        [ALIGN_MANY] = MF_OP_BIT(MF_OP_SORT),
        [QUANT1] = MF_OP_BIT(MF_OP_QUANT1),
        [QUANT2] = MF_OP_BIT(MF_OP_QUANT2),
        [COMBINE] = MF_OP_BIT(MF_OP_COMBINE) | (s->doweight_stage1 ? 0 : MF_OP_BIT(MF_OP_WEIGHT)),
        [COMBINE_WEIGHTED] = MF_OP_BIT(MF_OP_COMBINE),
        [ZERO] = 0,
        [FROM_ALIGNED] = 0, /* only turns one order into the other */
    };
    return covers[kind];
}

/* Slots of experts that are not here have no row in z. */
static bool skips(enum kind kind, const struct mf_shape *s)
{
    return s->ep_experts > 0 && (kind == COMBINE || kind == COMBINE_WEIGHTED);
}

static bool exists(const struct mf_shape *s, enum kind kind)
{
    if (quantises(kind))
        return mf_cpu_quantises(s);
    return kind != COMBINE_WEIGHTED || !s->doweight_stage1;
}

static uint32_t sort_shared(const struct mf_device_info *device, const struct mf_shape *s)
{
    return (uint32_t)((SORT_THREADS / mf_hip_machine_of(device)->wave + 3) * s->expert + 64) * 4;
}

static bool is_legal(const struct mf_device_info *device, const struct mf_shape *s, struct mf_refusal *no)
{
    if (!mf_hip_rows_known(device, s, no))
        return false;
    if (s->expert > SORT_THREADS)
        mf_refuse(no, "experts", "expert is %d; the sort has a thread for each, %d at most", s->expert,
                  SORT_THREADS);
    else if (sort_shared(device, s) > (uint32_t)mf_hip_machine_of(device)->shared_block)
        mf_refuse(no, "lds", "to sort for %d experts needs %u bytes of LDS; a block has %d", s->expert,
                  sort_shared(device, s), mf_hip_machine_of(device)->shared_block);
    return !no->rule;
}

static int quant_blocks_sm(const struct mf_codec *c)
{
    return c->global ? NVFP4_BLOCKS_SM : QUANT_BLOCKS_SM;
}

/* Does one scale stand for all rows? Then blocks meet between looking and quantising. */
static bool is_shared(const struct mf_codec *c)
{
    return c->scale_bytes > 0 && c->group_rows == 0;
}

static uint32_t sort_blocks(enum kind kind, const struct mf_shape *s)
{
    int64_t n = s->token * s->topk;
    if (aligns(kind))
        return kind == ALIGN ? 1 : ALIGN_BLOCKS;
    return kind == SORT_ONE || n <= SORT_FEW
               ? 1
               : (uint32_t)MF_MIN((n + SORT_THREADS - 1) / SORT_THREADS, SORT_BLOCKS);
}

/* ---- steps ---- */

/* Of each block, where all rows share a scale. */
static size_t largest_bytes(const struct mf_shape *s, const struct mf_device_info *device)
{
    return is_shared(codec_of(s)) ? (size_t)device->cores * QUANT_BLOCKS_SM * sizeof(mf_i32) : 0;
}

static void describe(const struct config *c, const struct mf_shape *shape,
                     const struct mf_device_info *device, struct mf_step *ret)
{
    double T = (double)shape->token, slots = mf_cpu_slots(shape), H = shape->model_dim, I = shape->inter_dim;
    struct mf_step s = {
        .family = "move", .stage = MF_STAGE_MOVE, .covers = covers_of(shape, c->kind), .block_m = c->block_m};
    print_name(c, shape, s.name);
    switch (c->kind) {
    case ALIGN:
    case ALIGN_MANY:
        mf_step_need(&s, mf_cpu_topk());
        mf_step_give(&s, mf_cpu_aligned(c->block_m));
        s.bytes = T * shape->topk * 4 + slots * 4;
        break;
    case SORT:
    case SORT_ONE:
        mf_step_need(&s, mf_cpu_topk());
        mf_step_give(&s, mf_cpu_sorted(c->block_m));
        s.bytes = T * shape->topk * 8 + slots * 8;
        s.workspace_bytes = sort_blocks(c->kind, shape) * (size_t)shape->expert * sizeof(mf_i32);
        break;
    case FROM_ALIGNED:
        mf_step_need(&s, mf_cpu_aligned(c->block_m));
        mf_step_need(&s, mf_cpu_topk());
        mf_step_give(&s, mf_cpu_sorted(c->block_m));
        s.bytes = slots * 16;
        break;
    case QUANT1:
        mf_step_need(&s, mf_cpu_bf16(MF_TENSOR_X, "token", 0));
        if (codec_of(shape)->global)
            mf_step_need(&s, mf_cpu_calib());
        mf_step_give(&s, mf_plain_x(shape));
        s.workspace_bytes = largest_bytes(shape, device);
        s.bytes = T * (H * 2 + mf_cpu_row_bytes(shape, shape->model_dim));
        break;
    case QUANT2:
        mf_step_need(&s, mf_cpu_bf16(MF_TENSOR_H, "sorted", c->block_m));
        mf_step_need(&s, mf_cpu_sorted(c->block_m));
        if (codec_of(shape)->global)
            mf_step_need(&s, mf_cpu_calib());
        mf_step_give(&s, mf_plain_h(shape, c->block_m));
        s.workspace_bytes = largest_bytes(shape, device);
        s.bytes = slots * (I * 2 + mf_cpu_row_bytes(shape, shape->inter_dim));
        break;
    case COMBINE:
    case COMBINE_WEIGHTED:
        mf_step_need(&s, mf_cpu_bf16(c->kind == COMBINE ? MF_TENSOR_Z : MF_TENSOR_ZW, "slot", 0));
        if ((c->kind == COMBINE && !shape->doweight_stage1) || skips(c->kind, shape))
            mf_step_need(&s, mf_cpu_topk());
        mf_step_give(&s, mf_cpu_bf16(MF_TENSOR_Y, "token", 0));
        s.flops = 2 * slots * H;
        s.bytes = (slots + T) * H * 2;
        break;
    case ZERO:
        mf_step_give(&s, mf_hip_zeroed_y());
        s.bytes = T * H * 2;
        break;
    case N_KINDS:
        break;
    }
    *ret = s;
}

typedef int (*each_fn)(void *context, const struct config *c);

static int each(const struct mf_shape *s, each_fn f, void *context)
{
    for (enum kind kind = SORT; kind < N_KINDS; kind++) {
        bool aligned = kind == FROM_ALIGNED || aligns(kind);
        const int *blocks = aligned ? aligned_block_ms : block_ms;
        size_t n = aligned ? MF_ARRAY_LEN(aligned_block_ms) : has_block(kind) ? MF_ARRAY_LEN(block_ms) : 1;
        for (size_t b = 0; b < n; b++) {
            struct config c = {kind, has_block(kind) ? blocks[b] : 0};
            int r = exists(s, kind) ? f(context, &c) : 0;
            if (r != 0)
                return r;
        }
    }
    return 0;
}

struct walk {
    const struct mf_device_info *device;
    const struct mf_shape *shape;
    struct mf_offer *offer;
    const char *name; /* searched for */
    struct config found;
};

/* Worth trying for so many ids; the others have to open, too: a table's row is for its bucket. */
static bool is_tried(const struct mf_shape *s, enum kind kind)
{
    int64_t ids = s->token * s->topk;
    if (kind == SORT_ONE)
        return ids > SORT_FEW && ids <= ONE_MOST;
    return kind != ALIGN_MANY || ids > ALIGN_FEW;
}

static int offer_step(void *context, const struct config *c)
{
    struct walk *w = context;
    struct mf_step step;
    if (!is_tried(w->shape, c->kind))
        return 0;
    describe(c, w->shape, w->device, &step);
    return w->offer->step(w->offer, &step);
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct walk w = {.device = device, .shape = shape, .offer = offer};
    struct mf_refusal no;
    if (!is_legal(device, shape, &no))
        return offer->reject(offer, f->name, f->name, no.rule, "%s", no.reason);
    return each(shape, offer_step, &w);
}

static int match_name(void *context, const struct config *c)
{
    struct walk *w = context;
    char name[MF_STEP_NAME_MAX];
    print_name(c, w->shape, name);
    if (strcmp(name, w->name) != 0)
        return 0;
    w->found = *c;
    return 1;
}

static void code_of(const struct config *c, const struct mf_shape *s, struct mf_code *ret)
{
    *ret = (struct mf_code){.source = kinds[c->kind].source, .function = kinds[c->kind].function};
    mf_code_define(ret, "MF_THREADS=%d", orders(c->kind) ? SORT_THREADS : THREADS);
    if (orders(c->kind)) {
        mf_code_define(ret, "MF_K=%d", s->topk);
        mf_code_define(ret, "MF_BLOCK_M=%d", c->block_m);
        mf_hip_define_share(ret, s);
        return;
    }
    if (c->kind == FROM_ALIGNED) {
        mf_code_define(ret, "MF_K=%d", s->topk);
        mf_code_define(ret, "MF_BLOCK_M=%d", c->block_m);
        return;
    }
    mf_code_define(ret, "MF_COLS=%d", c->kind == QUANT2 ? s->inter_dim : s->model_dim);
    if (quantises(c->kind)) {
        mf_hip_define_codec(ret, codec_of(s));
        mf_code_define(ret, "MF_BLOCKS=%d", quant_blocks_sm(codec_of(s)));
        return;
    }
    if (c->kind == ZERO)
        return;
    mf_code_define(ret, "MF_K=%d", s->topk);
    mf_code_define(ret, "MF_WEIGHTED=%d", c->kind == COMBINE && !s->doweight_stage1);
    if (skips(c->kind, s))
        mf_hip_define_share(ret, s);
}

static int find(const struct mf_device_info *device, const struct mf_shape *shape, const char *name,
                struct config *ret, struct mf_code *ret_code)
{
    struct walk w = {.device = device, .shape = shape, .name = name};
    struct mf_refusal no;
    if (!is_legal(device, shape, &no))
        return -ENOTSUP;
    if (each(shape, match_name, &w) != 1)
        return -EINVAL;
    *ret = w.found;
    code_of(ret, shape, ret_code);
    return 0;
}

static int code(const struct mf_device_info *device, const struct mf_shape *shape, const char *name,
                struct mf_code *ret)
{
    struct config c;
    return find(device, shape, name, &c, ret);
}

/* ---- launches ---- */

/* Blocks that would find work, each of its threads once. */
static int64_t work_of(const struct config *c, const struct mf_shape *s)
{
    const struct mf_codec *codec = codec_of(s);
    if (c->kind == FROM_ALIGNED)
        return (mf_padded_rows(s, c->block_m) + THREADS - 1) / THREADS;
    int64_t rows = c->kind == QUANT2 ? mf_padded_rows(s, c->block_m) : s->token;
    int64_t cols = c->kind == QUANT2 ? s->inter_dim : s->model_dim;
    int64_t groups = codec->group_cols > 0 ? (cols + codec->group_cols - 1) / codec->group_cols : 1;
    if (quantises(c->kind) && codec->group_rows > 0)
        return codec->group_cols > 0
                   ? (rows * groups * MF_MAX(codec->group_cols / 16, 2) + THREADS - 1) / THREADS
                   : rows;
    return (rows * (cols / 8) + THREADS - 1) / THREADS;
}

static struct mf_grid grid_of(const struct config *c, const struct mf_shape *s,
                              const struct mf_device_info *device)
{
    int64_t sm = quantises(c->kind) ? quant_blocks_sm(codec_of(s)) : BLOCKS_SM;
    int64_t blocks = MF_MAX(MF_MIN(work_of(c, s), device->cores * sm), 1);
    if (orders(c->kind))
        return (struct mf_grid){sort_blocks(c->kind, s), 1,    1,   SORT_THREADS,
                                sort_shared(device, s),  true, true};
    return (struct mf_grid){(uint32_t)blocks, 1, 1, THREADS, 0, true, true};
}

static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret)
{
    struct mf_code source;
    struct config c;
    (void)f;
    int r = find(&device->info, shape, name, &c, &source);
    if (r < 0)
        return r;
    struct mf_kernel *k = calloc(1, sizeof(*k));
    if (!k)
        return -ENOMEM;
    k->shape = *shape;
    k->config = c;
    k->grid = grid_of(&c, shape, &device->info);
    r = mf_hip_function_open(device, &source, &k->function);
    if (r < 0) {
        free(k);
        return r;
    }
    *ret = k;
    return 0;
}

static int launch_sort(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_hip_sort_args a = {
        .ids = l->needs[0].part[0],
        .weights = l->needs[0].part[1],
        .sorted_ids = l->gives[0].part[0],
        .sorted_weights = l->gives[0].part[1],
        .experts = l->gives[0].part[2],
        .num_valid = l->gives[0].part[3],
        .counts = l->workspace,
        .token = (int32_t)k->shape.token,
    };
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch_align(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_hip_align_args a = {
        .ids = l->needs[0].part[0],
        .sorted_ids = l->gives[0].part[0],
        .experts = l->gives[0].part[1],
        .num_post_pad = l->gives[0].part[2],
        .rows = (int32_t)mf_padded_rows(&k->shape, k->config.block_m),
        .token = (int32_t)k->shape.token,
    };
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch_from_aligned(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_hip_aligned_args a = {
        .flat = l->needs[0].part[0],
        .aligned_experts = l->needs[0].part[1],
        .num_post_pad = l->needs[0].part[2],
        .weights = l->needs[1].part[1],
        .sorted_ids = l->gives[0].part[0],
        .sorted_weights = l->gives[0].part[1],
        .experts = l->gives[0].part[2],
        .num_valid = l->gives[0].part[3],
        .token = (int32_t)k->shape.token,
    };
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch_quant(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_codec *codec = codec_of(&k->shape);
    bool second = k->config.kind == QUANT2;
    const struct mf_hip_quant_args a = {
        .x = l->needs[0].part[0],
        .q = l->gives[0].part[0],
        .scale = l->gives[0].part[1],
        .num_valid = second ? l->needs[1].part[3] : NULL,
        .sorted_ids = second && is_shared(codec) ? l->needs[1].part[0] : NULL,
        .largest = l->workspace,
        .factor = codec->global ? (const float *)l->needs[second ? 2 : 1].part[0] + second : NULL,
        .factor_kept = codec->global ? l->gives[0].part[2] : NULL,
        .rows = (int32_t)(second ? mf_padded_rows(&k->shape, k->config.block_m) : k->shape.token),
        .token = (int32_t)k->shape.token,
    };
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch_combine(const struct mf_kernel *k, const struct mf_launch *l)
{
    bool weighs = k->config.kind == COMBINE && !k->shape.doweight_stage1;
    const struct mf_hip_combine_args a = {
        .z = l->needs[0].part[0],
        .weights = weighs ? l->needs[1].part[1] : NULL,
        .ids = skips(k->config.kind, &k->shape) ? l->needs[1].part[0] : NULL,
        .y = l->gives[0].part[0],
        .token = (int32_t)k->shape.token,
    };
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch_zero(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_hip_combine_args a = {.y = l->gives[0].part[0], .token = (int32_t)k->shape.token};
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    static int (*const launchers[N_KINDS])(const struct mf_kernel *,
                                           const struct mf_launch *) = {[SORT] = launch_sort,
                                                                        [SORT_ONE] = launch_sort,
                                                                        [ALIGN] = launch_align,
                                                                        [ALIGN_MANY] = launch_align,
                                                                        [FROM_ALIGNED] = launch_from_aligned,
                                                                        [QUANT1] = launch_quant,
                                                                        [QUANT2] = launch_quant,
                                                                        [COMBINE] = launch_combine,
                                                                        [COMBINE_WEIGHTED] = launch_combine,
                                                                        [ZERO] = launch_zero};
    return launchers[k->config.kind](k, l);
}

static struct mf_kernel *close_step(struct mf_kernel *k)
{
    mf_hip_function_close(&k->function);
    free(k);
    return NULL;
}

const struct mf_family mf_family_hip_move = {
    .api = MF_FAMILY_API,
    .name = "move",
    .device_kind = "hip",
    .enumerate = enumerate,
    .open = open_step,
    .launch = launch,
    .close = close_step,
    .code = code,
    .shares = true,
};
