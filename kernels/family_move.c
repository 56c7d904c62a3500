/* Data movement and quantisation: every op of the layer that is no GEMM, each as a step of its own. */
#include "kernels/family_cpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "kernels/quant.h"

enum kind { SORT, QUANT1, GATHER, ACT, QUANT2, COMBINE, COMBINE_WEIGHTED };

static const struct kind_info {
    const char *word;
    bool sorted; /* its name has a block_m */
    bool threaded;
} kinds[] = {
    [SORT] = {"sort", true, false},
    [QUANT1] = {"quant1", false, true},
    [GATHER] = {"gather", true, true},
    [ACT] = {"act", true, true},
    [QUANT2] = {"quant2", true, true},
    [COMBINE] = {"combine_z", false, true},
    [COMBINE_WEIGHTED] = {"combine_zw", false, true},
};

struct mf_kernel {
    enum kind kind;
    struct mf_shape shape;
    struct mf_stage_plan plan; /* ops, format and scales */
    int32_t block_m;
    int threads;
    size_t floats_bytes;            /* workspace of one thread */
    const struct mf_launch *launch; /* of the running launch */
};

static bool kind_applies(enum kind kind, const struct mf_shape *s)
{
    switch (kind) {
    case QUANT1:
    case QUANT2:
        return mf_cpu_quantises(s);
    case COMBINE_WEIGHTED:
        return !s->doweight_stage1;
    case SORT:
    case GATHER:
    case ACT:
    case COMBINE:
        break;
    }
    return true;
}

static size_t floats_bytes(enum kind kind, const struct mf_shape *s)
{
    size_t n = kind == QUANT1 ? (size_t)s->model_dim : kind == SORT ? (size_t)s->expert + 1 : 0;

    if (kind == QUANT2)
        n = (size_t)s->inter_dim;
    if (kind == ACT)
        n = 2 * (size_t)s->inter_dim;
    /* a quantising thread's largest magnitude lies behind its floats */
    return (n * 4 + sizeof(uint32_t) + 63) / 64 * 64;
}

static void print_name(const struct mf_kernel *k, char buf[MF_STEP_NAME_MAX])
{
    const struct kind_info *i = &kinds[k->kind];
    char block[16] = "", threads[16] = "";

    if (i->sorted)
        (void)snprintf(block, sizeof(block), "_m%d", k->block_m);
    if (i->threaded)
        (void)snprintf(threads, sizeof(threads), "_t%d", k->threads);
    (void)snprintf(buf, MF_STEP_NAME_MAX, "%s%s%s", i->word, block, threads);
}

static void need_calib(const struct mf_kernel *k, struct mf_step *s)
{
    if (k->plan.codecs.a->global)
        mf_step_need(s, mf_cpu_calib());
}

static void describe_sorted(const struct mf_kernel *k, struct mf_step *s)
{
    const struct mf_shape *shape = &k->shape;
    double slots = (double)shape->token * shape->topk, H = shape->model_dim, I = shape->inter_dim;

    switch (k->kind) {
    case SORT:
        s->covers = MF_OP_BIT(MF_OP_SORT);
        mf_step_need(s, mf_cpu_topk());
        mf_step_give(s, mf_cpu_sorted(k->block_m));
        s->bytes = slots * 16;
        return;
    case GATHER:
        s->covers = MF_OP_BIT(MF_OP_GATHER);
        mf_step_need(s, mf_plain_x(shape));
        mf_step_need(s, mf_cpu_sorted(k->block_m));
        mf_step_give(s, mf_cpu_x_sorted(shape, k->block_m));
        s->bytes = ((double)shape->token + slots) * mf_cpu_row_bytes(shape, (int64_t)H);
        return;
    case ACT:
        s->covers = MF_OP_BIT(MF_OP_ACT) | (shape->doweight_stage1 ? MF_OP_BIT(MF_OP_WEIGHT) : 0);
        mf_step_need(s, mf_cpu_bf16(MF_TENSOR_G, "sorted", k->block_m));
        mf_step_need(s, mf_cpu_sorted(k->block_m));
        mf_step_give(s, mf_cpu_bf16(MF_TENSOR_H, "sorted", k->block_m));
        s->bytes = slots * I * 6;
        s->flops = slots * I * 8;
        return;
    case QUANT2:
        s->covers = MF_OP_BIT(MF_OP_QUANT2);
        mf_step_need(s, mf_cpu_bf16(MF_TENSOR_H, "sorted", k->block_m));
        mf_step_need(s, mf_cpu_sorted(k->block_m));
        need_calib(k, s);
        mf_step_give(s, mf_plain_h(shape, k->block_m));
        s->bytes = slots * (I * 2 + mf_cpu_row_bytes(shape, (int64_t)I));
        return;
    case QUANT1:
    case COMBINE:
    case COMBINE_WEIGHTED:
        break;
    }
}

