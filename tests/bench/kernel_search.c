#include "bench_kernels.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/layer.h"
#include "common/moe/routing.h"
#include "kernels/core/codec.h"
#include "kernels/core/data.h"
#include "kernels/core/layout.h"
#include "kernels/core/layout_weight.h"
#include "kernels/cpu/peaks.h"
#include "kernels/cpu/pool.h"
#include "kernels/pipeline/fmoe.h"

#define SEED      5
#define ROTATIONS 16
#define STEPS_MAX 512
#define EXPERTS   128
#define CALLS     24 /* timed calls of a whole pipeline; the fastest call is reported */

#define FP8 MF_DTYPE_FP8_E4M3FN
#define FP4 MF_DTYPE_FP4X2
/* clang-format off */
static const struct bench_shape shapes[] = {
    /* name, H, I, a, w, q_type, topk (0: 8). Shapes "few-…" have fewer tiles than threads can share evenly.
     */
    {"qwen3-30b-tp8-bf16",  2048,  96, MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, 0},
    {"qwen3-30b-tp8-fp8",   2048,  96, FP8, FP8, MF_QTYPE_PER_TOKEN, 0},
    {"qwen3-30b-tp4-fp8b",  2048, 192, FP8, FP8, MF_QTYPE_PER_1X128, 0},
    {"qwen3-30b-tp8-int8",  2048,  96, MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TOKEN, 0},
    {"qwen3-30b-tp8-mxfp8", 2048,  96, FP8, FP8, MF_QTYPE_PER_1X32, 0},
    {"qwen3-30b-tp8-mxfp4", 2048,  96, FP4, FP4, MF_QTYPE_PER_1X32, 0},
    {"qwen3-30b-tp8-a8w4",  2048,  96, FP8, FP4, MF_QTYPE_PER_1X32, 0},
    {"qwen3-30b-tp8-a16w4", 2048,  96, MF_DTYPE_BF16, FP4, MF_QTYPE_PER_1X32, 0},
    {"qwen3-30b-tp8-nvfp4", 2048,  96, MF_DTYPE_BF16, FP4, MF_QTYPE_PER_1X16, 0},
    {"qwen3-30b-tp8-int4",  2048,  96, MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_1X32, 0},
    {"qwen3-30b-tp8-int4c", 2048,  96, MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, 0},
    {"qwen3-235b-tp8-bf16", 4096, 192, MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, 0},
    {"qwen3-235b-tp8-fp8",  4096, 192, FP8, FP8, MF_QTYPE_PER_TOKEN, 0},
    {"qwen3-235b-tp4-fp8b", 4096, 384, FP8, FP8, MF_QTYPE_PER_1X128, 0},
    {"few-3-bf16",          5120,  96, MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, 1},
    {"few-3-fp8b",          5120,  96, FP8, FP8, MF_QTYPE_PER_1X128, 1},
    {"few-1-bf16",          7168,  32, MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, 1},
    {"few-1-mxfp4",         7168,  32, FP4, FP4, MF_QTYPE_PER_1X32, 1},
};
/* clang-format on */

const struct bench_shape *bench_shapes(size_t *ret_n)
{
    *ret_n = MF_ARRAY_LEN(shapes);
    return shapes;
}

struct bench_weights {
    struct mf_device *device;
    struct mf_shape shape;
    /* Weights w1 and w2 in each layout; empty for layouts that the format does not support. */
    struct mf_tensor_ref w[2][MF_LAYOUTS_MAX];
    struct mf_part parts[2][MF_PARTS_MAX];
    int n_parts;
};

struct bench_weights *bench_weights_free(struct bench_weights *w)
{
    for (int i = 0; w && i < 2; i++) {
        for (int l = 0; l < MF_LAYOUTS_MAX; l++) {
            for (int p = 0; p < w->n_parts; p++)
                w->device->ops->release(w->device, w->w[i][l].part[p],
                                        (size_t)mf_part_bytes(&w->parts[i][p]));
        }
    }
    free(w);
    return NULL;
}

