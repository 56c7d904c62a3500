/* moefarm release: dispatches to its actions. This file implements freeze, list, channels, stage, unstage,
 * approve and rollback; cmd_release_show.c implements the others. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/support/export_filters.h"
#include "cli/support/list_out.h"
#include "cli/support/release.h"
#include "common/base/json.h"
#include "common/base/text.h"

/* ---- freeze ---- */

static int freeze(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    _cleanup_(cJSON_Deletep) cJSON *answer = NULL;
    _cleanup_(mf_buf_release) struct mf_buf path;
    struct mf_export_filters filters = {0};
    const char *name = NULL;
    const struct mf_opt opts[] = {
        {.name = "name",
         .type = MF_OPT_TEXT,
         .value = &name,
         .argument = "NAME",
         .help = "name of the release (default: derived from its hash)"},
        MF_EXPORT_FILTER_OPTS(filters),
    };
    int rest, r, code;

    mf_buf_init(&path, 8192);
    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 0, 0, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    (void)mf_buf_adds(&path, "/api/v1/releases");
    mf_http_add_query(&path, "name", name);
    mf_export_filters_query(&path, &filters);
    if (mf_buf_error(&path) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "release freeze: the filters are too long; shorten them");
    code = mf_api_post(cli, path.data, &answer);
    if (code != 0)
        return code;
    if (cli->json)
        return mf_api_print(answer);
    printf("release %" PRId64 " %s: %" PRId64 " rows, %" PRId64 " left out, sha256 %s\n",
           mf_api_i64(answer, "release", 0), mf_api_text(answer, "name", ""), mf_api_i64(answer, "rows", 0),
           mf_api_i64(answer, "left_out", 0), mf_api_text(answer, "sha256", ""));
    return MF_EXIT_OK;
}

/* ---- lists ---- */

static const char *const release_names[] = {"release", "name",     "frozen",   "by",
                                            "rows",    "left out", "channels", "sha256"};

static void add_release(struct mf_columns *c, const cJSON *release)
{
    const cJSON *item;
    char made[MF_MOMENT_MAX], channels[256] = "";

    mf_moment(mf_api_i64(release, "created_ms", 0), made);
    cJSON_ArrayForEach (item, mf_json_array(release, "channels")) {
        size_t len = strlen(channels);
        bool staged = strcmp(mf_api_text(item, "as", ""), "staged") == 0;
        mf_format(channels + len, sizeof(channels) - len, "%s%s%s", len ? ", " : "",
                  mf_api_text(item, "channel", ""), staged ? " (staged)" : "");
    }
    mf_columns_addf(c, "%" PRId64, mf_api_i64(release, "id", 0));
    mf_columns_add(c, mf_api_text(release, "name", ""));
    mf_columns_add(c, made);
    mf_columns_add_text(c, mf_api_text(release, "created_by", ""));
    mf_columns_addf(c, "%" PRId64, mf_api_i64(release, "rows", 0));
    mf_columns_addf(c, "%" PRId64, mf_api_i64(release, "left_out", 0));
    mf_columns_add_text(c, channels);
    mf_columns_addf(c, "%.12s", mf_api_text(release, "sha256", ""));
}

static int list(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const struct mf_list_table t = {release_names, MF_ARRAY_LEN(release_names), add_release, NULL};

    return mf_list_command(cli, self, "/api/v1/releases", &t, argc, argv);
}

static const char *const channel_names[] = {"channel", "current", "staged", "moved", "sha256"};

static void add_place(struct mf_columns *c, const cJSON *channel, const char *key)
{
    const cJSON *release = mf_json_object(channel, key);

    if (release)
        mf_columns_addf(c, "%" PRId64 " %s", mf_api_i64(release, "id", 0), mf_api_text(release, "name", ""));
    else
        mf_columns_add(c, "-");
}

static void add_channel(struct mf_columns *c, const cJSON *channel)
{
    char moved[MF_MOMENT_MAX];

    mf_moment(mf_api_i64(channel, "moved_ms", 0), moved);
    mf_columns_add(c, mf_api_text(channel, "name", ""));
    add_place(c, channel, "current");
    add_place(c, channel, "staged");
    mf_columns_add(c, moved);
    mf_columns_addf(c, "%.12s", mf_api_text(channel, "sha256", "-"));
}

static int channels(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const struct mf_list_table t = {channel_names, MF_ARRAY_LEN(channel_names), add_channel, NULL};

    return mf_list_command(cli, self, "/api/v1/channels", &t, argc, argv);
}

/* ---- moves ---- */

