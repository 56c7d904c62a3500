/* Family permute on GPUs: moves rows into expert order and back, for GEMMs that read and write expert order.
 * The built-in GEMMs do not use these steps, because family two_stage gathers rows itself and writes them in
 * slot order. The family is enumerated only if `--families` names it.
 *
 *     gather_m16            gathers x, in any format; reads a token's row once for each of its places
 *     gather_once_m16       reads each token's row once and writes it to all its places
 *     gather_bulk_m16       the same as gather_once_m16 with TMA copies
 *     quant1_gather_m16     quantises each token's bf16 row once and writes it to all its places
 *     sort_gather_m16       does the sort and gather_once in one launch, for few routes
 *     act_m16               applies the activation to gate and up in expert order and writes h
 *     unpermute_z_m16       sums a token's rows, multiplied by its routing weights
 *     unpermute_zw_m16      sums a token's rows, which are already weighted
 *     unpermute_few_z_m16, unpermute_few_zw_m16
 *                           the same as unpermute_z and unpermute_zw, for few routes */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/families/family_hip.h"
#include "kernels/gpu/src/args.h"

#define THREADS     256
#define BLOCKS_MOST 6 /* maximum resident blocks per SM or CU, for all kinds of kernels */
/* up to this number of routes, it is faster to sort in every block than to synchronise the blocks */
#define ROUTES_MAX  1024
#define EXPERTS_MAX 512   /* shared memory holds one counter per expert and warp */
#define SORTING_MAX 512   /* maximum threads of a block that sorts */
#define ROWS_MAX    16384 /* maximum number of rows, because every block searches all rows for its routes */
#define BULK_WAVES  4
#define BULK_DEPTH  4    /* asynchronous copies in flight per warp, as in permute_hopper.hip */
#define BULK_PIECE  4096 /* maximum bytes per copy */

enum kind {
    GATHER,
    GATHER_ONCE,
    GATHER_BULK,
    QUANT1_GATHER,
    SORT_GATHER,
    ACT,
    UNPERMUTE,
    UNPERMUTE_WEIGHTED,
    FEW,
    FEW_WEIGHTED,
    N_KINDS
};

/* clang-format off */
static const struct {
    const char *word, *source, *function;
    bool back, weighted, few; /* weighted: the input is z already multiplied by the routing weights */
    bool by_map;              /* true: the kernel uses the inverse map, from route to row */
} kinds[N_KINDS] = {
    [GATHER] = {"gather", "permute.hip", "mf_gather"},
    [GATHER_ONCE] = {"gather_once", "permute.hip", "mf_permute", .by_map = true},
    [GATHER_BULK] = {"gather_bulk", "permute_hopper.hip", "mf_permute_bulk", .by_map = true},
    [QUANT1_GATHER] = {"quant1_gather", "quant_gather.hip", "mf_quant_gather", .by_map = true},
    [SORT_GATHER] = {"sort_gather", "permute_few.hip", "mf_sort_permute", .few = true},
    [ACT] = {"act", "act.hip", "mf_act"},
    [UNPERMUTE] = {"unpermute_z", "permute.hip", "mf_unpermute", .back = true, .by_map = true},
    [UNPERMUTE_WEIGHTED] = {"unpermute_zw", "permute.hip", "mf_unpermute",
        .back = true, .weighted = true, .by_map = true},
    [FEW] = {"unpermute_few_z", "permute_few.hip", "mf_unpermute_few", .back = true, .few = true},
    [FEW_WEIGHTED] = {"unpermute_few_zw", "permute_few.hip", "mf_unpermute_few",
        .back = true, .weighted = true, .few = true},
};
/* clang-format on */
static const int block_ms[] = {16, 32, 64, 128};

struct config {
    enum kind kind;
    int block_m;
};

struct plan {
    struct config config;
    int parts;
};

/* True if the step applies routing weights. With doweight_stage1 no step does, because z already contains the
 * weights. */
static bool weighs(const struct mf_shape *s, enum kind kind)
{
    return kinds[kind].back && !kinds[kind].weighted && !s->doweight_stage1;
}

static const struct mf_codec *codec_of(const struct mf_shape *s)
{
    struct mf_tensor_spec x = mf_plain_x(s);
    return mf_codec_find(x.format, x.scale);
}

/* Returns the bytes of an input row or, for act, of an output row. */
static size_t row_bytes(enum kind kind, const struct mf_shape *s)
{
    if (kind == ACT)
        return (size_t)s->inter_dim * 2;
    return kinds[kind].back || kind == QUANT1_GATHER ? (size_t)s->model_dim * 2
                                                     : mf_codec_row_bytes(codec_of(s), (size_t)s->model_dim);
}

