/* moefarm pull: updates a table to the approved release of a channel. Meant for cron. The request contains
 * the hash of the file, so that the farm does not send an unchanged table again. Without --force, the command
 * never replaces a file that is not a release. With --format vllm or sglang, the command updates a folder of
 * configuration files instead (pull_configs.h). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands/pull_configs.h"
#include "cli/support/api.h"
#include "cli/support/release.h"
#include "cli/tables/config_files.h"
#include "common/base/durable_file.h"
#include "common/base/json.h"
#include "common/base/sha256.h"
#include "common/base/text.h"
#include "common/table/table_file.h"

#define EXIT_CHANGED 10
#define LINES_MAX    20 /* maximum lines per kind of change; further changes are only counted */

struct pull {
    const char *channel, *file;
    bool force, exit_code, quiet;
    int64_t lock_ms;
    bool exists;                     /* true: the file exists */
    char sha256[MF_SHA256_TEXT_MAX]; /* hash of the file's content */
    int64_t old_release;             /* release that the file contains; 0: the file is not a release */
};

/* Hashes the file. A missing file is not an error, because the command creates it later. A FIFO or device
 * counts as missing, because reading it could block. */
static int hash_file(struct pull *p)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    struct mf_target target;
    char why[MF_REASON_MAX];
    int r;

    mf_buf_init(&text, MF_TABLE_FILE_MAX);
    if (mf_target_find(p->file, &target) == 0 && target.is_stream)
        return 0;
    r = mf_table_file_text(p->file, &text, why);
    if (r < 0 && r != -ENOENT)
        return mf_cli_fail(MF_EXIT_FAILED, "%s", why);
    p->exists = r == 0;
    if (p->exists)
        mf_sha256_print(text.data, text.len, p->sha256);
    return 0;
}

static int check_release(struct mf_cli *cli, const struct mf_http_reply *reply, size_t n_rows)
{
    _cleanup_(cJSON_Deletep) cJSON *release = NULL;
    int code = mf_release_check_reply(cli, reply, &release);

    if (code != 0)
        return code;
    int64_t rows = mf_api_i64(release, "rows", 0);
    if (rows != (int64_t)n_rows)
        return mf_cli_fail(MF_EXIT_UNREACHED,
                           "release %" PRId64 " has %" PRId64
                           " rows, the reply has %zu; run the command again",
                           mf_api_i64(release, "id", 0), rows, n_rows);
    return 0;
}

/* Fetches the channel's table. On success, the reply's status is 304 if the file already contains that table.
 */
static int fetch(struct mf_cli *cli, const struct pull *p, struct mf_http_reply *reply)
{
    _cleanup_(mf_table_freep) struct mf_table *table = NULL;
    char path[MF_RELEASE_PATH_MAX], tag[MF_SHA256_TEXT_MAX + 2], why[MF_REASON_MAX] = "";
    int code;

    mf_format(path, sizeof(path), "/api/v1/channels/%s/tuned_fmoe.csv", p->channel);
    mf_format(tag, sizeof(tag), "\"%s\"", p->sha256);
    code = mf_api_table(cli, path, p->exists ? tag : NULL, reply);
    if (code != 0 || reply->status == 304)
        return code;
    if (!*reply->release || mf_table_read(p->channel, reply->body.data, reply->body.len, &table, why) < 0)
        return mf_cli_fail(MF_EXIT_UNREACHED,
                           "%s%s: the reply is not a release%s%s; check that the URL is moefarmd's", cli->url,
                           path, *why ? ": " : "", why);
    return check_release(cli, reply, table->n_rows);
}

/* Finds the release that the file contains. Without --force, refuses a file that is not a release, because
 * the file may have local changes. */
static int find_old_release(struct mf_cli *cli, struct pull *p)
{
    _cleanup_(cJSON_Deletep) cJSON *answer = NULL;
    char path[MF_RELEASE_PATH_MAX];
    int code;

    if (!p->exists)
        return 0;
    mf_format(path, sizeof(path), "/api/v1/releases?limit=1&sha256=%s", p->sha256);
    code = mf_api_get(cli, path, &answer);
    if (code != 0)
        return code;
    p->old_release = mf_api_i64(cJSON_GetArrayItem(mf_json_array(answer, "items"), 0), "id", 0);
    if (p->old_release == 0 && !p->force)
        return mf_cli_fail(
            MF_EXIT_FAILED,
            "%s is not a release of this farm: it was edited or merged into, or comes from another source; "
            "replace it with --force",
            p->file);
    return 0;
}

/* Checks under the lock that the file has not changed since hash_file. */
static int may_replace(const char *text, size_t len, void *data, char why[MF_REASON_MAX])
{
    const struct pull *p = data;
    char now[MF_SHA256_TEXT_MAX] = "";

    if (text)
        mf_sha256_print(text, len, now);
    if (strcmp(now, p->sha256) == 0)
        return 0;
    mf_format(why, MF_REASON_MAX, "another process has just changed the file; run the command again");
    return -EAGAIN;
}

static int put(struct pull *p, const struct mf_http_reply *reply)
{
    char why[MF_REASON_MAX] = "";
    int r = mf_table_file_replace(p->file, (int)p->lock_ms, reply->body.data, reply->body.len, may_replace, p,
                                  why);

    return r < 0 ? mf_cli_fail(MF_EXIT_FAILED, "%s: %s", p->file, why) : 0;
}

