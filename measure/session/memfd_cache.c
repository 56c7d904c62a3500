#include "measure/session/memfd_cache.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/base/text.h"
#include "measure/session/memory.h"

void mf_kept_store_init(struct mf_kept_store *s, uint64_t max_bytes)
{
    *s = (struct mf_kept_store){.max_bytes = max_bytes};
}

static void remove_at(struct mf_kept_store *s, size_t i)
{
    (void)close(s->items[i].fd);
    s->bytes -= s->items[i].bytes;
    s->n--;
    if (i != s->n)
        s->items[i] = s->items[s->n];
}

void mf_kept_store_release(struct mf_kept_store *s)
{
    while (s->n > 0)
        remove_at(s, s->n - 1);
}

static struct mf_kept *look_up(struct mf_kept_store *s, const char *key)
{
    for (size_t i = 0; i < s->n; i++) {
        if (strcmp(s->items[i].key, key) == 0)
            return &s->items[i];
    }
    return NULL;
}

static void evict_oldest(struct mf_kept_store *s)
{
    size_t oldest = 0;
    for (size_t i = 1; i < s->n; i++) {
        if (s->items[i].last_use < s->items[oldest].last_use)
            oldest = i;
    }
    char key[MF_KEPT_KEY_MAX];
    memcpy(key, s->items[oldest].key, sizeof(key));
    remove_at(s, oldest);
    if (s->evicted)
        s->evicted(s->context, key);
}

int mf_kept_store_add(struct mf_kept_store *s, const char *key, int fd, uint64_t bytes)
{
    int r = mf_memory_check_sealed(fd, bytes);
    if (r == 0 && (key[0] == '\0' || strlen(key) >= MF_KEPT_KEY_MAX))
        r = -EINVAL;
    if (r == 0 && bytes > s->max_bytes)
        r = -EFBIG;
    if (r < 0) {
        (void)close(fd);
        return r;
    }
    mf_kept_store_drop(s, key);
    while (s->n == MF_KEPT_MAX || s->bytes + bytes > s->max_bytes)
        evict_oldest(s);
    struct mf_kept *item = &s->items[s->n++];
    *item = (struct mf_kept){.fd = fd, .bytes = bytes, .last_use = ++s->use_counter};
    (void)mf_copy(item->key, sizeof(item->key), key);
    s->bytes += bytes;
    return 0;
}

const struct mf_kept *mf_kept_store_find(struct mf_kept_store *s, const char *key)
{
    struct mf_kept *item = look_up(s, key);
    if (item)
        item->last_use = ++s->use_counter;
    return item;
}

void mf_kept_store_drop(struct mf_kept_store *s, const char *key)
{
    struct mf_kept *item = look_up(s, key);
    if (item)
        remove_at(s, (size_t)(item - s->items));
}

static int local_find(struct mf_memfd_store *memfd_store, const char *key, uint64_t *ret_bytes)
{
    const struct mf_kept *item =
        mf_kept_store_find(&((struct mf_local_memfd_store *)memfd_store)->store, key);
    if (!item)
        return -1;
    *ret_bytes = item->bytes;
    return item->fd;
}

static int local_keep(struct mf_memfd_store *memfd_store, const char *key, int fd, uint64_t bytes)
{
    return mf_kept_store_add(&((struct mf_local_memfd_store *)memfd_store)->store, key, fd, bytes);
}

static void local_drop(struct mf_memfd_store *memfd_store, const char *key)
{
    mf_kept_store_drop(&((struct mf_local_memfd_store *)memfd_store)->store, key);
}

void mf_local_memfd_store_init(struct mf_local_memfd_store *k, uint64_t max_bytes)
{
    *k = (struct mf_local_memfd_store){
        .memfd_store = {.find = local_find, .keep = local_keep, .drop = local_drop}};
    mf_kept_store_init(&k->store, max_bytes);
}

void mf_local_memfd_store_release(struct mf_local_memfd_store *k)
{
    mf_kept_store_release(&k->store);
}
