#include "cli/support/text_out.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

#define COLUMNS_MAX 24
#define TEXT_MAX    (16u << 20)

static void add_bar(struct mf_buf *out, double fraction, int width, bool utf8, const char *empty)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int filled, part;

    if (!(fraction > 0))
        fraction = 0;
    if (fraction > 1)
        fraction = 1;
    part = utf8 ? (int)floor(fraction * width * 8 + 0.5) : 8 * (int)floor(fraction * width + 0.5);
    filled = part / 8;
    part %= 8;
    for (int i = 0; i < filled; i++)
        (void)mf_buf_adds(out, utf8 ? "█" : "#");
    if (part > 0)
        (void)mf_buf_adds(out, eighths[part]);
    for (int i = filled + (part > 0); i < width; i++)
        (void)mf_buf_adds(out, empty);
}

void mf_bar(struct mf_buf *out, double fraction, int width, bool utf8)
{
    add_bar(out, fraction, width, utf8, utf8 ? "·" : "-");
}

void mf_bar_plain(struct mf_buf *out, double fraction, int width, bool utf8)
{
    add_bar(out, fraction, width, utf8, " ");
}

void mf_duration(double seconds, char buf[MF_DURATION_MAX])
{
    long s = seconds > 0 ? lround(fmin(seconds, 1e9)) : 0;

    if (s < 100)
        mf_format(buf, MF_DURATION_MAX, "%ld s", s);
    else if (s < 6000)
        mf_format(buf, MF_DURATION_MAX, "%ld:%02ld min", s / 60, s % 60);
    else
        mf_format(buf, MF_DURATION_MAX, "%ld:%02ld h", s / 3600, s / 60 % 60);
}

void mf_us(double us, char buf[MF_US_MAX])
{
    if (!isfinite(us))
        mf_format(buf, MF_US_MAX, "-");
    else if (us < 100)
        mf_format(buf, MF_US_MAX, "%.2f us", us);
    else if (us < 1000)
        mf_format(buf, MF_US_MAX, "%.1f us", us);
    else if (us < 10000)
        mf_format(buf, MF_US_MAX, "%.0f us", us);
    else
        mf_format(buf, MF_US_MAX, "%.2f ms", us / 1000);
}

void mf_columns_init(struct mf_columns *c, size_t n_columns)
{
    *c = (struct mf_columns){.n_columns = MF_MIN(n_columns, (size_t)COLUMNS_MAX)};
    mf_buf_init(&c->cells, TEXT_MAX);
}

void mf_columns_release(struct mf_columns *c)
{
    mf_buf_release(&c->cells);
}

void mf_columns_add(struct mf_columns *c, const char *cell)
{
    if (mf_buf_add(&c->cells, cell, strlen(cell) + 1) == 0)
        c->n_cells++;
}

void mf_columns_addf(struct mf_columns *c, const char *format, ...)
{
    char cell[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(cell, sizeof(cell), format, args);
    va_end(args);
    mf_columns_add(c, cell);
}

void mf_columns_add_text(struct mf_columns *c, const char *text)
{
    mf_columns_add(c, *text ? text : "-");
}

void mf_columns_add_id(struct mf_columns *c, int64_t id)
{
    if (id != 0)
        mf_columns_addf(c, "%" PRId64, id);
    else
        mf_columns_add(c, "-");
}

void mf_columns_add_us(struct mf_columns *c, double us)
{
    if (us > 0)
        mf_columns_addf(c, "%.2f", us);
    else
        mf_columns_add(c, "-");
}

size_t mf_text_width(const char *text)
{
    size_t n = 0;

    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static bool looks_numeric(const char *cell)
{
    return !*cell || strchr("0123456789-", *cell) != NULL;
}

void mf_columns_print(const struct mf_columns *c, struct mf_buf *out)
{
    size_t width[COLUMNS_MAX] = {0}, i = 0;
    bool right[COLUMNS_MAX];
    const char *cell;

    for (size_t k = 0; k < c->n_columns; k++)
        right[k] = c->n_cells > c->n_columns;
    for (cell = c->cells.data, i = 0; i < c->n_cells; i++, cell += strlen(cell) + 1) {
        size_t k = i % c->n_columns;

        width[k] = MF_MAX(width[k], mf_text_width(cell));
        if (i >= c->n_columns && !looks_numeric(cell))
            right[k] = false;
    }
    for (cell = c->cells.data, i = 0; i < c->n_cells; i++, cell += strlen(cell) + 1) {
        size_t k = i % c->n_columns;
        size_t pad = width[k] - mf_text_width(cell);

        if (k > 0)
            (void)mf_buf_adds(out, "  ");
        if (right[k])
            (void)mf_buf_addf(out, "%*s", (int)pad, "");
        (void)mf_buf_adds(out, cell);
        if (!right[k] && k + 1 < c->n_columns)
            (void)mf_buf_addf(out, "%*s", (int)pad, "");
        if (k + 1 == c->n_columns)
            (void)mf_buf_adds(out, "\n");
    }
}
