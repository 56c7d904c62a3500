#include "measure/verify.h"

#include <errno.h>
#include <math.h>

#include "common/cleanup.h"
#include "common/stats.h"
#include "common/text.h"
#include "kernels/device.h"
#include "kernels/limits.h"
#include "measure/verify_index.h"
#include "measure/verify_row.h"
#include "measure/verify_there.h"

#define SMALL_ROW    0.05 /* of the typical norm: what a row's error is measured against at least */
#define EXPERT_ROWS  4    /* fewer say no more than their rows do */
#define EXPERT_SHARE 0.5

struct pass {
    const struct mf_verify_input *v;
    struct mf_verify_row *rows;
    float *scratch; /* two rows for each thread */
    int64_t cols;
};

static void pass_thread(void *context, int thread, int n_threads)
{
    struct pass *s = context;
    int64_t n = s->v->out->parts[0].rows;
    float *scratch = s->scratch + 2 * (size_t)thread * (size_t)s->cols;
    for (int64_t p = n * thread / n_threads; p < n * (thread + 1) / n_threads; p++) {
        struct mf_verify_row *row = &s->rows[p];
        *row = (struct mf_verify_row){.source = s->v->source ? s->v->source[p] : p};
        if (row->source >= 0)
            mf_verify_row_look(s->v, p, s->cols, scratch, row);
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

static int refuse_unwritten(const struct mf_verify_input *v, const struct mf_verify_row *rows,
                            struct mf_verdict *ret)
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
    const struct mf_verify_row *r = &rows[first];
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

static int refuse_bad(const struct mf_verify_input *v, const struct mf_verify_row *rows,
                      struct mf_verdict *ret)
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

static int refuse_mismatch(const struct mf_verify_input *v, const struct mf_verify_row *rows, int64_t cols,
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
    const float *const of_tensor[MF_TENSOR_N_] = {
        [MF_TENSOR_H] = v->ref->h_error,
        [MF_TENSOR_Z] = v->ref->z_error,
        [MF_TENSOR_ZW] = v->ref->z_error,
        [MF_TENSOR_Y] = v->ref->y_error,
    };
    const float *errors = of_tensor[v->out->artifact.tensor];
    return errors ? (double)errors[source] : 0;
}

static void judge_rows(const struct mf_verify_input *v, struct mf_verify_row *rows)
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
        struct mf_verify_row *r = &rows[p];
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

/* No median of these can be beyond what the median of those allows: most experts need no sorting. */
static bool all_within(const double *errors, const double *limits, int64_t n)
{
    double largest = 0, least = INFINITY;
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, errors[i]);
        least = fmin(least, limits[i]);
    }
    return largest <= EXPERT_SHARE * least;
}

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
        if (count < EXPERT_ROWS || all_within(errors + first, limits + first, count))
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

static int refuse_expert(const struct mf_verify_input *v, const struct mf_verify_row *rows,
                         struct mf_verdict *ret)
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

static int refuse_row(const struct mf_verify_input *v, const struct mf_verify_row *rows,
                      struct mf_verdict *ret)
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

static int look_here(struct pass *s)
{
    const struct mf_guarded *g = s->v->out;
    int n_threads = mf_pool_threads_for(g->parts[0].rows * g->parts[0].cols);
    s->scratch = reallocarray(NULL, 2 * (size_t)n_threads * (size_t)s->cols, sizeof(*s->scratch));
    if (!s->scratch)
        return -ENOMEM;
    mf_pool_run(pass_thread, s, n_threads);
    return 0;
}

/* Of what was seen of the rows. */
static int judge(const struct pass *s, bool written_only, struct mf_verdict *ret)
{
    const struct mf_verify_input *v = s->v;
    int r = refuse_unwritten(v, s->rows, ret);
    if (r != 0 || written_only)
        return r;
    judge_rows(v, s->rows);
    r = refuse_bad(v, s->rows, ret);
    if (r == 0)
        r = refuse_mismatch(v, s->rows, s->cols, ret);
    if (r == 0)
        r = refuse_expert(v, s->rows, ret);
    return r == 0 ? refuse_row(v, s->rows, ret) : r;
}

/* What the device refuses, or has no room to look at, the host looks at too: no kernel can have written to its reference. */
static int look_and_judge(struct pass *s, bool written_only, struct mf_verdict *ret)
{
    bool there = mf_verify_is_there(s->v), refused = false;
    int r = there ? mf_verify_look_there(s->v, s->rows) : -ENOMEM;
    if (r == 0) {
        r = judge(s, written_only, ret);
        refused = r > 0;
    }
    if (!refused && r != -ENOMEM)
        return r;
    if (mf_reference_lacks(s->v->ref, &s->v->out->artifact))
        return -ENODATA;
    r = there ? mf_region_pull(&s->v->out->region) : 0;
    if (r == 0)
        r = look_here(s);
    *ret = (struct mf_verdict){.reason = ""};
    if (r == 0)
        r = judge(s, written_only, ret);
    if (refused && r == 0)
        (void)mf_maker_forget(s->v->out->maker);
    return r;
}

