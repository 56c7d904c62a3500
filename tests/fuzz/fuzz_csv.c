/* Fuzzes the CSV reader and table tools. No input may cause a crash, every cell stays within its limits, and
 * a table that can be written reads back unchanged. */
#include "common/table/csv.h"
#include "common/table/table.h"
#include "common/table/table_check.h"
#include "common/table/table_diff.h"
#include "common/table/table_fix.h"
#include "common/table/table_internal.h"
#include "common/table/table_merge.h"
#include "fuzz.h"

#include <math.h>
#include <string.h>

static void read_rows(const char *text, size_t len)
{
    const struct mf_csv_limits limits = {.row_bytes = 200, .columns = 30, .rows = 50};
    struct mf_csv csv;
    int64_t line = 0;
    size_t rows = 0;
    mf_csv_init(&csv, text, len, &limits);
    for (int r; (r = mf_csv_next(&csv)) != 0;) {
        MF_MUST(csv.line > line);
        MF_MUST(++rows <= limits.rows + 1);
        MF_MUST(r > 0 || csv.why);
        MF_MUST(csv.n_cells <= limits.columns);
        size_t bytes = 0;
        for (size_t i = 0; i < csv.n_cells; i++)
            bytes += strlen(csv.cells[i]);
        MF_MUST(bytes <= limits.row_bytes);
        line = csv.line;
    }
    mf_csv_release(&csv);
}

static struct mf_table *read_table(const char *text, size_t len)
{
    struct mf_table *t = NULL;
    char why[MF_REASON_MAX] = "";
    int r = mf_table_read("fuzz.csv", text, len, &t, why);
    MF_MUST((r == 0) == (t != NULL));
    MF_MUST(r == 0 || *why);
    return t;
}

static char *write_table(const struct mf_table *t)
{
    struct mf_buf out;
    char why[MF_REASON_MAX] = "";
    mf_buf_init(&out, 1 << 24);
    int r = mf_table_write(t, MF_TABLE_ALL, &out, why);
    char *text = r == 0 ? mf_buf_take(&out) : NULL;
    MF_MUST(r == 0 || *why);
    mf_buf_release(&out);
    return text;
}

static void check_problems(const struct mf_table *t)
{
    for (size_t i = 0; i < t->n_problems; i++) {
        MF_MUST(t->problems[i].line > 0 && *t->problems[i].reason);
        MF_MUST(i == 0 || t->problems[i].line >= t->problems[i - 1].line);
    }
}

/* A number of a row that is printed for a table reads back rounded. */
static void check_numbers(const struct mf_table_row *row)
{
    for (int column = 0; column < MF_RESULT_N_; column++) {
        char text[MF_TABLE_NUMBER_MAX];
        if (!mf_result_is_number((enum mf_result)column))
            continue;
        double value = mf_result_number(row, (enum mf_result)column), again;
        if (!mf_result_number_ok(value))
            continue;
        mf_result_print_number((enum mf_result)column, value, text);
        MF_MUST(mf_result_parse_number((enum mf_result)column, text, &again) == 0);
        MF_MUST(fabs(again - value) <= 0.0051 + 1e-12 * fabs(value));
    }
}

static void check_again(const struct mf_table *t, const char *text)
{
    struct mf_table *again = read_table(text, strlen(text));
    MF_MUST(again != NULL);
    MF_MUST(again->n_rows >= t->n_rows);
    for (size_t i = 0; i < t->n_rows && t->n_strays == 0; i++)
        MF_MUST(mf_table_key_equal(&t->rows[i], &again->rows[i]));
    char *twice = write_table(again);
    MF_MUST(twice != NULL);
    MF_MUST(t->n_strays > 0 || strcmp(text, twice) == 0);
    free(twice);
    mf_table_free(again);
}

static void count_fix(void *data, int64_t line, enum mf_problem_code code, const char *what)
{
    MF_MUST(line > 0 && code < MF_PROBLEM_N_ && *what);
    ++*(size_t *)data;
}

/* A table has no difference to itself, and a repaired table is complete. */
static void check_tools(struct mf_table *t)
{
    struct mf_diff d = MF_DIFF_INIT;
    char why[MF_REASON_MAX] = "";
    size_t n_reported = 0, n = 0, n_rows = t->n_rows;
    MF_MUST(mf_tables_check(&t, 1, &(struct mf_check_options){.err_ratio = 0.2}) == 0);
    check_problems(t);
    if (mf_table_diff(t, t, &d, why) == 0)
        MF_MUST(d.n_items == 0 && d.n[MF_DIFFERENCE_SAME] == t->n_rows);
    else
        MF_MUST(*why);
    mf_diff_release(&d);
    MF_MUST(mf_table_fix(t, count_fix, &n_reported, &n) == 0 && n == n_reported);
    MF_MUST(t->n_rows <= n_rows && (n > 0 || t->n_rows == n_rows));
    if (n == 0)
        return;
    char *written = write_table(t);
    if (written)
        check_again(t, written);
    free(written);
}

/* Merges a table into itself. The table must stay intact whether or not the merge succeeds. */
static void check_merge(struct mf_table *t)
{
    struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    char why[MF_REASON_MAX] = "";
    size_t n = t->n_rows;
    if (mf_table_merge(t, t, &(struct mf_merge_options){.replace = true}, &result, why) == 0)
        MF_MUST(t->n_rows == n && result.n_items == n);
    else
        MF_MUST(*why);
    mf_merge_result_release(&result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    read_rows(text, size);
    struct mf_table *t = read_table(text, size);
    if (!t)
        return 0;
    check_problems(t);
    for (size_t i = 0; i < t->n_rows; i++)
        check_numbers(&t->rows[i]);
    char *written = write_table(t);
    if (written)
        check_again(t, written);
    free(written);
    check_merge(t);
    mf_table_free(t);
    t = read_table(text, size);
    check_tools(t);
    mf_table_free(t);
    return 0;
}
