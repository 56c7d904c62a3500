#include "measure/verify.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/stats.h"
#include "common/text.h"
#include "kernels/codec.h"
#include "kernels/layout.h"
#include "kernels/limits.h"
#include "kernels/quant.h"
#include "kernels/vector.h"
#include "measure/verify_index.h"

#define SMALL_ROW    0.05 /* of the typical norm: what a row's error is measured against at least */
#define EXPERT_ROWS  4    /* fewer say no more than their rows do */
#define EXPERT_SHARE 0.5

/* What became of one row. */
struct row {
    int64_t source;                   /* -1: padding */
    uint32_t unwritten, unwritten_at; /* elements that hold the poison, and the first */
    uint32_t unwritten_scales;
    uint32_t bad, bad_at;
    uint32_t mismatches;
    double difference, norm, size; /* squared: of the difference, the reference, the row itself */
    double error, limit;
};

struct pass {
    const struct mf_verify_input *v;
    struct row *rows;
    float *scratch; /* a decoded row for each thread */
    int64_t cols;
    int failed;
};

/* ---- poison ---- */

MF_VECTOR_BODY(static, uint32_t, count4, (const uint32_t *x, size_t n, uint32_t poison), (x, n, poison), {
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] == poison;
    return sum;
})

MF_VECTOR_BODY(static, uint32_t, count2, (const uint16_t *x, size_t n, uint16_t poison), (x, n, poison), {
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] == poison;
    return sum;
})

MF_VECTOR_BODY(static, uint32_t, count1, (const uint8_t *x, size_t n, uint8_t poison), (x, n, poison), {
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] == poison;
    return sum;
})

static uint32_t count_poison(const void *row, int bytes, size_t n, uint32_t poison)
{
    if (bytes == 4)
        return count4(row, n, poison);
    return bytes == 2 ? count2(row, n, (uint16_t)poison) : count1(row, n, (uint8_t)poison);
}

static uint32_t first_poison(const uint8_t *row, int bytes, size_t n, uint32_t poison)
{
    for (size_t i = 0; i < n; i++) {
        if (count_poison(row + i * (size_t)bytes, bytes, 1, poison) > 0)
            return (uint32_t)i;
    }
    return 0;
}

/* Row p of a part; the only row of one that all rows share. */
static const void *part_row(const struct mf_guarded *g, int part, int64_t p)
{
    const struct mf_part *q = &g->parts[part];
    return (const uint8_t *)g->ref.part[part] +
           (q->rows == g->parts[0].rows ? p : 0) * q->cols * q->element_bytes;
}

/* Where every byte is a value, a few that look like the poison mean nothing: so many in a row do. */
#define POISON_RUN 16

static uint32_t longest_run(const uint8_t *x, size_t n, uint8_t poison, uint32_t *ret_at)
{
    uint32_t longest = 0, run = 0;
    for (size_t i = 0; i < n; i++) {
        run = x[i] == poison ? run + 1 : 0;
        if (run > longest) {
            longest = run;
            *ret_at = (uint32_t)(i + 1 - run);
        }
    }
    return longest;
}

static void look_for_poison(const struct mf_guarded *g, int64_t p, struct row *row)
{
    for (int i = 0; i < g->n_parts; i++) {
        bool is_value;
        uint32_t poison = mf_part_poison(&g->artifact, i, &is_value), run_at = 0;
        size_t cols = (size_t)g->parts[i].cols;
        uint32_t n = count_poison(part_row(g, i, p), g->parts[i].element_bytes, cols, poison);
        if (is_value) {
            n = n < MF_MIN((size_t)POISON_RUN, cols)
                    ? 0
                    : longest_run(part_row(g, i, p), cols, (uint8_t)poison, &run_at);
            row->unwritten = n < MF_MIN((size_t)POISON_RUN, cols) ? 0 : n;
            row->unwritten_at = run_at;
        } else if (i > 0) {
            row->unwritten_scales += n;
        } else if (n > 0) {
            row->unwritten = n;
            row->unwritten_at = first_poison(part_row(g, i, p), g->parts[i].element_bytes, cols, poison);
        }
    }
}

