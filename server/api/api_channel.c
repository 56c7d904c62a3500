/* Handlers of channels: reads, and the moves that change a channel. */
#include "server/api/api.h"

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "server/api/api_table.h"
#include "server/farm/channel.h"
#include "server/http/problem.h"
#include "server/http/reader.h"
#include "server/store/store_read_release.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static struct mf_store *store_of(void *reader)
{
    return ((struct mf_reader *)reader)->store;
}

/* ---- moves ---- */

/* Responds with {channel, staged, current} after the move. */
static int answer_move(struct mf_request *r, const struct mf_channel *c)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "channel", r->path_name);
    cJSON_AddItemToObject(o, "staged",
                          c->staged ? cJSON_CreateNumber((double)c->staged) : cJSON_CreateNull());
    cJSON_AddItemToObject(o, "current",
                          c->current ? cJSON_CreateNumber((double)c->current) : cJSON_CreateNull());
    return mf_respond_json(&r->response, 200, o);
}

static int answer_moved(struct mf_request *r, enum mf_moved moved, const struct mf_channel *c,
                        int64_t release)
{
    struct mf_response *p = &r->response;
    const char *name = r->path_name;
    switch (moved) {
    case MF_MOVED:
    case MF_MOVED_ALREADY:
        return answer_move(r, c);
    case MF_MOVED_NO_RELEASE:
        return mf_refuse_at(p, 404, "release", "unknown", "release: there is no release %" PRId64, release);
    case MF_MOVED_NO_CHANNEL:
        return mf_refuse(p, 404, "there is no channel %s; stage a release to create it", name);
    case MF_MOVED_TOO_MANY:
        return mf_refuse(p, 409, "the maximum of %d channels is reached; cannot create channel %s",
                         MF_CHANNELS_MAX, name);
    case MF_MOVED_CURRENT:
        return mf_refuse_at(p, 409, "release", "current",
                            "release %" PRId64 " is already the current release of channel %s", release,
                            name);
    case MF_MOVED_NOT_STAGED:
        return c->staged ? mf_refuse_at(p, 409, "release", "not_staged",
                                        "release %" PRId64
                                        " is not staged on channel %s, which has staged release %" PRId64,
                                        release, name, c->staged)
                         : mf_refuse_at(p, 409, "release", "not_staged",
                                        "no release is staged on channel %s; stage it first", name);
    case MF_MOVED_NOT_CURRENT:
        return mf_refuse_at(p, 409, "release", "not_current",
                            "release %" PRId64
                            " is not the current release of channel %s, which has release %" PRId64,
                            release, name, c->current);
    case MF_MOVED_NO_PREVIOUS:
        return mf_refuse_at(
            p, 409, "release", "first",
            "release %" PRId64
            " is the first approved release of channel %s; there is no earlier one to roll back to",
            release, name);
    }
    return mf_refuse_errno(p, -EINVAL, "move the channel");
}

static int move(void *farm, struct mf_request *r, enum mf_move kind)
{
    char token_name[MF_RELEASE_NAME_MAX];
    const char *text = mf_request_query(r, "release"), *reason = mf_request_query(r, "reason");
    static const char *const verbs[MF_MOVE_N_] = {[MF_MOVE_STAGE] = "stage",
                                                  [MF_MOVE_APPROVE] = "approve",
                                                  [MF_MOVE_ROLLBACK] = "roll back",
                                                  [MF_MOVE_UNSTAGE] = "unstage"};
    struct mf_channel channel = {0};
    struct mf_channel_move m = {.channel = r->path_name,
                                .move = kind,
                                .moved_by = token_name,
                                .reason = reason ? reason : "",
                                .at_ms = mf_wall_ms()};
    if (!text || mf_parse_i64(text, 1, INT64_MAX, &m.release) < 0)
        return mf_refuse_at(&r->response, 400, "release", text ? "range" : "missing",
                            "release: expected the number of the release to %s", verbs[kind]);
    if (strlen(m.reason) >= MF_CHANNEL_TEXT_MAX)
        return mf_refuse_at(&r->response, 400, "reason", "too_long",
                            "reason: too long; the limit is %d bytes", MF_CHANNEL_TEXT_MAX - 1);
    int e = mf_farm_token_name(farm, r->token, token_name);
    if (e == 0)
        e = mf_farm_channel_move(farm, &m, &channel);
    return e < 0 ? mf_refuse_errno(&r->response, e, "move the channel")
                 : answer_moved(r, (enum mf_moved)e, &channel, m.release);
}

int mf_api_stage(void *farm, struct mf_request *r)
{
    return move(farm, r, MF_MOVE_STAGE);
}

int mf_api_approve(void *farm, struct mf_request *r)
{
    return move(farm, r, MF_MOVE_APPROVE);
}

int mf_api_rollback(void *farm, struct mf_request *r)
{
    return move(farm, r, MF_MOVE_ROLLBACK);
}

int mf_api_unstage(void *farm, struct mf_request *r)
{
    return move(farm, r, MF_MOVE_UNSTAGE);
}

/* ---- reading ---- */

static int refuse_read(struct mf_request *r, int e)
{
    if (e == -ENOENT)
        return mf_refuse(&r->response, 404, "there is no channel %s; stage a release to create it",
                         r->path_name);
    if (e == -ENODATA)
        return mf_refuse(&r->response, 404, "channel %s has no release yet: approve one first", r->path_name);
    return mf_refuse_errno(&r->response, e, "read the channel");
}

static int answer_list(struct mf_request *r, int e, struct mf_list *list)
{
    return e < 0 ? refuse_read(r, e) : mf_respond_list(&r->response, list->items, list->next);
}

int mf_api_channels(void *reader, struct mf_request *r)
{
    struct mf_list list;
    return answer_list(r, mf_read_channels(store_of(reader), &r->page, &list), &list);
}

int mf_api_channel(void *reader, struct mf_request *r)
{
    cJSON *json = NULL;
    int e = mf_read_channel(store_of(reader), r->path_name, &json);
    return e < 0 ? refuse_read(r, e) : mf_respond_json(&r->response, 200, json);
}

int mf_api_channel_history(void *reader, struct mf_request *r)
{
    struct mf_list list;
    return answer_list(r, mf_read_channel_moves(store_of(reader), r->path_name, &r->page, &list), &list);
}

/* Many hosts poll this route, so a request with a matching ETag is answered without reading the table. */
static int answer_current(void *reader, struct mf_request *r, enum mf_release_file what)
{
    struct mf_response *p = &r->response;
    char name[MF_RELEASE_NAME_MAX], hash[MF_SHA256_TEXT_MAX];
    int64_t release;
    int e = mf_read_channel_current(store_of(reader), r->path_name, &release, name, hash);
    if (e < 0)
        return refuse_read(r, e);
    (void)mf_respond_header(p, "Moefarm-Release", "%" PRId64 " %s", release, name);
    mf_format(p->etag, sizeof(p->etag), "\"%s\"", hash);
    if (mf_request_etag_matches(r, p->etag)) {
        p->status = 200; /* mf_exchange responds with 304 if the ETag matches */
        return 0;
    }
    return mf_api_answer_release(r, store_of(reader), release, what);
}

int mf_api_channel_csv(void *reader, struct mf_request *r)
{
    return answer_current(reader, r, MF_RELEASE_CSV);
}

int mf_api_channel_configs(void *reader, struct mf_request *r)
{
    return answer_current(reader, r, MF_RELEASE_CONFIGS);
}
