/* moefarm csv merge: merges tables into a shared table under its lock; on an error, merges nothing. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands/csv.h"
#include "cli/support/api.h"
#include "cli/tables/merge.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/table_file.h"

#define FILES_MAX 4096

struct options {
    const char *set;
    bool replace, dry_run, summary;
    int64_t lock_ms;
};

/* State of the merge. The files are merged in order, each into the result of the previous merge. */
struct merge {
    const struct options *options;
    const struct mf_merge_options *rules;
    const struct mf_csv_files *files;
    struct mf_merge_result *results; /* one result per file */
    size_t n_changed;
};

static int merge_all(struct mf_table *table, void *data, char why[MF_REASON_MAX])
{
    struct merge *m = data;

    for (size_t i = 0; i < m->files->n; i++) {
        struct mf_merge_result *result = &m->results[i];
        int r = mf_table_merge(table, m->files->tables[i], m->rules, result, why);

        if (r < 0)
            return r;
        m->n_changed += result->n[MF_MERGED_ADDED] + result->n[MF_MERGED_REPLACED];
    }
    return m->n_changed == 0 ? 1 : 0;
}

/* ---- report ---- */

static void add_json(cJSON *list, const char *file, const struct mf_merge_result *result)
{
    for (size_t i = 0; i < result->n_items; i++) {
        const struct mf_merge_item *item = &result->items[i];
        cJSON *o = cJSON_CreateObject();

        cJSON_AddStringToObject(o, "file", file);
        cJSON_AddStringToObject(o, "what", mf_merged_name(item->what));
        cJSON_AddStringToObject(o, "key", item->key);
        (void)(item->what == MF_MERGED_ADDED ? cJSON_AddNullToObject(o, "old_us")
                                             : cJSON_AddNumberToObject(o, "old_us", item->old_us));
        cJSON_AddNumberToObject(o, "new_us", item->new_us);
        cJSON_AddStringToObject(o, "reason", item->reason);
        cJSON_AddItemToArray(list, o);
    }
}

static void sum_up(const struct merge *m, struct mf_merge_result *sum)
{
    for (size_t i = 0; i < m->files->n; i++)
        for (enum mf_merged what = 0; what < MF_MERGED_N_; what++)
            sum->n[what] += m->results[i].n[what];
}

static int print_json(const struct merge *m, const struct mf_merge_result *sum)
{
    _cleanup_(cJSON_Deletep) cJSON *all = cJSON_CreateObject();

    for (enum mf_merged what = 0; what < MF_MERGED_N_; what++)
        (void)mf_json_add_i64(all, mf_merged_name(what), (int64_t)sum->n[what]);
    cJSON_AddBoolToObject(all, "written", m->n_changed > 0 && !m->options->dry_run);
    cJSON *list = m->options->summary ? NULL : cJSON_AddArrayToObject(all, "rows");
    for (size_t i = 0; i < m->files->n && list; i++)
        add_json(list, m->files->tables[i]->name, &m->results[i]);
    return mf_api_print(all);
}

static int report(const struct mf_cli *cli, const struct merge *m)
{
    struct mf_merge_result sum = MF_MERGE_RESULT_INIT;

    sum_up(m, &sum);
    if (cli->json)
        return print_json(m, &sum);
    for (size_t i = 0; i < m->files->n && !m->options->summary; i++)
        mf_merge_print(&m->results[i]);
    mf_merge_print_sum(&sum);
    if (m->options->dry_run)
        printf("--dry-run: nothing was written\n");
    return MF_EXIT_OK;
}

/* ---- the command ---- */

static int merge_files(const struct mf_cli *cli, const char *into, struct merge *m)
{
    char why[MF_REASON_MAX] = "";
    int r, code;

    m->results = calloc(m->files->n + 1, sizeof(*m->results));
    if (!m->results)
        return mf_cli_out_of_memory();
    r = m->options->dry_run ? mf_table_file_dry_run(into, merge_all, m, why)
                            : mf_table_file_update(into, (int)m->options->lock_ms, merge_all, m, why);
    if (r < 0)
        code = mf_cli_fail(MF_EXIT_FAILED, "%s: %s", into, why);
    else
        code = report(cli, m);
    for (size_t i = 0; i < m->files->n; i++)
        mf_merge_result_release(&m->results[i]);
    free(m->results);
    return code;
}

int mf_cmd_csv_merge(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    struct options o = {.lock_ms = MF_TABLE_LOCK_MS};
    const struct mf_opt opts[] = {
        {.name = "set",
         .type = MF_OPT_TEXT,
         .value = &o.set,
         .argument = "FILES",
         .help = "other files that production reads with INTO, comma-separated; a key in two of them is an "
                 "error"},
        {.name = "replace",
         .type = MF_OPT_BOOL,
         .value = &o.replace,
         .help = "replace even rows whose times cannot be compared"},
        {.name = "dry-run",
         .type = MF_OPT_BOOL,
         .value = &o.dry_run,
         .help = "print what would be done without writing"},
        {.name = "summary",
         .type = MF_OPT_BOOL,
         .value = &o.summary,
         .help = "print only the number of rows per outcome"},
        {.name = "lock-ms",
         .type = MF_OPT_INT,
         .value = &o.lock_ms,
         .argument = "MS",
         .help = "maximum wait for another writer, in ms",
         .min = 1,
         .max = 3600000},
    };
    _cleanup_(mf_csv_files_release) struct mf_csv_files files = {0};
    _cleanup_(mf_merge_set_release) struct mf_merge_set set = {0};
    struct mf_merge_options rules = {.accept_foreign = true};
    struct merge m = {.options = &o, .rules = &rules, .files = &files};
    int rest, r, code;

    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 2, FILES_MAX, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    code = mf_merge_set_read(o.set, &set);
    if (code == 0)
        code = mf_csv_files_read_tables(argv + rest + 1, (size_t)(argc - rest) - 1, "csv", &files);
    if (code != 0)
        return code;
    mf_merge_set_use(&set, &rules);
    rules.replace = o.replace;
    return merge_files(cli, argv[rest], &m);
}
