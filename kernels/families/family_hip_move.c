/* Family move on GPUs: sort, quantisation and combine.
 *
 *     sort_m16                  stable sort on several blocks, which synchronise if there are many ids
 *     sort_zero_m16             sort while other blocks zero y
 *     sort_zero_quant1_fp8fn_128_m16   as sort_zero, and quantise x; requires scales per group of a row
 *     sort_quant1_fp8fn_128_m16        sort while other blocks quantise x
 *     align_m16, align_many_m16 vLLM's sort, on one block or on several that do not synchronise
 *     from_aligned_m16          convert vLLM's order into the order of sort
 *     quant1_fp8fn_128          quantise x, in any activation format
 *     quant2_fp8fn_128_m16      quantise h
 *     combine_z, combine_zw     sum z times the routing weights; sum weighted z
 *     zero_y                    zero y for a stage 2 that accumulates into it */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/families/family_hip_move.h"
#include "kernels/gpu/src/args.h"

#define SORT_BLOCKS     64   /* maximum sorting blocks; more blocks are no faster */
#define SORT_ASIDE      16   /* sorting blocks of steps in which other blocks zero y or quantise x */
#define RANKED_EACH     64   /* with few ids, every block ranks all ids and places this number of ids */
#define RANKED_MOST     16   /* maximum number of blocks that rank all ids */
#define COUNTED_EACH    256  /* with more ids, every block counts all ids and places this number of ids */
#define COUNTED_MOST    32   /* maximum number of blocks that count all ids */
#define ALIGN_FEW       1024 /* up to this number of ids, only align (one block) is tried, not align_many */
#define ALIGN_BLOCKS    16   /* warps or waves of a sorting block: the minimum over all architectures */
#define QUANT_BLOCKS_SM 6    /* quantising blocks per SM, all resident; limited by registers */
/* quantising blocks per SM for NVFP4, which also divides to compute a group's scale */
#define NVFP4_BLOCKS_SM 4

/* clang-format off */
static const struct {
    const char *word, *source, *function;
} kinds[MF_HIP_MOVE_N_] = {
    [MF_HIP_SORT]             = {"sort",         "sort.hip",         "mf_sort"},
    [MF_HIP_SORT_ZERO]        = {"sort_zero",    "sort_zero.hip",    "mf_sort_zero"},
    [MF_HIP_SORT_QUANT1]      = {"sort",         "sort_zero.hip",    "mf_sort_zero"},
    [MF_HIP_ALIGN]            = {"align",        "align.hip",        "mf_align"},
    [MF_HIP_ALIGN_MANY]       = {"align_many",   "align.hip",        "mf_align"},
    [MF_HIP_FROM_ALIGNED]     = {"from_aligned", "from_aligned.hip", "mf_from_aligned"},
    [MF_HIP_QUANT1]           = {"quant1",       "quant.hip",        "mf_quant"},
    [MF_HIP_QUANT2]           = {"quant2",       "quant.hip",        "mf_quant"},
    [MF_HIP_COMBINE]          = {"combine_z",    "combine.hip",      "mf_combine"},
    [MF_HIP_COMBINE_WEIGHTED] = {"combine_zw",   "combine.hip",      "mf_combine"},
    [MF_HIP_ZERO]             = {"zero_y",       "zero.hip",         "mf_zero"},
};
/* clang-format on */

static const int block_ms[] = {16, 32, 48, 64, 80, 96, 128};
static const int aligned_block_ms[] = {16, 64}; /* vLLM uses 16 rows or more; test the ends of the range */

static bool has_block(enum mf_hip_move_kind kind)
{
    return kind <= MF_HIP_QUANT2 && kind != MF_HIP_QUANT1;
}

static bool aligns(enum mf_hip_move_kind kind)
{
    return kind == MF_HIP_ALIGN || kind == MF_HIP_ALIGN_MANY;
}

bool mf_hip_move_orders(enum mf_hip_move_kind kind)
{
    return kind <= MF_HIP_SORT_QUANT1 || aligns(kind);
}

bool mf_hip_move_sorts_aside(enum mf_hip_move_kind kind)
{
    return kind == MF_HIP_SORT_ZERO || kind == MF_HIP_SORT_QUANT1;
}

bool mf_hip_move_quantises(enum mf_hip_move_kind kind)
{
    return kind == MF_HIP_QUANT1 || kind == MF_HIP_QUANT2;
}

const struct mf_codec *mf_hip_move_codec(const struct mf_shape *s)
{
    struct mf_tensor_spec x = mf_plain_x(s);
    return mf_codec_find(x.format, x.scale);
}

