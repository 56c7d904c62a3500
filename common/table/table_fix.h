/* Repairs problems of a table that need no decision and lose no row:
 *
 *   spelling, mixed   values are written in canonical form
 *   ragged            missing or surplus empty cells: each row is written with as many cells as the header
 *   missing           gfx is inferred from cu_num
 *   duplicate         a row that equals an earlier row in every cell is removed; other duplicates stay
 *
 * All other problems (times, names, holes, unreadable rows) are left unchanged. */
#pragma once

#include "common/table/table.h"

/* Called for each repair, with the line as read and a description that is valid during the call. */
typedef void (*mf_fix_callback)(void *data, int64_t line, enum mf_problem_code code, const char *what);

/* Repairs the table in memory; the caller writes it. Reports each repair in the order of lines, except
 * repairs of problems that are counted but not stored. *ret_n: number of repairs; if 0, the table need not be
 * written. Tables of other operators are not repaired. -ENOMEM. */
int mf_table_fix(struct mf_table *t, mf_fix_callback report, void *data, size_t *ret_n);
