/* Shared code of the commands that merge tables: the table set and the report per row. */
#pragma once

#include "common/table/table_merge.h"

#define MF_MERGE_SET_MAX 64

/* The other tables that production reads together with the merged table. */
struct mf_merge_set {
    struct mf_table *tables[MF_MERGE_SET_MAX];
    size_t n;
};
/* Reads the comma-separated files of --set; list may be NULL. Prints its own error message and returns the
 * exit code, or 0. */
int mf_merge_set_read(const char *list, struct mf_merge_set *set);
void mf_merge_set_release(struct mf_merge_set *set);
/* Sets the options to use `set`, which must outlive the options. */
void mf_merge_set_use(const struct mf_merge_set *set, struct mf_merge_options *options);

/* Prints a line per row: the outcome, key, time and reason. */
void mf_merge_print(const struct mf_merge_result *result);
/* Prints the totals, such as "2 added, 1 replaced, 0 kept, 0 foreign". */
void mf_merge_print_sum(const struct mf_merge_result *result);