/* ---- one row against its reference ---- */

static void decode(const struct mf_guarded *g, int64_t p, int64_t cols, float *to)
{
    const struct mf_codec *c = mf_codec_find(g->artifact.format, g->artifact.scale);
    if (g->artifact.format == MF_FORMAT_F32)
        memcpy(to, part_row(g, 0, p), (size_t)cols * sizeof(*to));
    else
        mf_codec_decode_row(c, g->ref.part[0], g->ref.part[1], c->global ? *(const float *)g->ref.part[2] : 1,
                            (size_t)p, (size_t)cols, to);
}

/* Row p of a decoded weight, counted as `row` layout has it; plain: what it should be, rounded nowhere. */
static void decode_weight(const struct mf_verify_input *v, int64_t p, int64_t cols, float *to, float *plain)
{
    const struct mf_guarded *g = v->out;
    const struct mf_layout *l = mf_layout_find(g->artifact.order);
    int64_t of_expert = g->parts[0].rows / v->data->shape.expert, e = p / of_expert;
    const uint16_t *expert = (const uint16_t *)g->ref.part[0] + e * of_expert * cols;
    uint16_t *row = (uint16_t *)plain; /* until it is widened */
    mf_layout_row(l, 16, (size_t)of_expert, (size_t)cols, (size_t)(p % of_expert), expert, row);
    mf_bf16_to_floats(row, (size_t)cols, to);
    mf_reference_weight_row(v->data, mf_decoded_of(g->artifact.tensor), (int32_t)e, p % of_expert, plain);
}

struct sums {
    uint32_t bad, mismatches;
    double difference, norm, size;
};

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));

/* ref is scaled by factor; ref NULL: zeros. Counts what is not finite, and sums the squares of the rest. */
MF_VECTOR_BODY(static, void, compare_row,
               (const float *x, const float *ref, float factor, size_t n, struct sums *ret),
               (x, ref, factor, n, ret), {
                   v16 d2 = {0}, r2 = {0}, a2 = {0};
                   v16i bad = {0}, off = {0};
                   for (size_t i = 0; i < n; i += 16) {
                       v16 a = {0}, b = {0};
                       size_t m = n - i < 16 ? n - i : 16;
                       if (m == 16)
                           __builtin_memcpy(&a, x + i, 64);
                       else
                           __builtin_memcpy(&a, x + i, m * 4);
                       if (ref && m == 16)
                           __builtin_memcpy(&b, ref + i, 64);
                       else if (ref)
                           __builtin_memcpy(&b, ref + i, m * 4);
                       b *= factor;
                       v16 d = a - b;
                       v16i ad = (v16i)d & 0x7fffffff, ab = (v16i)b & 0x7fffffff;
                       bad -= ((v16i)a & 0x7f800000) == 0x7f800000;
                       /* no "less or equal": what cannot be compared is off */
                       off -= (v16)ad > (float)MF_TOLERANCE + (float)MF_TOLERANCE * (v16)ab;
                       d2 += d * d;
                       r2 += b * b;
                       a2 += a * a;
                   }
                   *ret = (struct sums){0};
                   for (int i = 0; i < 16; i++) {
                       ret->bad += (uint32_t)bad[i];
                       ret->mismatches += (uint32_t)off[i];
                       ret->difference += (double)d2[i];
                       ret->norm += (double)r2[i];
                       ret->size += (double)a2[i];
                   }
               })

