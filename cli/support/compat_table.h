/* Tables of measured candidates, as AITER's tuner appends them to its configs/profile_fmoe.csv: stage, the key, block_m,
 * ksplit, us, kernelName, err, tflops, bw, in any order; flat, v2, fused and gfx may be missing (without fused it goes by the
 * name). Rows whose stage is one of ours
 * (cost_sort, cost_quant1, cost_quant2) are what AITER's rule adds and measures by the way (cli/support/compat_rank.h). */
#pragma once

#include <stddef.h>

#include "cli/support/compat_rank.h"
#include "common/base/buf.h"
#include "common/moe/device_class.h"
#include "common/moe/status.h"
#include "common/table/table.h"

struct mf_compat_shape {
    struct mf_device_class class;
    struct mf_shape shape;
    struct mf_compat_candidate *candidates;
    size_t n, cap;
};
struct mf_compat_table {
    struct mf_compat_shape *shapes; /* in the order that they came in */
    size_t n, cap;
};
void mf_compat_table_release(struct mf_compat_table *t);
/* -ENOMEM. */
int mf_compat_table_add(struct mf_compat_table *t, const struct mf_device_class *class,
                        const struct mf_shape *shape, const struct mf_compat_candidate *c);
/* -EBADMSG with the line, the column and what is expected there in why; -ENOMEM. */
int mf_compat_table_read(const char *text, size_t len, struct mf_compat_table *ret, char why[MF_REASON_MAX]);

/* Appends all of it; header: the columns' names before it. Sticky errors, as those of the buffer. */
void mf_compat_table_print(const struct mf_compat_table *t, bool header, struct mf_buf *out);

/* A merged row as one of a tuned table; provenance NULL: a row of AITER's columns only. -ENOMEM, -EINVAL as mf_table_add. */
int mf_compat_add_row(struct mf_table *t, const struct mf_compat_shape *s, const struct mf_compat_row *row,
                      const char *provenance);
