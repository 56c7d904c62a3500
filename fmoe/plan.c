/* Plans: chooses and opens the pipeline of every bucket of a layer model, from a row of the table or by the
 * fallback rules. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/moe/pipeline_search.h"
#include "fmoe/private.h"
#include "kernels/core/family.h"

struct plans *fmoe_plans_free(struct plans *p)
{
    for (struct plans *old; p; p = old) {
        old = p->old;
        for (int i = 0; i < FMOE_BUCKETS; i++) {
            p->by_bucket[i].pipeline = mf_pipeline_close(p->by_bucket[i].pipeline);
            free(p->by_bucket[i].names);
            free(p->by_bucket[i].table);
        }
        free(p);
    }
    return NULL;
}
MF_DEFINE_CLEANUP(struct plans *, fmoe_plans_free);

static struct mf_shape shape_of(const struct plans *plans, int index)
{
    struct mf_shape s = plans->model.shape;

    s.token = fmoe_bucket_at(index);
    return s;
}

/* Returns the maximum token count of calls in the bucket: the bucket itself below 32768, otherwise the
 * largest token count that look-up assigns to the bucket. */
static int64_t bucket_max_tokens(const struct plans *plans, int index)
{
    int64_t bucket = fmoe_bucket_at(index), max_tokens = plans->model.max_tokens;

    if (bucket < 32768)
        return bucket;
    return MF_MAX(bucket, bucket == 32768 ? MF_MIN(max_tokens, 131071) : max_tokens);
}

/* ---- choosing ---- */

static int plan_from_row(const struct mf_fmoe *table, size_t row, bool tuned, struct plan *ret)
{
    struct mf_shape shape;
    const char *names;

    ret->tuned = tuned;
    ret->table = strdup(mf_fmoe_row_location(table, row, &ret->line));
    (void)mf_fmoe_row(table, row, &shape, &ret->us, &names);
    if (!tuned)
        ret->us = 0;
    free(ret->names);
    ret->names = strdup(names);
    return ret->table && ret->names ? 0 : -ENOMEM;
}

static int plan_from_fallback(const struct fmoe *f, const struct mf_fmoe *table, const struct plans *plans,
                              int index, struct fmoe_error *error, struct plan *ret)
{
    const struct mf_shape shape = shape_of(plans, index);
    const char *w1 = plans->weight[0].order, *w2 = plans->weight[1].order;
    struct mf_fmoe_choice *choice = malloc(sizeof(*choice));
    char why[MF_REASON_MAX];
    int r;

    if (!choice)
        return fmoe_fail(error, -ENOMEM, "out of memory");
    r = mf_fmoe_fallback(table, f->device, &shape, NULL, w1, w2, why, sizeof(why), choice);
    if (r < 0)
        r = fmoe_fail(error, r == -ENOMEM ? r : -EINVAL, "%lld tokens: %s (w1 in layout %s, w2 in layout %s)",
                      (long long)shape.token, why, w1, w2);
    else if (choice->row != SIZE_MAX)
        r = plan_from_row(table, choice->row, false, ret);
    else
        r = (ret->names = strdup(choice->names)) ? 0 : -ENOMEM;
    if (r == 0) {
        ret->modelled_us = choice->us;
        mf_format(ret->reason, sizeof(ret->reason), "%s", choice->reason);
    }
    free(choice);
    return r;
}

/* ---- opening ---- */

/* Lists the code objects that the plan's steps need. Returns their number. */
static size_t list_codes(const struct fmoe *f, const struct plans *plans, int index, struct mf_code *codes)
{
    struct mf_shape shape = shape_of(plans, index);
    const char *at = plans->by_bucket[index].names, *name;
    size_t len, n = 0;

    shape.token = bucket_max_tokens(plans, index);
    for (int i = 0; i < MF_PATH_STEPS_MAX && mf_pipeline_text_next(&at, &name, &len); i++) {
        char family_name[MF_FAMILY_NAME_MAX], step[MF_STEP_NAME_MAX];
        const struct mf_family *family = NULL;

        if (mf_step_name_split(name, len, family_name, step) == 0)
            family = mf_family_find(f->device->ops->kind, family_name);
        n += family && family->code && family->code(family, &f->device->info, &shape, step, &codes[n]) == 0;
    }
    return n;
}

