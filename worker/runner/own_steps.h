/* The steps that this runner's families offer for the shape of the present unit.
 *
 * A unit describes its steps as another worker enumerated them. That worker may lie about buffers and
 * workspace, so a runner runs a step only by its own description. */
#pragma once

#include <stddef.h>

#include "common/moe/status.h"
#include "kernels/core/family.h"

#define MF_OWN_STEPS_MAX 65536 /* maximum number of steps of one family */

struct mf_own_family {
    const struct mf_family *family;
    struct mf_step *steps; /* sorted by name */
    size_t n, cap;
};

/* A cache for one shape. Families are enumerated when the first of their steps is looked up. */
struct mf_own_steps {
    /* Enumerates one family. Returns 0 or a negative error. */
    int (*enumerate)(void *context, const struct mf_family *f, const struct mf_shape *shape,
                     struct mf_offer *offer);
    void *context;
    struct mf_shape shape;
    struct mf_own_family *families;
    size_t n, cap;
};

/* Frees the cached steps. */
void mf_own_steps_release(struct mf_own_steps *o);
/* Replaces the step by the description that the family f offers under the same name. Returns 1 with the
 * reason in `why` if f does not offer the step or if the buffers, workspace, ops, block_m or ksplit differ.
 * Returns 0, or a negative error of enumerate, -ENOMEM, or -EFBIG if the family has too many steps. */
int mf_own_steps_replace(struct mf_own_steps *o, const struct mf_shape *shape, const struct mf_family *f,
                         struct mf_step *step, char why[MF_REASON_MAX]);