static void print_name(const struct mf_hip_move_config *c, const struct mf_shape *s,
                       char buf[MF_STEP_NAME_MAX])
{
    bool first = mf_hip_move_quantises_first(c->kind, s);
    const char *format = mf_hip_move_quantises(c->kind) || first ? mf_hip_move_codec(s)->name : "";
    char block[16] = "";
    if (has_block(c->kind))
        mf_format(block, sizeof(block), "_m%d", c->block_m);
    mf_format(buf, MF_STEP_NAME_MAX, "%s%s%s%s%s", kinds[c->kind].word, first ? "_quant1" : "",
              *format ? "_" : "", format, block);
}

static mf_ops covers_of(const struct mf_shape *s, enum mf_hip_move_kind kind)
{
    const mf_ops covers[MF_HIP_MOVE_N_] = {
        [MF_HIP_SORT] = MF_OP_BIT(MF_OP_SORT),
        [MF_HIP_SORT_ZERO] =
            MF_OP_BIT(MF_OP_SORT) | (mf_hip_move_quantises_first(kind, s) ? MF_OP_BIT(MF_OP_QUANT1) : 0),
        [MF_HIP_SORT_QUANT1] = MF_OP_BIT(MF_OP_SORT) | MF_OP_BIT(MF_OP_QUANT1),
        [MF_HIP_ALIGN] = MF_OP_BIT(MF_OP_SORT),
        [MF_HIP_ALIGN_MANY] = MF_OP_BIT(MF_OP_SORT),
        [MF_HIP_QUANT1] = MF_OP_BIT(MF_OP_QUANT1),
        [MF_HIP_QUANT2] = MF_OP_BIT(MF_OP_QUANT2),
        [MF_HIP_COMBINE] = MF_OP_BIT(MF_OP_COMBINE) | (s->doweight_stage1 ? 0 : MF_OP_BIT(MF_OP_WEIGHT)),
        [MF_HIP_COMBINE_WEIGHTED] = MF_OP_BIT(MF_OP_COMBINE),
        [MF_HIP_ZERO] = 0,
        [MF_HIP_FROM_ALIGNED] = 0, /* converts one order into another, which is not an op of the layer */
    };
    return covers[kind];
}

bool mf_hip_move_quantises_first(enum mf_hip_move_kind kind, const struct mf_shape *s)
{
    const struct mf_codec *c = mf_hip_move_codec(s);
    return mf_hip_move_sorts_aside(kind) && mf_cpu_quantises(s) && c->group_rows > 0 && c->group_cols > 0;
}

static bool exists(const struct mf_shape *s, enum mf_hip_move_kind kind)
{
    if (mf_hip_move_quantises(kind))
        return mf_cpu_quantises(s);
    if (kind == MF_HIP_SORT_QUANT1)
        return mf_hip_move_quantises_first(kind, s);
    return kind != MF_HIP_COMBINE_WEIGHTED || !s->doweight_stage1;
}

uint32_t mf_hip_sort_shared(const struct mf_device_info *device, const struct mf_shape *s)
{
    return (uint32_t)((MF_HIP_SORT_THREADS / mf_hip_machine_of(device)->wave + 3) * s->expert + 64) * 4;
}

static bool is_legal(const struct mf_device_info *device, const struct mf_shape *s, struct mf_refusal *no)
{
    if (!mf_hip_rows_known(device, s, no))
        return false;
    if (s->expert > MF_HIP_SORT_THREADS)
        mf_refuse(no, "experts", "expert is %d; the sort uses one thread per expert, %d at most", s->expert,
                  MF_HIP_SORT_THREADS);
    else if (mf_hip_sort_shared(device, s) > (uint32_t)mf_hip_machine_of(device)->shared_block)
        mf_refuse(no, "lds", "sorting for %d experts needs %u bytes of shared memory; a block has %d",
                  s->expert, mf_hip_sort_shared(device, s), mf_hip_machine_of(device)->shared_block);
    return !no->rule;
}

int mf_hip_quant_blocks_sm(const struct mf_codec *c)
{
    return c->global ? NVFP4_BLOCKS_SM : QUANT_BLOCKS_SM;
}

bool mf_hip_move_is_shared(const struct mf_codec *c)
{
    return c->scale_bytes > 0 && c->group_rows == 0;
}

uint32_t mf_hip_sort_blocks(const struct mf_device_info *device, enum mf_hip_move_kind kind,
                            const struct mf_shape *s)
{
    bool aside = mf_hip_move_sorts_aside(kind);
    int64_t n = s->token * s->topk, each = MF_HIP_SORT_THREADS, most = aside ? SORT_ASIDE : SORT_BLOCKS;
    if (aligns(kind))
        return kind == MF_HIP_ALIGN ? 1 : ALIGN_BLOCKS;
    if (n <= MF_HIP_SORT_RANKED) {
        each = RANKED_EACH;
        most = RANKED_MOST;
    } else if (n <= MF_HIP_SORT_COUNTED) {
        each = COUNTED_EACH;
        most = COUNTED_MOST;
    }
    most = MF_MIN(most, device->cores - (aside ? 1 : 0));
    return (uint32_t)MF_MAX(MF_MIN((n + each - 1) / each, most), 1);
}