static void describe(const struct mf_kernel *k, struct mf_step *ret)
{
    const struct mf_shape *shape = &k->shape;
    double slots = (double)shape->token * shape->topk, H = shape->model_dim;
    struct mf_step s = {
        .family = "move", .stage = MF_STAGE_MOVE, .block_m = kinds[k->kind].sorted ? k->block_m : 0};

    print_name(k, s.name);
    switch (k->kind) {
    case QUANT1:
        s.covers = MF_OP_BIT(MF_OP_QUANT1);
        mf_step_need(&s, mf_cpu_bf16(MF_TENSOR_X, "token", 0));
        need_calib(k, &s);
        mf_step_give(&s, mf_plain_x(shape));
        s.bytes = (double)shape->token * (H * 2 + mf_cpu_row_bytes(shape, (int64_t)H));
        break;
    case COMBINE:
        /* with doweight_stage1 the weight is in z already */
        s.covers = MF_OP_BIT(MF_OP_COMBINE) | (shape->doweight_stage1 ? 0 : MF_OP_BIT(MF_OP_WEIGHT));
        mf_step_need(&s, mf_cpu_bf16(MF_TENSOR_Z, "slot", 0));
        if (!shape->doweight_stage1)
            mf_step_need(&s, mf_cpu_topk());
        mf_step_give(&s, mf_cpu_bf16(MF_TENSOR_Y, "token", 0));
        s.bytes = (slots + (double)shape->token) * H * 2;
        s.flops = slots * H * 2;
        break;
    case COMBINE_WEIGHTED:
        s.covers = MF_OP_BIT(MF_OP_COMBINE);
        mf_step_need(&s, mf_cpu_bf16(MF_TENSOR_ZW, "slot", 0));
        mf_step_give(&s, mf_cpu_bf16(MF_TENSOR_Y, "token", 0));
        s.bytes = (slots + (double)shape->token) * H * 2;
        s.flops = slots * H;
        break;
    case SORT:
    case GATHER:
    case ACT:
    case QUANT2:
        describe_sorted(k, &s);
        break;
    }
    s.workspace_bytes = k->floats_bytes * (size_t)k->threads;
    *ret = s;
}

static struct mf_kernel configure(enum kind kind, const struct mf_shape *shape, int32_t block_m, int threads)
{
    struct mf_kernel k = {.kind = kind,
                          .shape = *shape,
                          .block_m = block_m,
                          .threads = kinds[kind].threaded ? threads : 1,
                          .floats_bytes = floats_bytes(kind, shape)};

    (void)mf_stage_plan_shape(&k.plan, shape);
    return k;
}

/* Up to so many rows one thread may beat many, as starting them costs as much as the rows. */
#define ROWS_OF_ONE 64

/* Calls f for every step of the shape; stops at the first value that is not 0 and returns it. */
typedef int (*each_fn)(void *context, const struct mf_kernel *k);

