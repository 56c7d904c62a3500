/* Chooses a pipeline for a call without a table row: see mf_fmoe_fallback. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/pipeline_search.h"
#include "kernels/pipeline/cost.h"
#include "kernels/pipeline/fmoe.h"

/* Steps offered for the shape, with estimated times. */
struct offered {
    struct mf_offer offer; /* must be first: the callbacks cast its address to this struct */
    const struct mf_device *device;
    const struct mf_shape *shape;
    const char *layout[2]; /* required layouts of w1 and w2; NULL: any layout */
    bool stores_h;         /* h is stored in bf16 before it is quantised */
    struct mf_step *steps;
    double *us;
    size_t n, cap_steps, cap_us;
};

/* ---- collecting ---- */

static bool fits_layouts(const struct offered *o, const struct mf_step *step)
{
    for (int i = 0; i < step->n_needs; i++) {
        const struct mf_tensor_spec *a = &step->needs[i];
        const char *layout = a->tensor == MF_TENSOR_W1   ? o->layout[0]
                             : a->tensor == MF_TENSOR_W2 ? o->layout[1]
                                                         : NULL;
        if (layout && strcmp(layout, a->order) != 0)
            return false;
    }
    return true;
}

/* True if the step quantises h and does more, so that h in bf16 is not stored. */
static bool hides_h(const struct mf_step *step)
{
    const mf_ops quant2 = MF_OP_BIT(MF_OP_QUANT2);

    return (step->covers & quant2) && step->covers != quant2;
}

static int take_step(struct mf_offer *offer, const struct mf_step *step)
{
    struct offered *o = (struct offered *)offer;

    if (!fits_layouts(o, step) || (o->stores_h && hides_h(step)))
        return 0;
    int r = mf_array_grow(&o->steps, o->n, &o->cap_steps, sizeof(*o->steps));
    if (r == 0)
        r = mf_array_grow(&o->us, o->n, &o->cap_us, sizeof(*o->us));
    if (r < 0)
        return r;
    o->us[o->n] = mf_cost_of_step(o->device, o->shape, step);
    o->steps[o->n++] = *step;
    return 0;
}

static int collect(struct offered *o, const struct mf_family_set *extra)
{
    int r = 0;

    for (size_t i = 0; extra && i < extra->n && r == 0; i++) {
        if (strcmp(extra->families[i]->device_kind, o->device->ops->kind) == 0)
            r = mf_family_enumerate(extra->families[i], &o->device->info, o->shape, &o->offer);
    }
    return r < 0 ? r : mf_enumerate(&o->device->info, o->shape, NULL, &o->offer);
}

/* ---- rows ---- */

/* A row that can serve the shape. */
struct candidate {
    size_t row;
    const char *names;
    struct mf_shape shape; /* of the row */
    double measured_us;    /* at the row's shape */
    double away;           /* distance of the row's shape */
    double us;             /* modelled time at the asked shape */
    double slowness;       /* measured time divided by the estimate, at the row's shape */
};

/* Returns the estimate of a pipeline from the offered steps, or INFINITY if a step is not offered. */
static double estimate_offered(const struct offered *o, const char *pipeline)
{
    char family[MF_FAMILY_NAME_MAX], step[MF_STEP_NAME_MAX];
    const char *name;
    size_t len;
    double us = 0;

    while (mf_pipeline_text_next(&pipeline, &name, &len)) {
        size_t i = 0;
        if (mf_step_name_split(name, len, family, step) < 0)
            return (double)INFINITY;
        while (i < o->n && (strcmp(o->steps[i].family, family) != 0 || strcmp(o->steps[i].name, step) != 0))
            i++;
        us += i < o->n ? o->us[i] + mf_cost_of_gap(o->device) : (double)INFINITY;
    }
    return us;
}