static int make_layout(struct bench_weights *b, enum mf_tensor tensor, size_t l)
{
    size_t n_layouts;
    int i = tensor == MF_TENSOR_W2;
    struct mf_tensor_spec row = mf_plain_w(&b->shape, tensor, "row"),
                          a = mf_plain_w(&b->shape, tensor, mf_layouts(&n_layouts)[l].name);
    struct mf_part *parts = b->parts[i];
    int n = mf_tensor_spec_parts(&a, &b->shape, parts);

    if (n < 0)
        return 0;
    b->n_parts = n;
    for (int p = 0; p < n; p++) {
        b->w[i][l].part[p] = b->device->ops->alloc(b->device, (size_t)mf_part_bytes(&parts[p]));
        if (!b->w[i][l].part[p])
            return -ENOMEM;
    }
    if (l == 0)
        return mf_data_weight(&b->shape, tensor, SEED, &b->w[i][0]);
    int r = 0;
    for (int32_t e = 0; e < b->shape.expert && r == 0; e++) {
        struct mf_tensor_ref from = {0}, to = {0};
        for (int p = 0; p < n; p++) {
            size_t at = (size_t)e * (size_t)(mf_part_bytes(&parts[p]) / b->shape.expert);
            from.part[p] = (char *)b->w[i][0].part[p] + at;
            to.part[p] = (char *)b->w[i][l].part[p] + at;
        }
        r = mf_layout_convert_weight(&b->shape, &row, &a, &from, &to);
    }
    return r;
}

static int make_layouts(struct bench_weights *b, enum mf_tensor tensor)
{
    int r = 0;

    for (size_t l = 0; l < MF_LAYOUTS_MAX && r == 0; l++)
        r = make_layout(b, tensor, l);
    return r;
}

struct bench_weights *bench_weights_new(struct mf_device *d, const struct bench_shape *s)
{
    struct bench_weights *b = calloc(1, sizeof(*b));

    if (!b)
        return NULL;
    b->device = d;
    b->shape = (struct mf_shape){.token = 1,
                                 .model_dim = s->model_dim,
                                 .inter_dim = s->inter_dim,
                                 .expert = EXPERTS,
                                 .topk = s->topk ? s->topk : 8,
                                 .act_type = MF_ACT_SILU,
                                 .dtype = MF_DTYPE_BF16,
                                 .q_dtype_a = s->dtype_a,
                                 .q_dtype_w = s->dtype_w,
                                 .q_type = s->q_type,
                                 .use_g1u1 = true};
    if (make_layouts(b, MF_TENSOR_W1) < 0 || make_layouts(b, MF_TENSOR_W2) < 0)
        return bench_weights_free(b);
    return b;
}

/* ---- steps of the shape ---- */

struct search {
    struct mf_offer offer;
    struct bench_weights *w;
    struct mf_shape shape;
    struct mf_step *steps;
    size_t n;
    uint16_t *x, *y;
    int32_t *ids[ROTATIONS];
    float *weights;
};

static int take_step(struct mf_offer *o, const struct mf_step *step)
{
    struct search *s = (struct search *)o;

    if (s->n == STEPS_MAX)
        return -ENOSPC;
    s->steps[s->n++] = *step;
    return 0;
}

static int search_open(struct search *s, struct bench_weights *w, int64_t token)
{
    struct mf_routing uniform = {.kind = MF_ROUTING_UNIFORM};

    *s = (struct search){.offer = {take_step, mf_offer_ignore_rejection}, .w = w, .shape = w->shape};
    s->shape.token = token;
    size_t slots = (size_t)(token * s->shape.topk), H = (size_t)s->shape.model_dim;
    s->steps = calloc(STEPS_MAX, sizeof(*s->steps));
    s->x = calloc((size_t)token * H, 2);
    s->y = calloc((size_t)token * H, 2);
    s->weights = calloc(slots, sizeof(float));
    if (!s->steps || !s->x || !s->y || !s->weights)
        return -ENOMEM;
    mf_data_x(&s->shape, SEED, s->x);
    for (int i = 0; i < ROTATIONS; i++) {
        s->ids[i] = calloc(slots, sizeof(int32_t));
        if (!s->ids[i] || mf_data_topk(&s->shape, &uniform, SEED + (uint64_t)(token == 1 ? 0 : i), s->ids[i],
                                       s->weights) < 0)
            return -ENOMEM;
        for (size_t j = 0; j < slots; j++)
            s->ids[i][j] = (s->ids[i][j] + i * 37) % s->shape.expert;
    }
    return mf_enumerate(&w->device->info, &s->shape, NULL, &s->offer);
}

static void search_close(struct search *s)
{
    for (int i = 0; i < ROTATIONS; i++)
        free(s->ids[i]);
    free(s->steps);
    free(s->x);
    free(s->y);
    free(s->weights);
}

/* ---- pipelines ---- */

