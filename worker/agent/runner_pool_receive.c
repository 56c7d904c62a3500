#include "worker/agent/runner_pool_private.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/device.h"
#include "worker/runner/device_info.h"

#define BAD_HELLO "the first message is not a hello of protocol 1 with revision, families and can: [\"unit\"]"

_Static_assert(MF_KEPT_MAX <= MF_CHANNEL_FDS_MAX,
               "all kept files may be queued for a runner that does not read yet");

static int hand_over_kept(struct mf_runner_pool *c, struct mf_runner_host *host)
{
    for (size_t i = 0; i < c->kept.n; i++) {
        _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("have");
        if (!m || !cJSON_AddStringToObject(m, "key", c->kept.items[i].key) ||
            !mf_json_add_i64(m, "bytes", (int64_t)c->kept.items[i].bytes))
            return -ENOMEM;
        int r = mf_runner_host_send(host, m, c->kept.items[i].fd);
        if (r < 0)
            return r;
    }
    return 0;
}

static int ask_to_describe(struct mf_runner_pool *c, struct mf_runner_host *host)
{
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("describe");
    if (!m)
        return -ENOMEM;
    if (c->described) {
        cJSON *known = cJSON_Duplicate(c->described, true);
        if (!known || !cJSON_AddItemToObject(m, "known", known)) {
            cJSON_Delete(known);
            return -ENOMEM;
        }
    }
    return mf_runner_host_send(host, m, -1);
}

void mf_runner_pool_greet(struct mf_runner_pool *c)
{
    struct mf_member *p = &c->working;
    int r = hand_over_kept(c, p->host);
    if (r == 0)
        r = ask_to_describe(c, p->host);
    if (r < 0) {
        mf_runner_pool_kill(c, strerror(-r));
        return;
    }
    p->state = MF_MEMBER_GREETED;
    mf_runner_host_limit(p->host, MF_RUNNER_POOL_START_MS);
}

bool mf_runner_pool_can(const cJSON *hello, const char *name)
{
    const cJSON *list = mf_json_array(hello, "can"), *item;
    cJSON_ArrayForEach (item, list) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0)
            return true;
    }
    return false;
}

void mf_runner_pool_take_hello(struct mf_runner_pool *c, struct mf_member *p, cJSON *message)
{
    int64_t protocol;
    const char *revision;
    if (strcmp(mf_channel_op(message), "hello") != 0 ||
        mf_json_i64(message, "protocol", 1, 1, &protocol) < 0 ||
        mf_json_text(message, "revision", &revision) < 0 || !mf_json_object(message, "families") ||
        !mf_runner_pool_can(message, "unit")) {
        cJSON_Delete(message);
        if (p == &c->working)
            mf_runner_pool_kill(c, BAD_HELLO);
        else
            mf_runner_host_kill(p->host);
        return;
    }
    p->hello = message;
    mf_runner_host_limit(p->host, 0);
    if (p == &c->working)
        mf_runner_pool_greet(c);
}

static void take_kept(struct mf_runner_pool *c, const cJSON *message)
{
    int fd = mf_runner_host_take_fd(c->working.host);
    const char *key;
    int64_t bytes;
    if (fd < 0)
        return;
    if (mf_json_text(message, "key", &key) < 0 || mf_json_i64(message, "bytes", 1, INT64_MAX, &bytes) < 0)
        (void)close(fd);
    else
        (void)mf_kept_store_add(&c->kept, key, fd, (uint64_t)bytes);
}

static void take_drop(struct mf_runner_pool *c, const cJSON *message)
{
    const char *key;
    if (mf_json_text(message, "key", &key) == 0)
        mf_kept_store_drop(&c->kept, key);
}

static enum mf_runner_pool_event take_described(struct mf_runner_pool *c, cJSON *message)
{
    _cleanup_(cJSON_Deletep) cJSON *m = message;
    struct mf_device_info info;
    const char *field = "op", *reason = "no reason given";
    if (strcmp(mf_channel_op(m), "error") == 0) {
        (void)mf_json_text(m, "reason", &reason);
        mf_format(c->why, sizeof(c->why), "%s", reason);
        c->failed = !c->described;
        if (c->failed)
            return MF_RUNNER_POOL_FAILED;
        mf_runner_pool_kill(c, reason);
        return MF_RUNNER_POOL_NOTHING;
    }
    if (strcmp(mf_channel_op(m), "described") != 0 || mf_device_info_parse(m, &info, &field) < 0) {
        char text[MF_REASON_MAX];
        mf_format(text, sizeof(text), "described: %s missing or invalid", field);
        mf_runner_pool_kill(c, text);
        return MF_RUNNER_POOL_NOTHING;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(m, "op");
    cJSON_Delete(c->described);
    c->described = MF_TAKE(m);
    cJSON_Delete(c->hello);
    c->hello = MF_TAKE(c->working.hello);
    c->working.state = MF_MEMBER_READY;
    c->failures = 0;
    mf_runner_host_limit(c->working.host, 0);
    return MF_RUNNER_POOL_READY;
}

/* The runner measured higher ceilings of the device. Stores them for later runners and reports them for the
 * coordinator. */
static enum mf_runner_pool_event take_new_ceilings(struct mf_runner_pool *c, cJSON *message)
{
    struct mf_device_info info;
    const char *field;
    if (mf_device_info_parse(message, &info, &field) < 0) {
        cJSON_Delete(message);
        return MF_RUNNER_POOL_NOTHING;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(message, "op");
    cJSON_Delete(c->described);
    c->described = message;
    return MF_RUNNER_POOL_DESCRIBED;
}

enum mf_runner_pool_event mf_runner_pool_take_message(struct mf_runner_pool *c, cJSON *message, cJSON **ret)
{
    const char *op = mf_channel_op(message);
    if (c->working.state == MF_MEMBER_STARTED) {
        mf_runner_pool_take_hello(c, &c->working, message);
        return MF_RUNNER_POOL_NOTHING;
    }
    bool keep = strcmp(op, "keep") == 0;
    if (keep || strcmp(op, "drop") == 0) {
        if (keep)
            take_kept(c, message);
        else
            take_drop(c, message);
        cJSON_Delete(message);
        return MF_RUNNER_POOL_NOTHING;
    }
    if (c->working.state == MF_MEMBER_GREETED)
        return take_described(c, message);
    if (strcmp(op, "described") == 0)
        return take_new_ceilings(c, message);
    *ret = message;
    return MF_RUNNER_POOL_MESSAGE;
}