static void look_at_row(const struct pass *s, int64_t p, float *scratch, struct row *row)
{
    const struct mf_verify_input *v = s->v;
    const struct mf_guarded *g = v->out;
    float factor = 1, *plain_x = scratch + s->cols;
    const float *ref = NULL;
    if (!v->accumulates && !g->artifact.zeroed)
        look_for_poison(g, p, row);
    if (g->artifact.tensor == MF_TENSOR_X && g->artifact.format == MF_FORMAT_BF16) {
        mf_bf16_to_floats(v->data->x + row->source * s->cols, (size_t)s->cols, plain_x);
        ref = plain_x;
    } else if (!g->artifact.zeroed && !mf_artifact_is_decoded(&g->artifact)) {
        ref = mf_reference_row(v->data, v->ref, &g->artifact, row->source, &factor);
    }
    const float *x = scratch;
    if (mf_artifact_is_decoded(&g->artifact)) {
        decode_weight(v, p, s->cols, scratch, plain_x);
        ref = plain_x;
    } else if (g->artifact.format == MF_FORMAT_F32) {
        x = part_row(g, 0, p);
    } else {
        decode(g, p, s->cols, scratch);
    }
    struct sums sums;
    compare_row(x, ref, factor, (size_t)s->cols, &sums);
    row->bad = sums.bad;
    for (int64_t i = 0; row->bad > 0 && row->bad_at == 0 && i < s->cols; i++) {
        if (!isfinite(x[i]))
            row->bad_at = (uint32_t)i;
    }
    row->mismatches = sums.mismatches;
    row->difference = sums.difference;
    row->norm = sums.norm;
    row->size = sums.size;
}

static void pass_thread(void *context, int thread, int n_threads)
{
    struct pass *s = context;
    int64_t n = s->v->out->parts[0].rows;
    float *scratch = s->scratch + 2 * (size_t)thread * (size_t)s->cols;
    for (int64_t p = n * thread / n_threads; p < n * (thread + 1) / n_threads; p++) {
        struct row *row = &s->rows[p];
        *row = (struct row){.source = s->v->source ? s->v->source[p] : p};
        if (row->source >= 0)
            look_at_row(s, p, scratch, row);
    }
}

/* ---- sentences ---- */

/* "row 1033 (token 129, slot 1, expert 7)" */
static void name_row(const struct mf_verify_input *v, int64_t p, int64_t source, char *buf, size_t cap)
{
    const struct mf_shape *s = &v->data->shape;
    bool by_token = v->out->artifact.tensor == MF_TENSOR_X || v->out->artifact.tensor == MF_TENSOR_Y;
    int64_t of_expert = v->out->parts[0].rows / s->expert;
    if (mf_artifact_is_decoded(&v->out->artifact))
        mf_say(buf, cap, "row %lld (expert %lld, row %lld of it)", (long long)p, (long long)(p / of_expert),
               (long long)(p % of_expert));
    else if (by_token && p == source)
        mf_say(buf, cap, "row %lld", (long long)p);
    else if (by_token)
        mf_say(buf, cap, "row %lld (token %lld)", (long long)p, (long long)source);
    else
        mf_say(buf, cap, "row %lld (token %lld, slot %lld, expert %d)", (long long)p,
               (long long)(source / s->topk), (long long)(source % s->topk), (int)v->data->ids[source]);
}

static int refuse_unwritten(const struct mf_verify_input *v, const struct row *rows, struct mf_verdict *ret)
{
    int64_t n = 0, first = -1;
    char name[96];
    const struct mf_guarded *g = v->out;
    for (int64_t p = 0; p < g->parts[0].rows; p++) {
        if (rows[p].source < 0 || rows[p].unwritten + rows[p].unwritten_scales == 0)
            continue;
        n++;
        if (first < 0)
            first = p;
    }
    if (n == 0)
        return 0;
    const struct row *r = &rows[first];
    const char *tensor = mf_tensor_name(g->artifact.tensor);
    name_row(v, first, r->source, name, sizeof(name));
    if (r->unwritten == 0)
        mf_say(ret->reason, sizeof(ret->reason),
               "unwritten: %s of %s still holds the poison in its scale, %lld rows in all", name, tensor,
               (long long)n);
    else if (r->unwritten == g->parts[0].cols - r->unwritten_at)
        mf_say(ret->reason, sizeof(ret->reason),
               "unwritten: %s of %s still holds the poison from column %u on, %lld rows in all", name, tensor,
               r->unwritten_at, (long long)n);
    else
        mf_say(
            ret->reason, sizeof(ret->reason),
            "unwritten: %s of %s still holds the poison in %u elements, first in column %u, %lld rows in all",
            name, tensor, r->unwritten, r->unwritten_at, (long long)n);
    return 1;
}

