#include "measure/ahead.h"

#include <stdlib.h>

#include "common/array.h"

int mf_ahead_add(struct mf_ahead *a, const struct mf_step *step)
{
    const struct mf_family *f = mf_family_set_find(a->extra, a->kind, step->family);
    if (!f || !f->code)
        return 0;
    int r = mf_array_grow(&a->codes, a->n, &a->cap, sizeof(*a->codes));
    if (r < 0)
        return r;
    struct mf_code *code = &a->codes[a->n];
    if (f->code(a->device, a->shape, step->name, code) < 0)
        return 0;
    for (size_t i = 0; i < a->n; i++) {
        if (mf_code_equal(&a->codes[i], code))
            return 0;
    }
    a->n++;
    return 0;
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