static int each(const struct mf_shape *shape, int cores, each_fn f, void *context)
{
    for (enum kind kind = SORT; kind <= COMBINE_WEIGHTED; kind++) {
        if (!kind_applies(kind, shape))
            continue;
        for (int b = 0; b < (kinds[kind].sorted ? MF_CPU_N_BLOCK_MS : 1); b++) {
            int threads = kinds[kind].threaded && shape->token * shape->topk > ROWS_OF_ONE ? cores : 1;
            for (; threads <= cores; threads = threads < cores ? cores : cores + 1) {
                struct mf_kernel k = configure(kind, shape, mf_cpu_block_ms[b], threads);
                int r = f(context, &k);
                if (r != 0)
                    return r;
                if (!kinds[kind].threaded)
                    break;
            }
        }
    }
    return 0;
}

static int offer_step(void *context, const struct mf_kernel *k)
{
    struct mf_offer *offer = context;
    struct mf_step step;

    describe(k, &step);
    return offer->step(offer, &step);
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct mf_refusal refusal;

    if (!mf_cpu_shape_known(shape, &refusal))
        return offer->reject(offer, f->name, f->name, refusal.rule, "%s", refusal.reason);
    return each(shape, device->cores, offer_step, offer);
}

struct search {
    const char *name;
    struct mf_kernel found;
};

static int match_name(void *context, const struct mf_kernel *k)
{
    struct search *s = context;
    char name[MF_STEP_NAME_MAX];

    print_name(k, name);
    if (strcmp(name, s->name) != 0)
        return 0;
    s->found = *k;
    return 1;
}

static bool is_our_word(const char *name)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(kinds); i++) {
        if (strncmp(name, kinds[i].word, strlen(kinds[i].word)) == 0)
            return true;
    }
    return false;
}

static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret)
{
    struct search search = {.name = name};
    struct mf_refusal refusal;

    (void)f;
    if (!is_our_word(name))
        return -EINVAL;
    if (!mf_cpu_shape_known(shape, &refusal) || each(shape, device->info.cores, match_name, &search) != 1)
        return -ENOTSUP;
    struct mf_kernel *k = malloc(sizeof(*k));
    if (!k)
        return -ENOMEM;
    *k = search.found;
    k->plan.ops = mf_cpu_ops(mf_isa_best());
    *ret = k;
    return 0;
}

/* Calls row(…) for this thread's share of the valid rows of sorted order. */
typedef void (*row_fn)(const struct mf_kernel *k, const struct mf_sorted_view *s, size_t row, void *room);

static void each_sorted_row(const struct mf_kernel *k, const struct mf_sorted_view *s, row_fn f, void *room,
                            int thread, int n_threads)
{
    int64_t n_blocks = s->num_valid[0] / k->block_m, seen = 0;

    for (int64_t b = 0; b < n_blocks; b++) {
        int rows = mf_block_rows(s->ids, b * k->block_m, k->block_m, k->shape.topk);
        for (int i = 0; i < rows; i++, seen++) {
            if (seen % n_threads == thread)
                f(k, s, (size_t)(b * k->block_m + i), room);
        }
    }
}

/* A row with what it has of its own; what all rows share is copied once. */
static void gather_row(const struct mf_kernel *k, const struct mf_sorted_view *s, size_t row, void *room)
{
    const struct mf_codec *c = k->plan.codecs.a;
    const struct mf_tensor_ref *from = &k->launch->needs[0], *to = &k->launch->gives[0];
    size_t H = (size_t)k->shape.model_dim, bytes = mf_codec_row_bytes(c, H);
    size_t token = (size_t)mf_id_token(s->ids[row]);
    size_t scales = c->group_rows == 0 ? 0 : mf_codec_scale_cols(c, H) * (size_t)c->scale_bytes;

    (void)room;
    memcpy((char *)to->part[0] + row * bytes, (const char *)from->part[0] + token * bytes, bytes);
    if (scales)
        memcpy((char *)to->part[1] + row * scales, (const char *)from->part[1] + token * scales, scales);
}

static void copy_shared(const struct mf_codec *c, const struct mf_tensor_ref *from,
                        const struct mf_tensor_ref *to)
{
    if (c->scale_bytes > 0 && c->group_rows == 0)
        memcpy(to->part[1], from->part[1], (size_t)c->scale_bytes);
    if (c->global)
        memcpy(to->part[2], from->part[2], sizeof(float));
}