/* Compiles the code of all plans in parallel, with one process per CPU. Compile errors are reported when the
 * plan is opened. */
static int compile_ahead(struct fmoe *f, const struct plans *p)
{
    _cleanup_(mf_freep) struct mf_code *codes = NULL;
    _cleanup_(mf_freep) void *paths = NULL, *whys = NULL;
    size_t n = 0;

    if (!f->device->ops->compile)
        return 0;
    codes = calloc((size_t)FMOE_BUCKETS * MF_PATH_STEPS_MAX, sizeof(*codes));
    if (!codes)
        return -ENOMEM;
    for (int i = 0; i < FMOE_BUCKETS; i++) {
        if (!p->by_bucket[i].pipeline)
            n += list_codes(f, p, i, &codes[n]);
    }
    if (n == 0)
        return 0;
    paths = calloc(n, PATH_MAX);
    whys = calloc(n, MF_CODE_WHY_MAX);
    if (!paths || !whys)
        return -ENOMEM;
    (void)f->device->ops->compile(f->device, codes, n, paths, whys);
    return 0;
}

/* Writes an error message that names the table and line of the plan, or its token count if the plan has no
 * row. */
static int refuse(struct fmoe_error *error, int r, const struct plan *p, int64_t tokens, const char *reason)
{
    if (p->table)
        return fmoe_fail(error, r, "%s:%lld: %s", p->table, (long long)p->line, reason);
    return fmoe_fail(error, r, "%lld tokens (no row in the table): %s", (long long)tokens, reason);
}

/* Checks that the plan of a bucket needs a weight in the layout of the other plans, or takes its layout. */
static int check_layout(struct plans *plans, int index, int which, struct fmoe_error *error)
{
    const struct plan *p = &plans->by_bucket[index];
    const struct mf_tensor_spec want = mf_pipeline_weight(p->pipeline, fmoe_weight_tensor(which));
    struct mf_tensor_spec *have = &plans->weight[which];
    char reason[MF_REASON_MAX];

    if (!*have->order)
        *have = want;
    if (mf_tensor_spec_equal(&want, have))
        return 0;
    mf_format(reason, sizeof(reason), "needs %s in layout %s, but the layer stores it in layout %s",
              mf_tensor_name(fmoe_weight_tensor(which)), want.order, have->order);
    return refuse(error, -EXDEV, p, fmoe_bucket_at(index), reason);
}

static int open_plan(struct fmoe *f, struct plans *plans, int index, struct fmoe_error *error)
{
    struct plan *p = &plans->by_bucket[index];
    struct mf_shape shape = shape_of(plans, index);
    char why[MF_REASON_MAX] = "";
    int r;

    shape.token = bucket_max_tokens(plans, index);
    r = mf_pipeline_open(f->device, &shape, NULL, p->names, why, sizeof(why), &p->pipeline);
    if (r < 0)
        return refuse(error, r == -ENOMEM ? r : -ENOTSUP, p, shape.token, why);
    for (int w = 0; w < 2 && r == 0; w++)
        r = check_layout(plans, index, w, error);
    return r;
}

/* Opens the estimated pipeline in place of a fallback plan that does not open. The row of a fallback plan has
 * another shape, so the table is valid and this is not an error. */
static int open_estimate(struct fmoe *f, struct plans *plans, int index, struct fmoe_error *error)
{
    struct plan *p = &plans->by_bucket[index];
    char reason[MF_REASON_MAX];
    int r;

    mf_format(reason, sizeof(reason), "the pipeline with the lowest estimate: the row %s:%lld does not open",
              p->table, (long long)p->line);
    free(p->names);
    free(p->table);
    *p = (struct plan){0};
    r = plan_from_fallback(f, NULL, plans, index, error, p);
    mf_format(p->reason, sizeof(p->reason), "%s", reason);
    return r < 0 ? r : open_plan(f, plans, index, error);
}

