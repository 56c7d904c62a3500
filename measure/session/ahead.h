/* Compiling ahead of measuring: the code of all steps of a unit at once, each in a process of its own, before the first of
 * them begins, whose time limit no compiler may use up; and that of a whole shape, while others are measured. */
#pragma once

#include "kernels/core/device.h"
#include "kernels/core/family.h"

/* The different codes of the steps that were added. */
struct mf_ahead {
    const struct mf_device_info *device;
    const char *kind; /* of the device: "hip" */
    const struct mf_shape *shape;
    const struct mf_family_set *extra; /* NULL: the families of this build alone */
    struct mf_code *codes;             /* its own */
    size_t n, cap;
};

/* -ENOMEM. A step whose family has nothing to compile adds nothing. */
int mf_ahead_add(struct mf_ahead *a, const struct mf_step *step);
/* Those of what makes the shape's data and references, then those of all steps that families of this build offer for it, in the
 * order that they are measured in; `families` as `only` of mf_enumerate. ret_steps: how many they offer. -ENOMEM. */
int mf_ahead_add_shape(struct mf_ahead *a, const char *families, size_t *ret_steps);
void mf_ahead_release(struct mf_ahead *a);
/* Has the device compile them; what does not compile is told of by the step that opens it. */
void mf_ahead_compile(const struct mf_ahead *a, struct mf_device *device);
