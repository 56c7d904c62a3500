/* moefarm release show, diff and history: print releases and the moves of a channel. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/support/list_out.h"
#include "cli/support/release.h"
#include "common/base/json.h"
#include "common/base/text.h"

/* ---- show ---- */

static const char *const device_names[] = {"rows", "class",  "model",    "worker",
                                           "host", "driver", "compiler", "revision"};

static void add_device(struct mf_columns *c, const cJSON *d)
{
    mf_columns_addf(c, "%" PRId64, mf_api_i64(d, "rows", 0));
    for (size_t i = 1; i < MF_ARRAY_LEN(device_names); i++)
        mf_columns_add_text(c, mf_api_text(d, device_names[i], ""));
}

static const char *const row_names[] = {"row",  "task",     "us",  "n",       "mad",
                                        "ties", "unstable", "key", "pipeline"};

static void add_row(struct mf_columns *c, const cJSON *row)
{
    const cJSON *name;
    char names[2048] = "";

    cJSON_ArrayForEach (name, mf_json_array(row, "names")) {
        size_t len = strlen(names);
        mf_format(names + len, sizeof(names) - len, "%s%s", len ? " | " : "",
                  cJSON_IsString(name) ? name->valuestring : "");
    }
    mf_columns_addf(c, "%" PRId64, mf_api_i64(row, "row", 0));
    mf_columns_addf(c, "%" PRId64, mf_api_i64(row, "task", 0));
    mf_columns_addf(c, "%.4f", mf_api_double(row, "us", 0));
    mf_columns_addf(c, "%" PRId64, mf_api_i64(row, "n", 0));
    mf_columns_addf(c, "%.4f", mf_api_double(row, "mad", 0));
    mf_columns_addf(c, "%d", cJSON_GetArraySize(mf_json_array(row, "ties")));
    mf_columns_add_text(c, mf_api_text(row, "unstable", ""));
    mf_columns_add(c, mf_api_text(row, "key", ""));
    mf_columns_add(c, names);
}

static void print_head(const cJSON *release, const cJSON *manifest)
{
    char made[MF_MOMENT_MAX];
    const char *by = mf_api_text(release, "created_by", "");
    const cJSON *item;

    mf_moment(mf_api_i64(release, "created_ms", 0), made);
    printf("release %" PRId64 " %s, frozen %s%s%s\n", mf_api_i64(release, "id", 0),
           mf_api_text(release, "name", ""), made, *by ? " by " : "", by);
    printf("table:    %" PRId64 " rows, %" PRId64 " bytes, sha256 %s\n", mf_api_i64(release, "rows", 0),
           mf_api_i64(release, "bytes", 0), mf_api_text(release, "sha256", ""));
    printf("filters: ");
    cJSON_ArrayForEach (item, mf_json_object(release, "filters")) {
        if (cJSON_IsString(item))
            printf(" %s=%s", item->string, item->valuestring);
        else if (cJSON_IsNumber(item))
            printf(" %s=%.0f", item->string, item->valuedouble);
        else if (cJSON_IsTrue(item))
            printf(" %s", item->string);
    }
    printf("\nbatches: ");
    cJSON_ArrayForEach (item, mf_json_array(manifest, "batches"))
        printf(" %.0f", item->valuedouble);
    printf("\nchannels:");
    cJSON_ArrayForEach (item, mf_json_array(release, "channels"))
        printf(" %s (%s)", mf_api_text(item, "channel", ""), mf_api_text(item, "as", ""));
    printf("%s\n", mf_json_array(release, "channels")->child ? "" : " none");
}

static void print_manifest(const cJSON *manifest, bool rows)
{
    const struct mf_list_table devices = {device_names, MF_ARRAY_LEN(device_names), add_device, NULL},
                               lines = {row_names, MF_ARRAY_LEN(row_names), add_row, NULL};
    const cJSON *item;

    printf("\nmeasured on\n");
    mf_list_print(&devices, mf_json_array(manifest, "devices"));
    if (mf_json_array(manifest, "left_out")->child)
        printf("\nleft out\n");
    cJSON_ArrayForEach (item, mf_json_array(manifest, "left_out")) {
        const char *class = mf_api_text(item, "class", "");
        printf("%s %s: %s\n", *class ? class : "any class", mf_api_text(item, "shape", ""),
               mf_api_text(item, "reason", ""));
    }
    if (!rows)
        return;
    printf("\n");
    mf_list_print(&lines, mf_json_array(manifest, "rows"));
}

int mf_release_show(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    _cleanup_(cJSON_Deletep) cJSON *release = NULL;
    _cleanup_(cJSON_Deletep) cJSON *manifest = NULL;
    char path[MF_API_PATH_MAX];
    bool rows = false;
    const struct mf_opt opts[] = {
        {.name = "rows", .type = MF_OPT_BOOL, .value = &rows, .help = "also print each row with its task"},
    };
    int64_t id;
    int rest, r, code;

    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 1, 1, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    code = mf_release_find(cli, argv[rest], &id);
    mf_api_path(path, "/api/v1/releases/{}/manifest.json", id);
    if (code == 0)
        code = mf_api_get(cli, path, &manifest);
    if (code != 0)
        return code;
    if (cli->json)
        return mf_api_print(manifest);
    mf_api_path(path, "/api/v1/releases/{}", id);
    code = mf_api_get(cli, path, &release);
    if (code != 0)
        return code;
    if (!mf_json_array(release, "channels") || !mf_json_array(manifest, "left_out"))
        return mf_cli_fail(MF_EXIT_UNREACHED,
                           "%s: the reply is not a release; check that the URL is moefarmd's", path);
    print_head(release, manifest);
    print_manifest(manifest, rows);
    return MF_EXIT_OK;
}

