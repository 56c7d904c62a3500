#include "measure/verify/verify_judge.h"

#include <errno.h>
#include <math.h>

#include "common/base/cleanup.h"
#include "common/base/stats.h"
#include "common/base/text.h"
#include "kernels/core/device.h"
#include "kernels/core/limits.h"
#include "measure/verify/mismatch_share.h"

#define SMALL_ROW    0.05 /* minimum reference norm for relative errors, relative to the typical norm */
#define EXPERT_ROWS  4    /* experts with fewer rows are judged by the row gate only */
#define EXPERT_SHARE 0.5
#define CHUNKS       64 /* number of chunks; fixed, so that sums do not depend on the number of threads */

/* The sums over a range of rows, without padding. */
struct tally {
    int64_t n, n_unwritten, n_bad;
    int64_t unwritten, bad; /* index of the first unwritten row and of the first bad row; -1: none */
    double mismatches, difference, norm, size;
};

/* Extremes over a range of rows that have errors and limits. */
struct extremes {
    int64_t worst; /* first row with the largest ratio of error to limit; -1: only padding */
    double most_error, least_limit;
};

struct judging {
    const struct mf_verify_input *v;
    struct mf_verify_row *rows;
    int64_t cols; /* values per row */
    double least; /* minimum reference norm for relative errors */
    struct tally tallies[CHUNKS];
    double shares[CHUNKS];
    struct extremes extremes[CHUNKS];
};

/* ---- sums and extremes over all rows ---- */

static int64_t chunk_start(const struct judging *j, int i)
{
    return j->v->out->parts[0].rows * i / CHUNKS;
}

static struct tally tally_rows(const struct mf_verify_row *rows, int64_t from, int64_t to)
{
    struct tally t = {.unwritten = -1, .bad = -1};
    for (int64_t p = from; p < to; p++) {
        const struct mf_verify_row *r = &rows[p];
        if (r->source < 0)
            continue;
        t.n++;
        if (r->unwritten + r->unwritten_scales > 0 && t.n_unwritten++ == 0)
            t.unwritten = p;
        if (r->bad > 0 && t.n_bad++ == 0)
            t.bad = p;
        t.mismatches += r->mismatches;
        t.difference += r->difference;
        t.norm += r->norm;
        t.size += r->size;
    }
    return t;
}

static void tally_thread(void *context, int thread, int n_threads)
{
    struct judging *j = context;
    for (int i = thread; i < CHUNKS; i += n_threads)
        j->tallies[i] = tally_rows(j->rows, chunk_start(j, i), chunk_start(j, i + 1));
}

static struct tally tally(struct judging *j, int n_threads)
{
    struct tally all = {.unwritten = -1, .bad = -1};
    mf_pool_run(tally_thread, j, n_threads);
    for (int i = 0; i < CHUNKS; i++) {
        const struct tally *t = &j->tallies[i];
        all.unwritten = all.unwritten < 0 ? t->unwritten : all.unwritten;
        all.bad = all.bad < 0 ? t->bad : all.bad;
        all.n += t->n;
        all.n_unwritten += t->n_unwritten;
        all.n_bad += t->n_bad;
        all.mismatches += t->mismatches;
        all.difference += t->difference;
        all.norm += t->norm;
        all.size += t->size;
    }
    return all;
}

/* Returns the error of the row in the plain pipeline, which quantises h. Returns 0 if the step does not
 * quantise h. */
static double quantisation_error(const struct mf_verify_input *v, int64_t source)
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
    const float *errors = of_tensor[v->out->tensor_spec.tensor];
    return errors ? (double)errors[source] : 0;
}

static bool is_worse(const struct mf_verify_row *a, const struct mf_verify_row *b)
{
    return a->error * b->limit > b->error * a->limit;
}

static struct extremes judge_rows(const struct judging *j, int64_t from, int64_t to)
{
    struct extremes e = {.worst = -1, .least_limit = (double)INFINITY};
    double floor = mf_row_floor(j->v->out->tensor_spec.format);
    for (int64_t p = from; p < to; p++) {
        struct mf_verify_row *r = &j->rows[p];
        if (r->source < 0)
            continue;
        r->error = r->difference > 0 ? sqrt(r->difference) / fmax(sqrt(r->norm), j->least) : 0;
        r->limit = fmax(floor, MF_ROW_TIMES * quantisation_error(j->v, r->source));
        e.most_error = fmax(e.most_error, r->error);
        e.least_limit = fmin(e.least_limit, r->limit);
        if (e.worst < 0 || is_worse(r, &j->rows[e.worst]))
            e.worst = p;
    }
    return e;
}

static void judge_thread(void *context, int thread, int n_threads)
{
    struct judging *j = context;
    for (int i = thread; i < CHUNKS; i += n_threads)
        j->extremes[i] = judge_rows(j, chunk_start(j, i), chunk_start(j, i + 1));
}