struct chain {
    char text[MF_PIPELINE_TEXT_MAX];
    size_t n;
    int stage1, stage2; /* indices of the stages' steps */
};

static void chain_add(struct chain *c, const char *family, const char *step)
{
    (void)mf_pipeline_text_add(c->text, sizeof(c->text), family, step);
    c->n++;
}

/* ---- timing ---- */

static struct mf_tensor_ref weight_of(const struct search *s, const struct mf_pipeline *p, enum mf_tensor t)
{
    struct mf_tensor_spec a = mf_pipeline_weight(p, t);
    size_t n;
    const struct mf_layout *all = mf_layouts(&n);

    for (size_t l = 0; l < n; l++) {
        if (strcmp(a.order, all[l].name) == 0)
            return s->w->w[t == MF_TENSOR_W2][l];
    }
    abort();
}

static int launch_one(void *context, int index)
{
    (void)index;
    return mf_pipeline_run(context);
}

struct stage_launch {
    struct mf_pipeline *p;
    size_t step;
};

static int launch_stage(void *context, int index)
{
    struct stage_launch *l = context;

    (void)index;
    return mf_pipeline_launch(l->p, l->step);
}

/* State of a plain read of the layer's active weights, with the read loop of the bandwidth measurement. */
struct reading {
    const struct mf_cpu_peak_loops *loops;
    const struct search *s;
    const struct mf_fmoe_args *args;
    bool active[EXPERTS];
};

/* Reads a thread's share of the active experts' w1 and w2. */
static void read_share(void *context, int thread, int n_threads)
{
    const struct reading *r = context;
    size_t n = 0;

    for (size_t e = 0; e < EXPERTS; e++)
        n += r->active[e];
    for (int i = 0; i < 2; i++) {
        const struct mf_tensor_ref *w = i == 0 ? &r->args->w1 : &r->args->w2;
        size_t bytes = (size_t)mf_part_bytes(&r->s->w->parts[i][0]) / EXPERTS, pages = bytes / 4096, seen = 0;
        size_t first = pages * n * (size_t)thread / (size_t)n_threads,
               last = pages * n * (size_t)(thread + 1) / (size_t)n_threads;
        for (size_t e = 0; e < EXPERTS; e++) {
            size_t from = MF_MAX(first, seen), to = MF_MIN(last, seen + pages);
            if (!r->active[e])
                continue;
            if (from < to)
                r->loops->read((const char *)w->part[0] + e * bytes + (from - seen) * 4096,
                               (to - from) * 4096);
            seen += pages;
        }
    }
}

static int launch_reading(void *context, int index)
{
    (void)index;
    mf_pool_run(read_share, context, mf_pool_threads());
    return 0;
}

static double time_reading(const struct search *s, const struct mf_fmoe_args *args, int rotation)
{
    struct reading r = {mf_cpu_peak_loops(mf_isa_best()), s, args, {false}};
    double us = 1e12;

    for (int64_t i = 0; i < s->shape.token * s->shape.topk; i++)
        r.active[s->ids[rotation][i]] = true;
    (void)s->w->device->ops->time(s->w->device, launch_reading, &r, 1, &us);
    return us;
}

struct timed {
    double us, read_us; /* minimum of each time */
};

/* Returns the time of the fastest of `calls` calls, each with another rotation. If only < 0, times the whole
 * pipeline. Otherwise times only the pipeline's step number `only`, while the other steps run untimed. If
 * `read` is true, calls alternate with reads of the same amount of weights, from the experts of another
 * rotation. */
static struct timed time_calls(struct search *s, const struct chain *c, int only, bool read, int calls)
{
    struct mf_device *d = s->w->device;
    struct mf_pipeline *p;
    char why[256];
    struct timed best = {1e12, 1e12};

