#include "support/kernels/row_limit.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/codec.h"
#include "kernels/core/philox.h"
#include "kernels/cpu/ops.h"

#define ROUND_STEP 0x1p-7 /* maximum relative distance of adjacent bf16 values */
#define ROUND_MOST 0x1p-8 /* maximum relative rounding error of bf16 */
#define ROUND_MEAN 1.6e-3
#define TIMES      4.0 /* limit as a multiple of the mean error of a row; one row in thousands reaches it */
#define PATTERNS   14
/* limit as a multiple of the mean difference in a row; one value in millions reaches it */
#define ELEMENT 6.0

/* How the values from which a step computes h differ from the reference. */
enum way {
    WAY_SUMS,    /* the only difference is the order of sums */
    WAY_ROUNDED, /* g is rounded to bf16 */
    WAY_INT4,    /* int4 weights or decoded weights are rounded to bf16 */
    N_WAYS,
};

struct row_limits {
    const struct mf_layer_data *data;
    const struct mf_reference *ref;
    bool rounds_weights;
    /* limits by slot, computed on demand; second index: 0 for h in bf16, 1 for quantised h */
    struct row_limit *h[N_WAYS][2];
    bool *made[N_WAYS][2];
};

struct row_limits *row_limits_new(const struct mf_layer_data *data, const struct mf_reference *ref)
{
    struct row_limits *l = calloc(1, sizeof(*l));
    struct mf_codecs codecs;
    const char *why;
    ck_assert_ptr_nonnull(l);
    ck_assert_int_eq(mf_codecs_of_shape(&data->shape, &codecs, &why), 0);
    l->data = data;
    l->ref = ref;
    l->rounds_weights = codecs.w->format == MF_FORMAT_INT4 && mf_codec_folds(codecs.w);
    return l;
}

void row_limits_free(struct row_limits *l)
{
    for (int i = 0; l && i < 2 * N_WAYS; i++) {
        free(l->h[i / 2][i % 2]);
        free(l->made[i / 2][i % 2]);
    }
    free(l);
}

static double norm_of(const float *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    return sqrt(sum);
}

static double activate(const struct mf_shape *s, double g, double u)
{
    return s->use_g1u1 ? mf_activate(s, g, u) : mf_activate_gate(s, g);
}

/* Returns the maximum deviation of the activation at (g, u) if g deviates by at most dg and u by at most du.
 * Checks the ends of both ranges, and the minima of the gate functions (-1.278, -0.752) if they are within
 * the range of g. */
static double corners(const struct mf_shape *s, double g, double u, double dg, double du)
{
    const double ends[] = {g - dg, g + dg, fmin(fmax(-1.278, g - dg), g + dg),
                           fmin(fmax(-0.752, g - dg), g + dg)};
    double at = activate(s, g, u), most = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(ends); i++) {
        most = MF_MAX(most, fabs(activate(s, ends[i], u - du) - at));
        most = MF_MAX(most, fabs(activate(s, ends[i], u + du) - at));
    }
    return most;
}

/* Computes the maximum deviation of each value of a slot's h before quantisation. */
static void h_deviation(const struct row_limits *l, enum way way, int64_t slot, double *reach)
{
    const struct mf_shape *s = &l->data->shape;
    size_t I = (size_t)s->inter_dim, G = (size_t)mf_gemm1_cols(s),
           ups = G - I; /* offset from gate to up; 0 if there is no up */
    const float *g = l->ref->g + (size_t)slot * G, *h = l->ref->h_bf16 + (size_t)slot * I;
    const float *b1 =
        s->has_b1 ? l->data->b1 + (size_t)mf_shape_local_expert(s, l->data->ids[slot]) * G : NULL;
    double weight = s->doweight_stage1 ? (double)l->data->weights[slot] : 1;
    double sums = way == WAY_INT4 ? TIMES * ROUND_MEAN * fabs(weight) / sqrt((double)I) : 0;
    double round = way == WAY_ROUNDED ? ROUND_MOST : 0;
    double dg = sums * norm_of(g, I), du = sums * norm_of(g + ups, I);

    for (size_t i = 0; i < I; i++) {
        double gate = weight * (double)g[i], up = weight * (double)g[ups + i];
        /* the kernel and the reference may round to neighbouring values */
        reach[i] = ROUND_STEP * fabs((double)h[i]);
        if (way != WAY_SUMS)
            reach[i] += corners(s, gate + (b1 ? (double)b1[i] : 0), up + (b1 ? (double)b1[ups + i] : 0),
                                dg + round * fabs(gate), du + round * fabs(up));
    }
}

