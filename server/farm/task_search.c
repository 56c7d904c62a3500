#include "server/farm/task_search.h"

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "server/choose/halving.h"
#include "server/choose/shape_distance.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEIGHBOURS_MAX 4 /* tasks whose fastest candidates are measured first */

/* ---- hints: the fastest candidates of neighbouring tasks ---- */

struct neighbour {
    int64_t task;
    double distance;
};

struct hint {
    char family[MF_FAMILY_NAME_MAX], name[MF_STEP_NAME_MAX];
};

struct hints {
    const struct mf_task *of;
    struct neighbour nearest[NEIGHBOURS_MAX]; /* in ascending order of distance */
    size_t n_nearest;
    struct hint *all; /* sorted by compare_hints */
    size_t n, cap;
};

static int take_neighbour(void *context, int64_t task, const char *row)
{
    struct hints *o = context;
    struct mf_shape shape;
    struct neighbour new = {.task = task};
    if (mf_shape_parse(row, &shape) < 0)
        return 0;
    new.distance = mf_shape_distance(&o->of->shape, &shape);
    size_t at = o->n_nearest;
    while (at > 0 && o->nearest[at - 1].distance > new.distance)
        at--;
    if (!isfinite(new.distance) || at == NEIGHBOURS_MAX)
        return 0;
    o->n_nearest = MF_MIN(o->n_nearest + 1, (size_t)NEIGHBOURS_MAX);
    memmove(o->nearest + at + 1, o->nearest + at, (o->n_nearest - at - 1) * sizeof(new));
    o->nearest[at] = new;
    return 0;
}

static int take_hint(void *context, const char *family, const char *name)
{
    struct hints *o = context;
    int r = mf_array_grow(&o->all, o->n, &o->cap, sizeof(*o->all));
    if (r < 0)
        return r;
    struct hint *h = &o->all[o->n++];
    mf_format(h->family, sizeof(h->family), "%s", family);
    mf_format(h->name, sizeof(h->name), "%s", name);
    return 0;
}

static int compare_hints(const void *va, const void *vb)
{
    const struct hint *a = va, *b = vb;
    int c = strcmp(a->family, b->family);
    return c ? c : strcmp(a->name, b->name);
}

static int load_hints(struct mf_farm *f, const struct mf_task *g, struct hints *ret)
{
    ret->of = g;
    int r = mf_store_neighbours_each(f->store, g->id, g->class_id, g->layer_model, take_neighbour, ret);
    for (size_t i = 0; r == 0 && i < ret->n_nearest; i++)
        r = mf_store_fastest_each(f->store, ret->nearest[i].task, take_hint, ret);
    if (r == 0 && ret->n > 0)
        qsort(ret->all, ret->n, sizeof(*ret->all), compare_hints);
    return r;
}

/* The first round also has the step that a consumer runs without a table, which its table must beat. */
static bool is_hinted(const struct hints *o, const struct mf_step_row *step)
{
    struct hint key;
    const struct mf_consumer_step s = {step->family, step->name, step->covers, step->aiter, step->foreign};
    if (mf_consumer_any_default(&s))
        return true;
    memcpy(key.family, step->family, sizeof(key.family));
    memcpy(key.name, step->name, sizeof(key.name));
    return o->n > 0 && bsearch(&key, o->all, o->n, sizeof(key), compare_hints);
}

/* ---- candidates ---- */

struct candidate {
    struct mf_step_row step;
    uint64_t interface; /* hash of its tensor specs */
    double us;          /* as in struct mf_halving */
};

struct candidates {
    struct candidate *all;
    size_t n;
};

static int compare_ids(const void *va, const void *vb)
{
    const struct candidate *a = va, *b = vb;
    return (a->step.id > b->step.id) - (a->step.id < b->step.id);
}

static int compare_spaces(const struct candidate *a, const struct candidate *b)
{
    if (a->step.offered_by != b->step.offered_by)
        return a->step.offered_by < b->step.offered_by ? -1 : 1;
    int c = strcmp(a->step.family, b->step.family);
    if (c != 0)
        return c;
    if (a->step.covers != b->step.covers)
        return a->step.covers < b->step.covers ? -1 : 1;
    return (a->interface > b->interface) - (a->interface < b->interface);
}

static int compare_candidates(const void *va, const void *vb)
{
    const struct candidate *a = va, *b = vb;
    int c = compare_spaces(a, b);
    return c ? c : strcmp(a->step.name, b->step.name);
}

/* A candidate with the status `slow` has a time too. A decided candidate without a time failed. */
static double time_of(const struct mf_search_row *row)
{
    if (!row->decided)
        return 0;
    return row->us > 0 ? row->us : (double)INFINITY;
}

static int take_row(void *context, const struct mf_search_row *row)
{
    struct candidates *o = context;
    const struct candidate key = {.step = {.id = row->step}};
    struct candidate *c = bsearch(&key, o->all, o->n, sizeof(key), compare_ids);
    if (!c) /* excluded from the batch */
        return 0;
    c->interface = mf_hash64(row->interface, strlen(row->interface), MF_HASH_SEED);
    c->us = time_of(row);
    return 0;
}

