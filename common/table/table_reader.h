/* What the .c files that read a table share: where the columns are, and how problems are told. */
#pragma once

#include "common/table/csv.h"
#include "common/table/table_internal.h"

struct mf_table_reader {
    struct mf_table *t;
    enum mf_table_part part;
    struct mf_csv csv;
    /* Column numbers in the file; -1 when the header has none of that name. */
    int gfx, cu_num, tag, shape[MF_SHAPE_N_COLUMNS], result[MF_RESULT_N_], own[MF_OWN_N_];
    int *other; /* t->n_other of them */
    char *why;  /* the caller's, of MF_REASON_MAX */
    /* By shape column: lines of the first flag that is spelled 1 or 0, and of the first that is spelled otherwise; 0: none */
    int64_t plain_flag[MF_SHAPE_N_COLUMNS], other_flag[MF_SHAPE_N_COLUMNS];
    /* Of the current row */
    bool shortened; /* it has fewer cells than the header */
    size_t row_errors;
    int r; /* the first failure to remember something */
};

/* Reads the first row and sets where the columns are. Negative: the header is unusable, and rd->why says so. */
int mf_table_read_header(struct mf_table_reader *rd);
/* Remembers a problem of the current row. column lives as long as the table. Out of memory goes to rd->r. */
void mf_table_report(struct mf_table_reader *rd, enum mf_severity severity, enum mf_problem_code code,
                     const char *column, const char *format, ...) __attribute__((format(printf, 5, 6)));

#define MF_EXCERPT_MAX 48
/* A cell as it can stand in a sentence, in ASCII and cut. Returns buf. */
const char *mf_table_excerpt(const char *cell, char buf[MF_EXCERPT_MAX]);

#define MF_EXPECTED_MAX 512
/* What is wrong with a value that is not what its column wants: "topk is 'abc'; write an integer from 1 to 127". Returns buf. */
const char *mf_table_expected(const char *column, const char *cell, const char *expected,
                              char buf[MF_EXPECTED_MAX]);

/* ---- table_column.c ---- */

/* Warns of the columns that nobody knows, those of t->other. */
void mf_table_tell_columns(struct mf_table_reader *rd);
/* The column of the header that is probably meant to be this one, which the header lacks; NULL: none. */
const char *mf_table_column_meant(const struct mf_table_reader *rd, const char *column);
