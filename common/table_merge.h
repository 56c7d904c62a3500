/* Merging rows of ours into a table that others use too.
 *
 * A row of the old table is ours when its provenance is moefarm's; it is comparable when, besides its key
 * (device class and shape), its provenance (method), model and routing equal those of the new row. Then:
 *
 *   old row                                 what becomes of the new one
 *   none of that key                        added, at the end
 *   comparable and slower (or without time) replaced, in its place
 *   comparable and as fast or faster        kept: the old row stays
 *   foreign: not ours, or not comparable    foreign: the old row stays; with replace: replaced
 *
 * Rows of other keys, rows with a tag, strays and unknown columns stay as and where they were. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/names.h"
#include "common/table.h"

/* clang-format off */
#define MF_MERGED_MAP(X, P)    \
    X(P, ADDED, "added")       \
    X(P, REPLACED, "replaced") \
    X(P, KEPT, "kept")         \
    X(P, FOREIGN, "foreign")
/* clang-format on */
MF_NAMES_DECLARE(mf_merged, MF_MERGED_, MF_MERGED_MAP);

struct mf_merge_item {
    enum mf_merged what;
    char key[MF_TABLE_KEY_MAX];
    double old_us, new_us; /* old_us is 0 for an added row */
    char reason[MF_REASON_MAX];
};

struct mf_merge_result {
    struct mf_merge_item *items; /* one for each new row, in their order */
    size_t n_items;
    size_t n[MF_MERGED_N_];
};
#define MF_MERGE_RESULT_INIT ((struct mf_merge_result){0})
void mf_merge_result_release(struct mf_merge_result *r);

struct mf_merge_options {
    bool replace;                      /* foreign rows too */
    const struct mf_table *const *set; /* the other files that production reads with this one */
    size_t n_set;
};

/* True when the row's provenance is moefarm's. */
bool mf_table_row_is_ours(const struct mf_table_row *row);
/* True when their times can be compared: both ours, with one method, model and routing. */
bool mf_table_row_comparable(const struct mf_table_row *a, const struct mf_table_row *b);

/* Merges the rows of fresh into table. options may be NULL.
 * -EEXIST: a key is twice in the table, in fresh, or across the set; why lists both places. -EINVAL: a row of
 * fresh is not ours, has a tag, or its time is not a positive number. -ENOTSUP: another operator's table, or
 * an untuned one. In all of these the table is as it was and nothing was written to ret. */
int mf_table_merge(struct mf_table *table, const struct mf_table *fresh,
                   const struct mf_merge_options *options, struct mf_merge_result *ret,
                   char why[MF_REASON_MAX]);
