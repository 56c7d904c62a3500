/* What the commands that merge tables share: the other files of the set, and what is said of each row. */
#pragma once

#include "common/table/table_merge.h"

#define MF_MERGE_SET_MAX 64

/* The other files that production reads with a table. */
struct mf_merge_set {
    struct mf_table *tables[MF_MERGE_SET_MAX];
    size_t n;
};
/* Reads the files of a comma list, the value of --set; NULL is none. Gives the exit code, or 0. */
int mf_merge_set_read(const char *list, struct mf_merge_set *set);
void mf_merge_set_release(struct mf_merge_set *set);
/* The options refer to the set from then on. */
void mf_merge_set_use(const struct mf_merge_set *set, struct mf_merge_options *options);

/* One line a row: what became of it, its key, its time and why. */
void mf_merge_print(const struct mf_merge_result *result);
/* "2 added, 1 replaced, 0 kept, 0 foreign" */
void mf_merge_print_sum(const struct mf_merge_result *result);
