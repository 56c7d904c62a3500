/* CSV and tables against any bytes: nothing crashes, every cell is within its limits, and a table that can be
 * written is read back as it was. */
#include "common/csv.h"
#include "common/table.h"
#include "common/table_check.h"
#include "common/table_diff.h"
#include "common/table_fix.h"
#include "common/table_merge.h"
#include "fuzz.h"

#include <stdio.h>
#include <string.h>

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static void read_rows(const char *text, size_t len)
{
    const struct mf_csv_limits limits = {.row_bytes = 200, .columns = 30, .rows = 50};
    struct mf_csv csv;
    int64_t line = 0;
    size_t rows = 0;
    mf_csv_init(&csv, text, len, &limits);
    for (int r; (r = mf_csv_next(&csv)) != 0;) {
        must(csv.line > line, "lines ascend");
        must(++rows <= limits.rows + 1, "the number of rows is bounded");
        must(r > 0 || csv.why, "a refusal has a reason");
        must(csv.n_cells <= limits.columns, "the number of cells is bounded");
        size_t bytes = 0;
        for (size_t i = 0; i < csv.n_cells; i++)
            bytes += strlen(csv.cells[i]);
        must(bytes <= limits.row_bytes, "the length of a row is bounded");
        line = csv.line;
    }
    mf_csv_release(&csv);
}

static struct mf_table *read_table(const char *text, size_t len)
{
    struct mf_table *t = NULL;
    char why[MF_REASON_MAX] = "";
    int r = mf_table_read("fuzz.csv", text, len, &t, why);
    must((r == 0) == (t != NULL), "a table is there when it was read");
    must(r == 0 || *why, "a refusal has a reason");
    return t;
}

static char *write_table(const struct mf_table *t)
{
    struct mf_buf out;
    char why[MF_REASON_MAX] = "";
    mf_buf_init(&out, 1 << 24);
    int r = mf_table_write(t, MF_TABLE_ALL, &out, why);
    char *text = r == 0 ? mf_buf_take(&out) : NULL;
    must(r == 0 || *why, "a refusal has a reason");
    mf_buf_release(&out);
    return text;
}

static void check_problems(const struct mf_table *t)
{
    for (size_t i = 0; i < t->n_problems; i++) {
        must(t->problems[i].line > 0 && *t->problems[i].reason, "a problem has a line and a reason");
        must(i == 0 || t->problems[i].line >= t->problems[i - 1].line, "problems are in the order of lines");
    }
}

static void check_again(const struct mf_table *t, const char *text)
{
    struct mf_table *again = read_table(text, strlen(text));
    must(again != NULL, "what was written is a table");
    must(again->n_rows >= t->n_rows, "no row gets lost");
    for (size_t i = 0; i < t->n_rows && t->n_strays == 0; i++)
        must(mf_table_key_equal(&t->rows[i], &again->rows[i]), "rows keep their place");
    char *twice = write_table(again);
    must(twice != NULL, "what was written can be written");
    must(t->n_strays > 0 || strcmp(text, twice) == 0, "writing again changes nothing");
    free(twice);
    mf_table_free(again);
}

static void count_fix(void *data, int64_t line, enum mf_problem_code code, const char *what)
{
    must(line > 0 && code < MF_PROBLEM_N_ && *what, "a repair has a line, a code and a sentence");
    ++*(size_t *)data;
}

/* A table does not differ from itself, and what was repaired once is whole. */
static void check_tools(struct mf_table *t)
{
    struct mf_diff d = MF_DIFF_INIT;
    char why[MF_REASON_MAX] = "";
    size_t n_told = 0, n = 0, n_rows = t->n_rows;
    must(mf_tables_check(&t, 1, &(struct mf_check_options){.err_ratio = 0.2}) == 0, "a table can be checked");
    check_problems(t);
    if (mf_table_diff(t, t, &d, why) == 0)
        must(d.n_items == 0 && d.n[MF_DIFFERENCE_SAME] == t->n_rows, "a table does not differ from itself");
    else
        must(*why, "a refusal has a reason");
    mf_diff_release(&d);
    must(mf_table_fix(t, count_fix, &n_told, &n) == 0 && n == n_told, "every repair is told");
    must(t->n_rows <= n_rows && (n > 0 || t->n_rows == n_rows), "rows that go are told of");
    if (n == 0)
        return;
    char *written = write_table(t);
    if (written)
        check_again(t, written);
    free(written);
}

/* Merging a table into itself: whatever it decides, it must not harm the table. */
static void check_merge(struct mf_table *t)
{
    struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    char why[MF_REASON_MAX] = "";
    size_t n = t->n_rows;
    if (mf_table_merge(t, t, &(struct mf_merge_options){.replace = true}, &result, why) == 0)
        must(t->n_rows == n && result.n_items == n, "a table holds all of its own rows");
    else
        must(*why, "a refusal has a reason");
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