    if (mf_pipeline_open(d, &s->shape, NULL, c->text, why, sizeof(why), &p) < 0) {
        (void)fprintf(stderr, "%s: %s\n", c->text, why);
        return best;
    }
    size_t arena_bytes = mf_pipeline_arena_bytes(p) + 64;
    void *arena = d->ops->alloc(d, arena_bytes);
    struct mf_fmoe_args args = {.x.part[0] = s->x,
                                .topk.part[1] = s->weights,
                                .y.part[0] = s->y,
                                .arena = arena,
                                .w1 = weight_of(s, p, MF_TENSOR_W1),
                                .w2 = weight_of(s, p, MF_TENSOR_W2)};
    for (int call = -1; arena && call < calls; call++) {
        double us = 1e12;
        struct stage_launch stage = {p, (size_t)only};
        args.topk.part[0] = s->ids[(call + ROTATIONS) % ROTATIONS];
        mf_pipeline_bind(p, &args);
        for (size_t i = 0; only >= 0 && i < (size_t)only; i++)
            (void)mf_pipeline_launch(p, i);
        int r = only >= 0 ? d->ops->time(d, launch_stage, &stage, 1, &us)
                          : d->ops->time(d, launch_one, p, 1, &us);
        if (r == 0 && call >= 0)
            best.us = MF_MIN(best.us, us);
        if (read && call >= 0) {
            double read_us = time_reading(s, &args, (call + ROTATIONS / 2) % ROTATIONS);
            best.read_us = MF_MIN(best.read_us, read_us);
        }
    }
    d->ops->release(d, arena, arena_bytes);
    p = mf_pipeline_close(p);
    return best;
}

/* ---- the search ---- */

/* Adds a step of family move, such as "sort_m16", "quant1_t2" or "quant2_m16_t2". If block_m or threads is 0,
 * the name does not contain it. */
static void chain_move(struct chain *c, const char *word, int block_m, int threads)
{
    char block[16] = "", count[16] = "", step[64];

    if (block_m)
        (void)snprintf(block, sizeof(block), "_m%d", block_m);
    if (threads)
        (void)snprintf(count, sizeof(count), "_t%d", threads);
    (void)snprintf(step, sizeof(step), "%s%s%s", word, block, count);
    chain_add(c, "move", step);
}

static bool has_quantised_output(const struct mf_step *s)
{
    return s->gives[0].scale != MF_SCALE_NONE;
}

/* Adds the dequantisation of a weight if the step needs the weight in bf16. */
static void chain_decode(struct chain *c, const struct mf_step *s, enum mf_tensor decoded, int threads)
{
    for (int i = 0; i < s->n_needs; i++) {
        if (s->needs[i].tensor == decoded)
            chain_move(c, decoded == MF_TENSOR_W1D ? "dequant_w1_p32" : "dequant_w2_p32", 0, threads);
    }
}

/* Completes two GEMM steps to a pipeline. Pipelines with x in sorted order are not tried. */
static bool chain_of(const struct search *s, const struct mf_step *s1, const struct mf_step *s2,
                     struct chain *c)
{
    bool quantised = mf_plain_x(&s->shape).scale != MF_SCALE_NONE;
    int cores = s->w->device->info.cores, bm = s1->block_m;

    *c = (struct chain){0};
    if (s1->block_m != s2->block_m || !(s1->covers & MF_OP_BIT(MF_OP_GATHER)))
        return false;
    chain_move(c, "sort", bm, 0);
    if (quantised && !(s1->covers & MF_OP_BIT(MF_OP_QUANT1)))
        chain_move(c, "quant1", 0, cores);
    chain_decode(c, s1, MF_TENSOR_W1D, cores);
    c->stage1 = (int)c->n;
    chain_add(c, s1->family, s1->name);
    if (s1->gives[0].tensor == MF_TENSOR_G)
        chain_move(c, "act", bm, cores);
    if (quantised && !has_quantised_output(s1))
        chain_move(c, "quant2", bm, cores);
    chain_decode(c, s2, MF_TENSOR_W2D, cores);
    c->stage2 = (int)c->n;
    chain_add(c, s2->family, s2->name);
    if (s2->gives[0].tensor == MF_TENSOR_Z)
        chain_move(c, "combine_z", 0, cores);
    if (s2->gives[0].tensor == MF_TENSOR_ZW)
        chain_move(c, "combine_zw", 0, cores);
    return true;
}

static const struct mf_step *any_partner(const struct search *s, const struct mf_step *step,
                                         enum mf_stage stage)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct mf_step *p = &s->steps[i];
        if (p->stage == stage && p->block_m == step->block_m &&
            (stage != MF_STAGE_STAGE1 || (p->covers & MF_OP_BIT(MF_OP_GATHER))))
            return p;
    }
    return NULL;
}

#define KEEP 4

struct kept {
    const struct mf_step *step;
    double us;
};

static enum bench_kind kind_of(const struct mf_step *s)
{
    return strcmp(s->family, "onednn") == 0      ? BENCH_LIB
           : s->covers & MF_OP_BIT(MF_OP_QUANT1) ? BENCH_A16
           : strstr(s->name, "_sk")              ? BENCH_SPLIT
                                                 : BENCH_OWN;
}