/* Lists the candidates space by space. The caller frees ret->all. */
static int load_candidates(struct mf_farm *f, const struct mf_task *g, const struct mf_step_selection *s,
                           struct candidates *ret)
{
    ret->all = calloc(s->n + 1, sizeof(*ret->all));
    if (!ret->all)
        return -ENOMEM;
    for (size_t i = 0; i < s->n; i++)
        ret->all[ret->n++].step = s->steps[i];
    qsort(ret->all, ret->n, sizeof(*ret->all), compare_ids);
    int r = mf_store_search_each(f->store, g->id, take_row, ret);
    qsort(ret->all, ret->n, sizeof(*ret->all), compare_candidates);
    return r;
}

static size_t space_end(const struct candidates *o, size_t first)
{
    size_t end = first + 1;
    while (end < o->n && compare_spaces(&o->all[first], &o->all[end]) == 0)
        end++;
    return end;
}

/* ---- rounds ---- */

/* Memory for the search of a space with up to n candidates. */
struct workspace {
    const char **names;
    double *us;
    bool *hinted;
    size_t *selected;
};

static void release_workspace(struct workspace *w)
{
    free(w->names);
    free(w->us);
    free(w->hinted);
    free(w->selected);
}

static int allocate_workspace(struct workspace *w, size_t n)
{
    w->names = calloc(n + 1, sizeof(*w->names));
    w->us = calloc(n + 1, sizeof(*w->us));
    w->hinted = calloc(n + 1, sizeof(*w->hinted));
    w->selected = calloc(n + 1, sizeof(*w->selected));
    return w->names && w->us && w->hinted && w->selected ? 0 : -ENOMEM;
}

struct searching {
    const struct mf_task *g;
    const struct hints *hints;
    struct workspace w;
    size_t limit; /* largest number of candidates of a space in the round */
    struct mf_step_selection *selected;
};

/* Appends the candidates of the space that the next round measures to the selection. */
static int search_space(struct searching *o, const struct candidate *c, size_t n)
{
    size_t n_selected = 0;
    struct workspace *w = &o->w;
    for (size_t i = 0; i < n; i++) {
        w->names[i] = c[i].step.name;
        w->us[i] = c[i].us;
        w->hinted[i] = is_hinted(o->hints, &c[i].step);
    }
    _cleanup_(mf_freep) struct mf_points *points = NULL;
    int r = mf_points_new(w->names, n, &points);
    const struct mf_halving h = {
        .points = points, .us = w->us, .hinted = w->hinted, .seed = (uint64_t)o->g->batch->options.seed};
    if (r == 0)
        r = mf_halving_next(&h, o->limit, w->selected, &n_selected);
    for (size_t i = 0; i < n_selected; i++)
        o->selected->steps[o->selected->n++] = c[w->selected[i]].step;
    return r;
}

/* Returns the number of candidates that fit in the rest of the time budget, at the mean time so far. */
static double affordable(const struct mf_task_counts *c, int64_t budget_s)
{
    double left_ms = (double)budget_s * 1000 - (double)c->probe_ms;
    if (c->measured == 0)
        return (double)INFINITY;
    return left_ms > 0 ? left_ms * (double)c->measured / fmax((double)c->probe_ms, 1) : 0;
}

static size_t count_large_spaces(const struct candidates *o)
{
    size_t n = 0;
    for (size_t first = 0, end; first < o->n; first = end) {
        end = space_end(o, first);
        n += end - first >= MF_HALVING_LEAST;
    }
    return n;
}

static int search_spaces(struct searching *o, const struct candidates *c)
{
    double each = affordable(&o->g->counts, o->g->batch->options.time_budget) /
                  (double)MF_MAX(count_large_spaces(c), (size_t)1);
    int r = allocate_workspace(&o->w, c->n);
    o->selected->n = 0;
    o->limit = (size_t)fmin(each, (double)c->n);
    for (size_t first = 0, end; r == 0 && first < c->n; first = end) {
        end = space_end(c, first);
        r = search_space(o, c->all + first, end - first);
    }
    release_workspace(&o->w);
    return r;
}

bool mf_task_search_applies(const struct mf_task *g)
{
    return g->batch->options.time_budget > 0;
}

int mf_task_search_next(struct mf_farm *f, const struct mf_task *g, struct mf_step_selection *s)
{
    struct hints hints = {.n = 0};
    struct candidates candidates = {.n = 0};
    int r = load_hints(f, g, &hints);
    if (r == 0)
        r = load_candidates(f, g, s, &candidates);
    if (r == 0)
        r = search_spaces(&(struct searching){.g = g, .hints = &hints, .selected = s}, &candidates);
    free(candidates.all);
    free(hints.all);
    return r;
}
