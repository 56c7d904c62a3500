/* The baseline of a submission: a tuned table with the deployed rows. */
#include "server/api/submission.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "server/http/problem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int mf_baseline_read(struct mf_submission_work *w, const char *text, struct mf_request *r)
{
    char why[MF_REASON_MAX] = "";
    struct mf_response *p = &r->response;
    if (w->baseline)
        return mf_refuse_at(p, 400, "baseline", "conflict", "baseline: given twice; give it once");
    int e = mf_request_check_lines(r, "baseline", text, strlen(text), MF_REQUEST_LINES_MAX);
    if (e < 0)
        return e;
    e = mf_table_read("baseline", text, strlen(text), &w->baseline, why);
    if (e == -EBADMSG || e == -EFBIG)
        return mf_refuse_at(p, 422, "baseline", "csv", "baseline: %s", why);
    if (e < 0)
        return mf_refuse_errno(p, e, "read the baseline");
    if (w->baseline->op != MF_TABLE_FMOE || !w->baseline->tuned)
        return mf_refuse_at(p, 422, "baseline", "operator",
                            "baseline: expected a tuned_fmoe.csv, exported with consumer=moefarm");
    w->submission.options.has_baseline = true;
    return 0;
}

/* For a submission with a baseline: sets promote=improved if promote is not given, and refuses every other
 * value, because new rows must beat the rows of the baseline. */
static int check_promote(struct mf_submission_work *w, struct mf_response *p)
{
    if (!w->promote_given)
        w->submission.options.promote = MF_PROMOTE_IMPROVED;
    else if (w->submission.options.promote != MF_PROMOTE_IMPROVED)
        return mf_refuse_at(p, 400, "options.promote", "conflict",
                            "options.promote: a baseline requires improved, because always replaces every "
                            "row without a comparison");
    return 0;
}

static int add_error(struct mf_submission_work *w, int64_t line, const char *code, const char *message)
{
    char at[48];
    mf_format(at, sizeof(at), "baseline, line %lld", (long long)line);
    return mf_submission_error(w, at, code, message);
}

static int compare_shapes(const void *a, const void *b)
{
    return mf_shape_compare(*(const struct mf_shape *const *)a, *(const struct mf_shape *const *)b);
}

static int add_row(struct mf_submission_work *w, const struct mf_table_row *row, const struct mf_shape *shape)
{
    const char *pipeline = row->own[MF_OWN_PIPELINE];
    w->known[w->submission.n_known++] = (struct mf_known_row){.class = row->class,
                                                              .shape = shape,
                                                              .pipeline = pipeline ? pipeline : "",
                                                              .us = row->us,
                                                              .line = row->line};
    if (pipeline && *pipeline)
        return 0;
    char message[MF_REASON_MAX];
    mf_format(message, sizeof(message),
              "the row names no pipeline (kernel: %.100s), so no candidate can race against it. The row is "
              "kept and its shape is not tuned. To replace it, submit the shape with promote=always",
              mf_table_no_kernel(row->kernel1) ? "none" : row->kernel1);
    return add_error(w, row->line, "baseline", message);
}

/* Returns true if the batch includes the device class. */
static bool is_wanted(const struct mf_batch_options *o, const struct mf_device_class *class)
{
    for (int i = 0; i < o->n_classes; i++) {
        if (mf_device_class_equal(&o->classes[i], class))
            return true;
    }
    return o->n_classes == 0;
}

/* Selects the rows of submitted shapes. Ignores tagged rows, as production does. */
static int match(struct mf_submission_work *w)
{
    struct mf_table *t = w->baseline;
    size_t n = w->submission.n_shapes;
    _cleanup_(mf_freep) const struct mf_shape **sorted = calloc(n + 1, sizeof(struct mf_shape *));
    w->known = calloc(t->n_rows + 1, sizeof(*w->known));
    if (!sorted || !w->known)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        sorted[i] = &w->shapes[i];
    qsort(sorted, n, sizeof(struct mf_shape *), compare_shapes);
    int r = 0;
    for (size_t i = 0; r == 0 && i < t->n_rows; i++) {
        const struct mf_shape *key = &t->rows[i].shape;
        const struct mf_shape **at = bsearch(&key, sorted, n, sizeof(struct mf_shape *), compare_shapes);
        if (at && !(t->rows[i].tag && *t->rows[i].tag) &&
            is_wanted(&w->submission.options, &t->rows[i].class))
            r = add_row(w, &t->rows[i], *at);
    }
    for (size_t i = 0; r == 0 && i < t->n_problems; i++) {
        const struct mf_problem *q = &t->problems[i];
        if (q->severity == MF_ERROR)
            r = add_error(w, q->line, mf_problem_code_name(q->code), q->reason);
    }
    w->submission.known = w->known;
    return r;
}

int mf_baseline_check(struct mf_submission_work *w, struct mf_response *p)
{
    if (!w->baseline)
        return 0;
    int r = check_promote(w, p);
    if (r < 0)
        return r;
    r = match(w);
    return r < 0 ? mf_refuse_errno(p, r, "read the baseline") : 0;
}
