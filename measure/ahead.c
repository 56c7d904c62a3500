#include "measure/ahead.h"

#include <errno.h>
#include <stdlib.h>

#include "common/cleanup.h"

int mf_ahead_codes(const struct mf_device_info *device, const char *kind, const struct mf_shape *shape,
                   const struct mf_family_set *extra, const struct mf_probe_step *steps, size_t n,
                   struct mf_code **ret, size_t *ret_n)
{
    struct mf_code *codes = calloc(n + 1, sizeof(*codes));
    size_t found = 0;
    if (!codes)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct mf_family *f = mf_family_set_find(extra, kind, steps[i].step.family);
        bool known = false;
        if (!f || !f->code || f->code(device, shape, steps[i].step.name, &codes[found]) < 0)
            continue;
        for (size_t j = 0; j < found && !known; j++)
            known = mf_code_equal(&codes[j], &codes[found]);
        found += !known;
    }
    *ret = codes;
    *ret_n = found;
    return 0;
}

int mf_ahead_compile(struct mf_device *device, const struct mf_shape *shape,
                     const struct mf_family_set *extra, const struct mf_probe_step *steps, size_t n)
{
    _cleanup_(mf_freep) struct mf_code *codes = NULL;
    size_t n_codes = 0;
    if (!device->ops->compile)
        return 0;
    int r = mf_ahead_codes(&device->info, device->ops->kind, shape, extra, steps, n, &codes, &n_codes);
    if (r == 0 && n_codes > 0)
        (void)device->ops->compile(device, codes, n_codes, NULL, NULL);
    return r;
}
