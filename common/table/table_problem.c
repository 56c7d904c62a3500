/* Stores, counts and sorts the problems of a table. */
#include "common/base/array.h"
#include "common/table/table_internal.h"

#include <errno.h>
#include <stdlib.h>

static int store_problem(struct mf_table *t, const struct mf_problem *problem)
{
    size_t n = t->n_problems;
    int r = mf_array_grow(&t->problems, n, &t->problems_cap, sizeof(*t->problems));
    if (r < 0)
        return r;
    t->problems[n] = *problem;
    t->problems[n].reason = mf_table_keep(t, problem->reason);
    if (!t->problems[n].reason)
        return -ENOMEM;
    t->n_problems++;
    return 0;
}

int mf_table_problemv(struct mf_table *t, const struct mf_problem *what, const char *format, va_list args)
{
    if (what->severity == MF_ERROR)
        t->n_errors++;
    else
        t->n_warnings++;
    size_t *n_of = t->n_of[what->code];
    n_of[what->severity]++;
    if (n_of[MF_WARNING] + n_of[MF_ERROR] > MF_TABLE_PROBLEMS_MAX)
        return 0;
    _cleanup_(mf_buf_release) struct mf_buf text;
    mf_buf_init(&text, MF_REASON_MAX * 2);
    int r = mf_buf_addv(&text, format, args);
    if (r < 0)
        return r;
    struct mf_problem problem = *what;
    problem.reason = text.data;
    return store_problem(t, &problem);
}

int mf_table_problem(struct mf_table *t, const struct mf_problem *what, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int r = mf_table_problemv(t, what, format, args);
    va_end(args);
    return r;
}

struct numbered_problem {
    struct mf_problem problem;
    size_t number;
};

static int compare(const void *a, const void *b)
{
    const struct numbered_problem *x = a, *y = b;
    if (x->problem.line != y->problem.line)
        return x->problem.line < y->problem.line ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

int mf_table_sort_problems(struct mf_table *t)
{
    _cleanup_(mf_freep) struct numbered_problem *all = calloc(t->n_problems + 1, sizeof(*all));
    if (!all)
        return -ENOMEM;
    for (size_t i = 0; i < t->n_problems; i++)
        all[i] = (struct numbered_problem){t->problems[i], i};
    qsort(all, t->n_problems, sizeof(*all), compare);
    for (size_t i = 0; i < t->n_problems; i++)
        t->problems[i] = all[i].problem;
    return 0;
}
