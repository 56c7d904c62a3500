/* Types and functions shared by the sources of a table. Strings and small arrays of a table live in its
 * arena, a list of chunks that is freed with the table. */
#pragma once

#include "common/table/table.h"

#include <stdarg.h>

/* A row that is kept but not used. Its cells are in the order of the header. */
struct mf_table_stray {
    size_t before; /* the stray precedes rows[before] */
    int64_t line;
    const char **cells; /* NULL: the line is not CSV */
    size_t n_cells;
};

/* Allocates zeroed memory from the arena. NULL: out of memory. */
void *mf_table_alloc(struct mf_table *t, size_t n, size_t size);
/* Copies a string into the arena. NULL: out of memory. */
const char *mf_table_keep(struct mf_table *t, const char *text);
/* Appends a row whose strings the table already owns. *ret_earlier: first row with the same key and tag, or
 * NULL; valid until the next row is added. */
int mf_table_push(struct mf_table *t, const struct mf_table_row *row,
                  const struct mf_table_row **ret_earlier);
int mf_table_push_stray(struct mf_table *t, const struct mf_table_stray *stray);

/* Returns the first row with the key and tag, or NULL. */
const struct mf_table_row *mf_table_find_same(const struct mf_table *t, const struct mf_table_row *key);
/* Copies a row of another table, including the text of its numbers and the cells of unknown columns. If `old`
 * (a row with the same key and tag) is not NULL, the copy replaces `old`, otherwise it is appended. -EINVAL:
 * a string cannot be written. */
int mf_table_copy_row(struct mf_table *t, const struct mf_table *from, const struct mf_table_row *row,
                      const struct mf_table_row *old);

/* Removes each row i for which drop[i] is true. The other rows and the strays keep their order. Invalidates
 * pointers to rows. */
void mf_table_drop(struct mf_table *t, const bool *drop);

/* Counts a problem, and stores it unless the maximum number of stored problems is reached. The format and its
 * arguments give the reason. -ENOMEM; -EFBIG: the reason is longer than 2 * MF_REASON_MAX. */
int mf_table_problem(struct mf_table *t, const struct mf_problem *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int mf_table_problemv(struct mf_table *t, const struct mf_problem *what, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
/* Sorts the problems by line; the problems of one line keep their order. */
int mf_table_sort_problems(struct mf_table *t);

/* Reports rows of one layer model that have the same time for several token counts. */
int mf_table_check_copied(struct mf_table *t);

/* True for a column of a newer AITER that is part of the key. */
bool mf_newer_is_key(const char *column);

static inline bool mf_table_row_has_tag(const struct mf_table_row *row)
{
    return row->tag && *row->tag;
}

/* Result columns that are numbers. Parsing accepts "0.9%" and "17.8008"; printing follows AITER's tuner. The
 * text as read is kept to detect unchanged numbers. */
#define MF_TABLE_NUMBER_MAX 48
bool mf_result_is_number(enum mf_result column);
/* Returns the row's value in a number column. */
double mf_result_number(const struct mf_table_row *row, enum mf_result column);
void mf_result_set_number(struct mf_table_row *row, enum mf_result column, double value);
/* True if the value is finite and printable. */
static inline bool mf_result_number_ok(double value)
{
    return value >= -1e15 && value <= 1e15;
}
/* -EINVAL and -ERANGE as for mf_parse_double. */
int mf_result_parse_number(enum mf_result column, const char *text, double *ret);
void mf_result_print_number(enum mf_result column, double value, char buf[MF_TABLE_NUMBER_MAX]);

#define MF_TABLE_CELL_MAX 96
/* Returns the text to write for a result cell; NULL for a kernel cell without kernel. An unchanged number
 * keeps the text that was read. The text belongs to the row or is in scratch. */
const char *mf_table_result_text(const struct mf_table_row *row, enum mf_result c,
                                 char scratch[MF_TABLE_CELL_MAX]);