static int refuse_bad(const struct mf_verify_input *v, const struct row *rows, struct mf_verdict *ret)
{
    int64_t n = 0, first = -1;
    char name[96];
    for (int64_t p = 0; p < v->out->parts[0].rows; p++) {
        if (rows[p].source < 0 || rows[p].bad == 0)
            continue;
        n++;
        if (first < 0)
            first = p;
    }
    if (n == 0)
        return 0;
    name_row(v, first, rows[first].source, name, sizeof(name));
    mf_say(ret->reason, sizeof(ret->reason),
           "not finite: %s of %s has %u NaN or infinity, first in column %u, %lld rows in all", name,
           mf_tensor_name(v->out->artifact.tensor), rows[first].bad, rows[first].bad_at, (long long)n);
    return 1;
}

/* ---- mismatch, experts, rows ---- */

static int refuse_mismatch(const struct mf_verify_input *v, const struct row *rows, int64_t cols,
                           struct mf_verdict *ret)
{
    double mismatches = 0, elements = 0, difference = 0, sizes = 0;
    bool cosine = mf_err_by_cosine(&v->data->shape);
    for (int64_t p = 0; p < v->out->parts[0].rows; p++) {
        if (rows[p].source < 0)
            continue;
        mismatches += rows[p].mismatches;
        elements += (double)cols;
        difference += rows[p].difference;
        sizes += rows[p].norm + rows[p].size;
    }
    if (cosine)
        ret->err = sizes > 0 ? difference / sizes : 0;
    else
        ret->err = elements > 0 ? mismatches / elements : 0;
    if (ret->err <= v->err_ratio)
        return 0;
    if (cosine)
        mf_say(ret->reason, sizeof(ret->reason), "cosine: the distance to the reference is %.3g, limit %.3g",
               ret->err, v->err_ratio);
    else
        mf_say(ret->reason, sizeof(ret->reason),
               "mismatch: %.3g%% of elements differ by more than 0.01 + 0.01·|ref|, limit %.3g%%",
               100 * ret->err, 100 * v->err_ratio);
    return 1;
}

/* The error that quantising h costs that row; 0 where the step did not quantise it. */
static double plain_error(const struct mf_verify_input *v, int64_t source)
{
    const mf_ops around = MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT) | MF_OP_BIT(MF_OP_GEMM2);
    if (!v->ref->h_error || !(v->covers & MF_OP_BIT(MF_OP_QUANT2)) || !(v->covers & around))
        return 0;
    switch (v->out->artifact.tensor) {
    case MF_TENSOR_H:
        return (double)v->ref->h_error[source];
    case MF_TENSOR_Z:
    case MF_TENSOR_ZW:
        return (double)v->ref->z_error[source];
    case MF_TENSOR_Y:
        return (double)v->ref->y_error[source];
    case MF_TENSOR_X:
    case MF_TENSOR_TOPK:
    case MF_TENSOR_SORTED:
    case MF_TENSOR_W1:
    case MF_TENSOR_W2:
    case MF_TENSOR_G:
    case MF_TENSOR_GW:
    case MF_TENSOR_CALIB:
    case MF_TENSOR_ALIGNED:
    case MF_TENSOR_B1:
    case MF_TENSOR_B2:
    case MF_TENSOR_W1D:
    case MF_TENSOR_W2D:
    case MF_TENSOR_N_:
        break;
    }
    return 0;
}

