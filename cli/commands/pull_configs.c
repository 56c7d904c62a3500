#include "cli/commands/pull_configs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/support/api.h"
#include "cli/support/file.h"
#include "cli/support/release.h"
#include "cli/tables/config_files.h"
#include "common/base/json.h"
#include "common/base/sha256.h"
#include "common/base/text.h"

#define RECORD        "moefarm.json"
#define FILE_MAX      (4u << 20)
#define PULL_PATH_MAX 4096

struct pull {
    const struct mf_pull_configs *o;
    cJSON *configs; /* {consumer, variable, files} of the release; `files` has only the selected ones */
    cJSON *record;  /* {release, files: {path: sha256}} of the last pull; NULL: none */
    int64_t release;
    size_t n_written, n_removed;
};

static int path_of(const struct pull *p, const char *name, char buf[PULL_PATH_MAX])
{
    return snprintf(buf, PULL_PATH_MAX, "%s/%s", p->o->folder, name) < PULL_PATH_MAX
               ? 0
               : mf_cli_fail(MF_EXIT_USAGE, "%.200s…: the path is too long; choose a shorter one",
                             p->o->folder);
}

/* Reads a file of the folder. Returns its hash, or "" if it does not exist. ret_text may be NULL. */
static int hash_file(const struct pull *p, const char *name, char hash[MF_SHA256_TEXT_MAX],
                     struct mf_buf *ret_text)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    char path[PULL_PATH_MAX];
    int code = path_of(p, name, path);

    *hash = '\0';
    mf_buf_init(&text, FILE_MAX);
    if (code != 0 || access(path, F_OK) < 0)
        return code;
    code = mf_file_read(path, &text);
    if (code == 0)
        mf_sha256_print(text.data, text.len, hash);
    if (code == 0 && ret_text)
        (void)mf_buf_add(ret_text, text.data, text.len);
    return code;
}

/* ---- the release ---- */

static int read_record(struct pull *p)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    char hash[MF_SHA256_TEXT_MAX];
    int code;

    mf_buf_init(&text, FILE_MAX);
    code = hash_file(p, RECORD, hash, &text);
    if (code != 0 || !*hash)
        return code;
    p->record = mf_json_parse(text.data, text.len, FILE_MAX);
    if (!mf_json_object(p->record, "files") && !p->o->force)
        return mf_cli_fail(MF_EXIT_FAILED,
                           "%s/" RECORD " is not the record of an earlier pull; remove it, or use --force",
                           p->o->folder);
    return 0;
}

static int fetch(struct mf_cli *cli, struct pull *p)
{
    _cleanup_(mf_http_reply_release) struct mf_http_reply reply;
    char path[MF_RELEASE_PATH_MAX];
    int code;

    mf_http_reply_init(&reply);
    mf_format(path, sizeof(path), "/api/v1/channels/%s/configs.json", p->o->channel);
    code = mf_api_table(cli, path, NULL, &reply);
    if (code != 0)
        return code;
    p->release = strtoll(reply.release, NULL, 10);
    p->configs = mf_api_parse(reply.body.data, reply.body.len);
    if (!*reply.release || !mf_json_object(p->configs, "files"))
        return mf_cli_fail(MF_EXIT_UNREACHED,
                           "%s%s: the reply is not a release; check that the URL is moefarmd's", cli->url,
                           path);
    if (strcmp(mf_api_text(p->configs, "consumer", ""), mf_framework_name(p->o->framework)) != 0)
        return mf_cli_fail(MF_EXIT_FAILED, "channel %s has files for %s; use --format %s", p->o->channel,
                           mf_api_text(p->configs, "consumer", ""), mf_api_text(p->configs, "consumer", ""));
    return mf_release_check_reply(cli, &reply, NULL);
}

/* ---- the files that the model reads ---- */

