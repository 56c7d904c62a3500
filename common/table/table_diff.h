/* How one table differs from another, row by row. Rows are matched by their canonical key, and of those with one key by their
 * tag; so neither the order of rows, nor that of columns, nor a header that lacks what is 0 anyway, is a difference.
 *
 *   same       every value is
 *   respelled  every value is, but a cell is written otherwise (Silu and ActivationType.Silu, 0.0% and 0.00%, Null and
 *              nothing): nothing to us, and to AITER, which compares texts, sometimes much
 *   changed    a kernel, a time, or any other cell
 *   added      only the new table has the key
 *   removed    only the old one
 *
 * Rows that cannot be read are in no difference: strays of either table are counted. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/base/names.h"
#include "common/table/table.h"

/* clang-format off */
#define MF_DIFFERENCE_MAP(X, P)  \
    X(P, SAME, "same")           \
    X(P, RESPELLED, "respelled") \
    X(P, CHANGED, "changed")     \
    X(P, ADDED, "added")         \
    X(P, REMOVED, "removed")
/* clang-format on */
MF_NAMES_DECLARE(mf_difference, MF_DIFFERENCE_, MF_DIFFERENCE_MAP);

struct mf_diff_item {
    enum mf_difference what;
    const struct mf_table_row *before, *after; /* NULL when only the other table has it */
};

struct mf_diff {
    const struct mf_table *before, *after;
    struct mf_diff_item
        *items; /* rows of the old table in their order, then what was added in its; the same left out */
    size_t n_items;
    size_t n[MF_DIFFERENCE_N_];
    size_t n_faster, n_slower; /* of the changed ones, by us */
};
#define MF_DIFF_INIT ((struct mf_diff){0})
void mf_diff_release(struct mf_diff *d);

/* Both tables are kept by reference. -ENOTSUP: a table of another operator, or one is tuned and the other is not, with why;
 * -ENOMEM. */
int mf_table_diff(const struct mf_table *before, const struct mf_table *after, struct mf_diff *ret,
                  char why[MF_REASON_MAX]);

/* A cell that differs; the texts live for the call. A negative return stops and is passed up. */
typedef int (*mf_diff_cell)(void *data, const char *column, const char *before, const char *after);
/* The differing cells of a changed or respelled row: those that changed, or else those that are written otherwise. Of key cells
 * that are spelled otherwise the texts are "canonical" and "another spelling". */
int mf_diff_cells(const struct mf_diff *d, const struct mf_diff_item *item, mf_diff_cell tell, void *data);

/* Two rows of one table and one key say the same, however they are written. */
bool mf_diff_same_values(const struct mf_table *t, const struct mf_table_row *a,
                         const struct mf_table_row *b);
