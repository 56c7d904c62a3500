/* State and helpers shared by the sources that read a table: column positions and problem reports. */
#pragma once

#include "common/table/csv.h"
#include "common/table/table_internal.h"

/* Columns of a newer AITER that are read. */
/* clang-format off */
#define MF_NEWER_MAP(X, P)                     \
    X(P, GATE_MODE, "gate_mode")               \
    X(P, SWIGLU_LIMIT, "swiglu_limit")         \
    X(P, BIAS, "bias")                         \
    X(P, Q_DTYPE_A2, "q_dtype_a2")             \
    X(P, Q_DTYPE_W2, "q_dtype_w2")             \
    X(P, Q_TYPE2, "q_type2")                   \
    X(P, HIDDEN_PAD, "hidden_pad")             \
    X(P, INTERMEDIATE_PAD, "intermediate_pad") \
    X(P, NT, "nt")
/* clang-format on */
MF_NAMES_DECLARE(mf_newer, MF_NEWER_, MF_NEWER_MAP);

struct mf_table_reader {
    struct mf_table *t;
    enum mf_table_part part;
    struct mf_csv csv;
    /* Column numbers in the file; -1 if the header lacks the column. */
    int gfx, cu_num, tag, shape[MF_SHAPE_N_COLUMNS], result[MF_RESULT_N_], own[MF_OWN_N_];
    int newer[MF_NEWER_N_];
    int *other; /* column numbers of t->other */
    char *why;  /* caller's buffer of MF_REASON_MAX bytes */
    /* For each shape column: line of the first flag that is spelled 1 or 0, and of the first flag with
     * another spelling; 0 if the column has no such flag. */
    int64_t plain_flag[MF_SHAPE_N_COLUMNS], other_flag[MF_SHAPE_N_COLUMNS];
    /* State of the current row. */
    bool shortened; /* fewer cells than the header */
    size_t row_errors;
    int r; /* first error while a problem was stored */
};

/* Reads the header row and sets the column numbers. Negative: the header is unusable; the reason is in
 * rd->why. */
int mf_table_read_header(struct mf_table_reader *rd);
/* Stores a problem of the current row. column must live as long as the table. -ENOMEM is stored in rd->r. */
void mf_table_report(struct mf_table_reader *rd, enum mf_severity severity, enum mf_problem_code code,
                     const char *column, const char *format, ...) __attribute__((format(printf, 5, 6)));

#define MF_EXCERPT_MAX 48
/* Formats a cell for a message: ASCII only, truncated. Returns buf. */
const char *mf_table_excerpt(const char *cell, char buf[MF_EXCERPT_MAX]);

#define MF_EXPECTED_MAX 512
/* Describes an invalid cell: "topk is 'abc'; write an integer from 1 to 127". Returns buf. */
const char *mf_table_expected(const char *column, const char *cell, const char *expected,
                              char buf[MF_EXPECTED_MAX]);

/* Reports an invalid cell (table_read.c). */
void mf_table_bad_cell(struct mf_table_reader *rd, enum mf_problem_code code, const char *column,
                       const char *cell, const char *expected);
/* Returns the cell of the current row in a column; "" if the header lacks the column or the row is too short.
 */
const char *mf_table_cell(const struct mf_table_reader *rd, int column);

/* ---- table_newer.c ---- */

/* Reads the columns of a newer AITER into the row's shape and variant. The shape's other columns are set. */
void mf_table_read_newer(struct mf_table_reader *rd, struct mf_table_row *row);

/* ---- table_column.c ---- */

/* Warns of unknown columns (t->other). */
void mf_table_check_columns(struct mf_table_reader *rd);
/* Returns the unknown column of the header whose name is most similar to the missing `column`, or NULL. */
const char *mf_table_similar_column(const struct mf_table_reader *rd, const char *column);
