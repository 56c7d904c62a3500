/* Stub functions for test families that offer no steps. */
#pragma once

#include <errno.h>
#include <stddef.h>

#include "kernels/core/family.h"

static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *s,
                     const char *name, struct mf_kernel **ret)
{
    (void)f, (void)device, (void)s, (void)name, (void)ret;
    return -EINVAL;
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    (void)k, (void)l;
    return -EINVAL;
}

static struct mf_kernel *close_step(struct mf_kernel *k)
{
    (void)k;
    return NULL;
}
