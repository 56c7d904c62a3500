/* moefarm csv diff: compares two tables row by row. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands/csv.h"
#include "cli/support/api.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/table_diff.h"

/* Exit codes as diff(1): 0 without differences, 1 with differences, 2 on errors. */
enum { DIFF_NONE = MF_EXIT_OK, DIFF_SOME = MF_EXIT_FAILED, DIFF_TROUBLE = MF_EXIT_USAGE };

static void key_of(const struct mf_diff_item *item, char key[MF_TABLE_KEY_MAX])
{
    const struct mf_table_row *row = item->before ? item->before : item->after;

    if (row->class.cu_num > 0)
        mf_table_key(row, key);
    else
        mf_shape_print(&row->shape, key);
}

/* ---- text output ---- */

struct cells {
    const struct mf_diff_item *item;
    size_t n;
};

#define SHOWN_MAX 160
/* Returns a cell in printable form: ASCII, truncated. */
static const char *printable(const char *text, char buf[SHOWN_MAX])
{
    if (!*text)
        return "(none)";
    mf_format(buf, SHOWN_MAX, "%.*s", SHOWN_MAX - 1, text);
    for (char *p = buf; *p; p++)
        if (*p < ' ' || *p > '~')
            *p = '?';
    return buf;
}

static int print_cell(void *data, const char *column, const char *before, const char *after)
{
    struct cells *c = data;
    char from[SHOWN_MAX], to[SHOWN_MAX];
    double was = c->item->before->us, is = c->item->after->us;

    printf("%s %s %s -> %s", c->n++ > 0 ? "," : ":", column, printable(before, from), printable(after, to));
    if (strcmp(column, "us") == 0 && was > 0 && is != was)
        printf(" (%+.1f%%)", 100 * (is - was) / was);
    return 0;
}

static void print_item(const struct mf_diff *d, const struct mf_diff_item *item)
{
    struct cells c = {.item = item};
    char key[MF_TABLE_KEY_MAX];

    key_of(item, key);
    printf("%-9s  %s", mf_difference_name(item->what), key);
    if (item->before && item->after)
        (void)mf_diff_cells(d, item, print_cell, &c);
    else if (d->before->tuned && (item->before ? item->before : item->after)->us > 0)
        printf(": %.10g us", (item->before ? item->before : item->after)->us);
    printf("\n");
}

static void print_strays(const struct mf_table *t)
{
    if (t->n_strays > 0)
        printf("%s: %zu unreadable row%s not compared; moefarm csv check prints the reasons\n", t->name,
               t->n_strays, t->n_strays == 1 ? "" : "s");
}

static void print_diff(const struct mf_diff *d, bool summary)
{
    for (size_t i = 0; i < d->n_items && !summary; i++)
        print_item(d, &d->items[i]);
    for (enum mf_difference what = 0; what < MF_DIFFERENCE_N_; what++)
        printf("%s%zu %s", what > 0 ? ", " : "", d->n[what], mf_difference_name(what));
    if (d->n[MF_DIFFERENCE_CHANGED] > 0)
        printf("; of the changed rows, %zu faster and %zu slower", d->n_faster, d->n_slower);
    printf("\n");
    print_strays(d->before);
    print_strays(d->after);
}

/* ---- JSON output ---- */

static int add_cell(void *data, const char *column, const char *before, const char *after)
{
    cJSON *o = cJSON_CreateObject();

    cJSON_AddStringToObject(o, "column", column);
    cJSON_AddStringToObject(o, "old", before);
    cJSON_AddStringToObject(o, "new", after);
    cJSON_AddItemToArray(data, o);
    return 0;
}

static void add_place(cJSON *o, const char *line, const char *us, const struct mf_table_row *row, bool tuned)
{
    if (!row) {
        cJSON_AddNullToObject(o, line);
        cJSON_AddNullToObject(o, us);
        return;
    }
    (void)mf_json_add_i64(o, line, row->line);
    (void)(tuned ? cJSON_AddNumberToObject(o, us, row->us) : cJSON_AddNullToObject(o, us));
}

static cJSON *json_of(const struct mf_diff *d, const struct mf_diff_item *item)
{
    cJSON *o = cJSON_CreateObject();
    char key[MF_TABLE_KEY_MAX];

    key_of(item, key);
    cJSON_AddStringToObject(o, "what", mf_difference_name(item->what));
    cJSON_AddStringToObject(o, "key", key);
    add_place(o, "old_line", "old_us", item->before, d->before->tuned);
    add_place(o, "new_line", "new_us", item->after, d->after->tuned);
    if (item->before && item->after)
        (void)mf_diff_cells(d, item, add_cell, cJSON_AddArrayToObject(o, "cells"));
    return o;
}

static int print_json(const struct mf_diff *d, bool summary)
{
    _cleanup_(cJSON_Deletep) cJSON *all = cJSON_CreateObject();
    cJSON *items;

    for (enum mf_difference what = 0; what < MF_DIFFERENCE_N_; what++)
        (void)mf_json_add_i64(all, mf_difference_name(what), (int64_t)d->n[what]);
    (void)mf_json_add_i64(all, "faster", (int64_t)d->n_faster);
    (void)mf_json_add_i64(all, "slower", (int64_t)d->n_slower);
    (void)mf_json_add_i64(all, "unread", (int64_t)(d->before->n_strays + d->after->n_strays));
    items = summary ? NULL : cJSON_AddArrayToObject(all, "items");
    for (size_t i = 0; i < d->n_items && !summary; i++)
        cJSON_AddItemToArray(items, json_of(d, &d->items[i]));
    return mf_api_print(all);
}

/* ---- the command ---- */

static int diff(const struct mf_cli *cli, const struct mf_table *before, const struct mf_table *after,
                bool summary)
{
    _cleanup_(mf_diff_release) struct mf_diff d = MF_DIFF_INIT;
    char why[MF_REASON_MAX] = "";

    if (mf_table_diff(before, after, &d, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "csv diff: %s", why);
    if (cli->json && print_json(&d, summary) != 0)
        return DIFF_TROUBLE;
    if (!cli->json)
        print_diff(&d, summary);
    /* Rows that could not be read may differ, so the tables cannot count as equal. */
    if (before->n_strays + after->n_strays > 0)
        return DIFF_TROUBLE;
    return d.n_items > 0 ? DIFF_SOME : DIFF_NONE;
}

int mf_cmd_csv_diff(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const char *format = NULL;
    bool summary = false;
    const struct mf_opt opts[] = {
        {.name = "summary",
         .type = MF_OPT_BOOL,
         .value = &summary,
         .help = "print only the number of rows per kind of difference"},
        MF_CSV_FORMAT_OPTION(format),
    };
    _cleanup_(mf_csv_files_release) struct mf_csv_files files = {0};
    int rest, r;

    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 2, 2, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    r = mf_csv_files_read_tables(argv + rest, 2, format, &files);
    if (r != 0)
        return r;
    if (!files.triton[0] != !files.triton[1])
        return mf_cli_fail(MF_EXIT_USAGE,
                           "csv diff: %s is a CSV table, %s is a configuration file; compare "
                           "files of one format",
                           argv[rest + (files.triton[0] != NULL)], argv[rest + (files.triton[0] == NULL)]);
    return files.triton[0] ? mf_csv_diff_triton(cli, &files, summary)
                           : diff(cli, files.tables[0], files.tables[1], summary);
}
