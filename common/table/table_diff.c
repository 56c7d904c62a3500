#include "common/table/table_diff.h"

#include "common/base/text.h"
#include "common/moe/pipeline_text.h"
#include "common/table/table_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

MF_NAMES_DEFINE(mf_difference, MF_DIFFERENCE_, MF_DIFFERENCE_MAP)

void mf_diff_release(struct mf_diff *d)
{
    free(d->items);
    *d = MF_DIFF_INIT;
}

/* -------------------------------------------------------------------------------------------- matching */

static int compare_key(const struct mf_table_row *a, const struct mf_table_row *b)
{
    int r = strcmp(a->class.gfx, b->class.gfx);
    if (r == 0)
        r = (a->class.cu_num > b->class.cu_num) - (a->class.cu_num < b->class.cu_num);
    return r != 0 ? r : mf_shape_compare(&a->shape, &b->shape);
}

static const char *tag_of(const struct mf_table_row *row)
{
    return row->tag ? row->tag : "";
}

static int compare_rows(const void *a, const void *b)
{
    const struct mf_table_row *x = *(const struct mf_table_row *const *)a,
                              *y = *(const struct mf_table_row *const *)b;
    int r = compare_key(x, y);
    if (r == 0)
        r = strcmp(tag_of(x), tag_of(y));
    return r != 0 ? r : (x > y) - (x < y); /* rows of one table are ordered by position */
}

static const struct mf_table_row **sorted(const struct mf_table *t)
{
    const struct mf_table_row **rows = calloc(t->n_rows + 1, sizeof(*rows));
    for (size_t i = 0; rows && i < t->n_rows; i++)
        rows[i] = &t->rows[i];
    if (rows)
        qsort(rows, t->n_rows, sizeof(*rows), compare_rows);
    return rows;
}

/* The rows of both tables with the same key. */
struct group {
    const struct mf_table_row **a, **b;
    size_t n_a, n_b;
};

static size_t count_key(const struct mf_table_row **rows, size_t n, const struct mf_table_row *key)
{
    size_t count = 0;
    while (count < n && compare_key(rows[count], key) == 0)
        count++;
    return count;
}

/* Pairs the old and new rows of one key: first rows with the same tag, then the remaining rows in order. The
 * latter pairs are rows whose tag changed. Sets the entries of paired rows in b to NULL. `partner` is indexed
 * by the row number in `before`. */
static void pair_group(const struct mf_table *before, struct group *g, const struct mf_table_row **partner)
{
    for (int by_tag = 1; by_tag >= 0; by_tag--) {
        for (size_t i = 0; i < g->n_a; i++) {
            const struct mf_table_row **at = &partner[g->a[i] - before->rows];
            for (size_t k = 0; k < g->n_b && !*at; k++) {
                if (!g->b[k] || (by_tag && strcmp(tag_of(g->a[i]), tag_of(g->b[k])) != 0))
                    continue;
                *at = g->b[k];
                g->b[k] = NULL;
            }
        }
    }
}

/* Pairs all rows of two tables. Sets partner[i] to the new row for old row i. If old row i has no new row,
 * partner[i] stays NULL. New rows without an old row stay in b. */
static void pair_all(const struct mf_table *before, const struct mf_table_row **a, size_t n_a,
                     const struct mf_table_row **b, size_t n_b, const struct mf_table_row **partner)
{
    for (size_t i = 0, k = 0; i < n_a && k < n_b;) {
        int r = compare_key(a[i], b[k]);
        if (r != 0) {
            i += r < 0;
            k += r > 0;
            continue;
        }
        struct group g = {a + i, b + k, count_key(a + i, n_a - i, a[i]), count_key(b + k, n_b - k, a[i])};
        i += g.n_a;
        k += g.n_b;
        pair_group(before, &g, partner);
    }
}

/* ------------------------------------------------------------------------------------------- comparing */

/* Stops the iteration at the first differing cell. */
static int stop(void *data, const char *column, const char *before, const char *after)
{
    (void)data, (void)column, (void)before, (void)after;
    return -ECANCELED;
}

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

static bool same_result(const struct mf_table_row *a, const struct mf_table_row *b, enum mf_result c,
                        const char *text_a, const char *text_b)
{
    if (mf_result_is_number(c))
        return mf_result_number(a, c) == mf_result_number(b, c);
    if (c == MF_RESULT_KERNEL1 || c == MF_RESULT_KERNEL2)
        return (mf_table_no_kernel(text_a) && mf_table_no_kernel(text_b)) ||
               strcmp(or_empty(text_a), or_empty(text_b)) == 0;
    return strcmp(or_empty(text_a), or_empty(text_b)) == 0;
}