static int open_all(struct fmoe *f, struct plans *plans, struct fmoe_error *error)
{
    int r = compile_ahead(f, plans);

    for (int i = 0; i < FMOE_BUCKETS && r == 0; i++) {
        const struct plan *p = &plans->by_bucket[i];
        if (!p->names || p->pipeline)
            continue;
        r = open_plan(f, plans, i, error);
        if (r == -ENOTSUP && !p->tuned && p->table)
            r = open_estimate(f, plans, i, error);
    }
    return r;
}

static void give_layouts(struct plans *p, const char *const layout[2])
{
    for (int w = 0; w < 2; w++) {
        if (layout[w] && !*p->weight[w].order)
            p->weight[w] = mf_plain_w(&p->model.shape, fmoe_weight_tensor(w), layout[w]);
    }
}

/* Opens the tuned rows first, because their weight layouts limit the fallbacks of the other buckets. */
static int choose_and_open(struct fmoe *f, const struct mf_fmoe *table, struct fmoe_error *error,
                           struct plans *p)
{
    static const char *const row_layouts[2] = {"row", "row"};
    int last = fmoe_bucket_index(mf_token_bucket(p->model.max_tokens)), r = 0;

    give_layouts(p, p->model.layout);
    for (int i = 0; i <= last && r == 0; i++) {
        const struct mf_shape shape = shape_of(p, i);
        size_t row;

        if (mf_fmoe_lookup(table, &shape, MF_LOOKUP_MOEFARM, &row) == 0)
            r = plan_from_row(table, row, true, &p->by_bucket[i]);
    }
    if (r == 0)
        r = open_all(f, p, error);
    give_layouts(p, row_layouts);
    for (int i = 0; i <= last && r == 0; i++) {
        if (!p->by_bucket[i].names)
            r = plan_from_fallback(f, table, p, i, error, &p->by_bucket[i]);
    }
    return r < 0 ? r : open_all(f, p, error);
}

int fmoe_plans_make(struct fmoe *f, const struct mf_fmoe *table, const struct model *model,
                    struct fmoe_error *error, struct plans **ret)
{
    _cleanup_(fmoe_plans_freep) struct plans *p = calloc(1, sizeof(*p));
    int r = -ENOMEM;

    if (p) {
        p->model = *model;
        r = choose_and_open(f, table, error, p);
    }
    if (r < 0)
        return r == -ENOMEM ? fmoe_fail(error, r, "out of memory") : r;
    for (int i = 0; i < FMOE_BUCKETS; i++) {
        if (p->by_bucket[i].pipeline)
            p->workspace = MF_MAX(p->workspace, mf_pipeline_arena_bytes(p->by_bucket[i].pipeline));
    }
    *ret = MF_TAKE(p);
    return 0;
}

/* ---- sharing ---- */

static bool is_same_layout(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool is_same_model(const struct model *a, const struct model *b)
{
    return mf_shape_equal(&a->shape, &b->shape) && a->max_tokens == b->max_tokens &&
           is_same_layout(a->layout[0], b->layout[0]) && is_same_layout(a->layout[1], b->layout[1]);
}

int fmoe_plans_ref(struct fmoe *f, const struct model *model, struct fmoe_error *error, struct plans **ret)
{
    struct plans *p = f->plans;
    int r;

    while (p && !is_same_model(&p->model, model))
        p = p->next;
    if (!p) {
        r = fmoe_plans_make(f, f->table, model, error, &p);
        if (r < 0)
            return r;
        p->next = f->plans;
        f->plans = p;
    }
    p->n_layers++;
    *ret = p;
    return 0;
}

void fmoe_plans_unref(struct fmoe *f, struct plans *p, bool keep)
{
    if (--p->n_layers > 0)
        return;
    for (struct plans **at = &f->plans; *at; at = &(*at)->next) {
        if (*at == p) {
            *at = p->next;
            break;
        }
    }
    if (!keep)
        (void)fmoe_plans_free(p);
}