static void act_row(const struct mf_kernel *k, const struct mf_sorted_view *s, size_t row, void *room)
{
    const struct mf_launch *l = k->launch;
    size_t I = (size_t)k->shape.inter_dim;
    float *g = room;

    mf_bf16_to_floats((const uint16_t *)l->needs[0].part[0] + row * 2 * I, 2 * I, g);
    k->plan.ops->activate(k->shape.act_type, g, g + I, k->shape.doweight_stage1 ? s->weights[row] : 1.0f, I,
                          (uint16_t *)l->gives[0].part[0] + row * I);
}

/* Where a thread keeps the largest magnitude of its rows. */
static uint32_t *amax_of(const struct mf_kernel *k, int thread)
{
    char *room = (char *)k->launch->workspace + (size_t)thread * k->floats_bytes;
    return (uint32_t *)(void *)(room + k->floats_bytes - sizeof(uint32_t));
}

/* bf16 magnitudes order as their bits do, NaN above all. */
static void raise_amax(const struct mf_kernel *k, size_t row, size_t n, uint32_t *amax)
{
    const uint16_t *from = (const uint16_t *)k->launch->needs[0].part[0] + row * n;
    uint16_t top = 0;

    for (size_t i = 0; i < n; i++) {
        uint16_t a = from[i] & 0x7fff;
        top = a > top ? a : top;
    }
    *amax = top > *amax ? top : *amax;
}

/* What all rows share: the scale drawn from all threads' magnitudes, or the calibrated factor. Thread 0 writes it down. */
struct shared {
    float scale, global;
};

static struct shared share(const struct mf_kernel *k, int thread)
{
    const struct mf_codec *c = k->plan.codecs.a;
    const struct mf_launch *l = k->launch;
    bool first = k->kind == QUANT1;
    struct shared s = {1, 1};
    uint32_t top = 0;

    if (c->global)
        s.global = ((const float *)l->needs[first ? 1 : 2].part[0])[first ? 0 : 1];
    for (int t = 0; c->group_rows == 0 && t < k->threads; t++)
        top = MF_MAX(top, *amax_of(k, t));
    if (c->group_rows == 0)
        mf_codec_group_scale(c, mf_bf16_to_float((uint16_t)top), 1.0f, &s.scale);
    if (thread == 0 && c->group_rows == 0)
        *(float *)l->gives[0].part[1] = s.scale;
    if (thread == 0 && c->global)
        *(float *)l->gives[0].part[2] = s.global;
    return s;
}

static void quantise_row(const struct mf_kernel *k, size_t row, size_t n, const struct shared *s,
                         float *floats)
{
    const struct mf_codec *c = k->plan.codecs.a;
    const struct mf_tensor_ref *to = &k->launch->gives[0];
    const uint16_t *from = (const uint16_t *)k->launch->needs[0].part[0] + row * n;

    if (c->group_rows > 0) {
        mf_stage_quantise_row(c, from, n, row, s->global, floats, to);
        return;
    }
    mf_bf16_to_floats(from, n, floats);
    mf_codec_encode_row(c, floats, n, &s->scale, 1.0f,
                        (uint8_t *)to->part[0] + row * mf_codec_row_bytes(c, n));
}

static void amax_row(const struct mf_kernel *k, const struct mf_sorted_view *s, size_t row, void *room)
{
    (void)s;
    raise_amax(k, row, (size_t)k->shape.inter_dim, room);
}

static void quant1(const struct mf_kernel *k, void *room, int thread, int n_threads)
{
    int64_t from = k->shape.token * thread / n_threads, to = k->shape.token * (thread + 1) / n_threads;
    size_t H = (size_t)k->shape.model_dim;

    if (k->plan.codecs.a->group_rows == 0) {
        *amax_of(k, thread) = 0;
        for (int64_t t = from; t < to; t++)
            raise_amax(k, (size_t)t, H, amax_of(k, thread));
        mf_pool_barrier();
    }
    struct shared all = share(k, thread);
    for (int64_t t = from; t < to; t++)
        quantise_row(k, (size_t)t, H, &all, room);
}

