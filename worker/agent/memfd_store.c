#include "worker/agent/memfd_store.h"

#include <errno.h>

#include "common/base/json.h"

static void send_drop(void *context, const char *key)
{
    struct mf_runner_memfd_store *k = context;
    _cleanup_(cJSON_Deletep) cJSON *message = mf_channel_message("drop");
    if (message && cJSON_AddStringToObject(message, "key", key))
        (void)mf_channel_send_wait(k->channel, message, -1);
}

static int memfd_store_keep(struct mf_memfd_store *memfd_store, const char *key, int fd, uint64_t bytes)
{
    struct mf_runner_memfd_store *k = (struct mf_runner_memfd_store *)memfd_store;
    int r = mf_kept_store_add(&k->local.store, key, fd, bytes);
    if (r < 0)
        return r;
    _cleanup_(cJSON_Deletep) cJSON *message = mf_channel_message("keep");
    if (!message || !cJSON_AddStringToObject(message, "key", key) ||
        !mf_json_add_i64(message, "bytes", (int64_t)bytes))
        return -ENOMEM;
    return mf_channel_send_wait(k->channel, message, fd);
}

static void memfd_store_drop(struct mf_memfd_store *memfd_store, const char *key)
{
    struct mf_runner_memfd_store *k = (struct mf_runner_memfd_store *)memfd_store;
    mf_kept_store_drop(&k->local.store, key);
    send_drop(k, key);
}

void mf_runner_memfd_store_init(struct mf_runner_memfd_store *k, struct mf_channel *channel,
                                uint64_t max_bytes)
{
    *k = (struct mf_runner_memfd_store){.channel = channel};
    mf_local_memfd_store_init(&k->local, max_bytes);
    k->local.memfd_store.keep = memfd_store_keep;
    k->local.memfd_store.drop = memfd_store_drop;
    k->local.store.evicted = send_drop;
    k->local.store.context = k;
}

void mf_runner_memfd_store_release(struct mf_runner_memfd_store *k)
{
    mf_local_memfd_store_release(&k->local);
}
