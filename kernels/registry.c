#include "kernels/family.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "mf_kernel_revision.h"

extern const struct mf_family mf_family_move, mf_family_tile, mf_family_one, mf_family_lib, mf_family_sim,
    mf_family_aiter, mf_family_mx, mf_family_wint4, mf_family_asm;

/* New families go at the end: the order is the order of lists that people compare. */
static const struct mf_family *const families[] = {
    &mf_family_move,  &mf_family_tile, &mf_family_one,   &mf_family_lib, &mf_family_sim,
    &mf_family_aiter, &mf_family_mx,   &mf_family_wint4, &mf_family_asm,
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

bool mf_family_on_request(const struct mf_family *f)
{
    return f == &mf_family_aiter;
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

struct marker {
    struct mf_offer offer; /* first */
    struct mf_offer *to;
    const struct mf_family *family;
};

static int mark_step(struct mf_offer *o, const struct mf_step *step)
{
    const struct marker *m = (const struct marker *)o;
    struct mf_step marked = *step;
    marked.aiter = step->aiter || m->family->aiter_name(step->name);
    return m->to->step(m->to, &marked);
}

static int pass_reject(struct mf_offer *o, const char *family, const char *kernel, const char *rule,
                       const char *format, ...)
{
    struct mf_offer *to = ((struct marker *)o)->to;
    char reason[MF_REASON_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    return to->reject(to, family, kernel, rule, "%s", reason);
}

int mf_family_enumerate(const struct mf_family *f, const struct mf_device_info *device,
                        const struct mf_shape *shape, struct mf_offer *offer)
{
    struct marker marker = {.offer = {.step = mark_step, .reject = pass_reject}, .to = offer, .family = f};
    return f->enumerate(f, device, shape, f->aiter_name ? &marker.offer : offer);
}

int mf_enumerate(const struct mf_device_info *device, const struct mf_shape *shape, const char *only,
                 struct mf_offer *offer)
{
    for (size_t i = 0; i < n_families; i++) {
        const struct mf_family *f = families[i];
        if (strcmp(f->device_kind, kind_of(device)) != 0 || !is_listed(only, f->name) ||
            (!only && mf_family_on_request(f)))
            continue;
        int r = mf_family_enumerate(f, device, shape, offer);
        if (r < 0)
            return r;
    }
    return 0;
}
