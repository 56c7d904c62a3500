/* moefarm batches, show, cancel, workers, drain, tokens, revoke-token, keys and revoke-key: list the farm's
 * objects and act on them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/support/api.h"
#include "cli/support/list_out.h"
#include "cli/support/shape_arg.h"
#include "cli/support/text_out.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/status.h"

#define NOTES_MAX (1u << 20)

static const char *const batch_names[] = {"batch", "name", "state",  "priority", "created",
                                          "tasks", "done", "failed", "steps",    "measured"};

static void add_batch(struct mf_columns *c, const cJSON *b)
{
    char created[MF_MOMENT_MAX];

    mf_moment(mf_api_i64(b, "created_ms", 0), created);
    mf_columns_addf(c, "%" PRId64, mf_api_i64(b, "id", 0));
    mf_columns_add(c, mf_api_text(b, "name", ""));
    mf_columns_add(c, mf_api_text(b, "state", ""));
    mf_columns_addf(c, "%" PRId64, mf_api_i64(b, "priority", 0));
    mf_columns_add(c, created);
    for (size_t i = 5; i < MF_ARRAY_LEN(batch_names); i++)
        mf_columns_addf(c, "%" PRId64, mf_api_i64(b, batch_names[i], 0));
}

int mf_cmd_batches(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const struct mf_list_table t = {batch_names, MF_ARRAY_LEN(batch_names), add_batch, NULL};

    return mf_list_command(cli, self, "/api/v1/batches", &t, argc, argv);
}

static const char *const task_names[] = {"task", "class", "shape", "state", "steps", "us", "structure"};

static void add_task(struct mf_columns *c, const cJSON *g)
{
    char brief[MF_SHAPE_BRIEF_MAX] = "?";
    double us = mf_api_double(g, "us", 0);
    struct mf_shape shape;

    if (mf_api_shape(mf_json_object(g, "shape"), &shape) == 0)
        mf_shape_brief(&shape, brief);
    mf_columns_addf(c, "%" PRId64, mf_api_i64(g, "id", 0));
    mf_columns_add(c, mf_api_text(g, "class", ""));
    mf_columns_add(c, brief);
    mf_columns_add(c, mf_api_text(g, "state", ""));
    mf_columns_addf(c, "%" PRId64 "/%" PRId64, mf_api_i64(g, "measured", 0), mf_api_i64(g, "steps", 0));
    mf_columns_add_us(c, us);
    mf_columns_addf(c, "%s%s", *mf_api_text(g, "unstable", "") ? "UNSTABLE " : "",
                    us > 0 ? mf_api_text(g, "structure", "") : mf_api_text(g, "reason", ""));
}

/* Prints the refused rows, the reasons why tasks wait, and the weight layouts. */
static void print_notes(const cJSON *batch)
{
    _cleanup_(mf_buf_release) struct mf_buf waiting;
    const cJSON *item;

    mf_buf_init(&waiting, NOTES_MAX);
    mf_api_waiting(batch, &waiting);

    cJSON_ArrayForEach (item, mf_json_array(batch, "errors"))
        printf("refused line %" PRId64 ": %s: %s\n", mf_api_i64(item, "line", 0),
               mf_api_text(item, "at", "row"), mf_api_text(item, "message", ""));
    (void)fwrite(waiting.data, 1, waiting.len, stdout);
    cJSON_ArrayForEach (item, mf_json_array(batch, "layouts"))
        printf("layout %s for %s on %s%s\n", mf_api_text(item, "layout", "?"),
               mf_api_text(item, "layer_model", "?"), mf_api_text(item, "class", "?"),
               cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "pending"))
                   ? " so far; several layouts are being raced"
               : !strcmp(mf_api_text(item, "by", ""), "race") ? ", chosen by races over the token counts"
                                                              : "");
}

static int parse_id(const char *command, const char *what, const char *word, int64_t *ret)
{
    if (mf_parse_i64(word, 1, INT64_MAX, ret) == 0)
        return 0;
    return mf_cli_fail(MF_EXIT_USAGE, "%s: '%s' is not the number of a %s", command, word, what);
}

