/* Reads and writes tables of measured candidates in the format that AITER's tuner appends to
 * configs/profile_fmoe.csv. Columns, in any order: stage, the key, block_m, ksplit, us, kernelName, err,
 * tflops, bw; optional: flat, v2, fused, gfx. If the column `fused` is absent, the kernel name decides. The
 * stages cost_sort, cost_quant1 and cost_quant2 are moefarm's own. They hold the costs that AITER's rule adds
 * (cli/support/compat_rank.h). */
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
    struct mf_compat_shape *shapes; /* in input order */
    size_t n, cap;
};
void mf_compat_table_release(struct mf_compat_table *t);
/* Returns 0 or -ENOMEM. */
int mf_compat_table_add(struct mf_compat_table *t, const struct mf_device_class *class,
                        const struct mf_shape *shape, const struct mf_compat_candidate *c);
/* Returns -EBADMSG with the line, the column and the expected value in why, or -ENOMEM. */
int mf_compat_table_read(const char *text, size_t len, struct mf_compat_table *ret, char why[MF_REASON_MAX]);

/* Appends the whole table. If `header`, prints the column names first. The buffer keeps any error. */
void mf_compat_table_print(const struct mf_compat_table *t, bool header, struct mf_buf *out);

/* Adds a merged row to a tuned table. If provenance is NULL, writes only AITER's columns. Returns -ENOMEM, or
 * -EINVAL like mf_table_add. */
int mf_compat_add_row(struct mf_table *t, const struct mf_compat_shape *s, const struct mf_compat_row *row,
                      const char *provenance);
