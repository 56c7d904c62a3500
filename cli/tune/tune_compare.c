/* Implements moefarm tune --compare: the baseline rows, and the decision between the new and the known row of
 * each shape. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/support/api.h"
#include "cli/support/shape_arg.h"
#include "cli/support/text_out.h"
#include "cli/tune/tune.h"
#include "common/base/json.h"

#define BASELINE_MAX  (16u << 20)
#define FOREIGN_LINES 20

/* ---- baseline ---- */

static int compare_lines(const void *a, const void *b)
{
    const struct mf_table_row *const *x = a, *const *y = b;

    return ((*x)->line > (*y)->line) - ((*x)->line < (*y)->line);
}

static int copy_line(const char **at, struct mf_buf *out)
{
    size_t len = strcspn(*at, "\n") + 1;
    int r = mf_buf_add(out, *at, len);

    *at += len;
    return r;
}

/* Writes the rows, sorted by line number, as a table. Each row keeps its line number; the other lines are
 * empty. */
static int write_rows(const struct mf_table_row *const *rows, size_t n, struct mf_buf *out)
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX] = "out of memory";
    int r = mf_table_new("baseline", true, &t);

    mf_buf_init(&text, BASELINE_MAX);
    for (size_t i = 0; i < n && r == 0; i++) {
        r = mf_table_add(t, rows[i]);
        if (r == -EINVAL)
            return mf_cli_fail(MF_EXIT_USAGE,
                               "-o: line %" PRId64 ": a cell has a comma, a quote or a line break; remove it",
                               rows[i]->line);
    }
    if (r == 0)
        r = mf_table_write(t, MF_TABLE_ALL, &text, why);
    const char *at = text.data;
    int64_t line = 2;
    if (r == 0)
        r = copy_line(&at, out);
    for (size_t i = 0; i < n && r == 0; i++, line++) {
        for (; r == 0 && line < rows[i]->line; line++)
            r = mf_buf_adds(out, "\n");
        if (r == 0)
            r = copy_line(&at, out);
    }
    return r < 0 ? mf_cli_fail(MF_EXIT_FAILED, "cannot write the baseline rows: %s", why) : 0;
}

int mf_tune_baseline(const struct mf_table *table, const struct mf_device_class *class,
                     const struct mf_shape *shapes, size_t n, struct mf_buf *out)
{
    _cleanup_(mf_freep) const struct mf_table_row **rows = calloc(n + 1, sizeof(*rows));
    size_t n_rows = 0;

    if (!rows)
        return mf_cli_out_of_memory();
    for (size_t i = 0; i < n; i++) {
        const struct mf_table_row *row = mf_table_find(table, class, &shapes[i]);
        if (row)
            rows[n_rows++] = row;
    }
    qsort(rows, n_rows, sizeof(*rows), compare_lines);
    return write_rows(rows, n_rows, out);
}

static void print_foreign_row(const char *name, const struct mf_table_row *row, struct mf_buf *out)
{
    char class[MF_DEVICE_CLASS_TEXT_MAX], brief[MF_SHAPE_BRIEF_MAX];

    mf_device_class_print(&row->class, class);
    mf_shape_brief(&row->shape, brief);
    (void)mf_buf_addf(out, "  %s:%" PRId64 ": %s  %s: %s\n", name, row->line, class, brief,
                      mf_table_no_kernel(row->kernel1) ? "no kernel" : row->kernel1);
}

void mf_tune_print_foreign(const struct mf_table *table, const struct mf_tune_list *lists, size_t n, bool all,
                           struct mf_buf *out)
{
    size_t n_foreign = 0, n_shapes = 0;

    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < lists[i].n; k++) {
            const struct mf_table_row *row = mf_table_find(table, &lists[i].class, &lists[i].shapes[k]);
            const char *pipeline = row ? row->own[MF_OWN_PIPELINE] : NULL;
            n_shapes++;
            if (row && !(pipeline && *pipeline) && (n_foreign++ < FOREIGN_LINES || all))
                print_foreign_row(table->name, row, out);
        }
    }
    if (n_foreign > FOREIGN_LINES && !all)
        (void)mf_buf_addf(out, "  … and %zu more; -v lists them all\n", n_foreign - FOREIGN_LINES);
    if (n_foreign > 0)
        (void)mf_buf_addf(
            out,
            "%zu of %zu shapes will not be tuned: the rows above have no pipeline (for example AITER's "
            "kernels), so nothing can be compared with them. They stay in the table; without --compare, "
            "--all replaces them\n",
            n_foreign, n_shapes);
}

/* ---- decisions ---- */

/* Prints "12.40 us", or "-" if not measured. */
static void print_us(double us, char buf[MF_US_MAX])
{
    if (us > 0)
        mf_us(us, buf);
    else
        buf[0] = '-', buf[1] = '\0';
}

static void print_decision(const cJSON *task, struct mf_buf *out)
{
    const cJSON *promotion = mf_json_object(task, "promotion");
    const cJSON *device = cJSON_GetArrayItem(mf_json_array(promotion, "devices"), 0);
    char brief[MF_SHAPE_BRIEF_MAX] = "", old[MF_US_MAX], new[MF_US_MAX];
    struct mf_shape shape;

    if (!promotion)
        return;
    if (mf_api_shape(mf_json_object(task, "shape"), &shape) == 0)
        mf_shape_brief(&shape, brief);
    print_us(mf_api_double(device, "old_us", 0), old);
    print_us(mf_api_double(device, "new_us", 0), new);
    (void)mf_buf_addf(out, "%s  %s  %s: old %s, new %s", mf_api_text(promotion, "decision", ""),
                      mf_api_text(task, "class", ""), brief, old, new);
    if (device)
        (void)mf_buf_addf(out, ", new/old - 1 in [%+.1f%%, %+.1f%%]", 100 * mf_api_double(device, "low", 0),
                          100 * mf_api_double(device, "high", 0));
    (void)mf_buf_addf(out, ": %s\n", mf_api_text(promotion, "reason", ""));
}

int mf_tune_compared(struct mf_cli *cli, const cJSON *tasks, struct mf_buf *out)
{
    const cJSON *item;

    cJSON_ArrayForEach (item, tasks) {
        _cleanup_(cJSON_Deletep) cJSON *task = NULL;
        char path[MF_API_PATH_MAX];
        mf_api_path(path, "/api/v1/tasks/{}", mf_api_i64(item, "id", 0));
        int code = mf_api_get(cli, path, &task);
        if (code != 0)
            return code;
        print_decision(task, out);
    }
    return 0;
}
