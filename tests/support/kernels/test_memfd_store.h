/* An in-memory memfd_store for tests. It counts successful lookups. */
#pragma once

#include <check.h>
#include <string.h>

#include "common/base/text.h"
#include "measure/session/memfd_cache.h"

struct fake_memfd_store {
    struct mf_memfd_store memfd_store; /* must be the first member */
    char keys[16][256];
    int fds[16];
    uint64_t bytes[16];
    int n, n_found;
};

static inline int memfd_store_find(struct mf_memfd_store *memfd_store, const char *key, uint64_t *ret_bytes)
{
    struct fake_memfd_store *k = (struct fake_memfd_store *)memfd_store;
    for (int i = 0; i < k->n; i++) {
        if (strcmp(k->keys[i], key) == 0) {
            k->n_found++;
            *ret_bytes = k->bytes[i];
            return k->fds[i];
        }
    }
    return -1;
}

static inline int memfd_store_keep(struct mf_memfd_store *memfd_store, const char *key, int fd,
                                   uint64_t bytes)
{
    struct fake_memfd_store *k = (struct fake_memfd_store *)memfd_store;
    ck_assert_int_lt(k->n, 16);
    ck_assert_int_eq(mf_copy(k->keys[k->n], sizeof(k->keys[0]), key), 0);
    k->fds[k->n] = fd;
    k->bytes[k->n++] = bytes;
    return 0;
}

static inline void memfd_store_drop(struct mf_memfd_store *memfd_store, const char *key)
{
    (void)memfd_store;
    (void)key;
}

static inline void memfd_store_init(struct fake_memfd_store *k)
{
    *k = (struct fake_memfd_store){.memfd_store = {memfd_store_find, memfd_store_keep, memfd_store_drop}};
}