static struct extremes find_extremes(struct judging *j, int n_threads)
{
    struct extremes all = {.worst = -1, .least_limit = (double)INFINITY};
    mf_pool_run(judge_thread, j, n_threads);
    for (int i = 0; i < CHUNKS; i++) {
        const struct extremes *e = &j->extremes[i];
        all.most_error = fmax(all.most_error, e->most_error);
        all.least_limit = fmin(all.least_limit, e->least_limit);
        if (e->worst >= 0 && (all.worst < 0 || is_worse(&j->rows[e->worst], &j->rows[all.worst])))
            all.worst = e->worst;
    }
    return all;
}

/* ---- gates ---- */

void mf_verify_name_row(const struct mf_verify_input *v, int64_t p, int64_t source, char *buf, size_t cap)
{
    const struct mf_shape *s = &v->data->shape;
    bool by_token = v->out->tensor_spec.tensor == MF_TENSOR_X || v->out->tensor_spec.tensor == MF_TENSOR_Y;
    int64_t of_expert = v->out->parts[0].rows / s->expert;
    if (mf_tensor_spec_is_decoded(&v->out->tensor_spec))
        mf_format(buf, cap, "row %lld (expert %lld, its row %lld)", (long long)p, (long long)(p / of_expert),
                  (long long)(p % of_expert));
    else if (by_token && p == source)
        mf_format(buf, cap, "row %lld", (long long)p);
    else if (by_token)
        mf_format(buf, cap, "row %lld (token %lld)", (long long)p, (long long)source);
    else
        mf_format(buf, cap, "row %lld (token %lld, slot %lld, expert %d)", (long long)p,
                  (long long)(source / s->topk), (long long)(source % s->topk), (int)v->data->ids[source]);
}

static int refuse_unwritten(const struct judging *j, const struct tally *t, struct mf_verdict *ret)
{
    char name[96];
    const struct mf_guarded *g = j->v->out;
    if (t->n_unwritten == 0)
        return 0;
    const struct mf_verify_row *r = &j->rows[t->unwritten];
    const char *tensor = mf_tensor_name(g->tensor_spec.tensor);
    long long n = (long long)t->n_unwritten;
    mf_verify_name_row(j->v, t->unwritten, r->source, name, sizeof(name));
    if (r->unwritten == 0)
        mf_format(ret->reason, sizeof(ret->reason),
                  "unwritten: %s of %s still holds the poison in its scale, %lld rows in all", name, tensor,
                  n);
    else if (r->unwritten == g->parts[0].cols - r->unwritten_at)
        mf_format(ret->reason, sizeof(ret->reason),
                  "unwritten: %s of %s still holds the poison from column %u on, %lld rows in all", name,
                  tensor, r->unwritten_at, n);
    else
        mf_format(
            ret->reason, sizeof(ret->reason),
            "unwritten: %s of %s still holds the poison in %u elements, first in column %u, %lld rows in all",
            name, tensor, r->unwritten, r->unwritten_at, n);
    return 1;
}

static int refuse_bad(const struct judging *j, const struct tally *t, struct mf_verdict *ret)
{
    char name[96];
    if (t->n_bad == 0)
        return 0;
    const struct mf_verify_row *r = &j->rows[t->bad];
    mf_verify_name_row(j->v, t->bad, r->source, name, sizeof(name));
    mf_format(ret->reason, sizeof(ret->reason),
              "not finite: %s of %s has %u NaN or infinity, first in column %u, %lld rows in all", name,
              mf_tensor_name(j->v->out->tensor_spec.tensor), r->bad, r->bad_at, (long long)t->n_bad);
    return 1;
}

/* Returns the root mean square of a row's relative error in the plain pipeline: what quantising h costs, at
 * least half of the lowest limit. */
static double plain_error(const struct judging *j, const struct mf_verify_row *r)
{
    double rounding = mf_row_floor(j->v->out->tensor_spec.format) / 2;
    return fmax(rounding, quantisation_error(j->v, r->source));
}

static void share_thread(void *context, int thread, int n_threads)
{
    struct judging *j = context;
    for (int i = thread; i < CHUNKS; i += n_threads) {
        j->shares[i] = 0;
        for (int64_t p = chunk_start(j, i); p < chunk_start(j, i + 1); p++) {
            const struct mf_verify_row *r = &j->rows[p];
            if (r->source >= 0)
                j->shares[i] += mf_mismatch_share(plain_error(j, r), sqrt(r->norm / (double)j->cols));
        }
    }
}

/* Returns the share of elements that mismatch in the plain pipeline, on the same data. */
static double plain_mismatch(struct judging *j, int64_t n_rows, int n_threads)
{
    double sum = 0;
    mf_pool_run(share_thread, j, n_threads);
    for (int i = 0; i < CHUNKS; i++)
        sum += j->shares[i];
    return n_rows > 0 ? sum / (double)n_rows : 0;
}

