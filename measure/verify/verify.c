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

struct inspection {
    const struct mf_verify_input *v;
    struct mf_verify_row *rows;
    float *scratch; /* space for two rows per thread */
    int64_t cols;
};

static void inspect_thread(void *context, int thread, int n_threads)
{
    struct inspection *s = context;
    int64_t n = s->v->out->parts[0].rows;
    float *scratch = s->scratch + 2 * (size_t)thread * (size_t)s->cols;
    for (int64_t p = n * thread / n_threads; p < n * (thread + 1) / n_threads; p++) {
        struct mf_verify_row *row = &s->rows[p];
        *row = (struct mf_verify_row){.source = s->v->source ? s->v->source[p] : p};
        if (row->source >= 0)
            mf_verify_row_inspect(s->v, p, s->cols, scratch, row);
    }
}

/* ---- inspecting and judging rows ---- */

static int inspect_on_host(struct inspection *s)
{
    const struct mf_guarded *g = s->v->out;
    int n_threads = mf_pool_threads_for(g->parts[0].rows * g->parts[0].cols);
    s->scratch = reallocarray(NULL, 2 * (size_t)n_threads * (size_t)s->cols, sizeof(*s->scratch));
    if (!s->scratch)
        return -ENOMEM;
    mf_pool_run(inspect_thread, s, n_threads);
    return 0;
}

/* Inspects the output on the device if possible. The host inspects the output if the device has too little
 * memory. The host also inspects every output that the device rejects, because a kernel may have overwritten
 * the device's reference but not the host's. */
static int inspect_and_judge(struct inspection *s, bool written_only, struct mf_verdict *ret)
{
    bool on_device = mf_verify_runs_on_device(s->v), refused = false;
    int r = on_device ? mf_verify_rows_on_device(s->v, s->rows) : -ENOMEM;
    if (r == 0) {
        r = mf_verify_judge(s->v, s->rows, s->cols, written_only, ret);
        refused = r > 0;
    }
    if (!refused && r != -ENOMEM)
        return r;
    if (mf_reference_lacks_z(s->v->ref, &s->v->out->tensor_spec))
        return -ENODATA;
    r = on_device ? mf_region_pull(&s->v->out->region) : 0;
    if (r == 0)
        r = inspect_on_host(s);
    *ret = (struct mf_verdict){.reason = ""};
    if (r == 0)
        r = mf_verify_judge(s->v, s->rows, s->cols, written_only, ret);
    if (refused && r == 0)
        (void)mf_device_data_drop_cache(s->v->out->device_data);
    return r;
}

static int verify_values(const struct mf_verify_input *v, bool written_only, struct mf_verdict *ret)
{
    const struct mf_guarded *g = v->out;
    if (!mf_verify_has_reference(v))
        return -EINVAL;
    struct inspection s = {.v = v, .cols = mf_tensor_spec_cols(&g->tensor_spec, &v->data->shape)};
    s.rows = reallocarray(NULL, (size_t)g->parts[0].rows, sizeof(*s.rows));
    int r = s.rows ? inspect_and_judge(&s, written_only, ret) : -ENOMEM;
    free(s.rows);
    free(s.scratch);
    return r;
}

static int verify(const struct mf_verify_input *v, bool written_only, struct mf_verdict *ret)
{
    *ret = (struct mf_verdict){.reason = ""};
    int r = mf_verify_runs_on_device(v) ? mf_guarded_pull_bands(v->out) : mf_region_pull(&v->out->region);
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

struct comparison {
    const struct mf_verify_input *first;
    const struct mf_guarded *second;
    int64_t cols;
    float *scratch;    /* space for two rows per thread */
    double *distances; /* per row: distance between the two runs; < 0: padding or bitwise equal */
};

static void compare_thread(void *context, int thread, int n_threads)
{
    struct comparison *t = context;
    const struct mf_guarded *a = t->first->out;
    float *scratch = t->scratch + 2 * (size_t)thread * (size_t)t->cols;
    int64_t rows = a->parts[0].rows;
    for (int64_t p = rows * thread / n_threads; p < rows * (thread + 1) / n_threads; p++) {
        bool same = (t->first->source && t->first->source[p] < 0) || mf_verify_row_same(a, t->second, p);
        t->distances[p] = same ? -1 : mf_verify_row_distance(a, t->second, p, t->cols, scratch);
    }
}

static int compare_on_host(struct comparison *t)
{
    const struct mf_guarded *a = t->first->out;
    int n_threads = mf_pool_threads_for(a->parts[0].rows * a->parts[0].cols);
    t->cols = mf_tensor_spec_cols(&a->tensor_spec, &t->first->data->shape);
    t->scratch = reallocarray(NULL, 2 * (size_t)n_threads * (size_t)t->cols, sizeof(*t->scratch));
    if (!t->scratch)
        return -ENOMEM;
    mf_pool_run(compare_thread, t, n_threads);
    free(t->scratch);
    return 0;
}

static int compare(struct comparison *t)
{
    const struct mf_guarded *a = t->first->out;
    if (mf_verify_runs_on_device(t->first)) {
        int r = mf_verify_distances_on_device(t->first, t->second, t->distances);
        if (r != -ENOMEM)
            return r;
        r = mf_region_pull(&a->region); /* the device has too little memory: compare on the host */
        if (r == 0)
            r = mf_region_pull(&t->second->region);
        if (r < 0)
            return r;
    }
    return compare_on_host(t);
}

int mf_verify_stable(const struct mf_verify_input *first, const struct mf_guarded *second, double tolerance,
                     struct mf_verdict *ret)
{
    const struct mf_guarded *a = first->out;
    char name[96];
    /* Index outputs of two runs are not compared, because the contract allows any order of ids. Each run was
     * already checked against the contract. */
    if (a->tensor_spec.format == MF_FORMAT_INDEX)
        return 0;
    int64_t rows = a->parts[0].rows, n = 0, at = -1;
    _cleanup_(mf_freep) double *distances = reallocarray(NULL, (size_t)rows, sizeof(*distances));
    struct comparison t = {.first = first, .second = second, .distances = distances};
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
    mf_format(
        ret->reason, sizeof(ret->reason),
        "unstable: a second run differs in %lld rows, first in %s, by up to %.3g (declared tolerance %.3g)",
        (long long)n, name, worst, tolerance);
    return 1;
}
