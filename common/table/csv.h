/* CSV reader and writer: splits text in memory into rows of cells, and appends rows to a buffer.
 *
 * The reader accepts AITER's files and files saved by editors: LF or CRLF, a last line without line end, a
 * UTF-8 byte order mark, spaces around cells (trimmed) and RFC 4180 quotes. A quoted cell may contain commas,
 * line ends and doubled quotes; it is not trimmed. Rows of only empty cells are skipped. Lines count from 1.
 * The line of a row is the line on which it starts.
 *
 * The writer never quotes, because the readers of these tables split at commas. It rejects cells that need
 * quotes.
 *
 * A malformed row (misplaced quote, NUL byte, limit exceeded) does not stop the reader: it continues after
 * the end of that line. A reader is for one thread and does not own the text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"

struct mf_csv_limits {
    size_t row_bytes; /* maximum number of bytes in all cells of one row */
    size_t columns;
    size_t rows; /* maximum number of rows, including the header */
};

/* Limits for a table of tuned rows, larger than any table needs. */
#define MF_CSV_LIMITS_DEFAULT ((struct mf_csv_limits){.row_bytes = 65536, .columns = 256, .rows = 1000000})

struct mf_csv {
    char **cells; /* cells of the current row: n_cells strings, valid until the next call */
    size_t n_cells;
    int64_t line;    /* line on which the current row starts */
    const char *why; /* reason for a negative return value (static text) */

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

/* Starts reading `text`, which need not be NUL-terminated. Keeps a reference to the text. Allocates no
 * memory. */
void mf_csv_init(struct mf_csv *csv, const char *text, size_t len, const struct mf_csv_limits *limits);
void mf_csv_release(struct mf_csv *csv);
/* Returns 1 if csv->cells contains the next row, 0 at the end. -EBADMSG: the row is malformed; -E2BIG: the
 * row exceeds a limit. In both cases csv->line and csv->why describe the error, and the next call continues
 * with the next row. -EFBIG (too many rows) and -ENOMEM end the reading. */
int mf_csv_next(struct mf_csv *csv);

/* Returns the index of the column with exactly this name, or -1. */
int mf_csv_column(char *const *header, size_t n, const char *name);

/* True if the cell can be written without quotes and read back unchanged: no comma, quote, line end or other
 * control character, no leading or trailing space. */
bool mf_csv_is_plain(const char *cell);
/* Appends one row of n cells and "\n"; a NULL cell is written as empty. -EINVAL: a cell needs quotes; nothing
 * was appended. -ENOMEM and -EFBIG as for mf_buf. */
int mf_csv_add_row(struct mf_buf *out, const char *const *cells, size_t n);
