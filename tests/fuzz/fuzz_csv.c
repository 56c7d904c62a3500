/* CSV and tables against any bytes: nothing crashes, every cell is within its limits, and a table that can be
 * written is read back as it was. */
#include "common/csv.h"
#include "common/table.h"
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
    return 0;
}
