#include "common/table/table_fix.h"

#include "common/base/text.h"
#include "common/table/table_diff.h"
#include "common/table/table_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static const struct mf_table_row *row_at(const struct mf_table *t, int64_t line)
{
    size_t low = 0, high = t->n_rows;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (t->rows[middle].line < line)
            low = middle + 1;
        else
            high = middle;
    }
    return low < t->n_rows && t->rows[low].line == line ? &t->rows[low] : NULL;
}

/* Returns an earlier row with the same key and equal values, or NULL. */
static const struct mf_table_row *exact_duplicate_of(const struct mf_table *t, const struct mf_table_row *row)
{
    const struct mf_table_row *first = mf_table_find_same(t, row);
    return first && first != row && mf_diff_same_values(t, first, row) ? first : NULL;
}

/* A problem to repair. Each fix_* function writes a description of the repair to `what`, or returns false if
 * no repair is possible. */
struct subject {
    const struct mf_table *t;
    const struct mf_problem *problem;
    const struct mf_table_row *row;
};

static bool fix_spelling(const struct subject *s, char what[MF_REASON_MAX])
{
    char cell[64] = "";
    (void)mf_shape_get(&s->row->shape, s->problem->column, cell, sizeof(cell));
    mf_format(what, MF_REASON_MAX, "%s is written '%s'", s->problem->column, cell);
    return true;
}

static bool fix_mixed(const struct subject *s, char what[MF_REASON_MAX])
{
    mf_format(what, MF_REASON_MAX, "%s is written 1 or 0 in every row", s->problem->column);
    return true;
}

static bool fix_ragged(const struct subject *s, char what[MF_REASON_MAX])
{
    (void)s;
    mf_format(what, MF_REASON_MAX,
              "the row now has as many cells as the header; added or removed cells are empty");
    return true;
}

static bool fix_missing(const struct subject *s, char what[MF_REASON_MAX])
{
    mf_format(what, MF_REASON_MAX, "gfx is written '%s', which has %d compute units", s->row->class.gfx,
              s->row->class.cu_num);
    return true;
}

static bool fix_duplicate(const struct subject *s, char what[MF_REASON_MAX])
{
    const struct mf_table_row *earlier = exact_duplicate_of(s->t, s->row);
    if (earlier)
        mf_format(what, MF_REASON_MAX, "the row is removed: line %" PRId64 " has the same values",
                  earlier->line);
    return earlier != NULL;
}

/* clang-format off */
static const struct {
    enum mf_problem_code code;
    bool (*fix)(const struct subject *s, char what[MF_REASON_MAX]);
} repairs[] = {
    {MF_PROBLEM_SPELLING,  fix_spelling},
    {MF_PROBLEM_MIXED,     fix_mixed},
    {MF_PROBLEM_RAGGED,    fix_ragged},
    {MF_PROBLEM_MISSING,   fix_missing},
    {MF_PROBLEM_DUPLICATE, fix_duplicate},
};
/* clang-format on */

static bool repair(const struct mf_table *t, const struct mf_problem *p, char what[MF_REASON_MAX])
{
    const struct subject s = {t, p, row_at(t, p->line)};
    for (size_t i = 0; i < MF_ARRAY_LEN(repairs) && s.row && p->severity == MF_WARNING; i++)
        if (repairs[i].code == p->code)
            return repairs[i].fix(&s, what);
    return false;
}

/* Removes all exact duplicates, including those whose problem is counted but not stored. */
static int drop_exact_duplicates(struct mf_table *t)
{
    _cleanup_(mf_freep) bool *drop = calloc(t->n_rows + 1, sizeof(*drop));
    if (!drop)
        return -ENOMEM;
    for (size_t i = 0; i < t->n_rows; i++)
        drop[i] = exact_duplicate_of(t, &t->rows[i]) != NULL;
    mf_table_drop(t, drop);
    return 0;
}

/* Returns how many repaired problems are not in the list of stored problems. All warnings with the codes
 * below are repaired, so the totals of these codes give the number. */
static size_t count_unlisted(const struct mf_table *t)
{
    static const enum mf_problem_code whole[] = {MF_PROBLEM_SPELLING, MF_PROBLEM_RAGGED, MF_PROBLEM_MISSING};
    size_t n = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(whole); i++) {
        const size_t *n_of = t->n_of[whole[i]];
        if (n_of[MF_WARNING] + n_of[MF_ERROR] > MF_TABLE_PROBLEMS_MAX)
            n += n_of[MF_WARNING];
    }
    for (size_t i = 0; i < t->n_problems && n > 0; i++)
        for (size_t k = 0; k < MF_ARRAY_LEN(whole); k++)
            n -= t->problems[i].code == whole[k] && t->problems[i].severity == MF_WARNING &&
                 t->n_of[whole[k]][MF_WARNING] + t->n_of[whole[k]][MF_ERROR] > MF_TABLE_PROBLEMS_MAX;
    return n;
}

int mf_table_fix(struct mf_table *t, mf_fix_callback report, void *data, size_t *ret_n)
{
    size_t n = t->op == MF_TABLE_FMOE ? count_unlisted(t) : 0;
    for (size_t i = 0; i < t->n_problems && t->op == MF_TABLE_FMOE; i++) {
        const struct mf_problem *p = &t->problems[i];
        char what[MF_REASON_MAX];
        if (!repair(t, p, what))
            continue;
        report(data, p->line, p->code, what);
        n++;
    }
    int r = n > 0 ? drop_exact_duplicates(t) : 0;
    if (r == 0)
        *ret_n = n;
    return r;
}