static void judge_rows(const struct mf_verify_input *v, struct row *rows)
{
    double norm = 0, floor = mf_row_floor(v->out->artifact.format);
    int64_t n = 0;
    for (int64_t p = 0; p < v->out->parts[0].rows; p++) {
        if (rows[p].source >= 0) {
            norm += rows[p].norm;
            n++;
        }
    }
    double least = SMALL_ROW * sqrt(n > 0 ? norm / (double)n : 0);
    for (int64_t p = 0; p < v->out->parts[0].rows; p++) {
        struct row *r = &rows[p];
        if (r->source < 0)
            continue;
        double by = fmax(sqrt(r->norm), least);
        r->error = r->difference > 0 ? sqrt(r->difference) / by : 0;
        r->limit = fmax(floor, MF_ROW_TIMES * plain_error(v, r->source));
    }
}

struct by_source {
    double error, limit;
};

/* Rows by expert: an expert's rows are the slots that went to it; of the output, the tokens. */
static int worst_expert(const struct mf_verify_input *v, const struct by_source *rows, struct mf_verdict *ret)
{
    const struct mf_shape *s = &v->data->shape;
    int64_t n = s->token * s->topk;
    _cleanup_(mf_freep) int64_t *next = calloc((size_t)s->expert + 1, sizeof(*next));
    _cleanup_(mf_freep) double *errors = calloc((size_t)n, sizeof(*errors));
    _cleanup_(mf_freep) double *limits = calloc((size_t)n, sizeof(*limits));
    if (!next || !errors || !limits)
        return -ENOMEM;
    for (int64_t i = 0; i < n; i++) {
        int32_t e = mf_shape_local(s, v->data->ids[i]);
        if (e >= 0)
            next[e + 1]++;
    }
    for (int32_t e = 0; e < s->expert; e++)
        next[e + 1] += next[e];
    for (int64_t i = 0; i < n; i++) {
        const struct by_source *row = &rows[v->out->artifact.tensor == MF_TENSOR_Y ? i / s->topk : i];
        int32_t e = mf_shape_local(s, v->data->ids[i]);
        if (e < 0)
            continue;
        int64_t at = next[e]++;
        errors[at] = row->error;
        limits[at] = row->limit;
    }
    double worst = 1;
    for (int32_t e = 0; e < s->expert; e++) {
        int64_t first = e > 0 ? next[e - 1] : 0, count = next[e] - first;
        if (count < EXPERT_ROWS)
            continue;
        double error = mf_median(errors + first, (size_t)count);
        double limit = EXPERT_SHARE * mf_median(limits + first, (size_t)count);
        if (error / limit <= worst)
            continue;
        worst = error / limit;
        mf_say(ret->reason, sizeof(ret->reason),
               "expert %d: median relative error %.3g over its %lld rows, limit %.3g", (int)e, error,
               (long long)count, limit);
    }
    return worst > 1;
}

static int refuse_expert(const struct mf_verify_input *v, const struct row *rows, struct mf_verdict *ret)
{
    const struct mf_shape *s = &v->data->shape;
    if (v->out->artifact.tensor == MF_TENSOR_X || v->out->artifact.zeroed ||
        mf_artifact_is_decoded(&v->out->artifact))
        return 0;
    _cleanup_(mf_freep) struct by_source *by = calloc((size_t)(s->token * s->topk), sizeof(*by));
    if (!by)
        return -ENOMEM;
    for (int64_t p = 0; p < v->out->parts[0].rows; p++) {
        if (rows[p].source >= 0)
            by[rows[p].source] = (struct by_source){rows[p].error, rows[p].limit};
    }
    return worst_expert(v, by, ret);
}