struct quant2_room {
    struct shared all;
    float *floats;
};

static void quant2_row(const struct mf_kernel *k, const struct mf_sorted_view *s, size_t row, void *room)
{
    struct quant2_room *r = room;

    (void)s;
    quantise_row(k, row, (size_t)k->shape.inter_dim, &r->all, r->floats);
}

static void quant2(const struct mf_kernel *k, const struct mf_sorted_view *s, void *room, int thread,
                   int n_threads)
{
    if (k->plan.codecs.a->group_rows == 0) {
        *amax_of(k, thread) = 0;
        each_sorted_row(k, s, amax_row, amax_of(k, thread), thread, n_threads);
        mf_pool_barrier();
    }
    struct quant2_room r = {share(k, thread), room};
    each_sorted_row(k, s, quant2_row, &r, thread, n_threads);
}

/* Few tokens leave threads idle if whole rows are shared out, so columns are: any cut gives the same sums. */
static void combine_columns(const struct mf_kernel *k, int thread, int n_threads)
{
    const struct mf_launch *l = k->launch;
    size_t H = (size_t)k->shape.model_dim, pieces = (H + 63) / 64;
    size_t from = pieces * (size_t)thread / (size_t)n_threads * 64;
    size_t to = pieces * (size_t)(thread + 1) / (size_t)n_threads * 64, topk = (size_t)k->shape.topk;
    bool weighted = k->kind == COMBINE && !k->shape.doweight_stage1;

    to = to > H ? H : to;
    if (from >= to)
        return;
    for (size_t t = 0; t < (size_t)k->shape.token; t++) {
        const float *weights = weighted ? (const float *)l->needs[1].part[1] + t * topk : NULL;
        k->plan.ops->combine((const uint16_t *)l->needs[0].part[0] + t * topk * H + from, H, k->shape.topk,
                             weights, to - from, (uint16_t *)l->gives[0].part[0] + t * H + from);
    }
}

static void run_thread(void *context, int thread, int n_threads)
{
    const struct mf_kernel *k = context;
    const struct mf_launch *l = k->launch;
    void *room = (char *)l->workspace + (size_t)thread * k->floats_bytes;
    struct mf_sorted_view s = {0};

    if (kinds[k->kind].sorted)
        s = mf_cpu_sorted_view(&l->needs[1]);
    switch (k->kind) {
    case QUANT1:
        quant1(k, room, thread, n_threads);
        return;
    case GATHER:
        if (thread == 0)
            copy_shared(k->plan.codecs.a, &l->needs[0], &l->gives[0]);
        each_sorted_row(k, &s, gather_row, room, thread, n_threads);
        return;
    case ACT:
        each_sorted_row(k, &s, act_row, room, thread, n_threads);
        return;
    case QUANT2:
        quant2(k, &s, room, thread, n_threads);
        return;
    case COMBINE:
    case COMBINE_WEIGHTED:
        combine_columns(k, thread, n_threads);
        return;
    case SORT:
        break; /* not threaded */
    }
}

static int launch_step(struct mf_kernel *k, const struct mf_launch *l)
{
    if (k->kind == SORT) {
        const struct mf_tensor_ref *out = &l->gives[0];
        struct mf_sorted_out sorted = {
            .ids = out->part[0], .weights = out->part[1], .experts = out->part[2], .num_valid = out->part[3]};
        return mf_sort_blocks(&k->shape, l->needs[0].part[0], l->needs[0].part[1], k->block_m, l->workspace,
                              &sorted);
    }
    k->launch = l;
    mf_pool_run(run_thread, k, k->threads);
    return 0;
}

static struct mf_kernel *close_step(struct mf_kernel *k)
{
    free(k);
    return NULL;
}

const struct mf_family mf_family_move = {
    .api = MF_FAMILY_API,
    .name = "move",
    .device_kind = "cpu",
    .enumerate = enumerate,
    .open = open_step,
    .launch = launch_step,
    .close = close_step,
};