static bool is_legal(const struct mf_device_info *device, const struct mf_shape *s, const struct config *c,
                     struct mf_refusal *no)
{
    int64_t routes = s->token * s->topk, rows = mf_padded_rows(s, c->block_m);
    size_t row = row_bytes(c->kind, s);
    no->rule = NULL;
    if (kinds[c->kind].few && (routes > ROUTES_MAX || s->expert > EXPERTS_MAX))
        mf_refuse(no, "routes",
                  "%lld tokens x topk %d are %lld routes to %d experts; every block sorts on its own, up to "
                  "%d routes "
                  "to %d experts",
                  (long long)s->token, s->topk, (long long)routes, s->expert, ROUTES_MAX, EXPERTS_MAX);
    else if (kinds[c->kind].few && kinds[c->kind].back && rows > ROWS_MAX)
        mf_refuse(no, "rows",
                  "%lld rows with padding to blocks of %d; every block scans all rows, %d at most",
                  (long long)rows, c->block_m, ROWS_MAX);
    else if (c->kind == QUANT1_GATHER && !mf_cpu_quantises(s))
        mf_refuse(no, "format", "activations are %s, which are not quantised; use gather", codec_of(s)->name);
    else if (kinds[c->kind].weighted && s->doweight_stage1)
        mf_refuse(no, "doweight_stage1",
                  "doweight_stage1 is 1: stage 1 applies the routing weight, so there is no zw");
    else if (c->kind == GATHER_BULK && strcmp(device->class.gfx, "sm_90") != 0)
        mf_refuse(no, "arch", "TMA copies require sm_90; the device is %s", device->class.gfx);
    else if (c->kind == GATHER_BULK && row % 16 != 0)
        mf_refuse(no, "divisibility",
                  "rows have %zu bytes, not a multiple of 16 (remainder %zu): TMA copies units of 16 bytes",
                  row, row % 16);
    return !no->rule;
}

/* ---- steps ---- */

static void describe_back(const struct config *c, const struct mf_shape *shape, struct mf_step *s)
{
    double slots = mf_cpu_slots(shape), H = shape->model_dim;
    s->covers = MF_OP_BIT(MF_OP_COMBINE) | (weighs(shape, c->kind) ? MF_OP_BIT(MF_OP_WEIGHT) : 0);
    mf_step_need(s, mf_cpu_bf16(kinds[c->kind].weighted ? MF_TENSOR_ZW : MF_TENSOR_Z, "sorted", c->block_m));
    mf_step_need(s, mf_cpu_sorted(c->block_m));
    mf_step_give(s, mf_cpu_bf16(MF_TENSOR_Y, "token", 0));
    s->bytes = (slots + (double)shape->token) * H * 2;
    s->flops = 2 * slots * H;
}

static void describe_gather(const struct config *c, const struct mf_shape *shape, struct mf_step *s)
{
    double T = (double)shape->token, slots = mf_cpu_slots(shape),
           row = mf_cpu_row_bytes(shape, shape->model_dim);
    bool sorts = c->kind == SORT_GATHER, quantises = c->kind == QUANT1_GATHER;
    s->covers = MF_OP_BIT(MF_OP_GATHER) | (sorts ? MF_OP_BIT(MF_OP_SORT) : 0) |
                (quantises ? MF_OP_BIT(MF_OP_QUANT1) : 0);
    mf_step_need(s, quantises ? mf_cpu_bf16(MF_TENSOR_X, "token", 0) : mf_plain_x(shape));
    mf_step_need(s, sorts ? mf_cpu_topk() : mf_cpu_sorted(c->block_m));
    if (quantises && codec_of(shape)->global)
        mf_step_need(s, mf_cpu_calib());
    mf_step_give(s, mf_cpu_x_sorted(shape, c->block_m));
    if (sorts)
        mf_step_give(s, mf_cpu_sorted(c->block_m));
    s->bytes = slots * row + T * (quantises ? shape->model_dim * 2 : row) +
               (sorts ? T * shape->topk * 8 + slots * 8 : 0);
}

static void describe_act(const struct config *c, const struct mf_shape *shape, struct mf_step *s)
{
    double values = mf_cpu_slots(shape) * shape->inter_dim;
    s->covers = MF_OP_BIT(MF_OP_ACT) | (shape->doweight_stage1 ? MF_OP_BIT(MF_OP_WEIGHT) : 0);
    mf_step_need(s, mf_cpu_bf16(MF_TENSOR_G, "sorted", c->block_m));
    mf_step_need(s, mf_cpu_sorted(c->block_m));
    if (shape->has_b1)
        mf_step_need(s, mf_plain_bias(MF_TENSOR_B1));
    mf_step_give(s, mf_cpu_bf16(MF_TENSOR_H, "sorted", c->block_m));
    s->bytes = values * (shape->use_g1u1 ? 6 : 4);
    s->flops = values * 8;
}

