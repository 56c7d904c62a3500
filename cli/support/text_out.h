/* Formats text output: bars, durations and aligned columns. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"

/* Draws a bar of `width` columns, filled to fraction (clamped to 0 … 1). The bar consists of eighth blocks if
 * utf8, otherwise it looks like "####----". */
void mf_bar(struct mf_buf *out, double fraction, int width, bool utf8);
/* Draws only the filled part of the bar, padded with spaces to `width` columns. */
void mf_bar_plain(struct mf_buf *out, double fraction, int width, bool utf8);

#define MF_DURATION_MAX 32
/* Prints a duration, such as "42 s", "3:05 min" or "2:10 h". */
void mf_duration(double seconds, char buf[MF_DURATION_MAX]);
#define MF_US_MAX 32
/* Prints a time in microseconds with three or four significant digits, such as "7.31 us", "812.4 us" or
 * "12.40 ms". */
void mf_us(double us, char buf[MF_US_MAX]);

/* A table printed with aligned columns. A column whose cells all look like numbers is right-aligned. Cells
 * are copied; the buffer keeps any error. */
struct mf_columns {
    struct mf_buf cells; /* NUL-terminated cells, row by row */
    size_t n_columns, n_cells;
};
void mf_columns_init(struct mf_columns *c, size_t n_columns);
void mf_columns_release(struct mf_columns *c);
void mf_columns_add(struct mf_columns *c, const char *cell);
void mf_columns_addf(struct mf_columns *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* These functions add a cell: "-" for an empty text, an id of 0 or a missing time. */
void mf_columns_add_text(struct mf_columns *c, const char *text);
void mf_columns_add_id(struct mf_columns *c, int64_t id);
void mf_columns_add_us(struct mf_columns *c, double us);
/* The first row is the header. */
void mf_columns_print(const struct mf_columns *c, struct mf_buf *out);

/* Returns the number of terminal columns of a text. Each UTF-8 sequence counts as one column. */
size_t mf_text_width(const char *text);
