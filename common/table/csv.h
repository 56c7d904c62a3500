/* The text level of CSV: rows of cells out of text in memory, and rows of cells into a buffer.
 *
 * Reading takes what AITER's files hold and what editors make of them: LF or CRLF, a last line without its
 * end, a UTF-8 byte order mark, spaces around cells (trimmed), RFC 4180 quotes (a quoted cell may hold
 * commas, line ends and doubled quotes, and is not trimmed). Rows whose every cell is empty are passed over.
 * Lines count from 1, and a row's line is the one it starts on.
 *
 * Writing never quotes: the readers of these tables split at commas. A cell that would need a quote is
 * refused.
 *
 * A bad row (a quote out of place, a NUL byte, a ceiling passed) costs that row only: the reader goes on
 * behind the line end. A reader belongs to one thread and does not own the text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"

struct mf_csv_limits {
    size_t row_bytes; /* of one row's cells */
    size_t columns;
    size_t rows; /* of the whole text, the header counted */
};

/* What a table of tuned rows may need, with room. */
#define MF_CSV_LIMITS_DEFAULT ((struct mf_csv_limits){.row_bytes = 65536, .columns = 256, .rows = 1000000})

struct mf_csv {
    char **cells; /* the current row: n_cells texts, valid until the next call */
    size_t n_cells;
    int64_t line;    /* where the current row starts */
    const char *why; /* after a negative return: the sentence (static text) */

    /* private */
    const char *text;
    size_t len, at;
    int64_t next_line;
    size_t n_rows, cells_cap, starts_cap;
    size_t *starts;
    struct mf_csv_limits limits;
    struct mf_buf row;
    bool ended;
};

/* text is kept by reference and need not be terminated. Allocates nothing. */
void mf_csv_init(struct mf_csv *csv, const char *text, size_t len, const struct mf_csv_limits *limits);
void mf_csv_release(struct mf_csv *csv);
/* 1: csv->cells holds the next row; 0: the end. -EBADMSG: this row is malformed, -E2BIG: it passes a ceiling
 * of its own; csv->line and csv->why say where and why, and the next call goes on behind it. -EFBIG: more
 * rows than the limits allow, and -ENOMEM: both end the reading. */
int mf_csv_next(struct mf_csv *csv);

/* Column of that name in a header's cells, -1 when it has none. Exact match. */
int mf_csv_column(char *const *header, size_t n, const char *name);

/* True when the cell can be written without quotes and is read back as it is: no comma, quote, line end or
 * other control character, no space at its ends. */
bool mf_csv_is_plain(const char *cell);
/* Appends one line of n cells (NULL is written as empty), ended by "\n". -EINVAL: a cell is not plain, and
 * nothing was appended. -ENOMEM, -EFBIG as the buffer says. */
int mf_csv_add_row(struct mf_buf *out, const char *const *cells, size_t n);
