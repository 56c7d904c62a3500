/* A Python family as a kernel family: makes the callbacks of python_callbacks.h look like struct mf_family.
 *
 * The family's steps are listed by a process of its own (python_enumerator.h). Its kernels are opened and
 * launched by the interpreter that this runner lives in. An exception becomes the reason of the result. A
 * crash, an exit or a hang ends the runner. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/family.h"
#include "worker/runner/python_callbacks.h"

struct mf_python_family;

struct mf_python_family_options {
    const char *name, *revision, *device;
    bool supports_ep;
    bool opens_rows;              /* true: the family has open_row, for rows of its framework's table */
    const char *const *enumerate; /* command of the enumerating process */
    int64_t id;                   /* the family's number in callbacks */
    const struct moefarm_runner_callbacks *callbacks;
};

/* Copies all texts. `callbacks` must outlive the family. Returns -EINVAL, with the reason in why, for an
 * invalid name. */
int mf_python_family_new(const struct mf_python_family_options *o, char *why, size_t why_cap,
                         struct mf_python_family **ret);
struct mf_python_family *mf_python_family_free(struct mf_python_family *f);
const struct mf_family *mf_python_family(const struct mf_python_family *f);
/* Returns a step for the whole layer that runs a row of the framework's own table (python_rows.h). The family
 * opens it like a step that it has offered. */
int mf_python_family_add_row(struct mf_python_family *f, const struct mf_shape *shape, const char *json,
                             struct mf_step *ret);
/* Returns the hash of the family's name and revision. */
uint64_t mf_python_family_hash(const struct mf_python_family *f);
/* Returns the version of Triton that the family's revision names, such as "3.6.0", or "". */
const char *mf_python_family_triton(const struct mf_python_family *f);
/* Starts the enumerating process, so that it imports the family while the runner creates data. */
void mf_python_family_warm_up(struct mf_python_family *f);
/* Passes a sign of life from the callback `precompile` to the caller of mf_family.precompile. */
void mf_python_family_progress(struct mf_python_family *f);
