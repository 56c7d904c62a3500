#include "measure/verify/verify.h"

#include <errno.h>
#include <math.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/device.h"
#include "measure/verify/verify_index.h"
#include "measure/verify/verify_judge.h"
#include "measure/verify/verify_on_device.h"
#include "measure/verify/verify_row.h"

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

/* What the device refuses, or has no room to look at, the host looks at too: no kernel can have written to its reference. */
static int look_and_judge(struct pass *s, bool written_only, struct mf_verdict *ret)
{
    bool there = mf_verify_is_there(s->v), refused = false;
    int r = there ? mf_verify_look_there(s->v, s->rows) : -ENOMEM;
    if (r == 0) {
        r = mf_verify_judge(s->v, s->rows, s->cols, written_only, ret);
        refused = r > 0;
    }
    if (!refused && r != -ENOMEM)
        return r;
    if (mf_reference_lacks(s->v->ref, &s->v->out->tensor_spec))
        return -ENODATA;
    r = there ? mf_region_pull(&s->v->out->region) : 0;
    if (r == 0)
        r = look_here(s);
    *ret = (struct mf_verdict){.reason = ""};
    if (r == 0)
        r = mf_verify_judge(s->v, s->rows, s->cols, written_only, ret);
    if (refused && r == 0)
        (void)mf_device_data_forget(s->v->out->maker);
    return r;
}

static int verify_values(const struct mf_verify_input *v, bool written_only, struct mf_verdict *ret)
{
    const struct mf_guarded *g = v->out;
    if (!mf_verify_has_reference(v))
        return -EINVAL;
    struct pass s = {.v = v, .cols = mf_tensor_spec_cols(&g->tensor_spec, &v->data->shape)};
    s.rows = reallocarray(NULL, (size_t)g->parts[0].rows, sizeof(*s.rows));
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
    if (v->out->tensor_spec.tensor == MF_TENSOR_SORTED)
        return mf_verify_sorted(v, ret);
    if (v->out->tensor_spec.tensor == MF_TENSOR_ALIGNED)
        return mf_verify_aligned(v, ret);
    if (v->out->tensor_spec.tensor == MF_TENSOR_TOPK)
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
    t->cols = mf_tensor_spec_cols(&a->tensor_spec, &t->first->data->shape);
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
    if (a->tensor_spec.format == MF_FORMAT_INDEX) /* each run is held against the contract, order is free */
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
    mf_verify_name_row(first, at, first->source ? first->source[at] : at, name, sizeof(name));
    mf_format(ret->reason, sizeof(ret->reason),
              "unstable: a second run differs in %lld rows, first in %s, by up to %.3g; it declares %.3g",
              (long long)n, name, worst, tolerance);
    return 1;
}
