/* moefarm export: the tuned table, printed, written to a file, or merged into one that others use too. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/api.h"
#include "cli/file.h"
#include "common/table.h"
#include "common/table_file.h"
#include "common/table_merge.h"
#include "common/text.h"

#define SET_MAX 64

struct export_options {
    const char *filter[6]; /* in the order of filter_names */
    const char *output, *into, *set;
    bool simulated, replace;
    int64_t lock_ms;
};
static const char *const filter_names[6] = {"batch", "class", "model", "gfx", "layer_model", "consumer"};

/* The other files that production reads with the table: a comma list. */
struct file_set {
    struct mf_table *tables[SET_MAX];
    size_t n;
};

static void release_set(struct file_set *s)
{
    for (size_t i = 0; i < s->n; i++)
        mf_table_free(s->tables[i]);
}

static int read_set(const char *list, struct file_set *s)
{
    while (list && *list) {
        size_t len = strcspn(list, ",");
        char path[4096], why[MF_REASON_MAX] = "";

        if (len >= sizeof(path) || s->n == SET_MAX)
            return mf_cli_fail(MF_EXIT_USAGE, "--set: at most %d files, separated by commas", SET_MAX);
        memcpy(path, list, len);
        path[len] = '\0';
        if (len > 0 && mf_table_file_read(path, &s->tables[s->n], why) < 0)
            return mf_cli_fail(MF_EXIT_USAGE, "--set: %s", why);
        s->n += len > 0;
        list += len + (list[len] == ',');
    }
    return 0;
}

static void print_items(const struct mf_merge_result *result)
{
    for (size_t i = 0; i < result->n_items; i++) {
        const struct mf_merge_item *item = &result->items[i];

        printf("%-8s  %s  %.4f us", mf_merged_name(item->what), item->key, item->new_us);
        if (item->what != MF_MERGED_ADDED)
            printf(" (was %.4f us)", item->old_us);
        if (item->reason[0])
            printf(": %s", item->reason);
        printf("\n");
    }
    printf("%zu added, %zu replaced, %zu kept, %zu foreign\n", result->n[MF_MERGED_ADDED],
           result->n[MF_MERGED_REPLACED], result->n[MF_MERGED_KEPT], result->n[MF_MERGED_FOREIGN]);
}

static int merge(const struct export_options *o, const struct mf_buf *csv)
{
    _cleanup_(mf_table_freep) struct mf_table *fresh = NULL;
    _cleanup_(release_set) struct file_set set = {0};
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    struct mf_merge_options options = {.replace = o->replace};
    char why[MF_REASON_MAX] = "";
    int code, r;

    code = read_set(o->set, &set);
    if (code != 0)
        return code;
    options.set = (const struct mf_table *const *)set.tables;
    options.n_set = set.n;
    if (mf_table_read("export", csv->data, csv->len, &fresh, why) < 0)
        return mf_cli_fail(MF_EXIT_UNREACHED, "the export is no table: %s", why);
    r = mf_table_file_merge(o->into, (int)o->lock_ms, fresh, &options, &result, why);
    if (r < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s%s", o->into, why,
                           r == -EEXIST ? "" : "; the file is as it was");
    print_items(&result);
    return MF_EXIT_OK;
}

static int fetch(struct mf_cli *cli, const struct export_options *o, struct mf_http_reply *reply)
{
    _cleanup_(mf_buf_release) struct mf_buf path;
    int code;

    mf_buf_init(&path, 8192);
    (void)mf_buf_adds(&path, "/api/v1/export/tuned_fmoe.csv");
    for (size_t i = 0; i < MF_ARRAY_LEN(filter_names); i++)
        mf_http_query(&path, filter_names[i], o->filter[i]);
    mf_http_query(&path, "simulated", o->simulated ? "1" : NULL);
    if (mf_buf_error(&path) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "export: the filters are too long");
    code = mf_api_send(cli, &(struct mf_http_request){.path = path.data}, reply);
    if (code == 0 && reply->left_out > 0)
        fprintf(stderr, "moefarm: %" PRId64 " row%s left out; /api/v1/export/left_out says why\n",
                reply->left_out, reply->left_out == 1 ? " is" : "s are");
    return code;
}

int mf_cmd_export(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    struct export_options o = {.lock_ms = MF_TABLE_LOCK_MS};
    const struct mf_opt opts[] = {
        {.name = "batch",
         .type = MF_OPT_TEXT,
         .value = &o.filter[0],
         .argument = "B",
         .help = "rows of that batch only"},
        {.name = "class",
         .type = MF_OPT_TEXT,
         .value = &o.filter[1],
         .argument = "GFX/CU",
         .help = "of that device class"},
        {.name = "model",
         .type = MF_OPT_TEXT,
         .value = &o.filter[2],
         .argument = "TEXT",
         .help = "of that device model; needed when a class has two"},
        {.name = "gfx", .type = MF_OPT_TEXT, .value = &o.filter[3], .argument = "GFX", .help = "of that gfx"},
        {.name = "layer-model",
         .type = MF_OPT_TEXT,
         .value = &o.filter[4],
         .argument = "ROW",
         .help = "of that layer model: the row without its token"},
        {.name = "consumer",
         .type = MF_OPT_TEXT,
         .value = &o.filter[5],
         .argument = "NAME",
         .help = "moefarm or aiter: who dispatches from it; moefarm otherwise"},
        {.name = "simulated",
         .type = MF_OPT_BOOL,
         .value = &o.simulated,
         .help = "results of simulated devices too"},
        {.name = "output",
         .type = MF_OPT_TEXT,
         .value = &o.output,
         .argument = "FILE",
         .help = "write there, whole or not at all; standard output otherwise"},
        {.name = "o", .type = MF_OPT_TEXT, .value = &o.output, .argument = "FILE", .help = "the same"},
        {.name = "into",
         .type = MF_OPT_TEXT,
         .value = &o.into,
         .argument = "FILE",
         .help = "merge into that table, under its lock; rows of others stay"},
        {.name = "set",
         .type = MF_OPT_TEXT,
         .value = &o.set,
         .argument = "FILES",
         .help = "with --into: the other files (comma list) that production reads with it; a key in two is "
                 "refused"},
        {.name = "replace",
         .type = MF_OPT_BOOL,
         .value = &o.replace,
         .help = "with --into: rows of other provenance are replaced too"},
        {.name = "lock-ms",
         .type = MF_OPT_INT,
         .value = &o.lock_ms,
         .argument = "MS",
         .help = "with --into: how long to wait for another writer",
         .min = 1,
         .max = 3600000},
    };
    _cleanup_(mf_http_reply_release) struct mf_http_reply reply;
    int rest, r, code;

    mf_http_reply_init(&reply);
    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 0, 0, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    if (o.into && o.output)
        return mf_cli_fail(
            MF_EXIT_USAGE,
            "export: --into merges into a file and --output writes a new one; give one of them");
    if (!o.into && (o.set || o.replace))
        return mf_cli_fail(MF_EXIT_USAGE,
                           "export: --set and --replace are about a merge; give --into FILE too");
    if (o.into && o.filter[5] && strcmp(o.filter[5], "moefarm") != 0)
        return mf_cli_fail(
            MF_EXIT_USAGE,
            "export: only rows for consumer moefarm can be merged: others carry no provenance");
    code = fetch(cli, &o, &reply);
    if (code != 0)
        return code;
    if (o.into)
        return merge(&o, &reply.body);
    return mf_file_write(o.output ? o.output : "-", reply.body.data, reply.body.len);
}