static int refuse_row(const struct mf_verify_input *v, const struct row *rows, struct mf_verdict *ret)
{
    int64_t worst = -1;
    char name[96];
    for (int64_t p = 0; p < v->out->parts[0].rows; p++) {
        if (rows[p].source < 0)
            continue;
        if (worst < 0 || rows[p].error * rows[worst].limit > rows[worst].error * rows[p].limit)
            worst = p;
    }
    if (worst < 0)
        return 0;
    ret->row_err = rows[worst].error;
    ret->row_limit = rows[worst].limit;
    if (ret->row_err <= ret->row_limit)
        return 0;
    name_row(v, worst, rows[worst].source, name, sizeof(name));
    mf_say(ret->reason, sizeof(ret->reason), "row: %s of %s has relative error %.3g, limit %.3g", name,
           mf_tensor_name(v->out->artifact.tensor), ret->row_err, ret->row_limit);
    return 1;
}

/* ---- the calls ---- */

/* Without a reference nothing can be right: fp8 of a shape that is not quantised, say. */
static bool has_reference(const struct mf_verify_input *v)
{
    const struct mf_artifact *a = &v->out->artifact;
    float factor;
    if (mf_artifact_is_decoded(a)) /* from the host's weights, if it has made them */
        return (a->tensor == MF_TENSOR_W1D ? v->data->w1 : v->data->w2).part[0] != NULL;
    return a->zeroed || (a->tensor == MF_TENSOR_X && a->format == MF_FORMAT_BF16) ||
           mf_reference_row(v->data, v->ref, a, 0, &factor);
}

/* A few rows are done before another thread has woken. */
static int threads_for(const struct mf_guarded *g)
{
    return g->parts[0].rows * g->parts[0].cols < 65536 ? 1 : mf_pool_threads();
}

static int look(struct pass *s)
{
    const struct mf_guarded *g = s->v->out;
    if (!has_reference(s->v))
        return -EINVAL;
    int n_threads = threads_for(g);
    s->cols = mf_artifact_cols(&g->artifact, &s->v->data->shape);
    s->rows = calloc((size_t)g->parts[0].rows, sizeof(*s->rows));
    s->scratch = reallocarray(NULL, 2 * (size_t)n_threads * (size_t)s->cols, sizeof(*s->scratch));
    if (!s->rows || !s->scratch)
        return -ENOMEM;
    if (n_threads == 1)
        pass_thread(s, 0, 1);
    else
        mf_pool_run(pass_thread, s, n_threads);
    return 0;
}

static int verify_values(const struct mf_verify_input *v, bool written_only, struct mf_verdict *ret)
{
    struct pass s = {.v = v};
    int r = look(&s);
    if (r == 0)
        r = refuse_unwritten(v, s.rows, ret);
    if (r == 0 && !written_only) {
        judge_rows(v, s.rows);
        r = refuse_bad(v, s.rows, ret);
        if (r == 0)
            r = refuse_mismatch(v, s.rows, s.cols, ret);
        if (r == 0)
            r = refuse_expert(v, s.rows, ret);
        if (r == 0)
            r = refuse_row(v, s.rows, ret);
    }
    free(s.rows);
    free(s.scratch);
    return r;
}

static int verify(const struct mf_verify_input *v, bool written_only, struct mf_verdict *ret)
{
    *ret = (struct mf_verdict){.reason = ""};
    int r = mf_guarded_check(v->out, ret->reason, sizeof(ret->reason));
    if (r != 0)
        return r;
    if (v->out->artifact.tensor == MF_TENSOR_SORTED)
        return mf_verify_sorted(v, ret);
    if (v->out->artifact.tensor == MF_TENSOR_ALIGNED)
        return mf_verify_aligned(v, ret);
    if (v->out->artifact.tensor == MF_TENSOR_TOPK)
        return mf_verify_topk(v, ret);
    return verify_values(v, written_only, ret);
}

int mf_verify(const struct mf_verify_input *v, struct mf_verdict *ret)
{
    return verify(v, false, ret);
}