/* ---- steps ---- */

/* Returns the bytes of the counts per block and expert, or 0 if blocks do not synchronise. */
static size_t counts_bytes(const struct mf_device_info *device, enum mf_hip_move_kind kind,
                           const struct mf_shape *s)
{
    if (s->token * s->topk <= MF_HIP_SORT_COUNTED)
        return 0;
    return mf_hip_sort_blocks(device, kind, s) * (size_t)s->expert * sizeof(int32_t);
}

/* Returns the bytes of the maxima, one per block, or 0 if rows do not share a scale. */
static size_t largest_bytes(const struct mf_shape *s, const struct mf_device_info *device)
{
    return mf_hip_move_is_shared(mf_hip_move_codec(s))
               ? (size_t)device->cores * QUANT_BLOCKS_SM * sizeof(int32_t)
               : 0;
}

static void describe(const struct mf_hip_move_config *c, const struct mf_shape *shape,
                     const struct mf_device_info *device, struct mf_step *ret)
{
    double T = (double)shape->token, slots = mf_cpu_slots(shape), H = shape->model_dim, I = shape->inter_dim;
    struct mf_step s = {
        .family = "move", .stage = MF_STAGE_MOVE, .covers = covers_of(shape, c->kind), .block_m = c->block_m};
    print_name(c, shape, s.name);
    switch (c->kind) {
    case MF_HIP_ALIGN:
    case MF_HIP_ALIGN_MANY:
        mf_step_need(&s, mf_cpu_topk());
        mf_step_give(&s, mf_cpu_aligned(c->block_m));
        s.bytes = T * shape->topk * 4 + slots * 4;
        break;
    case MF_HIP_SORT:
        mf_step_need(&s, mf_cpu_topk());
        mf_step_give(&s, mf_cpu_sorted(c->block_m));
        s.bytes = T * shape->topk * 8 + slots * 8;
        s.workspace_bytes = counts_bytes(device, c->kind, shape);
        break;
    case MF_HIP_SORT_ZERO:
    case MF_HIP_SORT_QUANT1:
        mf_step_need(&s, mf_cpu_topk());
        mf_step_give(&s, mf_cpu_sorted(c->block_m));
        if (c->kind == MF_HIP_SORT_ZERO)
            mf_step_give(&s, mf_hip_zeroed_y());
        s.bytes = T * shape->topk * 8 + slots * 8 + (c->kind == MF_HIP_SORT_ZERO ? T * H * 2 : 0);
        s.workspace_bytes = counts_bytes(device, c->kind, shape);
        if (!mf_hip_move_quantises_first(c->kind, shape))
            break;
        mf_step_need(&s, mf_cpu_bf16(MF_TENSOR_X, "token", 0));
        if (mf_hip_move_codec(shape)->global)
            mf_step_need(&s, mf_cpu_calib());
        mf_step_give(&s, mf_plain_x(shape));
        s.bytes += T * (H * 2 + mf_cpu_row_bytes(shape, shape->model_dim));
        break;
    case MF_HIP_FROM_ALIGNED:
        mf_step_need(&s, mf_cpu_aligned(c->block_m));
        mf_step_need(&s, mf_cpu_topk());
        mf_step_give(&s, mf_cpu_sorted(c->block_m));
        s.bytes = slots * 16;
        break;
    case MF_HIP_QUANT1:
        mf_step_need(&s, mf_cpu_bf16(MF_TENSOR_X, "token", 0));
        if (mf_hip_move_codec(shape)->global)
            mf_step_need(&s, mf_cpu_calib());
        mf_step_give(&s, mf_plain_x(shape));
        s.workspace_bytes = largest_bytes(shape, device);
        s.bytes = T * (H * 2 + mf_cpu_row_bytes(shape, shape->model_dim));
        break;
    case MF_HIP_QUANT2:
        mf_step_need(&s, mf_cpu_bf16(MF_TENSOR_H, "sorted", c->block_m));
        mf_step_need(&s, mf_cpu_sorted(c->block_m));
        if (mf_hip_move_codec(shape)->global)
            mf_step_need(&s, mf_cpu_calib());
        mf_step_give(&s, mf_plain_h(shape, c->block_m));
        s.workspace_bytes = largest_bytes(shape, device);
        s.bytes = slots * (I * 2 + mf_cpu_row_bytes(shape, shape->inter_dim));
        break;
    case MF_HIP_COMBINE:
    case MF_HIP_COMBINE_WEIGHTED:
        mf_step_need(&s, mf_cpu_bf16(c->kind == MF_HIP_COMBINE ? MF_TENSOR_Z : MF_TENSOR_ZW, "slot", 0));
        mf_step_need(&s, mf_cpu_topk());
        mf_step_give(&s, mf_cpu_bf16(MF_TENSOR_Y, "token", 0));
        s.flops = 2 * slots * H;
        s.bytes = (slots + T) * H * 2;
        break;
    case MF_HIP_ZERO:
        mf_step_give(&s, mf_hip_zeroed_y());
        s.bytes = T * H * 2;
        break;
    case MF_HIP_MOVE_N_:
        break;
    }
    *ret = s;
}