/* Returns the bytes of the map from route to row. In the workspace, the map is followed by the maximum of
 * each block. */
static size_t map_bytes(const struct mf_shape *s)
{
    return ((size_t)(s->token * s->topk) * sizeof(mf_i32) + 63) / 64 * 64;
}

static void describe(const struct config *c, const struct mf_shape *shape,
                     const struct mf_device_info *device, struct mf_step *ret)
{
    struct mf_step s = {.family = "permute", .stage = MF_STAGE_MOVE, .block_m = c->block_m};
    mf_format(s.name, sizeof(s.name), "%s_m%d", kinds[c->kind].word, c->block_m);
    if (c->kind == ACT)
        describe_act(c, shape, &s);
    else if (kinds[c->kind].back)
        describe_back(c, shape, &s);
    else
        describe_gather(c, shape, &s);
    if (kinds[c->kind].by_map)
        s.workspace_bytes = map_bytes(shape);
    if (c->kind == QUANT1_GATHER)
        s.workspace_bytes += (size_t)device->cores * BLOCKS_MOST * sizeof(mf_i32);
    *ret = s;
}

/* Callbacks: one for each step and one for each refused kind. A non-zero result stops the enumeration. */
struct each {
    const struct mf_device_info *device;
    const struct mf_shape *shape;
    int (*step)(void *context, const struct mf_step *step, const struct config *c);
    int (*refused)(void *context, const char *word, const struct mf_refusal *no); /* may be NULL */
    void *context;
};

/* Returns whether the fusion rules allow the step. Blocks synchronise between passes over the rows, so that
 * one step can compute an order or a scale of all rows and then use it. A thread is the only writer of its
 * output columns, so that it can accumulate. */
static bool may_cover(const struct mf_shape *s, const struct mf_step *step, struct mf_refusal *no)
{
    static const struct mf_fusion_caps caps = {
        .whole_rows = true, .all_rows = true, .accumulates = true, .sorts = true};
    return mf_cpu_may_cover(s, step->covers, step->block_m, &caps, no);
}

/* Calls back for every block size of a kind. Reports a refusal only once per kind, because its reason also
 * applies to larger blocks. */
static int each_block(const struct each *e, enum kind kind)
{
    for (size_t b = 0; b < MF_ARRAY_LEN(block_ms); b++) {
        const struct config c = {kind, block_ms[b]};
        struct mf_refusal no;
        struct mf_step step;
        describe(&c, e->shape, e->device, &step);
        if (!is_legal(e->device, e->shape, &c, &no) || !may_cover(e->shape, &step, &no))
            return e->refused ? e->refused(e->context, kinds[kind].word, &no) : 0;
        int r = e->step(e->context, &step, &c);
        if (r != 0)
            return r;
    }
    return 0;
}

static int each(const struct each *e)
{
    int r = 0;
    for (enum kind kind = GATHER; r == 0 && kind < N_KINDS; kind++)
        r = each_block(e, kind);
    return r;
}

static int offer_step(void *context, const struct mf_step *step, const struct config *c)
{
    struct mf_offer *offer = context;
    (void)c;
    return offer->step(offer, step);
}

static int offer_refusal(void *context, const char *word, const struct mf_refusal *no)
{
    struct mf_offer *offer = context;
    return offer->reject(offer, "permute", word, no->rule, "%s", no->reason);
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    const struct each e = {device, shape, offer_step, offer_refusal, offer};
    struct mf_refusal no;
    if (!mf_hip_rows_known(device, shape, &no))
        return offer->reject(offer, f->name, f->name, no.rule, "%s", no.reason);
    return each(&e);
}

struct search {
    const char *name;
    struct config found;
};

static int match_name(void *context, const struct mf_step *step, const struct config *c)
{
    struct search *s = context;
    if (strcmp(step->name, s->name) != 0)
        return 0;
    s->found = *c;
    return 1;
}

/* ---- code ---- */

/* Returns the resident blocks per SM or CU. Their number is limited by the registers, which hold all slots of
 * a chunk. */
static int blocks_sm(const struct config *c, const struct mf_shape *s)
{
    if (c->kind == GATHER_BULK)
        return 3;
    if (c->kind == SORT_GATHER)
        return 1;
    return s->topk > 16 ? 1 : s->topk > 8 ? 2 : c->kind == GATHER_ONCE ? BLOCKS_MOST : 4;
}