static void print_change(struct mf_cli *cli, const struct pull *p, const struct mf_http_reply *reply)
{
    _cleanup_(cJSON_Deletep) cJSON *diff = NULL;
    char path[MF_RELEASE_PATH_MAX];
    int64_t release = strtoll(reply->release, NULL, 10);

    printf("%s: release %s of channel %s%s\n", p->file, reply->release, p->channel,
           p->exists && !p->old_release ? ", replacing a table that was not a release" : "");
    if (!p->old_release)
        return;
    mf_format(path, sizeof(path), "/api/v1/releases/%" PRId64 "/diff?against=%" PRId64, release,
              p->old_release);
    if (mf_api_get(cli, path, &diff) == 0)
        mf_release_print_diff(diff, LINES_MAX);
}

static int pull(struct mf_cli *cli, struct pull *p)
{
    _cleanup_(mf_http_reply_release) struct mf_http_reply reply;
    int code = hash_file(p);

    mf_http_reply_init(&reply);
    if (code == 0)
        code = fetch(cli, p, &reply);
    if (code == 0 && reply.status == 304) {
        if (!p->quiet)
            printf("%s: already at release %s of channel %s\n", p->file, reply.release, p->channel);
        return MF_EXIT_OK;
    }
    if (code == 0)
        code = find_old_release(cli, p);
    if (code == 0)
        code = put(p, &reply);
    if (code != 0)
        return code;
    if (!p->quiet)
        print_change(cli, p, &reply);
    return p->exit_code ? EXIT_CHANGED : MF_EXIT_OK;
}

static int pull_folder(struct mf_cli *cli, const struct pull *p, const char *format,
                       struct mf_pull_configs *configs)
{
    bool changed = false;

    (void)mf_framework_parse(format, &configs->framework);
    configs->channel = p->channel;
    configs->folder = p->file;
    configs->force = p->force;
    configs->quiet = p->quiet;
    int code = mf_pull_configs(cli, configs, &changed);
    return code == 0 && changed && p->exit_code ? EXIT_CHANGED : code;
}

int mf_cmd_pull(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    struct pull p = {.lock_ms = MF_TABLE_LOCK_MS, .sha256 = ""};
    struct mf_pull_configs configs = {.tp = 1, .ep = 1, .fused = "no"};
    const char *format = "csv";
    const struct mf_opt opts[] = {
        {.name = "output",
         .type = MF_OPT_TEXT,
         .value = &p.file,
         .argument = "FILE",
         .help = "table to update, replaced atomically under its lock; for vllm and sglang the folder"},
        {.name = "format",
         .type = MF_OPT_TEXT,
         .value = &format,
         .argument = "NAME",
         .help = "csv, vllm or sglang (default: csv)"},
        {.name = "model",
         .type = MF_OPT_TEXT,
         .value = &configs.model.model,
         .argument = "MODEL",
         .help = "vllm, sglang: pull only the files that this model reads; a name, hub path or config.json"},
        {.name = "tp",
         .type = MF_OPT_INT,
         .value = &configs.tp,
         .argument = "N",
         .help = "with --model: tensor-parallel ranks",
         .min = 1,
         .max = 1024},
        {.name = "ep",
         .type = MF_OPT_INT,
         .value = &configs.ep,
         .argument = "N",
         .help = "with --model: expert-parallel ranks",
         .min = 1,
         .max = 4096},
        {.name = "fused-shared-experts",
         .type = MF_OPT_TEXT,
         .value = &configs.fused,
         .argument = "N",
         .help = "with --model: shared experts computed as routed experts: a number, yes or no"},
        {.name = "device",
         .type = MF_OPT_TEXT,
         .value = &configs.device,
         .argument = "TEXT",
         .help = "with --model: device name, such as 'NVIDIA H200' (default: the only one of the files)"},
        {.name = "o", .type = MF_OPT_TEXT, .value = &p.file},
        {.name = "force",
         .type = MF_OPT_BOOL,
         .value = &p.force,
         .help = "replace even a file that is not a release of this farm"},
        {.name = "exit-code",
         .type = MF_OPT_BOOL,
         .value = &p.exit_code,
         .help = "exit with 10 if the file changed, so that a script can reload it"},
        {.name = "quiet", .type = MF_OPT_BOOL, .value = &p.quiet, .help = "print only errors"},
        {.name = "lock-ms",
         .type = MF_OPT_INT,
         .value = &p.lock_ms,
         .argument = "MS",
         .help = "maximum wait for another writer, in ms",
         .min = 1,
         .max = 3600000},
    };
    int rest, r;

    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 1, 1, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    p.channel = argv[rest];
    if (!p.file || strcmp(p.file, "-") == 0)
        return mf_cli_fail(MF_EXIT_USAGE, "pull: -o FILE is missing; give the table to update");
    if (!mf_is_name(p.channel, MF_RELEASE_WORD_MAX))
        return mf_cli_fail(MF_EXIT_USAGE,
                           "pull: '%s' is not a channel name: use letters, digits, '.', '_' and '-'",
                           p.channel);
    if (mf_has_config_files(format))
        return pull_folder(cli, &p, format, &configs);
    if (strcmp(format, "csv") != 0)
        return mf_cli_fail(MF_EXIT_USAGE, "pull: --format '%s': expected csv, vllm or sglang", format);
    return pull(cli, &p);
}