typedef int (*each_fn)(void *context, const struct mf_hip_move_config *c);

static int each(const struct mf_shape *s, each_fn f, void *context)
{
    for (enum mf_hip_move_kind kind = MF_HIP_SORT; kind < MF_HIP_MOVE_N_; kind++) {
        bool aligned = kind == MF_HIP_FROM_ALIGNED || aligns(kind);
        const int *blocks = aligned ? aligned_block_ms : block_ms;
        size_t n = aligned ? MF_ARRAY_LEN(aligned_block_ms) : has_block(kind) ? MF_ARRAY_LEN(block_ms) : 1;
        for (size_t b = 0; b < n; b++) {
            struct mf_hip_move_config c = {kind, has_block(kind) ? blocks[b] : 0};
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
    const char *name; /* name of the wanted step */
    struct mf_hip_move_config found;
};

/* True if the kind is worth trying for this number of ids. Other kinds can still be opened, because a row of
 * a tuned table applies to a range of token counts. */
static bool is_tried(const struct mf_shape *s, enum mf_hip_move_kind kind)
{
    int64_t ids = s->token * s->topk;
    return kind != MF_HIP_ALIGN_MANY || ids > ALIGN_FEW;
}

static int offer_step(void *context, const struct mf_hip_move_config *c)
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

static int match_name(void *context, const struct mf_hip_move_config *c)
{
    struct walk *w = context;
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
    struct walk w = {.device = device, .shape = shape, .name = name};
    struct mf_refusal no;
    (void)f;
    if (!is_legal(device, shape, &no))
        return -ENOTSUP;
    if (each(shape, match_name, &w) != 1)
        return -EINVAL;
    *(struct mf_hip_move_config *)ret_plan = w.found;
    return 0;
}

static void write_code(const struct mf_device_info *device, const struct mf_shape *s, const void *plan,
                       struct mf_code *ret)
{
    const struct mf_hip_move_config *c = plan;
    (void)device;
    *ret = (struct mf_code){.source = kinds[c->kind].source, .function = kinds[c->kind].function};
    mf_code_define(ret, "MF_THREADS=%d",
                   mf_hip_move_orders(c->kind) ? MF_HIP_SORT_THREADS : MF_HIP_MOVE_THREADS);
    if (mf_hip_move_orders(c->kind)) {
        mf_code_define(ret, "MF_K=%d", s->topk);
        mf_code_define(ret, "MF_BLOCK_M=%d", c->block_m);
        mf_hip_define_rank(ret, s);
        if (mf_hip_move_sorts_aside(c->kind))
            mf_code_define(ret, "MF_COLS=%d", s->model_dim);
        if (mf_hip_move_quantises_first(c->kind, s))
            mf_hip_define_codec(ret, mf_hip_move_codec(s));
        return;
    }
    if (c->kind == MF_HIP_FROM_ALIGNED) {
        mf_code_define(ret, "MF_K=%d", s->topk);
        mf_code_define(ret, "MF_BLOCK_M=%d", c->block_m);
        mf_hip_define_rank(ret, s);
        return;
    }
    mf_code_define(ret, "MF_COLS=%d", c->kind == MF_HIP_QUANT2 ? s->inter_dim : s->model_dim);
    if (mf_hip_move_quantises(c->kind)) {
        mf_hip_define_codec(ret, mf_hip_move_codec(s));
        mf_code_define(ret, "MF_BLOCKS=%d", mf_hip_quant_blocks_sm(mf_hip_move_codec(s)));
        return;
    }
    if (c->kind == MF_HIP_ZERO)
        return;
    mf_code_define(ret, "MF_K=%d", s->topk);
    mf_code_define(ret, "MF_WEIGHTED=%d", c->kind == MF_HIP_COMBINE && !s->doweight_stage1);
    mf_hip_define_rank(ret, s);
}

static const struct mf_hip_steps steps = {
    .plan_bytes = sizeof(struct mf_hip_move_config),
    .find = find,
    .code = write_code,
    .set_token_count = mf_hip_move_set_token_count,
};

const struct mf_family mf_family_hip_move =
    MF_HIP_FAMILY(.name = "move", .enumerate = enumerate, .launch = mf_hip_move_launch, .hip_steps = &steps);
