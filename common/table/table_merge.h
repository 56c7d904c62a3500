/* Merges rows into a table that also holds rows of other tools.
 *
 * A row is moefarm's if its provenance names moefarm. Two rows are comparable if their key (device class and
 * shape), provenance (method), model and routing are equal. For a new row of moefarm:
 *
 *   old row                                  result
 *   none with that key                       added at the end
 *   comparable, slower or without time       replaced in place
 *   comparable, as fast or faster            kept. Exception: a promoted row (provenance moefarm:promoted)
 *                                            with another pipeline replaces it. Promoted rows are comparable
 *                                            with rows of provenance moefarm:race
 *   other tool's, or not comparable          foreign: the old row stays; with `replace`: replaced
 *
 * With `accept_foreign`, rows of other tools are merged too, by key and tag, with all cells:
 *
 *   old row              result
 *   none with that key   added at the end
 *   other tool's         the lower time wins, as in AITER's merge of its files (ROCm/aiter, jit/core.py,
 *                        update_config_files); a row without time never wins
 *   moefarm's            foreign: the old row stays; with `replace`: replaced
 *
 * All other rows of the table, rows with a tag, strays and unknown columns stay unchanged and in place. */
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
    double old_us, new_us; /* in µs; old_us is 0 for an added row */
    char reason[MF_REASON_MAX];
};

struct mf_merge_result {
    struct mf_merge_item *items; /* one per new row, in order */
    size_t n_items;
    size_t n[MF_MERGED_N_];
};
#define MF_MERGE_RESULT_INIT ((struct mf_merge_result){0})
void mf_merge_result_release(struct mf_merge_result *r);

struct mf_merge_options {
    bool replace;                      /* replace foreign rows too */
    bool accept_foreign;               /* `fresh` may contain rows of other tools */
    const struct mf_table *const *set; /* other files that production loads together with the merged table */
    size_t n_set;
};

#define MF_PROVENANCE_RACE     "moefarm:race"
#define MF_PROVENANCE_PROMOTED "moefarm:promoted"

/* Merges the rows of fresh into table. options may be NULL. -EEXIST: a key occurs twice in the table, in
 * fresh or across the set; why names both lines. -EINVAL: a row of fresh is unreadable, is not moefarm's, has
 * a tag, or has no positive time. With accept_foreign, rows of other tools may have a tag or no time.
 * -ENOTSUP: a table belongs to another operator or is untuned. On these errors the table and *ret are
 * unchanged. */
int mf_table_merge(struct mf_table *table, const struct mf_table *fresh,
                   const struct mf_merge_options *options, struct mf_merge_result *ret,
                   char why[MF_REASON_MAX]);