int mf_cmd_show(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    _cleanup_(cJSON_Deletep) cJSON *batch = NULL;
    _cleanup_(cJSON_Deletep) cJSON *tasks = NULL;
    char path[MF_API_PATH_MAX];
    int64_t id;
    int rest, r, code;

    r = mf_cli_parse(cli, self, NULL, 0, 1, 1, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    code = parse_id("show", "batch", argv[rest], &id);
    if (code != 0)
        return code;
    mf_api_path(path, "/api/v1/batches/{}", id);
    code = mf_api_get(cli, path, &batch);
    if (code != 0)
        return code;
    mf_api_path(path, "/api/v1/batches/{}/tasks", id);
    code = mf_api_list(cli, path, &tasks);
    if (code != 0)
        return code;
    if (cli->json) {
        cJSON_AddItemToObject(batch, "items", MF_TAKE(tasks));
        return mf_api_print(batch);
    }
    printf("batch %" PRId64 " %s: %s, priority %" PRId64 "\n", id, mf_api_text(batch, "name", ""),
           mf_api_text(batch, "state", ""), mf_api_i64(batch, "priority", 0));
    print_notes(batch);
    mf_list_print(&(struct mf_list_table){task_names, MF_ARRAY_LEN(task_names), add_task, NULL}, tasks);
    return MF_EXIT_OK;
}

/* Returns the fraction of time that a worker spends timing and verifying. */
static double measuring_fraction(const cJSON *worker)
{
    const cJSON *busy = mf_json_object(worker, "busy");

    return mf_api_double(busy, "timing", 0) + mf_api_double(busy, "verify", 0);
}

static const char *const worker_names[] = {"worker", "name",      "class",           "state",
                                           "seen",   "measuring", "results",         "deaths",
                                           "model",  "step",      "refused families"};

/* Adds the families that the worker could not load: "name (reason), name (reason)". */
static void add_refused_families(struct mf_columns *c, const cJSON *worker)
{
    char text[2 * MF_REASON_MAX] = "";
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_array(worker, "refused_families")) {
        size_t len = strlen(text);
        mf_format(text + len, sizeof(text) - len, "%s%s (%s)", len ? ", " : "", mf_api_text(item, "name", ""),
                  mf_api_text(item, "why", ""));
    }
    mf_columns_add(c, text);
}

static void add_worker(struct mf_columns *c, const cJSON *w)
{
    char ago[MF_DURATION_MAX];

    mf_duration((double)(mf_wall_ms() - mf_api_i64(w, "seen_ms", 0)) / 1000, ago);
    mf_columns_addf(c, "%" PRId64, mf_api_i64(w, "id", 0));
    mf_columns_add(c, mf_api_text(w, "name", ""));
    mf_columns_add(c, mf_api_text(w, "class", ""));
    mf_columns_add(c, *mf_api_text(w, "quarantined", "") ? "quarantined" : mf_api_text(w, "state", ""));
    mf_columns_addf(c, "%s ago", ago);
    mf_columns_addf(c, "%.0f%%", measuring_fraction(w) * 100);
    mf_columns_addf(c, "%" PRId64, mf_api_i64(w, "n_results", 0));
    mf_columns_addf(c, "%" PRId64, mf_api_i64(w, "n_deaths", 0));
    mf_columns_add(c, mf_api_text(w, "model", ""));
    mf_columns_add(c, mf_api_text(w, "step", ""));
    add_refused_families(c, w);
}

int mf_cmd_workers(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const struct mf_list_table t = {worker_names, MF_ARRAY_LEN(worker_names), add_worker, NULL};

    return mf_list_command(cli, self, "/api/v1/workers", &t, argc, argv);
}

/* Resolves a worker's number or name to its number. */
static int find_worker(struct mf_cli *cli, const char *word, int64_t *ret)
{
    _cleanup_(cJSON_Deletep) cJSON *items = NULL;
    const cJSON *item;
    int code;

    if (mf_parse_i64(word, 1, INT64_MAX, ret) == 0)
        return 0;
    code = mf_api_list(cli, "/api/v1/workers", &items);
    if (code != 0)
        return code;
    cJSON_ArrayForEach (item, items) {
        if (strcmp(mf_api_text(item, "name", ""), word) == 0) {
            *ret = mf_api_i64(item, "id", 0);
            return 0;
        }
    }
    return mf_cli_fail(MF_EXIT_USAGE, "unknown worker '%s'; moefarm workers lists the workers", word);
}

