/* Finds rows with the same time for several token counts. At most one of these rows was measured. */
#include "common/table/table_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int compare_number(double a, double b)
{
    return a < b ? -1 : a > b;
}

/* Compares device class, layer model and time. */
static int compare_time(const struct mf_table_row *a, const struct mf_table_row *b)
{
    struct mf_shape x = a->shape, y = b->shape;
    int r = strcmp(a->class.gfx, b->class.gfx);
    if (r == 0)
        r = compare_number(a->class.cu_num, b->class.cu_num);
    x.token = y.token = 0;
    if (r == 0)
        r = mf_shape_compare(&x, &y);
    return r != 0 ? r : compare_number(a->us, b->us);
}

static int compare(const void *a, const void *b)
{
    const struct mf_table_row *x = *(const struct mf_table_row *const *)a,
                              *y = *(const struct mf_table_row *const *)b;
    int r = compare_time(x, y);
    return r != 0 ? r : compare_number((double)(x - y), 0);
}

/* Returns how many equal times are needed to report them as copied. A row with a sample count was measured:
 * because of the timer's resolution, two measured times of a ladder can be equal by chance, but three cannot.
 * Times of other rows have seven digits, so two equal times are enough. */
static size_t min_copies(const struct mf_table_row *row)
{
    return row->own[MF_OWN_N] && *row->own[MF_OWN_N] ? 3 : 2;
}

static size_t count_tokens(const struct mf_table_row *const *rows, size_t n)
{
    size_t n_tokens = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < i && rows[k]->shape.token != rows[i]->shape.token)
            k++;
        n_tokens += k == i;
    }
    return n_tokens;
}

/* Reports n rows with the same time. */
static int report(struct mf_table *t, const struct mf_table_row *const *rows, size_t n)
{
    /* A ladder has a few dozen token counts; above 64 the exact number is irrelevant. */
    size_t n_tokens = count_tokens(rows, MF_MIN(n, (size_t)64));
    for (size_t i = 0; i < n && n_tokens > 1; i++) {
        if (n_tokens < min_copies(rows[i]))
            continue;
        const struct mf_problem what = {MF_WARNING, MF_PROBLEM_COPIED_TIME, rows[i]->line, "us", NULL};
        int r = mf_table_problem(t, &what,
                                 "us is %.10g for %zu token counts of this layer (lines %" PRId64
                                 " to %" PRId64 "): at most one was measured; tune these shapes again",
                                 rows[i]->us, n_tokens, rows[0]->line, rows[n - 1]->line);
        if (r < 0)
            return r;
    }
    return 0;
}

int mf_table_check_copied(struct mf_table *t)
{
    if (!t->tuned || t->op != MF_TABLE_FMOE)
        return 0;
    _cleanup_(mf_freep) const struct mf_table_row **rows = calloc(t->n_rows + 1, sizeof(*rows));
    if (!rows)
        return -ENOMEM;
    for (size_t i = 0; i < t->n_rows; i++)
        rows[i] = &t->rows[i];
    qsort(rows, t->n_rows, sizeof(*rows), compare);
    int r = 0;
    for (size_t i = 0, n; i < t->n_rows && r == 0; i += n) {
        n = 1;
        while (i + n < t->n_rows && compare_time(rows[i], rows[i + n]) == 0)
            n++;
        if (rows[i]->us > 0)
            r = report(t, rows + i, n);
    }
    return r;
}
