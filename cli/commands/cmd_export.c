/* moefarm export: prints the tuned table, writes it to a file, merges it into a shared one, or writes the
 * configuration files of vLLM or SGLang to a folder. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/support/api.h"
#include "cli/support/export_filters.h"
#include "cli/support/file.h"
#include "cli/tables/config_files.h"
#include "cli/tables/merge.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/table.h"
#include "common/table/table_file.h"
#include "common/table/table_merge.h"

struct export_options {
    struct mf_export_filters filters;
    bool left_out;
    const char *output, *into, *set;
    bool replace;
    int64_t lock_ms;
};

static int merge(const struct export_options *o, const struct mf_buf *csv)
{
    _cleanup_(mf_table_freep) struct mf_table *fresh = NULL;
    _cleanup_(mf_merge_set_release) struct mf_merge_set set = {0};
    _cleanup_(mf_merge_result_release) struct mf_merge_result result = MF_MERGE_RESULT_INIT;
    struct mf_merge_options options = {.replace = o->replace};
    char why[MF_REASON_MAX] = "";
    int code, r;

    code = mf_merge_set_read(o->set, &set);
    if (code != 0)
        return code;
    mf_merge_set_use(&set, &options);
    if (mf_table_read("export", csv->data, csv->len, &fresh, why) < 0)
        return mf_cli_fail(MF_EXIT_UNREACHED, "the coordinator's reply is not a table: %s", why);
    r = mf_table_file_merge(o->into, (int)o->lock_ms, fresh, &options, &result, why);
    if (r < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s%s", o->into, why,
                           r == -EEXIST ? "" : "; the file is unchanged");
    mf_merge_print(&result);
    mf_merge_print_sum(&result);
    return MF_EXIT_OK;
}

static const char *consumer_of(const struct export_options *o)
{
    return o->filters.consumer ? o->filters.consumer : "moefarm";
}

static int make_path(struct mf_buf *path, const char *route, const struct export_options *o)
{
    (void)mf_buf_adds(path, route);
    mf_export_filters_query(path, &o->filters);
    return mf_buf_error(path) < 0
               ? mf_cli_fail(MF_EXIT_USAGE, "export: the filters are too long; shorten them")
               : 0;
}

/* Prints the tasks that have no row, with the reasons: to standard output, or to standard error after an
 * export without a row. *ret_n: their number. */
static int list_left_out(struct mf_cli *cli, const struct export_options *o, FILE *out, int *ret_n)
{
    _cleanup_(mf_buf_release) struct mf_buf path;
    _cleanup_(cJSON_Deletep) cJSON *items = NULL;
    const cJSON *item;

    mf_buf_init(&path, 8192);
    int code = make_path(&path, "/api/v1/export/left_out", o);
    if (code == 0)
        code = mf_api_list(cli, path.data, &items);
    *ret_n = cJSON_GetArraySize(items);
    if (code == 0 && cli->json && out == stdout)
        return mf_api_print(items);
    cJSON_ArrayForEach (item, items)
        (void)fprintf(out, "%s  %s  %s: %s\n", consumer_of(o), mf_api_text(item, "class", ""),
                      mf_api_text(item, "shape", ""), mf_api_text(item, "reason", ""));
    return code;
}

static bool has_rows(const struct mf_http_reply *reply)
{
    const char *end = memchr(reply->body.data, '\n', reply->body.len);

    return end && end + 1 < reply->body.data + reply->body.len;
}

/* Fails with the reason of each task, because a table without rows must not replace one with rows. */
static int fail_empty(struct mf_cli *cli, const struct export_options *o)
{
    const char *consumer = consumer_of(o);
    int n, code = list_left_out(cli, o, stderr, &n);

    if (code != 0)
        return code;
    return n > 0
               ? mf_cli_fail(MF_EXIT_FAILED, "no row for consumer %s; the reasons are above", consumer)
               : mf_cli_fail(MF_EXIT_FAILED,
                             "no row for consumer %s: no batch was tuned with these filters; submit one with "
                             "consumer=%s",
                             consumer, consumer);
}

/* ---- configuration files ---- */

static int fetch_configs(struct mf_cli *cli, const struct export_options *o, cJSON **ret)
{
    _cleanup_(mf_http_reply_release) struct mf_http_reply reply;
    _cleanup_(mf_buf_release) struct mf_buf path;

    mf_http_reply_init(&reply);
    mf_buf_init(&path, 8192);
    int code = make_path(&path, "/api/v1/export/configs.json", o);
    if (code == 0)
        code = mf_api_table(cli, path.data, NULL, &reply);
    if (code != 0)
        return code;
    *ret = mf_api_parse(reply.body.data, reply.body.len);
    return *ret ? 0
                : mf_cli_fail(MF_EXIT_UNREACHED, "the coordinator's reply is not JSON; check that the URL is "
                                                 "moefarmd's");
}