int mf_verify_written(const struct mf_verify_input *v, struct mf_verdict *ret)
{
    return verify(v, true, ret);
}

static double distance(const struct mf_guarded *a, const struct mf_guarded *b, int64_t p, size_t n,
                       float *scratch)
{
    struct sums sums;
    decode(a, p, (int64_t)n, scratch);
    decode(b, p, (int64_t)n, scratch + n);
    compare_row(scratch + n, scratch, 1, n, &sums);
    if (sums.norm > 0)
        return sqrt(sums.difference / sums.norm);
    return sums.difference > 0 ? (double)INFINITY : 0;
}

/* The rows of a thread in which two runs differ by more than may be. */
struct unstable {
    int64_t n, first; /* first: the lowest of them */
    double worst;
};

struct twice {
    const struct mf_verify_input *first;
    const struct mf_guarded *second;
    double tolerance;
    int64_t cols;
    float *scratch; /* two decoded rows for each thread */
    struct unstable *found;
};

static bool is_same_row(const struct mf_guarded *a, const struct mf_guarded *b, int64_t p)
{
    for (int i = 0; i < a->n_parts; i++) {
        if (memcmp(part_row(a, i, p), part_row(b, i, p),
                   (size_t)(a->parts[i].cols * a->parts[i].element_bytes)) != 0)
            return false;
    }
    return true;
}

static void twice_thread(void *context, int thread, int n_threads)
{
    struct twice *t = context;
    const struct mf_guarded *a = t->first->out;
    float *scratch = t->scratch + 2 * (size_t)thread * (size_t)t->cols;
    struct unstable u = {.first = -1};
    int64_t rows = a->parts[0].rows;
    for (int64_t p = rows * thread / n_threads; p < rows * (thread + 1) / n_threads; p++) {
        if ((t->first->source && t->first->source[p] < 0) || is_same_row(a, t->second, p))
            continue;
        double d = distance(a, t->second, p, (size_t)t->cols, scratch);
        if (t->tolerance > 0 && d <= t->tolerance)
            continue;
        u.worst = fmax(u.worst, d);
        u.first = u.n++ == 0 ? p : u.first;
    }
    t->found[thread] = u;
}

int mf_verify_stable(const struct mf_verify_input *first, const struct mf_guarded *second, double tolerance,
                     struct mf_verdict *ret)
{
    const struct mf_guarded *a = first->out;
    char name[96];
    if (a->artifact.format == MF_FORMAT_INDEX) /* each run is held against the contract, order is free */
        return 0;
    struct twice t = {.first = first,
                      .second = second,
                      .tolerance = tolerance,
                      .cols = mf_artifact_cols(&a->artifact, &first->data->shape)};
    int n_threads = threads_for(a);
    _cleanup_(mf_freep) float *scratch =
        reallocarray(NULL, 2 * (size_t)n_threads * (size_t)t.cols, sizeof(*scratch));
    _cleanup_(mf_freep) struct unstable *found = calloc((size_t)n_threads, sizeof(*found));
    if (!scratch || !found)
        return -ENOMEM;
    t.scratch = scratch;
    t.found = found;
    if (n_threads == 1)
        twice_thread(&t, 0, 1);
    else
        mf_pool_run(twice_thread, &t, n_threads);
    struct unstable all = {.first = -1};
    for (int i = 0; i < n_threads; i++) {
        all.first = all.first < 0 ? found[i].first : all.first;
        all.n += found[i].n;
        all.worst = fmax(all.worst, found[i].worst);
    }
    if (all.n == 0)
        return 0;
    name_row(first, all.first, first->source ? first->source[all.first] : all.first, name, sizeof(name));
    mf_say(ret->reason, sizeof(ret->reason),
           "unstable: a second run differs in %lld rows, first in %s, by up to %.3g; it declares %.3g",
           (long long)all.n, name, all.worst, tolerance);
    return 1;
}
