/* Whole layers with ids and weights of every type, and with ids that no expert has. For each kind of step
 * that reads routes or writes y, a pipeline with the step runs with int32 and int64 ids, float and bf16
 * weights: the results are equal, and match the reference. Workspaces and y hold NaN before each run. Runs on
 * the CPU, or on the device that MOEFARM_TEST_DEVICE names; MOEFARM_TEST_SEED repeats a run. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/layer.h"
#include "common/moe/pipeline_search.h"
#include "kernels/core/family.h"
#include "kernels/core/layout_weight.h"
#include "kernels/core/quant.h"
#include "kernels/pipeline/fmoe.h"
#include "support/kernels/host_layer.h"
#include "support/mf_check.h"
#include "support/mf_draw.h"

#define SEED      5
#define PATHS_MAX 48
#define ALIKE     3    /* steps that are kept of each kind of step for whole layers */
#define APART     0.05 /* relative error of a row, from rounding and from quantising h */
#define REORDERED 0.02 /* relative difference of two runs that add in another order */

#define PLAIN "torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No"
#define FP8   "torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType"

/* The token counts select every sort: few ids, one block, counts of other blocks, grid barrier. */
static const char *const layers[] = {
    "6,512,256,16,4,ActivationType.Silu," PLAIN ",1,0",
    "7,512,256,12,3,ActivationType.Silu," PLAIN ",1,1,ep:12/40",
    "40,512,256,16,4,ActivationType.Swiglu," PLAIN ",1,0,b1+b2",
    "700,256,128,32,8,ActivationType.Silu," PLAIN ",1,1",
    "1100,256,128,32,8,ActivationType.Silu," PLAIN ",1,0",
    "5,512,256,16,4,ActivationType.Silu," FP8 ".per_1x128,1,1",
    "130,512,256,16,4,ActivationType.Silu," FP8 ".per_1x128,1,0",
    "33,512,256,16,4,ActivationType.Gelu," FP8 ".per_Token,1,0,ep:0/24",
    "8,512,256,16,4,ActivationType.Silu," FP8 ".per_Tensor,1,0",
    "20,512,256,16,4,ActivationType.Swiglu,torch.bfloat16,torch.bfloat16,torch.float4_e2m1fn_x2,"
    "QuantType.per_1x32,1,0,b1+b2",
    "20,512,256,16,4,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,"
    "QuantType.per_1x16,1,0",
    "20,512,256,16,4,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.int4,QuantType.per_1x32,1,0",
};

static struct mf_device *device;

static void open_device(void)
{
    const char *name = getenv("MOEFARM_TEST_DEVICE");
    char why[MF_REASON_MAX];

    ck_assert_msg(mf_device_open_with(name && *name ? name : "cpu:0",
                                      &(struct mf_device_open_options){.guest = true}, why, sizeof(why),
                                      &device) == 0,
                  "%s", why);
}
static void close_device(void)
{
    device = mf_device_close(device);
}

/* ---- steps ---- */

struct offers {
    struct mf_offer offer; /* must be the first member */
    struct mf_step *steps;
    size_t n, cap;
};

static bool has_tensor(const struct mf_tensor_spec *specs, int n, enum mf_tensor t)
{
    for (int i = 0; i < n; i++) {
        if (specs[i].tensor == t)
            return true;
    }
    return false;
}

/* True if the test must cover the step: it reads routes, or sums slots that may be undefined. */
static bool is_target(const struct mf_step *s)
{
    return has_tensor(s->needs, s->n_needs, MF_TENSOR_TOPK) || has_tensor(s->gives, s->n_gives, MF_TENSOR_Y);
}

static bool are_alike(const struct mf_step *a, const struct mf_step *b)
{
    bool alike = strcmp(a->family, b->family) == 0 && a->covers == b->covers && a->n_needs == b->n_needs &&
                 a->n_gives == b->n_gives;

    for (int i = 0; alike && i < a->n_needs; i++)
        alike = mf_tensor_spec_equal(&a->needs[i], &b->needs[i]);
    for (int i = 0; alike && i < a->n_gives; i++)
        alike = mf_tensor_spec_equal(&a->gives[i], &b->gives[i]);
    return alike;
}