/* ---- diff ---- */

static void print_rows(const cJSON *items, const char *what, int lines_max)
{
    const cJSON *item;
    int n = 0;

    cJSON_ArrayForEach (item, items) {
        if (n++ == lines_max)
            printf("… and %d more %s\n", cJSON_GetArraySize(items) - lines_max, what);
        if (n > lines_max)
            break;
        printf("%-8s %s  %.4f us\n", what, mf_api_text(item, "key", ""), mf_api_double(item, "us", 0));
    }
}

static void print_changed(const cJSON *items, int lines_max)
{
    const cJSON *item;
    int n = 0;

    cJSON_ArrayForEach (item, items) {
        double old_us = mf_api_double(item, "old_us", 0), new_us = mf_api_double(item, "new_us", 0);
        const char *old_names = mf_api_text(item, "old_names", ""),
                   *new_names = mf_api_text(item, "new_names", "");

        if (n++ == lines_max)
            printf("… and %d more changed\n", cJSON_GetArraySize(items) - lines_max);
        if (n > lines_max)
            break;
        printf("changed  %s  %.4f -> %.4f us (%+.1f%%)", mf_api_text(item, "key", ""), old_us, new_us,
               old_us > 0 ? 100 * (new_us / old_us - 1) : 0);
        if (strcmp(old_names, new_names) != 0)
            printf(", %s -> %s", old_names, new_names);
        printf("\n");
    }
}

void mf_release_print_diff(const cJSON *diff, int lines_max)
{
    const cJSON *added = mf_json_array(diff, "added"), *removed = mf_json_array(diff, "removed"),
                *changed = mf_json_array(diff, "changed");

    print_rows(added, "added", lines_max);
    print_rows(removed, "removed", lines_max);
    print_changed(changed, lines_max);
    printf("%d added, %d removed, %d changed, %" PRId64 " the same\n", cJSON_GetArraySize(added),
           cJSON_GetArraySize(removed), cJSON_GetArraySize(changed), mf_api_i64(diff, "same", 0));
}

int mf_release_diff(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    _cleanup_(cJSON_Deletep) cJSON *diff = NULL;
    char path[MF_RELEASE_PATH_MAX];
    int64_t id, against = 0;
    int rest, r, code;

    r = mf_cli_parse(cli, self, NULL, 0, 1, 2, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    code = mf_release_find(cli, argv[rest], &id);
    if (code == 0 && rest + 1 < argc)
        code = mf_release_find(cli, argv[rest + 1], &against);
    if (code != 0)
        return code;
    mf_format(path, sizeof(path), "/api/v1/releases/%" PRId64 "/diff", id);
    if (against)
        mf_format(path, sizeof(path), "/api/v1/releases/%" PRId64 "/diff?against=%" PRId64, id, against);
    code = mf_api_get(cli, path, &diff);
    if (code != 0)
        return code;
    if (cli->json)
        return mf_api_print(diff);
    printf("release %" PRId64 " against ", id);
    if (mf_api_i64(diff, "against", 0))
        printf("release %" PRId64 "\n", mf_api_i64(diff, "against", 0));
    else
        printf("nothing: it is the first release\n");
    mf_release_print_diff(diff, INT32_MAX);
    return MF_EXIT_OK;
}

/* ---- history ---- */

static const char *const move_names[] = {"when", "move", "from", "to", "by", "reason"};

static void add_move(struct mf_columns *c, const cJSON *m)
{
    char when[MF_MOMENT_MAX];

    mf_moment(mf_api_i64(m, "at_ms", 0), when);
    mf_columns_add(c, when);
    mf_columns_add(c, mf_api_text(m, "move", ""));
    mf_columns_add_id(c, mf_api_i64(m, "from_release", 0));
    mf_columns_add_id(c, mf_api_i64(m, "to_release", 0));
    mf_columns_add_text(c, mf_api_text(m, "moved_by", ""));
    mf_columns_add(c, mf_api_text(m, "reason", ""));
}

int mf_release_history(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const struct mf_list_table t = {move_names, MF_ARRAY_LEN(move_names), add_move, NULL};
    char path[MF_RELEASE_PATH_MAX];
    int rest, r;

    r = mf_cli_parse(cli, self, NULL, 0, 1, 1, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    if (!mf_is_name(argv[rest], MF_RELEASE_WORD_MAX))
        return mf_cli_fail(
            MF_EXIT_USAGE,
            "release history: '%s' is not a channel name: use letters, digits, '.', '_' and '-'", argv[rest]);
    mf_format(path, sizeof(path), "/api/v1/channels/%s/history", argv[rest]);
    return mf_list_show(cli, path, &t);
}