/* Marks the values that may have the largest magnitude of their group, which determines the scale of the
 * group. */
static void mark_largest(const float *from, const double *reach, size_t n, size_t group, bool *largest)
{
    for (size_t g = 0; g < n; g += group) {
        size_t end = MF_MIN(n, g + group);
        double least = 0;
        for (size_t i = g; i < end; i++)
            least = MF_MAX(least, fabs((double)from[i]) - reach[i]);
        for (size_t i = g; i < end; i++)
            largest[i] = fabs((double)from[i]) + reach[i] >= least;
    }
}

/* Moves each value by its maximum deviation. A quantised value changes only if the value and the largest
 * value of its group move by different factors. The first six patterns move the largest values up, down or
 * not, and the other values up or down. The remaining patterns move each value up or down at random. */
static void move(const float *from, const double *reach, const bool *largest, size_t n, uint64_t pattern,
                 float *to)
{
    for (size_t i = 0; i < n; i++) {
        bool up = pattern >= 6 ? mf_philox(pattern, i, 0).v[0] & 1
                  : largest[i] ? pattern / 2 == 1
                               : pattern & 1;
        bool stays = largest[i] && pattern < 2;
        double size = fabs((double)from[i]), there = up ? size + reach[i] : MF_MAX(0.0, size - reach[i]);
        to[i] = (float)copysign(stays ? size : there, (double)from[i]);
    }
}

/* Replaces the maximum deviation of each value by its maximum deviation after quantisation, over all
 * patterns. */
static void quantise_reach(const struct row_limits *l, const float *bf16, const float *want, double *reach)
{
    size_t I = (size_t)l->data->shape.inter_dim;
    struct mf_tensor_spec a = mf_plain_h(&l->data->shape, 1);
    const struct mf_codec *c = mf_codec_find(a.format, a.scale);
    _cleanup_(mf_freep) float *moved = calloc(I, sizeof(*moved));
    _cleanup_(mf_freep) double *farthest = calloc(I, sizeof(*farthest));
    _cleanup_(mf_freep) bool *largest = calloc(I, sizeof(*largest));
    _cleanup_(mf_freep) void *scratch = malloc(8 * I + 256);

    ck_assert(moved && farthest && largest && scratch);
    mark_largest(bf16, reach, I, c->group_cols ? (size_t)c->group_cols : I, largest);
    for (uint64_t pattern = 0; pattern < PATTERNS; pattern++) {
        move(bf16, reach, largest, I, pattern, moved);
        mf_reference_requantise(l->ref, &a, moved, I, scratch);
        for (size_t i = 0; i < I; i++)
            farthest[i] = MF_MAX(farthest[i], fabs((double)moved[i] - (double)want[i]));
    }
    memcpy(reach, farthest, I * sizeof(*reach));
}

static struct row_limit make_h(const struct row_limits *l, enum way way, bool quantised, int64_t slot)
{
    size_t I = (size_t)l->data->shape.inter_dim;
    const float *bf16 = l->ref->h_bf16 + (size_t)slot * I;
    const float *want = quantised ? l->ref->h + (size_t)slot * I : bf16;
    _cleanup_(mf_freep) double *reach = calloc(I, sizeof(*reach));
    double size = norm_of(want, I), sum = 0, most = 0;