static int routes_of(const struct mf_shape *s)
{
    int routes = 32;
    while (routes < s->token * s->topk)
        routes *= 2;
    return routes;
}

/* sort_gather sorts one route per thread. unpermute_few uses small blocks, so that few routes occupy more
 * SMs. */
static int threads_of(const struct config *c, const struct mf_shape *s)
{
    bool least = kinds[c->kind].few && kinds[c->kind].back && s->token * s->topk <= ROUTES_MAX / 8;
    if (c->kind == SORT_GATHER)
        return MF_MAX(MF_MIN(routes_of(s), SORTING_MAX), THREADS);
    return c->kind == GATHER_BULK ? BULK_WAVES * 32 : least ? THREADS / 2 : THREADS;
}

static void define_act(const struct config *c, const struct mf_shape *s, struct mf_code *ret)
{
    mf_code_define(ret, "MF_COLS=%d", s->inter_dim);
    mf_code_define(ret, "MF_UP=%d", s->use_g1u1);
    mf_code_define(ret, "MF_WEIGHTED=%d", s->doweight_stage1);
    mf_code_define(ret, "MF_BLOCK_M=%d", c->block_m);
    if (s->has_b1)
        mf_code_define(ret, "MF_BIAS");
    mf_hip_define_activation(ret, s);
}

static void write_code(const struct mf_device_info *device, const struct mf_shape *s, const void *plan,
                       struct mf_code *ret)
{
    const struct config *c = &((const struct plan *)plan)->config;
    (void)device;
    const struct mf_codec *codec = codec_of(s);
    size_t row = row_bytes(c->kind, s);
    *ret = (struct mf_code){.source = kinds[c->kind].source, .function = kinds[c->kind].function};
    mf_code_define(ret, "MF_THREADS=%d", threads_of(c, s));
    if (c->kind == ACT) {
        define_act(c, s, ret);
        return;
    }
    mf_code_define(ret, "MF_BLOCKS=%d", blocks_sm(c, s));
    mf_code_define(ret, "MF_K=%d", s->topk);
    mf_code_define(ret, "MF_ROW=%zu", row);
    mf_code_define(ret, "MF_CHUNK=%d", row % 16 == 0 ? 16 : 8);
    if (kinds[c->kind].few)
        mf_code_define(ret, "MF_ROUTES=%d", routes_of(s));
    if (c->kind == SORT_GATHER)
        mf_code_define(ret, "MF_BLOCK_M=%d", c->block_m);
    if (c->kind == SORT_GATHER)
        mf_hip_define_rank(ret, s);
    if (kinds[c->kind].back)
        mf_code_define(ret, "MF_WEIGHTED=%d", weighs(s, c->kind));
    else if (c->kind == QUANT1_GATHER)
        mf_hip_define_codec(ret, codec);
    else if (codec->scale_bytes > 0 && codec->group_rows > 0)
        mf_code_define(ret, "MF_SCALES=%zu",
                       mf_codec_scale_cols(codec, (size_t)s->model_dim) * (size_t)codec->scale_bytes);
}

static int find(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *shape,
                const char *name, void *ret_plan)
{
    struct search search = {.name = name};
    const struct each e = {device, shape, match_name, NULL, &search};
    struct mf_refusal no;
    (void)f;
    if (!mf_hip_rows_known(device, shape, &no))
        return -ENOTSUP;
    if (each(&e) != 1)
        return -EINVAL;
    ((struct plan *)ret_plan)->config = search.found;
    return 0;
}

/* ---- launches ---- */

/* Returns the shared memory of a block: per warp, BULK_DEPTH pieces of a row and their mbarriers. */
static uint32_t bulk_shared(const struct mf_shape *s)
{
    size_t chunks = row_bytes(GATHER_BULK, s) / 16, pieces = (chunks * 16 + BULK_PIECE - 1) / BULK_PIECE;
    return (uint32_t)(BULK_WAVES * BULK_DEPTH * ((chunks + pieces - 1) / pieces * 16 + sizeof(uint64_t)));
}

/* Returns the number of threads that share the slots of a chunk, limited by the resident threads. */
static int parts_of(const struct config *c, const struct mf_shape *s, const struct mf_grid *g)
{
    int64_t chunks = s->token * (int64_t)(row_bytes(c->kind, s) / 16), threads = (int64_t)g->x * g->block;
    int parts = 1;
    while (c->kind == SORT_GATHER && parts * 2 <= s->topk && chunks * parts * 2 <= threads)
        parts *= 2;
    return parts;
}