static double random_of(const struct mf_step *s)
{
    uint64_t h = mf_draw_state.seed * 2 + 1;

    for (const char *c = s->name; *c; c++)
        h = (h ^ (uint64_t)*c) * 0x100000001b3u;
    return 1 + (double)((h ^ h >> 29) % 1000) / 1000;
}

/* Keeps the step with the least random number of each kind, and ALIKE steps of a kind that covers a layer. */
static int take(struct mf_offer *offer, const struct mf_step *step)
{
    struct offers *o = (struct offers *)offer;
    int alike = 0, most = step->stage == MF_STAGE_ONE ? ALIKE : 1;

    if (step->block_m != 0 && step->block_m != 16 && step->block_m != 64)
        return 0;
    for (size_t i = 0; i < o->n; i++) {
        if (!are_alike(&o->steps[i], step))
            continue;
        if (++alike < most)
            continue;
        if (random_of(step) < random_of(&o->steps[i]))
            o->steps[i] = *step;
        return 0;
    }
    ck_assert_int_eq(mf_array_grow(&o->steps, o->n, &o->cap, sizeof(*o->steps)), 0);
    o->steps[o->n++] = *step;
    return 0;
}

/* ---- pipelines ---- */

struct plan {
    struct mf_step steps[MF_PATH_STEPS_MAX];
    size_t n;
};

/* True if a pipeline with step `with` cannot need the other step. */
static bool competes(const struct mf_step *with, const struct mf_step *other)
{
    return other != with &&
           (with->covers ? (other->covers & with->covers) != 0
                         : other->n_gives > 0 && mf_tensor_spec_equal(&with->gives[0], &other->gives[0]));
}

/* Finds a pipeline with step `with`, and marks its steps in `covered`. The search prefers the step, because
 * its time is almost 0 and competing steps are left out. Returns false if no pipeline was found. */
static bool find_pipeline(const struct offers *o, const struct mf_shape *s, size_t with, bool *covered,
                          struct plan *ret)
{
    struct mf_path_problem p = {.ops = mf_layer_ops(s), .format = MF_FORMAT_BF16, .gap_us = 1, .keep = 1};
    _cleanup_(mf_freep) struct mf_path_step *steps = calloc(o->n + 1, sizeof(*steps));
    _cleanup_(mf_freep) struct mf_path *paths = NULL;
    size_t n;

    for (size_t i = 0; i < o->n; i++) {
        if (!competes(&o->steps[with], &o->steps[i]))
            steps[p.n_steps++] =
                (struct mf_path_step){&o->steps[i], i == with ? 1e-6 : random_of(&o->steps[i])};
    }
    p.steps = steps;
    ck_assert_int_eq(mf_path_find(&p, &paths, &n), 0);
    for (size_t i = 0; i < n; i++) {
        bool has = false;
        for (int32_t j = 0; j < paths[i].n; j++)
            has |= steps[paths[i].steps[j]].step == &o->steps[with];
        if (!has)
            continue;
        ret->n = (size_t)paths[i].n;
        for (int32_t j = 0; j < paths[i].n; j++) {
            ret->steps[j] = *steps[paths[i].steps[j]].step;
            covered[steps[paths[i].steps[j]].step - o->steps] = true;
        }
        return true;
    }
    return false;
}

static void compile_ahead(const struct mf_shape *s, const struct plan *plans, size_t n)
{
    _cleanup_(mf_freep) struct mf_code *codes = calloc(n * MF_PATH_STEPS_MAX + 1, sizeof(*codes));
    size_t n_codes = 0;

    for (size_t i = 0; device->ops->compile && i < n; i++) {
        for (size_t j = 0; j < plans[i].n; j++) {
            const struct mf_step *step = &plans[i].steps[j];
            const struct mf_family *f = mf_family_find(device->ops->kind, step->family);
            if (f->code && f->code(f, &device->info, s, step->name, &codes[n_codes]) == 0)
                n_codes++;
        }
    }
    if (n_codes > 0)
        (void)device->ops->compile(device, codes, n_codes, NULL, NULL);
}

/* ---- data ---- */

struct copies {
    void *x, *ids[2], *weights[2], *b1, *b2, *calib, *y;
};

struct layer {
    struct mf_layer_data data;
    struct mf_reference valid, invalid; /* references: all ids valid; some invalid */
    int32_t *invalid_ids;
    int64_t *wide, *wide_invalid;
    uint16_t *narrow;
};