    ck_assert_ptr_nonnull(reach);
    h_deviation(l, way, slot, reach);
    if (quantised)
        quantise_reach(l, bf16, want, reach);
    for (size_t i = 0; i < I; i++) {
        sum += reach[i] * reach[i];
        most = MF_MAX(most, reach[i]);
    }
    return (struct row_limit){size > 0 ? sqrt(sum) / size : 0, size > 0 ? most / size : 0};
}

static struct row_limit limit_of_h(struct row_limits *l, enum way way, bool quantised, int64_t slot)
{
    size_t slots = (size_t)(l->data->shape.token * l->data->shape.topk);
    if (!l->h[way][quantised]) {
        l->h[way][quantised] = calloc(slots, sizeof(struct row_limit));
        l->made[way][quantised] = calloc(slots, sizeof(bool));
        ck_assert(l->h[way][quantised] && l->made[way][quantised]);
    }
    if (!l->made[way][quantised][slot]) {
        l->h[way][quantised][slot] = make_h(l, way, quantised, slot);
        l->made[way][quantised][slot] = true;
    }
    return l->h[way][quantised][slot];
}

static bool covers(const struct mf_step *step, enum mf_op op)
{
    return step->covers & MF_OP_BIT(op);
}

/* True if the step multiplies by weights that were rounded to bf16. */
static bool rounds(const struct row_limits *l, const struct mf_step *step)
{
    bool decoded = false;
    for (int i = 0; i < step->n_needs; i++)
        decoded |= mf_tensor_spec_is_decoded(&step->needs[i]);
    return decoded || l->rounds_weights;
}

static enum way way_of(const struct row_limits *l, const struct mf_step *step)
{
    if (!covers(step, MF_OP_GEMM1))
        return WAY_ROUNDED;
    return rounds(l, step) ? WAY_INT4 : WAY_SUMS;
}

/* Returns the limit of z, relative to the norm of z. It results from rounding the weights, and from rounding
 * z itself when it is stored. */
static double limit_of_z(struct row_limits *l, const struct mf_step *step, int64_t slot)
{
    bool sums = covers(step, MF_OP_GEMM2) && rounds(l, step);
    double before = 0;
    if (covers(step, MF_OP_ACT))
        before = limit_of_h(l, way_of(l, step), l->ref->h != l->ref->h_bf16, slot).norm;
    return before + TIMES * ROUND_MEAN * (sums ? 2 : 1);
}

static double limit_of_y(struct row_limits *l, const struct mf_step *step, int64_t token)
{
    const struct mf_shape *s = &l->data->shape;
    size_t H = (size_t)s->model_dim, k = (size_t)s->topk;
    double sum = 0, size = norm_of(l->ref->y + (size_t)token * H, H);
    for (size_t slot = (size_t)token * k; slot < (size_t)(token + 1) * k; slot++) {
        double weight = s->doweight_stage1 ? 1 : (double)l->data->weights[slot];
        if (mf_shape_local_expert(s, l->data->ids[slot]) < 0)
            continue;
        double part = weight * norm_of(l->ref->z + slot * H, H) * limit_of_z(l, step, (int64_t)slot);
        sum += part * part;
    }
    return (size > 0 ? sqrt(sum) / size : 0) + TIMES * ROUND_MEAN;
}

struct row_limit row_limit(struct row_limits *l, const struct mf_step *step, const struct mf_tensor_spec *a,
                           int64_t source)
{
    double n = sqrt((double)mf_tensor_spec_cols(a, &l->data->shape)), norm;
    if (a->tensor == MF_TENSOR_H)
        return limit_of_h(l, way_of(l, step), a->scale != MF_SCALE_NONE, source);
    norm = a->tensor == MF_TENSOR_Y   ? limit_of_y(l, step, source)
           : a->tensor == MF_TENSOR_G ? TIMES * ROUND_MEAN
                                      : limit_of_z(l, step, source);
    return (struct row_limit){norm, MF_MIN(norm, ELEMENT * norm / n)};
}
