#include "kernels/family.h"

#include <stdbool.h>

#include "mf_kernel_revision.h"

extern const struct mf_family mf_family_move, mf_family_tile, mf_family_one, mf_family_lib, mf_family_sim;

/* New families go at the end: the order is the order of lists that people compare. */
static const struct mf_family *const families[] = {
    &mf_family_move, &mf_family_tile, &mf_family_one, &mf_family_lib, &mf_family_sim,
};
static const size_t n_families = sizeof(families) / sizeof(families[0]);

const char *mf_kernel_revision(void)
{
    return MF_KERNEL_REVISION;
}

const struct mf_family *const *mf_families(size_t *ret_n)
{
    *ret_n = n_families;
    return families;
}

const struct mf_family *mf_family_find(const char *name)
{
    for (size_t i = 0; i < n_families; i++) {
        if (strcmp(families[i]->name, name) == 0)
            return families[i];
    }
    return NULL;
}

static bool is_listed(const char *list, const char *name)
{
    size_t n = strlen(name);

    while (list && *list) {
        size_t word = strcspn(list, ",");
        if (word == n && strncmp(list, name, n) == 0)
            return true;
        list += word + (list[word] == ',');
    }
    return !list;
}

/* A CPU's class starts with "cpu-"; a simulated device says so itself. */
static const char *kind_of(const struct mf_device_info *device)
{
    return device->simulated ? "sim" : "cpu";
}

int mf_enumerate(const struct mf_device_info *device, const struct mf_shape *shape, const char *only,
                 struct mf_offer *offer)
{
    for (size_t i = 0; i < n_families; i++) {
        const struct mf_family *f = families[i];
        if (strcmp(f->device_kind, kind_of(device)) != 0 || !is_listed(only, f->name))
            continue;
        int r = f->enumerate(f, device, shape, offer);
        if (r < 0)
            return r;
    }
    return 0;
}
