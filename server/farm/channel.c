/* Changes releases and channels in the store, and adds the events of these changes. */
#include "server/farm/channel.h"

#include "server/farm/farm_private.h"

#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/log.h"

#include <inttypes.h>

int mf_farm_release_add(struct mf_farm *f, const struct mf_release *release, int64_t *ret)
{
    int r = mf_store_release_add(f->store, release, ret);
    if (r != 0)
        return r;
    cJSON *body = cJSON_CreateObject();
    mf_json_add_i64(body, "release", *ret);
    cJSON_AddStringToObject(body, "name", release->name);
    mf_json_add_i64(body, "rows", (int64_t)release->n_rows);
    return mf_event_add(f, 0, "release", body);
}

int mf_farm_channel_move(struct mf_farm *f, const struct mf_channel_move *m, struct mf_channel *ret)
{
    int r = mf_store_channel_move(f->store, m, ret);
    if (r != MF_MOVED)
        return r;
    mf_fault_at(MF_FAULT_CHANNEL_MOVED);
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "channel", m->channel);
    cJSON_AddStringToObject(body, "move", mf_move_name(m->move));
    mf_json_add_i64(body, "release", m->release);
    mf_json_add_i64(body, "current", ret->current);
    r = mf_event_add(f, 0, "channel", body);
    if (r < 0)
        return r;
    log_info("channel %s: %s of release %" PRId64 " by %s; current is %" PRId64, m->channel,
             mf_move_name(m->move), m->release, *m->moved_by ? m->moved_by : "a local user without a token",
             ret->current);
    return MF_MOVED;
}

int mf_farm_token_name(struct mf_farm *f, int64_t token, char ret[MF_RELEASE_NAME_MAX])
{
    _Static_assert(MF_RELEASE_NAME_MAX >= MF_TOKEN_NAME_MAX, "a token's name fits");
    return mf_store_token_name(f->store, token, ret);
}