static int refuse_distance(const struct judging *j, const struct tally *t, struct mf_verdict *ret)
{
    double sizes = t->norm + t->size;
    ret->err = sizes > 0 ? t->difference / sizes : 0;
    if (ret->err <= j->v->err_ratio)
        return 0;
    mf_format(ret->reason, sizeof(ret->reason), "cosine: the distance to the reference is %.3g, limit %.3g",
              ret->err, j->v->err_ratio);
    return 1;
}

static int refuse_mismatch(struct judging *j, const struct tally *t, int n_threads, struct mf_verdict *ret)
{
    double elements = (double)t->n * (double)j->cols;
    ret->err = elements > 0 ? t->mismatches / elements : 0;
    if (ret->err <= j->v->err_ratio)
        return 0;
    double plain = plain_mismatch(j, t->n, n_threads);
    if (ret->err <= j->v->err_ratio + plain)
        return 0;
    mf_format(ret->reason, sizeof(ret->reason),
              "mismatch: %.3g%% of elements differ by more than 0.01 + 0.01·|ref|, limit %.3g%% plus %.3g%% "
              "that rounding causes",
              100 * ret->err, 100 * j->v->err_ratio, 100 * plain);
    return 1;
}

struct by_source {
    double error, limit;
};

/* True if the largest error is within EXPERT_SHARE times the smallest limit. The median error is then also
 * within its limit, so no sorting is needed to find the median. This is the case for most experts. */
static bool all_within(const double *errors, const double *limits, int64_t n)
{
    double largest = 0, least = INFINITY;
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, errors[i]);
        least = fmin(least, limits[i]);
    }
    return largest <= EXPERT_SHARE * least;
}

/* Finds the worst expert. An expert's rows are the slots routed to it, or their tokens if the output is y. */
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
        int32_t e = mf_shape_local_expert(s, v->data->ids[i]);
        if (e >= 0)
            next[e + 1]++;
    }
    for (int32_t e = 0; e < s->expert; e++)
        next[e + 1] += next[e];
    for (int64_t i = 0; i < n; i++) {
        const struct by_source *row = &rows[v->out->tensor_spec.tensor == MF_TENSOR_Y ? i / s->topk : i];
        int32_t e = mf_shape_local_expert(s, v->data->ids[i]);
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
        mf_format(ret->reason, sizeof(ret->reason),
                  "expert %d: median relative error %.3g over its %lld rows, limit %.3g", (int)e, error,
                  (long long)count, limit);
    }
    return worst > 1;
}

static int refuse_expert(const struct judging *j, const struct extremes *e, struct mf_verdict *ret)
{
    const struct mf_verify_input *v = j->v;
    const struct mf_shape *s = &v->data->shape;
    if (v->out->tensor_spec.tensor == MF_TENSOR_X || v->out->tensor_spec.zeroed ||
        mf_tensor_spec_is_decoded(&v->out->tensor_spec) || e->most_error <= EXPERT_SHARE * e->least_limit)
        return 0;
    _cleanup_(mf_freep) struct by_source *by = calloc((size_t)(s->token * s->topk), sizeof(*by));
    if (!by)
        return -ENOMEM;
    for (int64_t p = 0; p < v->out->parts[0].rows; p++) {
        if (j->rows[p].source >= 0)
            by[j->rows[p].source] = (struct by_source){j->rows[p].error, j->rows[p].limit};
    }
    return worst_expert(v, by, ret);
}

static int refuse_row(const struct judging *j, const struct extremes *e, struct mf_verdict *ret)
{
    char name[96];
    if (e->worst < 0)
        return 0;
    const struct mf_verify_row *r = &j->rows[e->worst];
    ret->row_err = r->error;
    ret->row_limit = r->limit;
    if (ret->row_err <= ret->row_limit)
        return 0;
    mf_verify_name_row(j->v, e->worst, r->source, name, sizeof(name));
    mf_format(ret->reason, sizeof(ret->reason), "row: %s of %s has relative error %.3g, limit %.3g", name,
              mf_tensor_name(j->v->out->tensor_spec.tensor), ret->row_err, ret->row_limit);
    return 1;
}

int mf_verify_judge(const struct mf_verify_input *v, struct mf_verify_row *rows, int64_t cols,
                    bool written_only, struct mf_verdict *ret)
{
    struct judging j = {.v = v, .rows = rows, .cols = cols};
    int n_threads = mf_pool_threads_for(v->out->parts[0].rows * MF_VERIFY_ROW_WORK);
    struct tally t = tally(&j, n_threads);
    int r = refuse_unwritten(&j, &t, ret);
    if (r != 0 || written_only)
        return r;
    r = refuse_bad(&j, &t, ret);
    if (r == 0)
        r = mf_err_by_cosine(&v->data->shape) ? refuse_distance(&j, &t, ret)
                                              : refuse_mismatch(&j, &t, n_threads, ret);
    if (r != 0)
        return r;
    j.least = SMALL_ROW * sqrt(t.n > 0 ? t.norm / (double)t.n : 0);
    struct extremes e = find_extremes(&j, n_threads);
    r = refuse_expert(&j, &e, ret);
    return r == 0 ? refuse_row(&j, &e, ret) : r;
}
