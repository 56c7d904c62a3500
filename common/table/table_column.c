/* Reports unknown columns and compares their names with the known ones, to find misspelt columns. */
#include "common/base/text.h"
#include "common/table/table_reader.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#define UNKNOWN_MAX 16 /* maximum number of individual reports per table */

static const char *const others[] = {"gfx", "cu_num", "_tag"};

/* Returns known column i, or NULL after the last. Includes the columns of tuned tables, because untuned
 * tables are often made from tuned ones. */
static const char *known_column(size_t i)
{
    if (i < MF_SHAPE_N_COLUMNS)
        return mf_shape_columns[i];
    i -= MF_SHAPE_N_COLUMNS;
    if (i < MF_OWN_N_)
        return mf_own_name((enum mf_own)i);
    i -= MF_OWN_N_;
    if (i < MF_RESULT_N_)
        return mf_result_name((enum mf_result)i);
    i -= MF_RESULT_N_;
    return i < MF_ARRAY_LEN(others) ? others[i] : NULL;
}

static bool is_known(const char *name)
{
    size_t i = 0;
    while (known_column(i) && strcmp(known_column(i), name) != 0)
        i++;
    return known_column(i) != NULL;
}

/* Returns the maximum edit distance to a column name: 2, or less for names of up to three letters. */
static size_t max_distance(const char *column)
{
    return MF_MIN(strlen(column) / 2, (size_t)2);
}

/* Returns the most similar known column, or NULL. */
static const char *nearest_known(const char *name)
{
    const char *best = NULL, *column;
    size_t least = SIZE_MAX;
    for (size_t i = 0; (column = known_column(i)); i++) {
        size_t d = mf_edit_distance(name, strlen(name), column, strlen(column));
        if (d <= max_distance(column) && d < least) {
            least = d;
            best = column;
        }
    }
    return best;
}

const char *mf_table_similar_column(const struct mf_table_reader *rd, const char *column)
{
    const char *best = NULL;
    size_t least = max_distance(column) + 1;
    for (size_t i = 0; i < rd->t->n_header; i++) {
        const char *name = rd->t->header[i];
        size_t d = mf_edit_distance(name, strlen(name), column, strlen(column));
        if (d < least && *name && !is_known(name)) {
            least = d;
            best = name;
        }
    }
    return best;
}

/* True if `near` is the column `form` and the header lacks it. Without this column the rows may have the
 * wrong shape. The header cannot lack one of the twelve shape columns here, because such a header is
 * rejected. */
static bool is_missing_form(const struct mf_table *t, const char *near)
{
    return near && strcmp(near, MF_SHAPE_FORM) == 0 && mf_csv_column(t->header, t->n_header, near) < 0;
}

static void report_column(struct mf_table_reader *rd, const char *name, size_t *n_unknown)
{
    struct mf_table *t = rd->t;
    char buf[MF_EXCERPT_MAX];
    const char *near = nearest_known(name), *shown = mf_table_keep(t, mf_table_excerpt(name, buf));
    enum mf_newer newer;
    if (!shown)
        rd->r = -ENOMEM;
    else if (mf_newer_parse(name, &newer) == 0)
        mf_table_report(rd, MF_WARNING, MF_PROBLEM_UNKNOWN_COLUMN, shown,
                        "column '%s' is newer than AITER e4048607, which ignores it; moefarm %s", shown,
                        mf_newer_is_key(name) ? "reads it as part of the key" : "keeps it with its row");
    else if (is_missing_form(t, near))
        mf_table_report(rd, MF_WARNING, MF_PROBLEM_MISSPELT_COLUMN, shown,
                        "unknown column '%s', and the table has no %s: rename it to %s if that is meant, or "
                        "remove it; its cells are not read, so the rows may have the wrong shape",
                        shown, near, near);
    else if (++*n_unknown <= UNKNOWN_MAX)
        mf_table_report(rd, MF_WARNING, MF_PROBLEM_UNKNOWN_COLUMN, shown,
                        "unknown column '%s' is not read%s%s; further properties of "
                        "a shape belong in column " MF_SHAPE_FORM,
                        shown, near ? "; the most similar known column is " : "", near ? near : "");
}

void mf_table_check_columns(struct mf_table_reader *rd)
{
    size_t n_unknown = 0;
    for (size_t i = 0; i < rd->t->n_other && rd->t->op == MF_TABLE_FMOE; i++)
        if (!is_known(rd->t->other[i]))
            report_column(rd, rd->t->other[i], &n_unknown);
    if (n_unknown > UNKNOWN_MAX)
        mf_table_report(rd, MF_WARNING, MF_PROBLEM_UNKNOWN_COLUMN, "",
                        "%zu more unknown columns are not read", n_unknown - UNKNOWN_MAX);
}
