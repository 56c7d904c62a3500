/* Plans: chooses and opens the pipeline of every bucket of a layer, from a row of the table or by the
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
    for (struct plans *next; p; p = next) {
        next = p->next;
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

static struct mf_shape shape_of(const struct fmoe_layer *l, int index)
{
    struct mf_shape s = l->shape;

    s.token = fmoe_bucket_at(index);
    return s;
}

/* Returns the maximum token count of calls in the bucket: the bucket itself below 32768, otherwise the
 * largest token count that look-up assigns to the bucket. */
static int64_t bucket_max_tokens(const struct fmoe_layer *l, int index)
{
    int64_t bucket = fmoe_bucket_at(index);

    if (bucket < 32768)
        return bucket;
    return MF_MAX(bucket, bucket == 32768 ? MF_MIN(l->max_tokens, 131071) : l->max_tokens);
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

static int plan_from_fallback(const struct fmoe *f, const struct mf_fmoe *table, const struct fmoe_layer *l,
                              int index, struct fmoe_error *error, struct plan *ret)
{
    const struct mf_shape shape = shape_of(l, index);
    struct mf_fmoe_choice *choice = malloc(sizeof(*choice));
    char why[MF_REASON_MAX];
    int r;

    if (!choice)
        return fmoe_fail(error, -ENOMEM, "out of memory");
    r = mf_fmoe_fallback(table, f->device, &shape, NULL, l->weight[0].order, l->weight[1].order, why,
                         sizeof(why), choice);
    if (r < 0)
        r = fmoe_fail(error, r == -ENOMEM ? r : -EINVAL, "%lld tokens: %s (w1 in layout %s, w2 in layout %s)",
                      (long long)shape.token, why, l->weight[0].order, l->weight[1].order);
    else if (choice->row != SIZE_MAX)
        r = plan_from_row(table, choice->row, false, ret);
    else
        r = (ret->names = strdup(choice->names)) ? 0 : -ENOMEM;
    free(choice);
    return r;
}

/* ---- opening ---- */

/* Lists the code objects that the plan's steps need. Returns their number. */
static size_t list_codes(const struct fmoe *f, const struct fmoe_layer *l, const struct plan *p, int index,
                         struct mf_code *codes)
{
    struct mf_shape shape = shape_of(l, index);
    const char *at = p->names, *name;
    size_t len, n = 0;

    shape.token = bucket_max_tokens(l, index);
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
static int compile_ahead(struct fmoe *f, const struct fmoe_layer *l, const struct plans *p)
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
            n += list_codes(f, l, &p->by_bucket[i], i, &codes[n]);
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

static int check_layout(struct fmoe_layer *l, int which, bool *is_given, const struct plan *p, int index,
                        struct fmoe_error *error)
{
    const struct mf_tensor_spec want = mf_pipeline_weight(p->pipeline, fmoe_weight_tensor(which));
    char reason[MF_REASON_MAX];

    if (!*is_given) {
        l->weight[which] = want;
        *is_given = true;
    }
    if (mf_tensor_spec_equal(&want, &l->weight[which]))
        return 0;
    mf_format(reason, sizeof(reason), "needs %s in layout %s, but the layer stores it in layout %s",
              mf_tensor_name(fmoe_weight_tensor(which)), want.order, l->weight[which].order);
    return refuse(error, -EXDEV, p, fmoe_bucket_at(index), reason);
}

static int open_plan(struct fmoe *f, struct fmoe_layer *l, int index, bool layout_given[2],
                     struct fmoe_error *error, struct plan *p)
{
    struct mf_shape shape = shape_of(l, index);
    char why[MF_REASON_MAX] = "";
    int r;

    shape.token = bucket_max_tokens(l, index);
    r = mf_pipeline_open(f->device, &shape, NULL, p->names, why, sizeof(why), &p->pipeline);
    if (r < 0)
        return refuse(error, r == -ENOMEM ? r : -ENOTSUP, p, shape.token, why);
    for (int w = 0; w < 2 && r == 0; w++)
        r = check_layout(l, w, &layout_given[w], p, index, error);
    return r;
}

/* Opens the estimated pipeline in place of a fallback plan that does not open. The row of a fallback plan has
 * another shape, so the table is valid and this is not an error. */
static int open_estimate(struct fmoe *f, struct fmoe_layer *l, int index, bool layout_given[2],
                         struct fmoe_error *error, struct plan *p)
{
    int r;

    free(p->names);
    free(p->table);
    *p = (struct plan){0};
    r = plan_from_fallback(f, NULL, l, index, error, p);
    return r < 0 ? r : open_plan(f, l, index, layout_given, error, p);
}

static int open_all(struct fmoe *f, struct fmoe_layer *l, bool layout_given[2], struct fmoe_error *error,
                    struct plans *plans)
{
    int r = compile_ahead(f, l, plans);

    for (int i = 0; i < FMOE_BUCKETS && r == 0; i++) {
        struct plan *p = &plans->by_bucket[i];
        if (!p->names || p->pipeline)
            continue;
        r = open_plan(f, l, i, layout_given, error, p);
        if (r == -ENOTSUP && !p->tuned && p->table)
            r = open_estimate(f, l, i, layout_given, error, p);
    }
    return r;
}

/* Opens the tuned rows first, because their weight layouts limit the fallbacks of the other buckets. */
int fmoe_plans_make(struct fmoe *f, const struct mf_fmoe *table, struct fmoe_layer *l, bool layout_given[2],
                    struct fmoe_error *error, struct plans **ret, size_t *ret_workspace)
{
    _cleanup_(fmoe_plans_freep) struct plans *p = calloc(1, sizeof(*p));
    int last = fmoe_bucket_index(mf_token_bucket(l->max_tokens)), r = p ? 0 : -ENOMEM;

    for (int i = 0; i <= last && r == 0; i++) {
        const struct mf_shape shape = shape_of(l, i);
        size_t row;

        if (mf_fmoe_lookup(table, &shape, MF_LOOKUP_MOEFARM, &row) == 0)
            r = plan_from_row(table, row, true, &p->by_bucket[i]);
    }
    if (r == 0)
        r = open_all(f, l, layout_given, error, p);
    for (int w = 0; w < 2; w++) {
        if (!layout_given[w])
            l->weight[w] = mf_plain_w(&l->shape, fmoe_weight_tensor(w), "row");
        layout_given[w] = true;
    }
    for (int i = 0; i <= last && r == 0; i++) {
        if (!p->by_bucket[i].names)
            r = plan_from_fallback(f, table, l, i, error, &p->by_bucket[i]);
    }
    if (r == 0)
        r = open_all(f, l, layout_given, error, p);
    if (r < 0)
        return r == -ENOMEM ? fmoe_fail(error, r, "out of memory") : r;
    *ret_workspace = 0;
    for (int i = 0; i <= last; i++)
        *ret_workspace = MF_MAX(*ret_workspace, mf_pipeline_arena_bytes(p->by_bucket[i].pipeline));
    *ret = MF_TAKE(p);
    return 0;
}