static int post_move(struct mf_cli *cli, const char *channel, const char *move, int64_t release,
                     const char *reason)
{
    _cleanup_(cJSON_Deletep) cJSON *answer = NULL;
    _cleanup_(mf_buf_release) struct mf_buf path;
    char number[24];
    int code;

    mf_buf_init(&path, 8192);
    mf_format(number, sizeof(number), "%" PRId64, release);
    (void)mf_buf_addf(&path, "/api/v1/channels/%s/%s", channel, move);
    mf_http_add_query(&path, "release", number);
    mf_http_add_query(&path, "reason", reason);
    if (mf_buf_error(&path) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "release %s: the reason is too long; shorten it", move);
    code = mf_api_post(cli, path.data, &answer);
    if (code != 0)
        return code;
    if (cli->json)
        return mf_api_print(answer);
    printf("channel %s: ", channel);
    if (mf_api_i64(answer, "current", 0))
        printf("release %" PRId64 " is current", mf_api_i64(answer, "current", 0));
    else
        printf("no release is current yet");
    if (mf_api_i64(answer, "staged", 0))
        printf(", release %" PRId64 " is staged", mf_api_i64(answer, "staged", 0));
    printf("\n");
    return MF_EXIT_OK;
}

static int parse_move(struct mf_cli *cli, const struct mf_command *self, int min, int argc, char **argv,
                      const char **ret_reason, int *ret_rest)
{
    const struct mf_opt opts[] = {
        {.name = "reason",
         .type = MF_OPT_TEXT,
         .value = ret_reason,
         .argument = "TEXT",
         .help = "reason, stored in the channel's history"},
    };

    return mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), min, 2, argc, argv, ret_rest);
}

static int check_channel(const char *word)
{
    return mf_is_name(word, MF_RELEASE_WORD_MAX)
               ? 0
               : mf_cli_fail(MF_EXIT_USAGE,
                             "'%s' is not a channel name: use letters, digits, '.', '_' and '-'", word);
}

/* Finds the channel's "staged" or "current" release. */
static int find_channel_release(struct mf_cli *cli, const char *channel, const char *as, int64_t *ret)
{
    _cleanup_(cJSON_Deletep) cJSON *answer = NULL;
    char path[MF_RELEASE_PATH_MAX];
    int code;

    mf_format(path, sizeof(path), "/api/v1/channels/%s", channel);
    code = mf_api_get(cli, path, &answer);
    if (code != 0)
        return code;
    *ret = mf_api_i64(mf_json_object(answer, as), "id", 0);
    return *ret ? 0 : mf_cli_fail(MF_EXIT_USAGE, "channel %s has no %s release", channel, as);
}

/* Runs a move whose arguments are CHANNEL and RELEASE. For the moves unstage and rollback, RELEASE may be
 * omitted. It is then the channel's "staged" or "current" release, whichever `as` names. For other moves,
 * `as` is NULL. */
static int move(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv, const char *word,
                const char *as)
{
    const char *reason = NULL;
    int64_t release;
    int rest, code, r = parse_move(cli, self, as ? 1 : 2, argc, argv, &reason, &rest);

    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    code = check_channel(argv[rest]);
    if (code == 0)
        code = rest + 1 < argc ? mf_release_find(cli, argv[rest + 1], &release)
                               : find_channel_release(cli, argv[rest], as, &release);
    return code != 0 ? code : post_move(cli, argv[rest], word, release, reason);
}

static int stage(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    return move(cli, self, argc, argv, "stage", NULL);
}

static int approve(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    return move(cli, self, argc, argv, "approve", NULL);
}

static int rollback(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    return move(cli, self, argc, argv, "rollback", "current");
}

static int unstage(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    return move(cli, self, argc, argv, "unstage", "staged");
}

/* ---- the actions ---- */

/* clang-format off */
static const struct mf_command commands[] = {
    {"release freeze", MF_FARM, "",
     "freeze the current export as a release, with the provenance of each row", freeze},
    {"release list", MF_FARM, "", "list the releases, newest first", list},
    {"release show", MF_FARM, "RELEASE",
     "show a release (number or name): its rows, devices and rows left out", mf_release_show},
    {"release diff", MF_FARM, "RELEASE [OLDER]",
     "compare a release with an older one (default: its predecessor)", mf_release_diff},
    {"release stage", MF_FARM, "CHANNEL RELEASE",
     "stage a release for approval; creates the channel if it does not exist", stage},
    {"release unstage", MF_FARM, "CHANNEL [RELEASE]", "withdraw the staged release", unstage},
    {"release approve", MF_FARM, "CHANNEL RELEASE",
     "make the staged release current (role admin)", approve},
    {"release rollback", MF_FARM, "CHANNEL [RELEASE]",
     "roll back to the release approved before the current one (role admin)", rollback},
    {"release channels", MF_FARM, "", "list the channels, current and staged releases", channels},
    {"release history", MF_FARM, "CHANNEL",
     "list the moves of a channel with time, author and reason", mf_release_history},
};
/* clang-format on */

int mf_cmd_release(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    return mf_cli_run_group(cli, self, commands, MF_ARRAY_LEN(commands), argc, argv);
}
