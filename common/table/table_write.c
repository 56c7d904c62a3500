/* Writes a table. Each output column knows how to get its text from a row and from a stray. */
#include "common/base/text.h"
#include "common/table/csv.h"
#include "common/table/table_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum source { GFX, CU_NUM, SHAPE, RESULT, TAG, OWN, OTHER };

struct out_column {
    enum source source;
    int index; /* index among the result, own or other columns */
    const char *name;
    int from; /* for strays: index of this column in the file that was read; -1: the file lacks the column */
};

#define SCRATCH_MAX MF_TABLE_CELL_MAX

struct writer {
    const struct mf_table *t;
    struct out_column *columns;
    size_t n;
    const char **cells;
    char (*scratch)[SCRATCH_MAX];
    char *why;
};

static void add_column(struct writer *w, enum source source, int index, const char *name)
{
    w->columns[w->n++] =
        (struct out_column){source, index, name, mf_csv_column(w->t->header, w->t->n_header, name)};
}

/* Columns that the rows need in addition to AITER's. */
struct content {
    bool class, tag;
    bool own[MF_OWN_N_];
};

/* True for columns of moefarm that are written only if a row has a value in them. The other columns of
 * moefarm are written together. */
static bool is_optional(enum mf_own i)
{
    return i == MF_OWN_FORM || i == MF_OWN_UNSTABLE;
}

static void mark_own(struct content *c, enum mf_own column)
{
    for (enum mf_own i = 0; i < MF_OWN_N_; i++)
        c->own[i] = c->own[i] || i == column || (!is_optional(i) && !is_optional(column));
}

static struct content content_of(const struct mf_table *t)
{
    struct content c = {.class = t->tuned};
    for (size_t n = 0; n < t->n_rows; n++) {
        const struct mf_table_row *row = &t->rows[n];
        c.class = c.class || row->class.cu_num > 0;
        c.tag = c.tag || mf_table_row_has_tag(row);
        for (enum mf_own i = 0; i < MF_OWN_N_; i++) {
            if (!c.own[i] && row->own[i] && *row->own[i])
                mark_own(&c, i);
        }
    }
    if (t->n_strays == 0)
        return c;
    /* A stray is not interpreted, so it keeps all columns of its file. */
    c.class = c.class || mf_csv_column(t->header, t->n_header, "cu_num") >= 0;
    c.tag = c.tag || mf_csv_column(t->header, t->n_header, "_tag") >= 0;
    for (enum mf_own i = 0; i < MF_OWN_N_; i++) {
        if (mf_csv_column(t->header, t->n_header, mf_own_name(i)) >= 0)
            mark_own(&c, i);
    }
    return c;
}

static void choose_columns(struct writer *w, enum mf_table_columns columns)
{
    const struct content has = content_of(w->t);
    if (w->t->tuned || (has.class && columns == MF_TABLE_ALL)) {
        add_column(w, GFX, 0, "gfx");
        add_column(w, CU_NUM, 0, "cu_num");
    }
    for (int i = 0; i < MF_SHAPE_N_COLUMNS; i++)
        add_column(w, SHAPE, i, mf_shape_columns[i]);
    for (enum mf_result i = 0; i < MF_RESULT_N_ && w->t->tuned; i++)
        add_column(w, RESULT, (int)i, mf_result_name(i));
    if (columns == MF_TABLE_AITER)
        return;
    if (has.tag)
        add_column(w, TAG, 0, "_tag");
    for (enum mf_own i = 0; i < MF_OWN_N_; i++) {
        if (has.own[i])
            add_column(w, OWN, (int)i, mf_own_name(i));
    }
    for (size_t i = 0; i < w->t->n_other; i++)
        add_column(w, OTHER, (int)i, w->t->other[i]);
}

static const char *number_text(const struct mf_table_row *row, enum mf_result c, char scratch[SCRATCH_MAX])
{
    double was, value = mf_result_number(row, c);
    const char *text = row->text[c];
    if (text && *text ? mf_result_parse_number(c, text, &was) == 0 && was == value : text && value == 0)
        return text;
    mf_result_print_number(c, value, scratch);
    return scratch;
}

static const char *int_text(int64_t value, char scratch[SCRATCH_MAX])
{
    mf_format(scratch, SCRATCH_MAX, "%" PRId64, value);
    return scratch;
}

const char *mf_table_result_text(const struct mf_table_row *row, enum mf_result c,
                                 char scratch[MF_TABLE_CELL_MAX])
{
    switch (c) {
    case MF_RESULT_BLOCK_M:
        return int_text(row->block_m, scratch);
    case MF_RESULT_KSPLIT:
        return int_text(row->ksplit, scratch);
    case MF_RESULT_RUN_1STAGE:
        return int_text(row->run_1stage, scratch);
    case MF_RESULT_XBF16:
        return int_text(row->xbf16, scratch);
    case MF_RESULT_FLAT:
        return int_text(row->flat, scratch);
    case MF_RESULT_KERNEL1:
        return row->kernel1;
    case MF_RESULT_KERNEL2:
        return row->kernel2;
    case MF_RESULT_US1:
    case MF_RESULT_ERR1:
    case MF_RESULT_US2:
    case MF_RESULT_ERR2:
    case MF_RESULT_US:
    case MF_RESULT_TFLOPS:
    case MF_RESULT_BW:
        return number_text(row, c, scratch);
    case MF_RESULT_N_:
        break;
    }
    return NULL;
}