static size_t n_routes(const struct layer *l)
{
    return (size_t)(l->data.shape.token * l->data.shape.topk);
}

static void layer_make(struct layer *l, const struct mf_shape *s)
{
    const struct mf_routing routing = {.kind = MF_ROUTING_UNIFORM};
    const int32_t all = mf_shape_global_experts(s), none[] = {-1, all, INT32_MAX, INT32_MIN, all + 1000};

    *l = (struct layer){0};
    host_inputs_make(&l->data, s, &routing, SEED);
    l->invalid_ids = calloc(n_routes(l), sizeof(int32_t));
    l->wide = calloc(n_routes(l), sizeof(int64_t));
    l->wide_invalid = calloc(n_routes(l), sizeof(int64_t));
    l->narrow = calloc(n_routes(l), sizeof(uint16_t));
    for (size_t i = 0; i < n_routes(l); i++) {
        float *weight = (float *)(uintptr_t)l->data.weights + i;
        bool is_none = i % 5 == 1 || (i / (size_t)s->topk) % 4 == 3; /* no route of every fourth token */
        l->narrow[i] = mf_bf16_from_float(*weight);
        *weight = mf_bf16_to_float(l->narrow[i]);
        l->wide[i] = l->data.ids[i];
        l->invalid_ids[i] = is_none ? none[i % MF_ARRAY_LEN(none)] : l->data.ids[i];
        /* the low half of such an id is valid */
        l->wide_invalid[i] = l->data.ids[i] + (is_none ? (INT64_C(1) << 32) * (i % 2 ? 1 : -1) : 0);
    }
    ck_assert_int_eq(mf_reference_make(&l->data, &l->valid), 0);
    struct mf_layer_data other = l->data;
    other.ids = l->invalid_ids;
    ck_assert_int_eq(mf_reference_make(&other, &l->invalid), 0);
}

static void layer_release(struct layer *l)
{
    mf_reference_release(&l->valid);
    mf_reference_release(&l->invalid);
    host_inputs_release(&l->data);
    free(l->invalid_ids);
    free(l->wide);
    free(l->wide_invalid);
    free(l->narrow);
}

static void *on_device(const void *from, size_t bytes)
{
    void *at = device->ops->alloc(device, bytes);

    ck_assert_ptr_nonnull(at);
    if (from)
        ck_assert_int_eq(device->ops->copy(device, at, from, bytes), 0);
    return at;
}

static void fill(void *at, size_t bytes)
{
    _cleanup_(mf_freep) void *pattern = malloc(bytes + 1);

    memset(pattern, 0xff, bytes);
    ck_assert_int_eq(device->ops->copy(device, at, pattern, bytes), 0);
}

/* Returns a weight on the device in the layout of the tensor spec. */
static struct mf_tensor_ref weight_on_device(const struct mf_layer_data *d, const struct mf_tensor_spec *to)
{
    const struct mf_tensor_spec row = mf_plain_w(&d->shape, to->tensor, "row");
    const struct mf_tensor_ref *from = to->tensor == MF_TENSOR_W1 ? &d->w1 : &d->w2;
    struct mf_tensor_ref packed = host_tensor_new(to, &d->shape), ret = {0};
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_tensor_spec_parts(to, &d->shape, parts);

    for (int32_t e = 0; e < d->shape.expert; e++) {
        struct mf_tensor_ref a = {0}, b = {0};
        for (int i = 0; i < n; i++) {
            size_t at = (size_t)(e * (mf_part_bytes(&parts[i]) / d->shape.expert));
            a.part[i] = (char *)from->part[i] + at;
            b.part[i] = (char *)packed.part[i] + at;
        }
        ck_assert_int_eq(mf_layout_convert_weight(&d->shape, &row, to, &a, &b), 0);
    }
    for (int i = 0; i < n; i++)
        ret.part[i] = on_device(packed.part[i], (size_t)mf_part_bytes(&parts[i]));
    host_tensor_free(&packed);
    return ret;
}

static void release_weight(const struct mf_tensor_ref *w, const struct mf_tensor_spec *a,
                           const struct mf_shape *s)
{
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_tensor_spec_parts(a, s, parts);

    for (int i = 0; i < n; i++)
        device->ops->release(device, w->part[i], (size_t)mf_part_bytes(&parts[i]));
}