/* A command that sends a POST for an object with a number, such as a cancellation. */
struct action {
    const char *object, *path_format;
    const char *done_text; /* printed after the object and its number on success */
    /* Resolves a name or a number to a number. NULL: the command accepts only a number. */
    int (*find)(struct mf_cli *cli, const char *word, int64_t *ret_id);
};

static int post_action(struct mf_cli *cli, const struct mf_command *self, const struct action *a, int argc,
                       char **argv)
{
    _cleanup_(cJSON_Deletep) cJSON *answer = NULL;
    char path[MF_API_PATH_MAX];
    int64_t id;
    int rest, r, code;

    r = mf_cli_parse(cli, self, NULL, 0, 1, 1, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    code = a->find ? a->find(cli, argv[rest], &id) : parse_id(self->name, a->object, argv[rest], &id);
    if (code != 0)
        return code;
    mf_api_path(path, a->path_format, id);
    code = mf_api_post(cli, path, &answer);
    if (code != 0)
        return code;
    if (cli->json)
        return mf_api_print(answer);
    printf("%s %" PRId64 " %s\n", a->object, id, a->done_text);
    return MF_EXIT_OK;
}

int mf_cmd_cancel(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const struct action a = {"batch", "/api/v1/batches/{}/cancel", "is cancelled", NULL};

    return post_action(cli, self, &a, argc, argv);
}

int mf_cmd_drain(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const struct action a = {"worker", "/api/v1/workers/{}/drain",
                             "finishes its current unit and takes no more", find_worker};

    return post_action(cli, self, &a, argc, argv);
}

int mf_cmd_revive_worker(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const struct action a = {"worker", "/api/v1/workers/{}/revive", "is no longer in quarantine",
                             find_worker};

    return post_action(cli, self, &a, argc, argv);
}

static const char *const token_names[] = {"token", "role", "name", "created", "expires", "used", "revoked"};

static void add_moment(struct mf_columns *c, const cJSON *item, const char *key)
{
    char text[MF_MOMENT_MAX];

    mf_moment(mf_api_i64(item, key, 0), text);
    mf_columns_add(c, text);
}

static void add_token(struct mf_columns *c, const cJSON *t)
{
    mf_columns_addf(c, "%" PRId64, mf_api_i64(t, "id", 0));
    mf_columns_add(c, mf_api_text(t, "role", ""));
    mf_columns_add(c, mf_api_text(t, "name", ""));
    add_moment(c, t, "created_ms");
    add_moment(c, t, "expires_ms");
    add_moment(c, t, "used_ms");
    add_moment(c, t, "revoked_ms");
}

int mf_cmd_tokens(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const struct mf_list_table t = {token_names, MF_ARRAY_LEN(token_names), add_token, NULL};

    return mf_list_command(cli, self, "/api/v1/tokens", &t, argc, argv);
}

static const char *const key_names[] = {"key", "worker", "enrolled", "revoked", "token", "public key"};

static void add_key(struct mf_columns *c, const cJSON *k)
{
    mf_columns_addf(c, "%" PRId64, mf_api_i64(k, "id", 0));
    mf_columns_add(c, mf_api_text(k, "worker", ""));
    add_moment(c, k, "enrolled_ms");
    add_moment(c, k, "revoked_ms");
    mf_columns_addf(c, "%" PRId64, mf_api_i64(k, "token", 0));
    mf_columns_add(c, mf_api_text(k, "public_key", ""));
}

int mf_cmd_keys(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const struct mf_list_table t = {key_names, MF_ARRAY_LEN(key_names), add_key, NULL};

    return mf_list_command(cli, self, "/api/v1/keys", &t, argc, argv);
}

int mf_cmd_revoke_token(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const struct action a = {"token", "/api/v1/tokens/{}/revoke", "is revoked", NULL};

    return post_action(cli, self, &a, argc, argv);
}

int mf_cmd_revoke_key(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    const struct action a = {"key", "/api/v1/keys/{}/revoke", "is revoked", NULL};

    return post_action(cli, self, &a, argc, argv);
}
