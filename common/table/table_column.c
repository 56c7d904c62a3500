/* Columns that nobody knows: told, and held against the names of those that are known. A misspelt column is passed over like any
 * other, and what it says is lost. */
#include "common/base/text.h"
#include "common/table/table_reader.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#define UNKNOWN_MAX 16 /* told one by one; the names come from strangers */

static const char *const others[] = {"gfx", "cu_num", "_tag"};

/* The known columns, of tuned tables too: AITER writes them, and people tune what is left of such a table. NULL behind the last. */
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

/* Two edits, one in a name of three letters: to the name of one letter nothing is near. */
static size_t reach(const char *column)
{
    return MF_MIN(strlen(column) / 2, (size_t)2);
}

/* The known column that a name is near to; NULL: none. */
static const char *nearest_known(const char *name)
{
    const char *best = NULL, *column;
    size_t least = SIZE_MAX;
    for (size_t i = 0; (column = known_column(i)); i++) {
        size_t d = mf_edit_distance(name, strlen(name), column, strlen(column));
        if (d <= reach(column) && d < least) {
            least = d;
            best = column;
        }
    }
    return best;
}

const char *mf_table_column_meant(const struct mf_table_reader *rd, const char *column)
{
    const char *best = NULL;
    size_t least = reach(column) + 1;
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

/* Is the column that a name is near to one that makes other shapes, and not there? Of the twelve none is missing: such a header
 * is not read. */
static bool is_lost(const struct mf_table *t, const char *near)
{
    return near && strcmp(near, MF_SHAPE_FORM) == 0 && mf_csv_column(t->header, t->n_header, near) < 0;
}

static void tell(struct mf_table_reader *rd, const char *name, size_t *n_unknown)
{
    struct mf_table *t = rd->t;
    char buf[MF_EXCERPT_MAX];
    const char *near = nearest_known(name), *shown = mf_table_keep(t, mf_table_excerpt(name, buf));
    if (!shown)
        rd->r = -ENOMEM;
    else if (is_lost(t, near))
        mf_table_report(rd, MF_WARNING, MF_PROBLEM_MISSPELT_COLUMN, shown,
                        "there is no column '%s', and the table has no %s: call it %s if that is meant, or "
                        "remove it; what it says is not read, and the rows may be other shapes than is meant",
                        shown, near, near);
    else if (++*n_unknown <= UNKNOWN_MAX)
        mf_table_report(
            rd, MF_WARNING, MF_PROBLEM_UNKNOWN_COLUMN, shown,
            "there is no column '%s', it is passed over%s%s; what the twelve columns cannot say of "
            "a shape is said in " MF_SHAPE_FORM,
            shown, near ? "; the nearest is " : "", near ? near : "");
}

void mf_table_tell_columns(struct mf_table_reader *rd)
{
    size_t n_unknown = 0;
    for (size_t i = 0; i < rd->t->n_other && rd->t->op == MF_TABLE_FMOE; i++)
        if (!is_known(rd->t->other[i]))
            tell(rd, rd->t->other[i], &n_unknown);
    if (n_unknown > UNKNOWN_MAX)
        mf_table_report(rd, MF_WARNING, MF_PROBLEM_UNKNOWN_COLUMN, "",
                        "%zu more columns that there are not are passed over", n_unknown - UNKNOWN_MAX);
}