/* Returns the number of resident blocks that have work. sort_gather also requires one warp per expert. */
static uint32_t blocks_of(const struct config *c, const struct mf_shape *s, const struct mf_grid *g,
                          int parts)
{
    int64_t rows = c->kind == GATHER || c->kind == ACT ? mf_padded_rows(s, c->block_m) : s->token;
    int64_t chunks = rows * (int64_t)((row_bytes(c->kind, s) + 15) / 16) * parts;
    int64_t work = (chunks + g->block - 1) / g->block;
    if (c->kind == SORT_GATHER)
        work = MF_MAX(work, (int64_t)(s->expert * 64 + (int)g->block - 1) / g->block);
    if (c->kind == GATHER_BULK)
        return g->x;
    return (uint32_t)MF_MAX(MF_MIN((int64_t)g->x, work), 1);
}

/* The numbers of threads and routes are compiled into the kernel. The parts and blocks set here are also
 * valid for a smaller token count. */
static void set_grid(struct mf_kernel *k)
{
    struct plan *plan = k->plan;
    const struct config *c = &plan->config;
    k->grid =
        mf_hip_persistent_grid(&k->function.device->info, threads_of(c, &k->shape), blocks_sm(c, &k->shape),
                               c->kind == GATHER_BULK ? bulk_shared(&k->shape) : 0);
    plan->parts = parts_of(c, &k->shape, &k->grid);
    k->grid.x = blocks_of(c, &k->shape, &k->grid, plan->parts);
    k->grid.programmatic_launch = true;
}

static const struct config *config_of(const struct mf_kernel *k)
{
    return &((const struct plan *)k->plan)->config;
}

static int launch_act(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_tensor_ref *order = &l->needs[1];
    const struct mf_hip_act_args a = {
        .g = l->needs[0].part[0],
        .bias = k->shape.has_b1 ? l->needs[2].part[0] : NULL,
        .sorted_ids = order->part[0],
        .sorted_weights = order->part[1],
        .experts = order->part[2],
        .num_valid = order->part[3],
        .h = l->gives[0].part[0],
        .rows = (int32_t)mf_padded_rows(&k->shape, config_of(k)->block_m),
        .token = (int32_t)k->shape.token,
    };
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

/* Sets the addresses of the scales and of NVFP4's global factor, which are copied from the input or computed
 * by quant1_gather. */
static void set_scales(const struct mf_kernel *k, const struct mf_launch *l, struct mf_hip_permute_args *a)
{
    const struct mf_codec *codec = codec_of(&k->shape);
    if (kinds[config_of(k)->kind].back || codec->scale_bytes == 0)
        return;
    a->to_scale = l->gives[0].part[1];
    a->to_factor = codec->global ? l->gives[0].part[2] : NULL;
    if (config_of(k)->kind == QUANT1_GATHER) {
        a->from_factor = codec->global ? l->needs[2].part[0] : NULL;
        a->largest = (mf_i32 *)(void *)((char *)l->workspace + map_bytes(&k->shape));
    } else {
        a->from_scale = l->needs[0].part[1];
        a->from_factor = codec->global ? l->needs[0].part[2] : NULL;
    }
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_tensor_ref *order = &l->needs[1];
    struct mf_hip_permute_args a = {
        .from = l->needs[0].part[0],
        .to = l->gives[0].part[0],
        .row_of = l->workspace,
        .rows = (int32_t)mf_padded_rows(&k->shape, config_of(k)->block_m),
        .token = (int32_t)k->shape.token,
        .parts = ((const struct plan *)k->plan)->parts,
    };
    if (config_of(k)->kind == ACT)
        return launch_act(k, l);
    set_scales(k, l, &a);
    if (config_of(k)->kind == SORT_GATHER) {
        a.ids = order->part[0];
        a.weights = order->part[1];
        a.types = mf_hip_route_types(l);
        a.made_ids = l->gives[1].part[0];
        a.made_weights = l->gives[1].part[1];
        a.made_experts = l->gives[1].part[2];
        a.made_valid = l->gives[1].part[3];
    } else {
        a.sorted_ids = order->part[0];
        a.sorted_weights = order->part[1];
        a.num_valid = order->part[3];
    }
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static const struct mf_hip_steps steps = {
    .plan_bytes = sizeof(struct plan),
    .find = find,
    .code = write_code,
    .open = set_grid,
};

const struct mf_family mf_family_hip_permute =
    MF_HIP_FAMILY(.name = "permute", .enumerate = enumerate, .launch = launch, .hip_steps = &steps);
