#include "measure/session/precompile.h"

#include <stdlib.h>

#include "common/base/array.h"
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

int mf_ahead_add(struct mf_ahead *a, const struct mf_step *step)
{
    const struct mf_family *f = mf_family_set_find(a->extra, a->kind, step->family);
    struct mf_code code = {0};
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
    a->codes = NULL;
    a->n = a->cap = 0;
}

void mf_ahead_compile(const struct mf_ahead *a, struct mf_device *device)
{
    if (device->ops->compile && a->n > 0)
        (void)device->ops->compile(device, a->codes, a->n, NULL, NULL);
}