/* ---- runs ---- */

static double row_error(const float *want, const float *got, size_t n)
{
    double difference = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        difference += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    /* an expected row of zeros has no relative error */
    return norm > 0 ? sqrt(difference / norm) : difference;
}

/* Returns the largest error of a row; NaN is an error. */
static double error_of(const struct mf_shape *s, const float *want, const float *got)
{
    double worst = 0;

    for (int64_t t = 0; t < s->token; t++) {
        double e = row_error(want + t * s->model_dim, got + t * s->model_dim, (size_t)s->model_dim);
        worst = e > worst || isnan(e) ? e : worst;
        if (isnan(worst))
            break;
    }
    return worst;
}

static void run(struct mf_pipeline *p, const struct mf_fmoe_args *args, const struct mf_shape *s, float *ret)
{
    size_t n = (size_t)(s->token * s->model_dim);
    _cleanup_(mf_freep) uint16_t *y = calloc(n, sizeof(*y));

    fill(args->arena, mf_pipeline_arena_bytes(p));
    fill(args->y.part[0], n * 2);
    mf_pipeline_bind(p, args);
    ck_assert_int_eq(mf_pipeline_run(p), 0);
    ck_assert_int_eq(device->ops->sync(device), 0);
    ck_assert_int_eq(device->ops->copy(device, y, args->y.part[0], n * 2), 0);
    mf_bf16_to_floats(y, n, ret);
}

static void describe(const struct plan *plan, char *ret, size_t cap)
{
    size_t at = 0;

    *ret = '\0';
    for (size_t i = 0; i < plan->n && at < cap; i++) {
        mf_format(ret + at, cap - at, "%s%s:%s", i ? "|" : "", plan->steps[i].family, plan->steps[i].name);
        at += strlen(ret + at);
    }
}

/* Runs the pipeline with each combination of types, for valid and for invalid ids. */
static void check_pipeline(const struct layer *l, const struct plan *plan, const void *const x_and_biases[3],
                           void *const topk[2][3])
{
    const struct mf_shape *s = &l->data.shape;
    size_t n = (size_t)(s->token * s->model_dim);
    _cleanup_(mf_freep) float *first = calloc(n, sizeof(*first)), *got = calloc(n, sizeof(*got));
    bool exact = true;
    char why[MF_REASON_MAX], text[MF_PIPELINE_TEXT_MAX];
    struct mf_pipeline *p;

    describe(plan, text, sizeof(text));
    ck_assert_msg(mf_pipeline_open_steps(device, s, NULL, plan->steps, plan->n, why, sizeof(why), &p) == 0,
                  "%s: %s", text, why);
    for (size_t i = 0; i < plan->n; i++)
        exact &= plan->steps[i].reorder_tolerance == 0;
    const struct mf_tensor_spec w1 = mf_pipeline_weight(p, MF_TENSOR_W1),
                                w2 = mf_pipeline_weight(p, MF_TENSOR_W2);
    struct mf_fmoe_args args = {
        .x.part = {(void *)(uintptr_t)x_and_biases[0]},
        .w1 = weight_on_device(&l->data, &w1),
        .w2 = weight_on_device(&l->data, &w2),
        .y.part = {on_device(NULL, n * 2)},
        .calib.part = {on_device(NULL, 2 * sizeof(float))},
        .b1.part = {(void *)(uintptr_t)x_and_biases[1]},
        .b2.part = {(void *)(uintptr_t)x_and_biases[2]},
        .arena = on_device(NULL, mf_pipeline_arena_bytes(p) + 64),
    };
    for (int invalid = 0; invalid < 2; invalid++) {
        const struct mf_reference *want = invalid ? &l->invalid : &l->valid;
        const struct mf_tensor_spec x = mf_plain_x(s), h = mf_plain_h(s, 16);
        const float calib[2] = {mf_reference_global(want, &x), mf_reference_global(want, &h)};
        ck_assert_int_eq(device->ops->copy(device, args.calib.part[0], calib, sizeof(calib)), 0);
        for (int types = 0; types < 4; types++) {
            args.routes = (struct mf_route_types){.wide = types & 1, .bf16_weights = types & 2};
            args.topk.part[0] = topk[types & 1][invalid];
            args.topk.part[1] = topk[types >> 1][2];
            run(p, &args, s, types == 0 ? first : got);
            double error = error_of(s, types == 0 ? want->y : first, types == 0 ? first : got);
            ck_assert_msg(error <= (types == 0 ? APART
                                    : exact    ? 0
                                               : REORDERED),
                          "%s: %s ids, types %d: error %g", text, invalid ? "invalid" : "valid", types,
                          error);
        }
    }
    release_weight(&args.w1, &w1, s);
    release_weight(&args.w2, &w2, s);
    device->ops->release(device, args.y.part[0], n * 2);
    device->ops->release(device, args.calib.part[0], 2 * sizeof(float));
    device->ops->release(device, args.arena, mf_pipeline_arena_bytes(p) + 64);
    p = mf_pipeline_close(p);
}