static int export_configs(struct mf_cli *cli, const struct export_options *o)
{
    _cleanup_(cJSON_Deletep) cJSON *configs = NULL;
    size_t n = 0;
    int code;

    if (!o->output || strcmp(o->output, "-") == 0)
        return mf_cli_fail(MF_EXIT_USAGE, "export: --consumer %s writes several files; give -o FOLDER",
                           o->filters.consumer);
    code = fetch_configs(cli, o, &configs);
    if (code != 0)
        return code;
    mf_config_files_print_left_out(configs);
    code = mf_config_files_write(o->output, configs, &n);
    if (code != 0)
        return code;
    if (n == 0)
        return mf_cli_fail(MF_EXIT_FAILED,
                           "export: the farm has no row for consumer %s; the lines above, or moefarm export "
                           "--left-out --consumer %s, have the reasons",
                           o->filters.consumer, o->filters.consumer);
    printf("wrote %zu file%s to %s\n", n, n == 1 ? "" : "s", o->output);
    mf_config_files_print_use(o->output, configs);
    return MF_EXIT_OK;
}

/* ---- the table ---- */

static int fetch(struct mf_cli *cli, const struct export_options *o, struct mf_http_reply *reply)
{
    _cleanup_(mf_buf_release) struct mf_buf path;

    mf_buf_init(&path, 8192);
    int code = make_path(&path, "/api/v1/export/tuned_fmoe.csv", o);
    if (code == 0)
        code = mf_api_table(cli, path.data, NULL, reply);
    if (code != 0)
        return code;
    if (o->filters.consumer && !has_rows(reply))
        return fail_empty(cli, o);
    if (reply->left_out > 0)
        fprintf(stderr, "moefarm: %" PRId64 " row%s left out; moefarm export --left-out lists the reasons\n",
                reply->left_out, reply->left_out == 1 ? "" : "s");
    return 0;
}

int mf_cmd_export(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    struct export_options o = {.lock_ms = MF_TABLE_LOCK_MS};
    const struct mf_opt opts[] = {
        MF_EXPORT_FILTER_OPTS(o.filters),
        {.name = "output",
         .type = MF_OPT_TEXT,
         .value = &o.output,
         .argument = "FILE",
         .help = "output file, written atomically (default: standard output); for consumers vllm and sglang "
                 "the folder of the files"},
        {.name = "o", .type = MF_OPT_TEXT, .value = &o.output, .argument = "FILE"},
        {.name = "into",
         .type = MF_OPT_TEXT,
         .value = &o.into,
         .argument = "FILE",
         .help = "table to merge into, under its lock; keeps the rows of other tools"},
        {.name = "set",
         .type = MF_OPT_TEXT,
         .value = &o.set,
         .argument = "FILES",
         .help = "with --into: other files that production reads with it, comma-separated; a key in two of "
                 "them is an error"},
        {.name = "left-out",
         .type = MF_OPT_BOOL,
         .value = &o.left_out,
         .help = "list the tasks that have no row for the consumer, with the reasons, instead of the table"},
        {.name = "replace",
         .type = MF_OPT_BOOL,
         .value = &o.replace,
         .help = "with --into: replace even rows of other provenance"},
        {.name = "lock-ms",
         .type = MF_OPT_INT,
         .value = &o.lock_ms,
         .argument = "MS",
         .help = "with --into: maximum wait for another writer, in ms",
         .min = 1,
         .max = 3600000},
    };
    _cleanup_(mf_http_reply_release) struct mf_http_reply reply;
    int rest, r, code, n;

    mf_http_reply_init(&reply);
    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 0, 0, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    if (o.into && o.output)
        return mf_cli_fail(
            MF_EXIT_USAGE,
            "export: --into merges into a file and --output writes a new one; give one of them");
    if (!o.into && (o.set || o.replace))
        return mf_cli_fail(MF_EXIT_USAGE, "export: --set and --replace require --into FILE");
    if (o.into && o.filters.consumer && strcmp(o.filters.consumer, "moefarm") != 0)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "export: --into requires --consumer moefarm: other rows have no provenance");
    if (o.left_out && (o.into || o.output))
        return mf_cli_fail(MF_EXIT_USAGE, "export: --left-out writes no table; omit --into and --output");
    if (o.left_out)
        return list_left_out(cli, &o, stdout, &n);
    if (mf_has_config_files(o.filters.consumer))
        return export_configs(cli, &o);
    if (o.filters.triton)
        return mf_cli_fail(MF_EXIT_USAGE, "export: --triton-version requires --consumer vllm or sglang");
    code = fetch(cli, &o, &reply);
    if (code != 0)
        return code;
    if (o.into)
        return merge(&o, &reply.body);
    return mf_file_write(o.output ? o.output : "-", reply.body.data, reply.body.len);
}
