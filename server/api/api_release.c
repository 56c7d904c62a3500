/* Handlers of releases: freezing (a reader creates the release, the writer stores it) and reading. */
#include "server/api/api.h"

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "server/api/api_table.h"
#include "server/api/release.h"
#include "server/farm/channel.h"
#include "server/http/problem.h"
#include "server/http/reader.h"
#include "server/store/store_access.h"
#include "server/store/store_read_release.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

static struct mf_store *store_of(void *reader)
{
    return ((struct mf_reader *)reader)->store;
}

static int refuse_read(struct mf_request *r, int e)
{
    return e == -ENOENT ? mf_refuse(&r->response, 404, "there is no release %" PRId64, r->path_id[0])
                        : mf_refuse_errno(&r->response, e, "read the release");
}

/* ---- freezing ---- */

int mf_api_freeze_read(void *reader, struct mf_request *r)
{
    struct mf_store *s = store_of(reader);
    struct mf_table_query query;
    struct mf_release_work *work = NULL;
    char token_name[MF_TOKEN_NAME_MAX], why[MF_REASON_MAX] = "";
    struct mf_release_request request = {.name = mf_request_query(r, "name"), .created_ms = mf_wall_ms()};
    if (request.name &&
        (!mf_is_name(request.name, MF_RELEASE_NAME_MAX - 1) || !isalpha((unsigned char)*request.name)))
        return mf_refuse_at(&r->response, 400, "name", "value",
                            "name: expected a letter and up to 62 letters, digits, '.', '_' or '-'");
    int e = mf_table_query_read(r, s, &query);
    if (e < 0)
        return e;
    e = mf_store_token_name(s, r->token, token_name);
    request.created_by = token_name;
    if (e == 0)
        e = mf_release_make(s, &query.options, &request, &work, why);
    if (e == -ENODATA)
        return mf_refuse(&r->response, 422,
                         "no config matches the filters, so there is nothing to freeze; "
                         "/api/v1/export/left_out lists the rows that were left out, with reasons");
    if (e == -EFBIG)
        return mf_refuse(
            &r->response, 422,
            "the table or the manifest would exceed %u MiB; restrict it with class or layer_model",
            MF_RESPONSE_BODY_MAX >> 20);
    if (e < 0)
        return *why ? mf_refuse(&r->response, 500, "write the table: %s", why)
                    : mf_refuse_errno(&r->response, e, "freeze the export");
    r->work = work;
    r->work_free = mf_release_work_free;
    return 0;
}

int mf_api_freeze_write(void *farm, struct mf_request *r)
{
    const struct mf_release *release = &((struct mf_release_work *)r->work)->release;
    int64_t id;
    int e = mf_farm_release_add(farm, release, &id);
    if (e == -EEXIST)
        return mf_refuse_at(
            &r->response, 409, "name", "taken",
            "name: release %s already exists with different rows or filters; use another name",
            release->name);
    if (e < 0)
        return mf_refuse_errno(&r->response, e, "store the release");
    cJSON *o = cJSON_CreateObject();
    mf_json_add_i64(o, "release", id);
    cJSON_AddStringToObject(o, "name", release->name);
    cJSON_AddStringToObject(o, "sha256", release->sha256);
    mf_json_add_i64(o, "rows", (int64_t)release->n_rows);
    mf_json_add_i64(o, "left_out", release->n_left_out);
    return mf_respond_json(&r->response, e == 1 ? 200 : 201, o);
}

/* ---- reading ---- */

static int answer_list(struct mf_request *r, int e, struct mf_list *list)
{
    return e < 0 ? refuse_read(r, e) : mf_respond_list(&r->response, list->items, list->next);
}

int mf_api_releases(void *reader, struct mf_request *r)
{
    struct mf_list list;
    return answer_list(r,
                       mf_read_releases(store_of(reader), mf_request_query(r, "name"),
                                        mf_request_query(r, "sha256"), &r->page, &list),
                       &list);
}

int mf_api_release(void *reader, struct mf_request *r)
{
    cJSON *json = NULL;
    int e = mf_read_release(store_of(reader), r->path_id[0], &json);
    return e < 0 ? refuse_read(r, e) : mf_respond_json(&r->response, 200, json);
}

int mf_api_release_rows(void *reader, struct mf_request *r)
{
    struct mf_list list;
    return answer_list(r, mf_read_release_rows(store_of(reader), r->path_id[0], &r->page, &list), &list);
}

int mf_api_release_diff(void *reader, struct mf_request *r)
{
    const char *text = mf_request_query(r, "against");
    cJSON *json = NULL;
    int64_t against = 0;
    if (text && mf_parse_i64(text, 1, INT64_MAX, &against) < 0)
        return mf_refuse_at(&r->response, 400, "against", "range",
                            "against: expected the number of a release (1 or more)");
    int e = mf_read_release_diff(store_of(reader), r->path_id[0], against, &json);
    if (e == -ENOENT && against)
        return mf_refuse(&r->response, 404, "there is no release %" PRId64 " or %" PRId64, r->path_id[0],
                         against);
    return e < 0 ? refuse_read(r, e) : mf_respond_json(&r->response, 200, json);
}

int mf_api_answer_release(struct mf_request *r, struct mf_store *s, int64_t id, enum mf_release_file what)
{
    char hash[MF_SHA256_TEXT_MAX];
    int e = mf_read_release_file(s, id, what, &r->response.body, hash);
    if (e == -EBADMSG)
        (void)log_err(e, "release %" PRId64 " does not match the hash it was frozen with", id);
    if (e == -EBADMSG)
        return mf_refuse(
            &r->response, 500,
            "release %" PRId64
            ": the stored file does not match its hash, so the database is damaged; restore it from a backup",
            id);
    if (e == -ENOTSUP)
        return mf_refuse(&r->response, 409,
                         what == MF_RELEASE_CSV
                             ? "release %" PRId64 " has configuration files of vLLM or SGLang, not a table; "
                               "get configs.json instead (moefarm pull --format)"
                             : "release %" PRId64 " has a table, not configuration files; get tuned_fmoe.csv "
                               "instead, or freeze one with --consumer vllm or sglang",
                         id);
    if (e < 0)
        return e == -ENOENT ? mf_refuse(&r->response, 404, "there is no release %" PRId64, id)
                            : mf_refuse_errno(&r->response, e, "read the release");
    return mf_table_answer(
        r, s, what == MF_RELEASE_CSV ? "text/csv; charset=utf-8" : "application/json; charset=utf-8", hash);
}

int mf_api_release_csv(void *reader, struct mf_request *r)
{
    return mf_api_answer_release(r, store_of(reader), r->path_id[0], MF_RELEASE_CSV);
}

int mf_api_release_configs(void *reader, struct mf_request *r)
{
    return mf_api_answer_release(r, store_of(reader), r->path_id[0], MF_RELEASE_CONFIGS);
}

int mf_api_release_manifest(void *reader, struct mf_request *r)
{
    return mf_api_answer_release(r, store_of(reader), r->path_id[0], MF_RELEASE_MANIFEST);
}
