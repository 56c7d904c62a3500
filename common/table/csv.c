#include "common/table/csv.h"
#include "common/base/array.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BOM "\xef\xbb\xbf"

void mf_csv_init(struct mf_csv *csv, const char *text, size_t len, const struct mf_csv_limits *limits)
{
    *csv = (struct mf_csv){.text = text, .len = len, .next_line = 1, .limits = *limits};
    if (len >= 3 && memcmp(text, BOM, 3) == 0)
        csv->at = 3;
    /* The buffer also contains one NUL per cell, which does not count towards the limit. */
    mf_buf_init(&csv->row, limits->row_bytes + limits->columns);
}

void mf_csv_release(struct mf_csv *csv)
{
    mf_buf_release(&csv->row);
    free(csv->cells);
    free(csv->starts);
    csv->cells = NULL;
    csv->starts = NULL;
}

static int refuse(struct mf_csv *csv, int r, const char *why)
{
    csv->why = why;
    return r;
}

static int too_long(struct mf_csv *csv)
{
    if (csv->row.error == -ENOMEM)
        return refuse(csv, -ENOMEM, "out of memory");
    return refuse(csv, -E2BIG, "the row exceeds the size limit");
}

static int begin_cell(struct mf_csv *csv)
{
    if (csv->n_cells == csv->limits.columns)
        return refuse(csv, -E2BIG, "the row has too many cells");
    if (mf_array_grow(&csv->cells, csv->n_cells, &csv->cells_cap, sizeof(*csv->cells)) < 0 ||
        mf_array_grow(&csv->starts, csv->n_cells, &csv->starts_cap, sizeof(*csv->starts)) < 0)
        return refuse(csv, -ENOMEM, "out of memory");
    csv->starts[csv->n_cells++] = csv->row.len;
    return 0;
}

static int add_span(struct mf_csv *csv, size_t from, size_t to)
{
    if (csv->row.len - csv->n_cells + 1 + (to - from) > csv->limits.row_bytes)
        return too_long(csv);
    return mf_buf_add(&csv->row, csv->text + from, to - from) < 0 ? too_long(csv) : 0;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

/* True at a line end or the end of the text. "\r\n" is one line end; a single "\r" is not a line end. */
static bool at_line_end(const struct mf_csv *csv)
{
    if (csv->at == csv->len || csv->text[csv->at] == '\n')
        return true;
    return csv->text[csv->at] == '\r' && csv->at + 1 < csv->len && csv->text[csv->at + 1] == '\n';
}

static int read_plain(struct mf_csv *csv)
{
    size_t from = csv->at;
    while (!at_line_end(csv) && csv->text[csv->at] != ',') {
        unsigned char c = (unsigned char)csv->text[csv->at];
        if (c == '"')
            return refuse(csv, -EBADMSG, "a quote is inside an unquoted cell");
        if (c == '\r' && csv->at + 1 == csv->len)
            break;
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return refuse(csv, -EBADMSG, "a cell contains a control character");
        csv->at++;
    }
    size_t to = csv->at;
    while (to > from && is_space(csv->text[to - 1]))
        to--;
    return add_span(csv, from, to);
}

/* Reads a quoted cell, starting at the opening quote. A doubled quote becomes one quote. */
static int read_quoted(struct mf_csv *csv)
{
    size_t from = ++csv->at;
    for (;; csv->at++) {
        if (csv->at == csv->len)
            return refuse(csv, -EBADMSG, "a quote is never closed");
        char c = csv->text[csv->at];
        if (c == '\0')
            return refuse(csv, -EBADMSG, "a cell contains a control character");
        if (csv->at - from > csv->limits.row_bytes)
            return too_long(csv);
        if (c != '"')
            continue;
        bool doubled = csv->at + 1 < csv->len && csv->text[csv->at + 1] == '"';
        int r = add_span(csv, from, csv->at + (doubled ? 1 : 0));
        if (r < 0)
            return r;
        csv->at++;
        if (!doubled)
            break;
        from = csv->at + 1;
    }
    while (csv->at < csv->len && is_space(csv->text[csv->at]))
        csv->at++;
    if (!at_line_end(csv) && csv->text[csv->at] != ',')
        return refuse(csv, -EBADMSG, "text follows a closing quote");
    return 0;
}

static int read_row(struct mf_csv *csv)
{
    for (;;) {
        int r = begin_cell(csv);
        if (r < 0)
            return r;
        while (csv->at < csv->len && is_space(csv->text[csv->at]))
            csv->at++;
        bool quoted = csv->at < csv->len && csv->text[csv->at] == '"';
        r = quoted ? read_quoted(csv) : read_plain(csv);
        if (r < 0)
            return r;
        if (mf_buf_add(&csv->row, "", 1) < 0)
            return too_long(csv);
        if (csv->at == csv->len || csv->text[csv->at] != ',')
            return 0;
        csv->at++;
    }
}

/* Moves to the line after the line that contains index `at`. */
static void skip_line(struct mf_csv *csv, size_t at)
{
    const char *end = memchr(csv->text + at, '\n', csv->len - at);
    csv->at = end ? (size_t)(end - csv->text) + 1 : csv->len;
}

static void count_lines(struct mf_csv *csv, size_t from)
{
    for (const char *p = csv->text + from, *end = csv->text + csv->at;
         (p = memchr(p, '\n', (size_t)(end - p))) != NULL; p++)
        csv->next_line++;
}

static bool is_blank(const struct mf_csv *csv)
{
    for (size_t i = 0; i < csv->n_cells; i++)
        if (*csv->cells[i])
            return false;
    return true;
}

static int next_row(struct mf_csv *csv)
{
    size_t from = csv->at;
    csv->line = csv->next_line;
    csv->n_cells = 0;
    csv->why = NULL;
    mf_buf_clear(&csv->row);
    int r = read_row(csv);
    /* Skip only the first line of a malformed row, because a stray quote must not swallow the rows after that
     * line. */
    skip_line(csv, r < 0 ? from : csv->at);
    count_lines(csv, from);
    if (r < 0) {
        csv->n_cells = 0;
        return r;
    }
    for (size_t i = 0; i < csv->n_cells; i++)
        csv->cells[i] = csv->row.data + csv->starts[i];
    return 0;
}

int mf_csv_next(struct mf_csv *csv)
{
    while (!csv->ended && csv->at < csv->len) {
        int r = next_row(csv);
        if (r == 0 && is_blank(csv))
            continue;
        if (r == -ENOMEM)
            csv->ended = true;
        if (csv->n_rows++ == csv->limits.rows) {
            csv->ended = true;
            csv->n_cells = 0;
            return refuse(csv, -EFBIG, "the table has too many rows");
        }
        return r < 0 ? r : 1;
    }
    csv->n_cells = 0;
    return 0;
}

int mf_csv_column(char *const *header, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(header[i], name) == 0)
            return (int)i;
    return -1;
}

bool mf_csv_is_plain(const char *cell)
{
    for (const unsigned char *p = (const unsigned char *)cell; *p; p++)
        if (*p < 0x20 || *p == 0x7f || *p == ',' || *p == '"')
            return false;
    size_t len = strlen(cell);
    return len == 0 || (cell[0] != ' ' && cell[len - 1] != ' ');
}

int mf_csv_add_row(struct mf_buf *out, const char *const *cells, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (cells[i] && !mf_csv_is_plain(cells[i]))
            return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            (void)mf_buf_add(out, ",", 1);
        (void)mf_buf_adds(out, cells[i] ? cells[i] : "");
    }
    (void)mf_buf_add(out, "\n", 1);
    return mf_buf_error(out);
}