static void check_pipelines(const struct layer *l, const struct plan *plans, size_t n)
{
    const struct mf_shape *s = &l->data.shape;
    size_t routes = n_routes(l), experts = (size_t)s->expert,
           b1_bytes = experts * (size_t)mf_gemm1_cols(s) * 4, b2_bytes = experts * (size_t)s->model_dim * 4,
           x_bytes = (size_t)(s->token * s->model_dim) * 2;
    const void *const values[3] = {on_device(l->data.x, x_bytes),
                                   l->data.b1 ? on_device(l->data.b1, b1_bytes) : NULL,
                                   l->data.b2 ? on_device(l->data.b2, b2_bytes) : NULL};
    /* by type: valid ids, invalid ids, weights */
    void *const topk[2][3] = {{on_device(l->data.ids, routes * 4), on_device(l->invalid_ids, routes * 4),
                               on_device(l->data.weights, routes * 4)},
                              {on_device(l->wide, routes * 8), on_device(l->wide_invalid, routes * 8),
                               on_device(l->narrow, routes * 2)}};

    for (size_t i = 0; i < n; i++)
        check_pipeline(l, &plans[i], values, topk);
    for (int i = 0; i < 3; i++) {
        device->ops->release(device, topk[0][i], routes * 4);
        device->ops->release(device, topk[1][i], routes * (i < 2 ? 8 : 2));
    }
    device->ops->release(device, (void *)(uintptr_t)values[0], x_bytes);
    if (values[1])
        device->ops->release(device, (void *)(uintptr_t)values[1], b1_bytes);
    if (values[2])
        device->ops->release(device, (void *)(uintptr_t)values[2], b2_bytes);
}

MF_TEST(reads_all_types_and_ids, .rows = MF_ARRAY_LEN(layers))
{
    struct offers o = {.offer = {take, mf_offer_ignore_rejection}};
    struct plan *plans = calloc(PATHS_MAX, sizeof(*plans));
    bool *covered;
    size_t n = 0, targets = 0, missed = 0;
    struct mf_shape s;
    struct layer l;

    ck_assert_int_eq(mf_shape_parse(layers[_i], &s), 0);
    ck_assert_int_eq(mf_enumerate(&device->info, &s, NULL, &o.offer), 0);
    if (strcmp(device->ops->kind, "hip") == 0)
        ck_assert_int_eq(mf_enumerate(&device->info, &s, "permute", &o.offer), 0);
    covered = calloc(o.n + 1, sizeof(*covered));
    for (size_t i = 0; i < o.n; i++) {
        if (!is_target(&o.steps[i]) || strcmp(o.steps[i].family, "asm") == 0)
            continue;
        targets++;
        if (covered[i] || n == PATHS_MAX)
            continue;
        if (find_pipeline(&o, &s, i, covered, &plans[n]))
            n++;
        else
            missed++;
    }
    ck_assert(n > 0 || _i > 0); /* the device may have no kernels for a format */
    printf("%s: %zu pipelines, %zu steps that read routes or write y, %zu without a pipeline\n", layers[_i],
           n, targets, missed);
    compile_ahead(&s, plans, n);
    layer_make(&l, &s);
    check_pipelines(&l, plans, n);
    layer_release(&l);
    free(covered);
    free(plans);
    free(o.steps);
}

int main(void)
{
    mf_draw_start();
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 200, .setup = open_device, .teardown = close_device});
}