static int verify_values(const struct mf_verify_input *v, bool written_only, struct mf_verdict *ret)
{
    const struct mf_guarded *g = v->out;
    if (!mf_verify_has_reference(v))
        return -EINVAL;
    struct pass s = {.v = v, .cols = mf_artifact_cols(&g->artifact, &v->data->shape)};
    s.rows = calloc((size_t)g->parts[0].rows, sizeof(*s.rows));
    int r = s.rows ? look_and_judge(&s, written_only, ret) : -ENOMEM;
    free(s.rows);
    free(s.scratch);
    return r;
}

static int verify(const struct mf_verify_input *v, bool written_only, struct mf_verdict *ret)
{
    *ret = (struct mf_verdict){.reason = ""};
    int r = mf_verify_is_there(v) ? mf_guarded_pull_bands(v->out) : mf_region_pull(&v->out->region);
    if (r == 0)
        r = mf_guarded_check(v->out, ret->reason, sizeof(ret->reason));
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

/* ---- two runs ---- */

struct twice {
    const struct mf_verify_input *first;
    const struct mf_guarded *second;
    int64_t cols;
    float *scratch;    /* two rows for each thread */
    double *distances; /* of each row; < 0: nobody's, or the same bit for bit */
};

static void twice_thread(void *context, int thread, int n_threads)
{
    struct twice *t = context;
    const struct mf_guarded *a = t->first->out;
    float *scratch = t->scratch + 2 * (size_t)thread * (size_t)t->cols;
    int64_t rows = a->parts[0].rows;
    for (int64_t p = rows * thread / n_threads; p < rows * (thread + 1) / n_threads; p++) {
        bool same = (t->first->source && t->first->source[p] < 0) || mf_verify_row_same(a, t->second, p);
        t->distances[p] = same ? -1 : mf_verify_row_distance(a, t->second, p, t->cols, scratch);
    }
}

static int compare_here(struct twice *t)
{
    const struct mf_guarded *a = t->first->out;
    int n_threads = mf_pool_threads_for(a->parts[0].rows * a->parts[0].cols);
    t->cols = mf_artifact_cols(&a->artifact, &t->first->data->shape);
    t->scratch = reallocarray(NULL, 2 * (size_t)n_threads * (size_t)t->cols, sizeof(*t->scratch));
    if (!t->scratch)
        return -ENOMEM;
    mf_pool_run(twice_thread, t, n_threads);
    free(t->scratch);
    return 0;
}

static int compare(struct twice *t)
{
    const struct mf_guarded *a = t->first->out;
    if (mf_verify_is_there(t->first)) {
        int r = mf_verify_apart_there(t->first, t->second, t->distances);
        if (r != -ENOMEM)
            return r;
        r = mf_region_pull(&a->region); /* the device has no room for it */
        if (r == 0)
            r = mf_region_pull(&t->second->region);
        if (r < 0)
            return r;
    }
    return compare_here(t);
}

int mf_verify_stable(const struct mf_verify_input *first, const struct mf_guarded *second, double tolerance,
                     struct mf_verdict *ret)
{
    const struct mf_guarded *a = first->out;
    char name[96];
    if (a->artifact.format == MF_FORMAT_INDEX) /* each run is held against the contract, order is free */
        return 0;
    int64_t rows = a->parts[0].rows, n = 0, at = -1;
    _cleanup_(mf_freep) double *distances = reallocarray(NULL, (size_t)rows, sizeof(*distances));
    struct twice t = {.first = first, .second = second, .distances = distances};
    int r = distances ? compare(&t) : -ENOMEM;
    if (r < 0)
        return r;
    double worst = 0;
    for (int64_t p = 0; p < rows; p++) {
        if (distances[p] < 0 || (tolerance > 0 && distances[p] <= tolerance))
            continue;
        worst = fmax(worst, distances[p]);
        at = n++ == 0 ? p : at;
    }
    if (n == 0)
        return 0;
    name_row(first, at, first->source ? first->source[at] : at, name, sizeof(name));
    mf_say(ret->reason, sizeof(ret->reason),
           "unstable: a second run differs in %lld rows, first in %s, by up to %.3g; it declares %.3g",
           (long long)n, name, worst, tolerance);
    return 1;
}