/* Order of reported columns, most important first. */
static const enum mf_result result_order[] = {
    MF_RESULT_US,         MF_RESULT_KERNEL1, MF_RESULT_KERNEL2, MF_RESULT_BLOCK_M, MF_RESULT_KSPLIT,
    MF_RESULT_RUN_1STAGE, MF_RESULT_XBF16,   MF_RESULT_FLAT,    MF_RESULT_US1,     MF_RESULT_US2,
    MF_RESULT_ERR1,       MF_RESULT_ERR2,    MF_RESULT_TFLOPS,  MF_RESULT_BW,
};
_Static_assert(sizeof(result_order) / sizeof(result_order[0]) == MF_RESULT_N_, "a result column is missing");

static int walk_results(const struct mf_diff_item *item, mf_diff_cell report, void *data)
{
    char was[MF_TABLE_CELL_MAX], is[MF_TABLE_CELL_MAX];
    for (size_t i = 0; i < MF_ARRAY_LEN(result_order); i++) {
        enum mf_result c = result_order[i];
        const char *a = mf_table_result_text(item->before, c, was),
                   *b = mf_table_result_text(item->after, c, is);
        int r = same_result(item->before, item->after, c, a, b)
                    ? 0
                    : report(data, mf_result_name(c), or_empty(a), or_empty(b));
        if (r < 0)
            return r;
    }
    return 0;
}

static const char *other_of(const struct mf_table *t, const struct mf_table_row *row, const char *name)
{
    for (size_t i = 0; i < t->n_other && i < row->n_other; i++)
        if (strcmp(t->other[i], name) == 0)
            return row->other[i];
    return NULL;
}

static int report_text(mf_diff_cell report, void *data, const char *column, const char *a, const char *b)
{
    return strcmp(or_empty(a), or_empty(b)) == 0 ? 0 : report(data, column, or_empty(a), or_empty(b));
}

/* True if the cells of moefarm's column i are equal in value. Forms are always equal here, because the form
 * is part of the key and the rows were matched by key. */
static bool same_own(enum mf_own i, const char *a, const char *b)
{
    return i == MF_OWN_FORM || (i == MF_OWN_PIPELINE && mf_pipeline_text_equal(or_empty(a), or_empty(b)));
}

static int walk_others(const struct mf_diff *d, const struct mf_diff_item *item, mf_diff_cell report,
                       void *data)
{
    int r = report_text(report, data, "_tag", item->before->tag, item->after->tag);
    for (enum mf_own i = 0; i < MF_OWN_N_ && r >= 0; i++)
        if (!same_own(i, item->before->own[i], item->after->own[i]))
            r = report_text(report, data, mf_own_name(i), item->before->own[i], item->after->own[i]);
    for (size_t i = 0; i < d->before->n_other && r >= 0; i++) {
        const char *name = d->before->other[i];
        r = report_text(report, data, name, other_of(d->before, item->before, name),
                        other_of(d->after, item->after, name));
    }
    for (size_t i = 0; i < d->after->n_other && r >= 0; i++) {
        const char *name = d->after->other[i];
        if (!other_of(d->before, item->before, name))
            r = report_text(report, data, name, NULL, other_of(d->after, item->after, name));
    }
    return r;
}

static int walk_values(const struct mf_diff *d, const struct mf_diff_item *item, mf_diff_cell report,
                       void *data)
{
    int r = walk_results(item, report, data);
    return r < 0 ? r : walk_others(d, item, report, data);
}

/* Reports differently spelled cells of rows with equal values. */
static int walk_spellings(const struct mf_diff_item *item, mf_diff_cell report, void *data)
{
    static const char *const texts[] = {"canonical", "another spelling"};
    int r = 0;
    for (int i = 0; i < MF_SHAPE_N_COLUMNS && r >= 0; i++) {
        bool a = item->before->misspelled >> i & 1, b = item->after->misspelled >> i & 1;
        if (a != b)
            r = report(data, mf_shape_columns[i], texts[a], texts[b]);
    }
    for (enum mf_result c = 0; c < MF_RESULT_N_ && r >= 0; c++) {
        const char *a = item->before->text[c], *b = item->after->text[c];
        if (mf_result_is_number(c) && a && b)
            r = report_text(report, data, mf_result_name(c), a, b);
    }
    if (r >= 0)
        r = report_text(report, data, mf_result_name(MF_RESULT_KERNEL2), item->before->kernel2,
                        item->after->kernel2);
    if (r >= 0)
        r = report_text(report, data, mf_own_name(MF_OWN_PIPELINE), item->before->own[MF_OWN_PIPELINE],
                        item->after->own[MF_OWN_PIPELINE]);
    return r;
}

