/* Compares two tables row by row. Rows are matched by canonical key, then by tag. The order of rows and
 * columns, and absent columns whose value is 0, are not differences.
 *
 *   same       all values and spellings are equal
 *   respelled  all values are equal, but a cell is spelled differently (Silu and ActivationType.Silu, 0.0%
 *              and 0.00%, Null and empty). AITER compares text, so it can treat the rows differently
 *   changed    a kernel, a time or another value differs
 *   added      only the new table has the key
 *   removed    only the old table has the key
 *
 * Rows that cannot be read are not compared; the strays of both tables are counted. */
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
    const struct mf_table_row *before, *after; /* NULL if only the other table has the row */
};

struct mf_diff {
    const struct mf_table *before, *after;
    struct mf_diff_item
        /* rows of the old table in order, then added rows in order; unchanged rows are omitted */
        *items;
    size_t n_items;
    size_t n[MF_DIFFERENCE_N_];
    size_t n_faster, n_slower; /* numbers of changed rows whose us decreased and increased */
};
#define MF_DIFF_INIT ((struct mf_diff){0})
void mf_diff_release(struct mf_diff *d);

/* Compares two tables and keeps references to both. -ENOTSUP, with why: one table belongs to another
 * operator, or only one table is tuned. -ENOMEM. */
int mf_table_diff(const struct mf_table *before, const struct mf_table *after, struct mf_diff *ret,
                  char why[MF_REASON_MAX]);

/* Called for each cell that differs. The strings are valid during the call. A negative return value stops the
 * iteration and is returned. */
typedef int (*mf_diff_cell)(void *data, const char *column, const char *before, const char *after);
/* Reports the differing cells of a changed row (values) or a respelled row (spellings). For key cells with
 * different spellings the texts are "canonical" and "another spelling". */
int mf_diff_cells(const struct mf_diff *d, const struct mf_diff_item *item, mf_diff_cell report, void *data);

/* True if two rows of one table with the same key have equal values, in any spelling. */
bool mf_diff_same_values(const struct mf_table *t, const struct mf_table_row *a,
                         const struct mf_table_row *b);
