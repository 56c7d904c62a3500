/* What the .c files of a table share. A table's texts and small arrays live in its arena, a list of chunks
 * that goes away with the table; nothing in it is freed before. */
#pragma once

#include "common/table/table.h"

#include <stdarg.h>

/* A row that is kept but not used: its cells by the header's columns, or none when it could not be split. */
struct mf_table_stray {
    size_t before; /* it stands in front of rows[before] */
    int64_t line;
    const char **cells; /* NULL: the line is not CSV */
    size_t n_cells;
};

/* calloc that the table owns; NULL when out of memory. */
void *mf_table_alloc(struct mf_table *t, size_t n, size_t size);
/* A copy that the table owns; NULL when out of memory. */
const char *mf_table_keep(struct mf_table *t, const char *text);
/* Appends a row whose texts the table owns already. *ret_earlier is the first row with its key and tag, NULL
 * for none; it is valid until the next row is added. */
int mf_table_push(struct mf_table *t, const struct mf_table_row *row,
                  const struct mf_table_row **ret_earlier);
int mf_table_push_stray(struct mf_table *t, const struct mf_table_stray *stray);

/* The first row of that key and tag; NULL: none. */
const struct mf_table_row *mf_table_find_same(const struct mf_table *t, const struct mf_table_row *key);
/* Adds a copy of a row of another table, the texts of its numbers and its cells of unknown columns included; in the place of
 * `old` where that is not NULL, a row of the same key and tag. -EINVAL: a text of it could not be written. */
int mf_table_take(struct mf_table *t, const struct mf_table *from, const struct mf_table_row *row,
                  const struct mf_table_row *old);

/* Takes out the rows i with drop[i]; the others and the strays keep their order. Pointers to rows are no longer valid. */
void mf_table_drop(struct mf_table *t, const bool *drop);

/* Counts a problem and, up to the ceiling, keeps it, at the end; its reason is what the format makes. -ENOMEM; -EFBIG: a
 * reason of more than twice MF_REASON_MAX. */
int mf_table_problem(struct mf_table *t, const struct mf_problem *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int mf_table_problemv(struct mf_table *t, const struct mf_problem *what, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
/* By line, those of a line in the order they were found. */
int mf_table_sort_problems(struct mf_table *t);

/* Tells of rows of one layer model that have one time for several token counts. */
int mf_table_check_copied(struct mf_table *t);

static inline bool mf_table_row_has_tag(const struct mf_table_row *row)
{
    return row->tag && *row->tag;
}

/* The numbers among the result columns whose text is remembered: reading "0.9%", "17.8008"; printing what
 * AITER's tuner prints. One pair of functions, so that an unchanged number is told from a changed one. */
#define MF_TABLE_NUMBER_MAX 48
bool mf_result_is_number(enum mf_result column);
/* Its value in the row; only for columns that are numbers. */
double mf_result_number(const struct mf_table_row *row, enum mf_result column);
void mf_result_set_number(struct mf_table_row *row, enum mf_result column, double value);
/* Finite, and of a size that prints. */
static inline bool mf_result_number_ok(double value)
{
    return value >= -1e15 && value <= 1e15;
}
/* -EINVAL, -ERANGE as mf_parse_double. */
int mf_result_parse_number(enum mf_result column, const char *text, double *ret);
void mf_result_print_number(enum mf_result column, double value, char buf[MF_TABLE_NUMBER_MAX]);

#define MF_TABLE_CELL_MAX 96
/* The text of a result cell as it is written: an unchanged number as it was read, NULL for no kernel. It is the row's, or
 * stands in scratch. */
const char *mf_table_result_text(const struct mf_table_row *row, enum mf_result c,
                                 char scratch[MF_TABLE_CELL_MAX]);
