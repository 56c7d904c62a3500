#include "measure/session/precompile.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/gpu/host/device_data.h"

static int add(struct mf_ahead *a, const struct mf_code *code)
{
    for (size_t i = 0; i < a->n; i++) {
        if (mf_code_equal(&a->codes[i], code))
            return 0;
    }
    int r = mf_array_grow(&a->codes, a->n, &a->cap, sizeof(*a->codes));
    if (r == 0)
        a->codes[a->n++] = *code;
    return r;
}

static int add_step(struct mf_ahead *a, const struct mf_family *f, const char *name)
{
    for (size_t i = 0; i < a->n_steps; i++) {
        if (a->steps[i].family == f && strcmp(a->steps[i].name, name) == 0)
            return 0;
    }
    int r = mf_array_grow(&a->steps, a->n_steps, &a->cap_steps, sizeof(*a->steps));
    if (r < 0)
        return r;
    a->steps[a->n_steps].family = f;
    return mf_copy(a->steps[a->n_steps++].name, MF_STEP_NAME_MAX, name);
}

int mf_ahead_add(struct mf_ahead *a, const struct mf_step *step)
{
    const struct mf_family *f = mf_family_set_find(a->extra, a->kind, step->family);
    struct mf_code code = {0};
    if (f && f->precompile)
        return add_step(a, f, step->name);
    if (!f || !f->code || f->code(f, a->device, a->shape, step->name, &code) < 0)
        return 0;
    return add(a, &code);
}

struct offered {
    struct mf_offer offer; /* must be the first member, because take_step casts it */
    struct mf_step *steps;
    size_t n, cap;
};

static int take_step(struct mf_offer *offer, const struct mf_step *step)
{
    struct offered *o = (struct offered *)offer;
    int r = mf_array_grow(&o->steps, o->n, &o->cap, sizeof(*o->steps));
    if (r == 0)
        o->steps[o->n++] = *step;
    return r;
}

/* Orders steps as the coordinator orders them in units, so that the code of the steps that are measured first
 * is also compiled first. */
static int compare(const void *va, const void *vb)
{
    const struct mf_step *a = va, *b = vb;
    if (a->block_m != b->block_m)
        return a->block_m < b->block_m ? -1 : 1;
    return (a->covers > b->covers) - (a->covers < b->covers);
}

int mf_ahead_add_shape(struct mf_ahead *a, const char *families, size_t *ret_steps)
{
    struct offered o = {.offer = {take_step, mf_offer_ignore_rejection}};
    struct mf_code makers[MF_DEVICE_DATA_CODES];
    size_t n = mf_device_data_codes(a->device, a->shape, makers);
    int r = mf_enumerate(a->device, a->shape, families, &o.offer);
    if (o.n > 0)
        qsort(o.steps, o.n, sizeof(*o.steps), compare);
    for (size_t i = 0; i < n && r >= 0; i++)
        r = add(a, &makers[i]);
    for (size_t i = 0; i < o.n && r >= 0; i++)
        r = mf_ahead_add(a, &o.steps[i]);
    free(o.steps);
    *ret_steps = o.n;
    return r < 0 ? r : 0;
}

void mf_ahead_release(struct mf_ahead *a)
{
    free(a->codes);
    free(a->steps);
    a->codes = NULL;
    a->steps = NULL;
    a->n = a->cap = a->n_steps = a->cap_steps = 0;
}

/* Lets the family of step `first` compile all of its steps. */
static void precompile(const struct mf_ahead *a, struct mf_device *device, size_t first)
{
    const struct mf_family *f = a->steps[first].family;
    _cleanup_(mf_freep) const char **names = calloc(a->n_steps, sizeof(*names));
    size_t n = 0;
    for (size_t i = first; names && i < a->n_steps; i++) {
        if (a->steps[i].family == f)
            names[n++] = a->steps[i].name;
    }
    if (n > 0)
        (void)f->precompile(f, device, a->shape, names, n, a->progress, a->context);
}

void mf_ahead_compile(const struct mf_ahead *a, struct mf_device *device)
{
    if (device->ops->compile && a->n > 0)
        (void)device->ops->compile(device, a->codes, a->n, NULL, NULL);
    for (size_t i = 0; i < a->n_steps; i++) {
        size_t first = 0;
        while (a->steps[first].family != a->steps[i].family)
            first++;
        if (first == i)
            precompile(a, device, i);
    }
}