/* Returns the only device in the names of the files, or NULL after printing an error. */
static const char *find_device(const struct pull *p, char buf[MF_TRITON_DEVICE_MAX])
{
    const cJSON *file;

    *buf = '\0';
    cJSON_ArrayForEach (file, mf_json_object(p->configs, "files")) {
        struct mf_triton_key key;

        if (mf_triton_key_parse(file->string, &key) < 0)
            continue;
        if (*buf && strcmp(buf, key.device) != 0) {
            (void)mf_cli_fail(
                MF_EXIT_USAGE,
                "pull: the release has files for several devices (%s, %s); choose one with --device", buf,
                key.device);
            return NULL;
        }
        mf_format(buf, MF_TRITON_DEVICE_MAX, "%s", key.device);
    }
    return buf;
}

static int find_key(const struct pull *p, struct mf_triton_key *ret)
{
    const struct mf_pull_configs *o = p->o;
    struct mf_model model;
    struct mf_model_split split = {.tp = (int32_t)o->tp, .ep = (int32_t)o->ep};
    struct mf_shape layer;
    char why[MF_REASON_MAX] = "", buf[MF_TRITON_DEVICE_MAX];
    const char *device = o->device ? o->device : find_device(p, buf);
    int code;

    if (!device)
        return MF_EXIT_USAGE;
    if ((code = mf_model_arg_read(&o->model, &model)) != 0 ||
        (code = mf_model_arg_fused(o->fused, &model, &split.fused_shared)) != 0)
        return code;
    if (mf_model_layer(&model, &split, &layer, why) < 0 ||
        mf_triton_key(o->framework, &layer, device, ret, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "pull: %s: %s", model.name, why);
    return 0;
}

/* Drops the files that the model does not read at its TP and EP. */
static int select_files(struct pull *p)
{
    cJSON *files = mf_json_object(p->configs, "files"), *file, *next;
    struct mf_triton_key wanted, key;
    char name[MF_TRITON_NAME_MAX];
    int code;

    if (!p->o->model.model)
        return 0;
    if ((code = find_key(p, &wanted)) != 0)
        return code;
    for (file = files->child; file; file = next) {
        next = file->next;
        if (mf_triton_key_parse(file->string, &key) == 0 &&
            (mf_triton_key_differences(&key, &wanted) & ~(1u << MF_TRITON_PART_DOWN)) == 0)
            continue;
        cJSON_Delete(cJSON_DetachItemViaPointer(files, file));
    }
    if (files->child)
        return 0;
    mf_triton_key_print(p->o->framework, &wanted, name);
    return mf_cli_fail(MF_EXIT_FAILED,
                       "release %" PRId64 " of channel %s has no file %s; the folder is unchanged",
                       p->release, p->o->channel, name);
}

/* ---- the folder ---- */

/* True if the last pull wrote the file and it has not changed since. */
static bool is_own(const struct pull *p, const char *name, const char *hash)
{
    return strcmp(mf_api_text(mf_json_object(p->record, "files"), name, "-"), hash) == 0;
}

/* Refuses, before anything is written, to replace a file that pull did not write. */
static int check_folder(const struct pull *p)
{
    const cJSON *file;

    cJSON_ArrayForEach (file, mf_json_object(p->configs, "files")) {
        char hash[MF_SHA256_TEXT_MAX], fresh[MF_SHA256_TEXT_MAX];
        int code = hash_file(p, file->string, hash, NULL);

        if (code != 0)
            return code;
        mf_sha256_print(file->valuestring, strlen(file->valuestring), fresh);
        if (*hash && strcmp(hash, fresh) != 0 && !is_own(p, file->string, hash) && !p->o->force)
            return mf_cli_fail(MF_EXIT_FAILED,
                               "%s/%s was edited or comes from another source; replace it with --force",
                               p->o->folder, file->string);
    }
    return 0;
}

/* Drops the files that are up to date from the list of files to write. */
static int drop_unchanged(struct pull *p, cJSON *files)
{
    for (cJSON *file = files->child, *next; file; file = next) {
        char hash[MF_SHA256_TEXT_MAX], fresh[MF_SHA256_TEXT_MAX];
        int code = hash_file(p, file->string, hash, NULL);

        next = file->next;
        if (code != 0)
            return code;
        mf_sha256_print(file->valuestring, strlen(file->valuestring), fresh);
        if (strcmp(hash, fresh) == 0)
            cJSON_Delete(cJSON_DetachItemViaPointer(files, file));
    }
    return 0;
}

static int write_changed(struct pull *p)
{
    _cleanup_(cJSON_Deletep) cJSON *changed = cJSON_Duplicate(p->configs, true);
    int code = changed ? drop_unchanged(p, mf_json_object(changed, "files")) : mf_cli_out_of_memory();

    return code != 0 ? code : mf_config_files_write(p->o->folder, changed, &p->n_written);
}

/* Removes the files of the last pull that this pull does not have. A file that has changed since stays. */
static int remove_stale(struct pull *p)
{
    const cJSON *old, *files = mf_json_object(p->configs, "files");

    cJSON_ArrayForEach (old, mf_json_object(p->record, "files")) {
        char hash[MF_SHA256_TEXT_MAX], path[PULL_PATH_MAX];

        if (cJSON_GetObjectItemCaseSensitive(files, old->string) || !mf_config_path_ok(old->string) ||
            path_of(p, old->string, path) != 0 || hash_file(p, old->string, hash, NULL) != 0 || !*hash)
            continue;
        if (!is_own(p, old->string, hash)) {
            fprintf(stderr, "moefarm: kept %s, which was edited; this pull has no such file\n", path);
            continue;
        }
        if (unlink(path) < 0)
            return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", path, strerrordesc_np(errno));
        p->n_removed++;
    }
    return 0;
}

static int write_record(const struct pull *p)
{
    _cleanup_(cJSON_Deletep) cJSON *record = cJSON_CreateObject();
    _cleanup_(mf_freep) char *text = NULL;
    char path[PULL_PATH_MAX];
    const cJSON *file;
    cJSON *files;

    cJSON_AddStringToObject(record, "channel", p->o->channel);
    (void)mf_json_add_i64(record, "release", p->release);
    cJSON_AddStringToObject(record, "consumer", mf_framework_name(p->o->framework));
    files = cJSON_AddObjectToObject(record, "files");
    cJSON_ArrayForEach (file, mf_json_object(p->configs, "files")) {
        char hash[MF_SHA256_TEXT_MAX];

        mf_sha256_print(file->valuestring, strlen(file->valuestring), hash);
        cJSON_AddStringToObject(files, file->string, hash);
    }
    text = mf_json_print(record);
    if (!text)
        return mf_cli_out_of_memory();
    int code = path_of(p, RECORD, path);
    return code != 0 ? code : mf_file_write(path, text, strlen(text));
}

/* ---- the command ---- */

static int update(struct pull *p)
{
    int code;

    if ((code = read_record(p)) != 0 || (code = check_folder(p)) != 0 || (code = write_changed(p)) != 0 ||
        (code = remove_stale(p)) != 0)
        return code;
    return write_record(p);
}

static void print_result(const struct pull *p)
{
    int n = cJSON_GetArraySize(mf_json_object(p->configs, "files"));

    if (p->n_written + p->n_removed == 0)
        printf("%s: already at release %" PRId64 " of channel %s, %d file%s\n", p->o->folder, p->release,
               p->o->channel, n, n == 1 ? "" : "s");
    else
        printf("%s: release %" PRId64 " of channel %s, %d file%s: %zu written, %zu removed\n", p->o->folder,
               p->release, p->o->channel, n, n == 1 ? "" : "s", p->n_written, p->n_removed);
    mf_config_files_print_use(p->o->folder, p->configs);
}

int mf_pull_configs(struct mf_cli *cli, const struct mf_pull_configs *o, bool *ret_changed)
{
    struct pull p = {.o = o};
    int code = fetch(cli, &p);

    if (code == 0)
        code = mf_config_files_check(p.configs);
    if (code == 0)
        code = select_files(&p);
    if (code == 0)
        code = update(&p);
    if (code == 0 && !o->quiet)
        print_result(&p);
    *ret_changed = p.n_written + p.n_removed > 0;
    cJSON_Delete(p.configs);
    cJSON_Delete(p.record);
    return code;
}