static enum mf_difference compare(const struct mf_diff *d, const struct mf_diff_item *item)
{
    if (!item->before || !item->after)
        return item->before ? MF_DIFFERENCE_REMOVED : MF_DIFFERENCE_ADDED;
    if (d->before->tuned && walk_values(d, item, stop, NULL) < 0)
        return MF_DIFFERENCE_CHANGED;
    return walk_spellings(item, stop, NULL) < 0 ? MF_DIFFERENCE_RESPELLED : MF_DIFFERENCE_SAME;
}

bool mf_diff_same_values(const struct mf_table *t, const struct mf_table_row *a, const struct mf_table_row *b)
{
    const struct mf_diff d = {.before = t, .after = t};
    return walk_values(&d, &(struct mf_diff_item){.before = a, .after = b}, stop, NULL) == 0;
}

int mf_diff_cells(const struct mf_diff *d, const struct mf_diff_item *item, mf_diff_cell report, void *data)
{
    if (item->what == MF_DIFFERENCE_CHANGED)
        return walk_values(d, item, report, data);
    return item->what == MF_DIFFERENCE_RESPELLED ? walk_spellings(item, report, data) : 0;
}

/* ---------------------------------------------------------------------------------------- entry points */

static int check_tables(const struct mf_table *before, const struct mf_table *after, char why[MF_REASON_MAX])
{
    const struct mf_table *const tables[] = {before, after};
    for (size_t i = 0; i < MF_ARRAY_LEN(tables); i++) {
        if (tables[i]->op == MF_TABLE_FMOE)
            continue;
        mf_format(why, MF_REASON_MAX, "%s is a table of another operator: its keys have more columns",
                  tables[i]->name);
        return -ENOTSUP;
    }
    if (before->tuned == after->tuned)
        return 0;
    mf_format(why, MF_REASON_MAX, "%s is a tuned table and %s is not; compare two tables of the same kind",
              before->tuned ? before->name : after->name, before->tuned ? after->name : before->name);
    return -ENOTSUP;
}

static void add_item(struct mf_diff *d, const struct mf_table_row *before, const struct mf_table_row *after)
{
    struct mf_diff_item item = {.before = before, .after = after};
    item.what = compare(d, &item);
    d->n[item.what]++;
    if (item.what == MF_DIFFERENCE_CHANGED) {
        d->n_faster += after->us < before->us;
        d->n_slower += after->us > before->us;
    }
    if (item.what != MF_DIFFERENCE_SAME)
        d->items[d->n_items++] = item;
}

static int compare_places(const void *a, const void *b)
{
    const struct mf_table_row *x = *(const struct mf_table_row *const *)a,
                              *y = *(const struct mf_table_row *const *)b;
    return (x > y) - (x < y);
}

int mf_table_diff(const struct mf_table *before, const struct mf_table *after, struct mf_diff *ret,
                  char why[MF_REASON_MAX])
{
    int r = check_tables(before, after, why);
    if (r < 0)
        return r;
    mf_format(why, MF_REASON_MAX, "out of memory");
    _cleanup_(mf_diff_release) struct mf_diff d = {.before = before, .after = after};
    _cleanup_(mf_freep) const struct mf_table_row **a = sorted(before), **b = sorted(after);
    _cleanup_(mf_freep) const struct mf_table_row **partner = calloc(before->n_rows + 1, sizeof(*partner));
    d.items = calloc(before->n_rows + after->n_rows + 1, sizeof(*d.items));
    if (!a || !b || !partner || !d.items)
        return -ENOMEM;
    pair_all(before, a, before->n_rows, b, after->n_rows, partner);
    for (size_t i = 0; i < before->n_rows; i++)
        add_item(&d, &before->rows[i], partner[i]);
    size_t n_left = 0;
    for (size_t i = 0; i < after->n_rows; i++)
        if (b[i])
            b[n_left++] = b[i];
    qsort(b, n_left, sizeof(*b), compare_places);
    for (size_t i = 0; i < n_left; i++)
        add_item(&d, NULL, b[i]);
    why[0] = '\0';
    *ret = d;
    d = MF_DIFF_INIT;
    return 0;
}
