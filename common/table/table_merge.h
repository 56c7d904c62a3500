/* Merging rows into a table that others use too: rows of ours, and where it is asked for rows of others.
 *
 * A row of the old table is ours when its provenance is moefarm's; it is comparable when, besides its key
 * (device class and shape), its provenance (method), model and routing equal those of the new row. Then:
 *
 *   old row                                 what becomes of the new one
 *   none of that key                        added, at the end
 *   comparable and slower (or without time) replaced, in its place
 *   comparable and as fast or faster        kept: the old row stays, unless the new one is of another pipeline that was promoted over
 *                                           the known row (provenance moefarm:promoted), which is as comparable as one of a race
 *   foreign: not ours, or not comparable    foreign: the old row stays; with replace: replaced
 *
 * With `theirs` rows that are not ours are merged too, by key and tag, whole as they stand in their file:
 *
 *   old row            what becomes of the new one
 *   none of that key   added, at the end
 *   not ours either    the lower time stays, as in AITER's own merge of its files (ROCm/aiter, jit/core.py,
 *                      update_config_files), which says no more of how times were measured; a row without a time never wins
 *   ours               foreign: the old row stays; with replace: replaced
 *
 * Rows of other keys, rows with a tag, strays and unknown columns stay as and where they were. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/base/names.h"
#include "common/table/table.h"

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
    bool theirs;                       /* fresh may hold rows that are not ours */
    const struct mf_table *const *set; /* the other files that production reads with this one */
    size_t n_set;
};

#define MF_PROVENANCE_RACE     "moefarm:race"
#define MF_PROVENANCE_PROMOTED "moefarm:promoted"

/* Merges the rows of fresh into table. options may be NULL.
 * -EEXIST: a key is twice in the table, in fresh, or across the set; why lists both places. -EINVAL: a row of
 * fresh cannot be used, is not ours, has a tag, or its time is not a positive number; with theirs the last three are about rows of
 * ours only. -ENOTSUP: another operator's table, or
 * an untuned one. In all of these the table is as it was and nothing was written to ret. */
int mf_table_merge(struct mf_table *table, const struct mf_table *fresh,
                   const struct mf_merge_options *options, struct mf_merge_result *ret,
                   char why[MF_REASON_MAX]);
