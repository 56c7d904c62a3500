/* Rows of a framework's own table, as steps of a Python family. Each row is one step for the whole layer,
 * with plain weights; the family's open_row (python/moefarm/family.py) opens it through the framework's
 * production operator. */
#pragma once

#include <stddef.h>

#include "kernels/core/family.h"

struct mf_python_row {
    struct mf_shape shape;
    struct mf_step step;
    char *json; /* the row, as open_row gets it */
};

struct mf_python_rows {
    struct mf_python_row *items;
    size_t n, cap;
};

/* Adds a row of a family, or finds the same row, and returns its step. json: an object, copied. Returns
 * -ENOMEM, or -EINVAL if the shape has no layer that the farm can describe. */
int mf_python_rows_add(struct mf_python_rows *r, const char *family, const struct mf_shape *shape,
                       const char *json, struct mf_step *ret);
/* Returns the row of the step with this name, or NULL if no row has such a step. */
const struct mf_python_row *mf_python_rows_find(const struct mf_python_rows *r, const char *name);
void mf_python_rows_release(struct mf_python_rows *r);