/* Keeps the nearest rows, in order of distance. The array has one more place than rows are kept. */
static void insert(struct candidate *rows, size_t *n, const struct candidate *c)
{
    size_t at = *n;

    for (; at > 0 && c->away < rows[at - 1].away; at--)
        rows[at] = rows[at - 1];
    rows[at] = *c;
    *n = MF_MIN(*n + 1, MF_FALLBACK_ROWS);
}

/* Finds the nearest rows whose steps are all offered. Returns their number. */
static size_t find_rows(const struct mf_fmoe *f, const struct offered *o, struct candidate *ret)
{
    size_t n = 0;

    for (size_t i = 0; f && i < mf_fmoe_n_rows(f); i++) {
        struct candidate c = {.row = i};
        (void)mf_fmoe_row(f, i, &c.shape, &c.measured_us, &c.names);
        c.away = mf_cost_of_distance(o->shape, &c.shape);
        if (!isfinite(c.away) || (n == MF_FALLBACK_ROWS && c.away >= ret[n - 1].away) ||
            strlen(c.names) >= MF_PIPELINE_TEXT_MAX || !isfinite(estimate_offered(o, c.names)))
            continue;
        insert(ret, &n, &c);
    }
    return n;
}

/* Computes the modelled times of the rows (kernels/pipeline/cost.h). */
static int scale_rows(const struct offered *o, const struct mf_family_set *extra, struct candidate *rows,
                      size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double there;
        int r = mf_cost_of_pipeline(o->device, &rows[i].shape, extra, rows[i].names, &there);
        if (r < 0)
            return r;
        /* Another revision may not offer the row's steps for the row's own shape. */
        rows[i].slowness = there > 0 && isfinite(there) ? rows[i].measured_us / there : 1;
        rows[i].us = estimate_offered(o, rows[i].names) * fmax(rows[i].slowness, rows[0].slowness) *
                     (1 + rows[i].away);
    }
    return 0;
}

/* ---- the estimate ---- */

/* Finds the pipeline with the least estimate, and sets choice->us to the estimate. */
static int cheapest(const struct offered *o, char *why, size_t why_cap, struct mf_fmoe_choice *choice)
{
    _cleanup_(mf_freep) struct mf_path_step *steps = calloc(o->n + 1, sizeof(*steps));
    _cleanup_(mf_freep) struct mf_path *paths = NULL;
    struct mf_path_problem problem = {
        .ops = mf_layer_ops(o->shape),
        .format = MF_FORMAT_BF16,
        .steps = steps,
        .n_steps = o->n,
        .gap_us = mf_cost_of_gap(o->device),
        .keep = 1,
    };
    size_t n = 0;
    int r;

    if (!steps)
        return -ENOMEM;
    for (size_t i = 0; i < o->n; i++)
        steps[i] = (struct mf_path_step){&o->steps[i], o->us[i]};
    r = mf_path_find(&problem, &paths, &n);
    if (r < 0)
        return r;
    if (n == 0) {
        mf_format(why, why_cap, "no pipeline of this build covers the layer on %s/%d",
                  o->device->info.class.gfx, o->device->info.class.cu_num);
        return -ENOENT;
    }
    choice->names[0] = '\0';
    for (int32_t i = 0; i < paths[0].n; i++) {
        const struct mf_step *step = &o->steps[paths[0].steps[i]];
        (void)mf_pipeline_text_add(choice->names, sizeof(choice->names), step->family, step->name);
    }
    choice->row = SIZE_MAX;
    choice->us = paths[0].us;
    return 0;
}

/* ---- the choice ---- */

static const struct candidate *fastest(const struct candidate *rows, size_t n)
{
    const struct candidate *best = NULL;

    for (size_t i = 0; i < n; i++) {
        if (!best || rows[i].us < best->us)
            best = &rows[i];
    }
    return best;
}

static void name_row(const struct mf_fmoe *f, const struct candidate *c, char *buf, size_t cap)
{
    int64_t line;
    const char *path = mf_fmoe_row_location(f, c->row, &line);

    mf_format(buf, cap, "%s:%lld (%.4g us at %lld tokens, model_dim %d, inter_dim %d)", path, (long long)line,
              c->measured_us, (long long)c->shape.token, c->shape.model_dim, c->shape.inter_dim);
}

