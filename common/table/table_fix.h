/* What can be repaired in a table without anybody's decision, and without losing a row:
 *
 *   spelling, mixed   written canonically, as every table is
 *   ragged            the cells that a row lacks, or has too many of, are empty: written as many as the header has
 *   missing           gfx follows from cu_num
 *   duplicate         a row that says the same as an earlier one, in every cell, goes; one that differs stays, for who deploys
 *                     the table to choose
 *
 * Everything else (times, names, holes, rows that cannot be read) is left as it is. */
#pragma once

#include "common/table/table.h"

/* One repair: the line that it is about, as it was read, and a sentence; the texts live for the call. */
typedef void (*mf_fix_told)(void *data, int64_t line, enum mf_problem_code code, const char *what);

/* Repairs the table, so that writing it is the repair; each is told in the order of lines, but for those of problems that are
 * counted and not kept. *ret_n is how many there are: with 0 there is no need to write. A table of another operator has none. -ENOMEM. */
int mf_table_fix(struct mf_table *t, mf_fix_told tell, void *data, size_t *ret_n);