/* Returns the kind of stage 2 for a kind of stage 1: oneDNN for oneDNN, otherwise own. */
static enum bench_kind partner_kind(enum bench_kind kind)
{
    return kind == BENCH_LIB ? BENCH_LIB : BENCH_OWN;
}

/* Keeps the KEEP fastest steps of each block_m and kind. */
static void keep(struct kept *list, const struct mf_step *step, double us)
{
    struct kept next = {step, us};

    for (int i = 0; i < KEEP; i++) {
        if (!list[i].step || next.us < list[i].us) {
            struct kept out = list[i];
            list[i] = next;
            next = out;
        }
        if (!next.step)
            return;
    }
}

static int block_index(int32_t bm)
{
    return bm == 8 ? 0 : bm == 16 ? 1 : bm == 32 ? 2 : 3;
}

static void time_chain(struct search *s, const struct chain *c, enum bench_kind kind,
                       struct bench_result *ret)
{
    bool read = kind == BENCH_OWN;
    struct timed t = time_calls(s, c, -1, read, CALLS);

    if (read)
        ret->read_us = ret->read_us == 0 ? t.read_us : MF_MIN(ret->read_us, t.read_us);
    if (ret->us[kind] != 0 && t.us >= ret->us[kind])
        return;
    ret->us[kind] = t.us;
    mf_format(ret->best[kind], sizeof(ret->best[kind]), "%s", c->text);
}

static void finish(struct search *s, struct kept (*best)[BENCH_N_KINDS][4][KEEP], struct bench_result *ret)
{
    for (enum bench_kind kind = BENCH_OWN; kind < BENCH_N_KINDS; kind++) {
        for (int b = 0; b < 4; b++) {
            for (int i = 0; i < KEEP * KEEP; i++) {
                const struct mf_step *s1 = best[0][kind][b][i / KEEP].step,
                                     *s2 = best[1][partner_kind(kind)][b][i % KEEP].step;
                struct chain c;
                if (!s1 || !s2 || !chain_of(s, s1, s2, &c))
                    continue;
                time_chain(s, &c, kind, ret);
            }
        }
    }
    for (size_t i = 0; i < s->n; i++) {
        struct chain c = {0};
        if (s->steps[i].stage != MF_STAGE_ONE)
            continue;
        chain_add(&c, s->steps[i].family, s->steps[i].name);
        time_chain(s, &c, BENCH_OWN, ret);
    }
}

static double floor_of(const struct search *s)
{
    const struct mf_device_info *d = &s->w->device->info;
    double active = 0;

    for (int i = 0; i < ROTATIONS; i++)
        active += (double)mf_active_experts(&s->shape, s->ids[i]) / ROTATIONS;
    double bytes = mf_layer_min_bytes(&s->shape, (int64_t)(active + 0.5));
    double memory = bytes / d->mem_read_gbs * 1e-3,
           arithmetic = mf_layer_flops(&s->shape) / d->peak_gflops_bf16 * 1e-3;
    return memory > arithmetic ? memory : arithmetic;
}

int bench_tokens(struct bench_weights *w, int64_t token, struct bench_result *ret)
{
    struct kept best[2][BENCH_N_KINDS][4][KEEP] = {0};
    struct search s;
    double first = 0, last = 0;
    int r = search_open(&s, w, token);

    *ret = (struct bench_result){0};
    for (size_t i = 0; i < s.n && r == 0; i++) {
        const struct mf_step *step = &s.steps[i];
        bool one = step->stage == MF_STAGE_STAGE1;
        enum bench_kind kind = kind_of(step);
        struct chain c;
        ret->n_steps++;
        if (!one && step->stage != MF_STAGE_STAGE2)
            continue;
        const struct mf_step *other = any_partner(&s, step, one ? MF_STAGE_STAGE2 : MF_STAGE_STAGE1);
        if (!other || !chain_of(&s, one ? step : other, one ? other : step, &c))
            continue;
        double us = time_calls(&s, &c, one ? c.stage1 : c.stage2, false, token > 256 ? 2 : 6).us;
        keep(best[!one][kind][block_index(step->block_m)], step, us);
        if (one && kind != BENCH_LIB) {
            first = first == 0 || us < first ? us : first;
            last = us > last ? us : last;
        }
    }
    if (r == 0) {
        ret->space = first > 0 ? last / first : 0;
        ret->floor_us = floor_of(&s);
        finish(&s, best, ret);
    }
    search_close(&s);
    return r;
}