static void choose_row(const struct mf_fmoe *f, const struct candidate *c, struct mf_fmoe_choice *choice)
{
    char row[MF_REASON_MAX];
    const double estimated = choice->us;

    name_row(f, c, row, sizeof(row));
    choice->row = c->row;
    choice->us = c->us;
    (void)mf_copy(choice->names, sizeof(choice->names), c->names);
    mf_format(choice->reason, sizeof(choice->reason),
              "scaled from the row %s to %.4g us; the estimated pipeline takes %.4g us", row, c->us,
              estimated);
}

static void choose_estimate(const struct mf_fmoe *f, const struct candidate *best,
                            struct mf_fmoe_choice *choice)
{
    char row[MF_REASON_MAX];

    if (!best) {
        choice->us = 0;
        mf_format(choice->reason, sizeof(choice->reason),
                  "the pipeline with the lowest estimate: no row has the same formats and usable steps");
        return;
    }
    name_row(f, best, row, sizeof(row));
    mf_format(
        choice->reason, sizeof(choice->reason),
        "the pipeline with the lowest estimate, %.4g us; scaled from the row %s, the row's takes %.4g us",
        choice->us, row, best->us);
}

static int choose(const struct mf_fmoe *f, const struct offered *o, const struct mf_family_set *extra,
                  char *why, size_t why_cap, struct mf_fmoe_choice *choice)
{
    _cleanup_(mf_freep) struct candidate *rows = calloc(MF_FALLBACK_ROWS + 1, sizeof(*rows));
    const struct candidate *best;
    size_t n;
    int r;

    if (!rows)
        return -ENOMEM;
    n = find_rows(f, o, rows);
    r = scale_rows(o, extra, rows, n);
    if (r == 0)
        r = cheapest(o, why, why_cap, choice);
    if (r == -ENOENT && n > 0) { /* rows of steps that only this table combines */
        choice->us = (double)INFINITY;
        r = 0;
    }
    if (r < 0)
        return r;
    best = fastest(rows, n);
    if (best)
        choice->us *= rows[0].slowness * (1 + rows[0].away) * MF_FALLBACK_UNTUNED;
    if (best && best->us <= choice->us)
        choose_row(f, best, choice);
    else
        choose_estimate(f, best, choice);
    return 0;
}

int mf_fmoe_fallback(const struct mf_fmoe *f, const struct mf_device *device, const struct mf_shape *shape,
                     const struct mf_family_set *extra, const char *w1, const char *w2, char *why,
                     size_t why_cap, struct mf_fmoe_choice *ret)
{
    struct offered o = {.offer = {take_step, mf_offer_ignore_rejection},
                        .device = device,
                        .shape = shape,
                        .layout = {w1, w2}};
    int r = collect(&o, extra);

    mf_format(why, why_cap, "%s", "");
    if (r >= 0)
        r = choose(f, &o, extra, why, why_cap, ret);
    if (r < 0 && !*why)
        mf_format(why, why_cap, "choosing a pipeline: %s", strerror(-r));
    free(o.steps);
    free(o.us);
    return r;
}

int mf_fmoe_observing_h(const struct mf_device *device, const struct mf_shape *shape, const char *w1,
                        const char *w2, char *why, size_t why_cap, struct mf_fmoe_choice *ret)
{
    struct offered o = {.offer = {take_step, mf_offer_ignore_rejection},
                        .device = device,
                        .shape = shape,
                        .layout = {w1, w2},
                        .stores_h = true};
    int r = collect(&o, NULL);

    mf_format(why, why_cap, "%s", "");
    if (r >= 0)
        r = cheapest(&o, why, why_cap, ret);
    if (r < 0 && !*why)
        mf_format(why, why_cap, "choosing a pipeline: %s", strerror(-r));
    free(o.steps);
    free(o.us);
    return r;
}
