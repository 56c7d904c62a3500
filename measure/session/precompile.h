/* Compiles kernels before they are measured.
 *
 * The code of all steps of a unit is compiled in parallel, each code object in its own process, before the
 * first step starts. Compilation therefore does not count against a step's time limit. The code of a whole
 * shape can be compiled while other shapes are measured. */
#pragma once

#include "kernels/core/device.h"
#include "kernels/core/family.h"

/* A step of a family that compiles by itself (mf_family.precompile). */
struct mf_ahead_step {
    const struct mf_family *family;
    char name[MF_STEP_NAME_MAX];
};

/* Distinct code objects of the added steps, and the added steps of families that compile by themselves. */
struct mf_ahead {
    const struct mf_device_info *device;
    const char *kind; /* device kind: "hip" */
    const struct mf_shape *shape;
    const struct mf_family_set *extra; /* additional families; NULL: only the built-in ones */
    struct mf_code *codes;             /* owned */
    size_t n, cap;
    struct mf_ahead_step *steps; /* owned */
    size_t n_steps, cap_steps;
    void (*progress)(void *context); /* called after each of `steps` is compiled */
    void *context;
};

/* Adds one step or its code; adds nothing if the step's family compiles nothing. Returns 0 or -ENOMEM. */
int mf_ahead_add(struct mf_ahead *a, const struct mf_step *step);
/* Adds the code that creates the shape's data and references. Then adds the code of all steps that the
 * built-in families offer, in measurement order. `families` is the `only` argument of mf_enumerate.
 * *ret_steps is the number of offered steps. Returns 0 or -ENOMEM. */
int mf_ahead_add_shape(struct mf_ahead *a, const char *families, size_t *ret_steps);
void mf_ahead_release(struct mf_ahead *a);
/* Compiles the code objects on the device. Then lets families compile their steps. Compile errors are
 * ignored here, because the step that opens the code reports them. */
void mf_ahead_compile(const struct mf_ahead *a, struct mf_device *device);