static const char *row_text(const struct mf_table_row *row, const struct out_column *c,
                            char scratch[SCRATCH_MAX])
{
    switch (c->source) {
    case GFX:
        return row->class.gfx;
    case CU_NUM:
        return row->class.cu_num > 0 ? int_text(row->class.cu_num, scratch) : NULL;
    case SHAPE:
        (void)mf_shape_get(&row->shape, c->name, scratch, SCRATCH_MAX);
        return scratch;
    case RESULT:
        return mf_table_result_text(row, (enum mf_result)c->index, scratch);
    case TAG:
        return row->tag;
    case OWN:
        return row->own[c->index];
    case OTHER:
        return (size_t)c->index < row->n_other ? row->other[c->index] : NULL;
    }
    return NULL;
}

/* Returns a stray's value for a column that the stray's file lacks: gfx is inferred from cu_num, and result
 * columns are 0. */
static const char *stray_default(const struct writer *w, const struct mf_table_stray *stray,
                                 const struct out_column *c)
{
    int64_t cu;
    int from = mf_csv_column(w->t->header, w->t->n_header, "cu_num");
    if (c->source == RESULT)
        return "0";
    if (c->source != GFX || from < 0 || (size_t)from >= stray->n_cells ||
        mf_parse_i64(stray->cells[from], 1, INT32_MAX, &cu) < 0)
        return NULL;
    return mf_gfx_of_cu_num((int)cu);
}

static const char *stray_text(const struct writer *w, const struct mf_table_stray *stray,
                              const struct out_column *c)
{
    if (c->from < 0)
        return stray_default(w, stray, c);
    return (size_t)c->from < stray->n_cells ? stray->cells[c->from] : NULL;
}

static int put(struct writer *w, struct mf_buf *out, int64_t line)
{
    int r = mf_csv_add_row(out, w->cells, w->n);
    if (r != -EINVAL)
        return r;
    for (size_t i = 0; i < w->n; i++)
        if (w->cells[i] && !mf_csv_is_plain(w->cells[i]))
            mf_format(w->why, MF_REASON_MAX,
                      "%s, line %" PRId64
                      ": %s has a comma, a quote, a control character, or a leading or trailing space, which "
                      "tables cannot contain; remove it",
                      w->t->name, line, w->columns[i].name);
    return r;
}

static int put_stray(struct writer *w, struct mf_buf *out, const struct mf_table_stray *stray)
{
    bool surplus = !stray->cells;
    for (size_t i = w->t->n_header; i < stray->n_cells; i++)
        surplus = surplus || *stray->cells[i];
    if (surplus) {
        mf_format(
            w->why, MF_REASON_MAX,
            "%s, line %" PRId64 ": the row %s, so the file cannot be rewritten without losing it; repair the "
            "row or remove it",
            w->t->name, stray->line, stray->cells ? "has more cells than the header" : "cannot be read");
        return -EBADMSG;
    }
    for (size_t i = 0; i < w->n; i++)
        w->cells[i] = stray_text(w, stray, &w->columns[i]);
    return put(w, out, stray->line);
}

static int put_row(struct writer *w, struct mf_buf *out, const struct mf_table_row *row)
{
    for (size_t i = 0; i < w->n; i++)
        w->cells[i] = row_text(row, &w->columns[i], w->scratch[i]);
    return put(w, out, row->line);
}

static int put_all(struct writer *w, struct mf_buf *out, enum mf_table_columns columns)
{
    const struct mf_table *t = w->t;
    size_t stray = 0;
    for (size_t i = 0; i < w->n; i++)
        w->cells[i] = w->columns[i].name;
    int r = put(w, out, 1);
    for (size_t i = 0; i <= t->n_rows && r == 0; i++) {
        for (; columns == MF_TABLE_ALL && stray < t->n_strays && t->strays[stray].before == i && r == 0;
             stray++)
            r = put_stray(w, out, &t->strays[stray]);
        bool left_out = i == t->n_rows || (columns == MF_TABLE_AITER && mf_table_row_has_tag(&t->rows[i]));
        if (r == 0 && !left_out)
            r = put_row(w, out, &t->rows[i]);
    }
    return r;
}

int mf_table_write(const struct mf_table *t, enum mf_table_columns columns, struct mf_buf *out,
                   char why[MF_REASON_MAX])
{
    if (t->op != MF_TABLE_FMOE) {
        mf_format(why, MF_REASON_MAX, "%s is a table of another operator; only fmoe tables are written",
                  t->name);
        return -ENOTSUP;
    }
    const size_t cap = 2 + MF_SHAPE_N_COLUMNS + MF_RESULT_N_ + 1 + MF_OWN_N_ + t->n_other;
    _cleanup_(mf_freep) struct out_column *list = calloc(cap, sizeof(*list));
    _cleanup_(mf_freep) const char **cells = calloc(cap, sizeof(*cells));
    _cleanup_(mf_freep) char(*scratch)[SCRATCH_MAX] = calloc(cap, sizeof(*scratch));
    mf_format(why, MF_REASON_MAX, "out of memory");
    if (!list || !cells || !scratch)
        return -ENOMEM;
    struct writer w = {.t = t, .columns = list, .cells = cells, .scratch = scratch, .why = why};
    choose_columns(&w, columns);
    int r = put_all(&w, out, columns);
    if (r == -EFBIG)
        mf_format(why, MF_REASON_MAX, "%s is longer than the maximum size of a table", t->name);
    if (r == 0)
        why[0] = '\0';
    return r;
}
