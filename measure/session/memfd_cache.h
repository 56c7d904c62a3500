/* LRU store of sealed memory files (memfd), by key. The files outlive a session.
 *
 * The total size of the files is limited. If a new file exceeds the limit, the least recently used files are
 * evicted. Only files sealed against shrinking, growing and writing are accepted. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "measure/session/unit.h"

#define MF_KEPT_MAX     128
#define MF_KEPT_KEY_MAX 256

struct mf_kept {
    char key[MF_KEPT_KEY_MAX];
    int fd;
    uint64_t bytes;
    uint64_t last_use; /* value of use_counter at the last use */
};

struct mf_kept_store {
    struct mf_kept items[MF_KEPT_MAX];
    size_t n;
    uint64_t bytes, max_bytes, use_counter;
    void (*evicted)(void *context, const char *key); /* called for each evicted key; may be NULL */
    void *context;
};

void mf_kept_store_init(struct mf_kept_store *s, uint64_t max_bytes);
void mf_kept_store_release(struct mf_kept_store *s);
/* Takes ownership of the descriptor, even on error. If the key exists, replaces its file. Returns -EPERM if
 * the file is not sealed, -EINVAL for a bad key or size, or -EFBIG if the file is larger than the store. */
int mf_kept_store_add(struct mf_kept_store *s, const char *key, int fd, uint64_t bytes);
/* Returns NULL if the key is not found. Marks the file as most recently used. The result is valid until the
 * next add or drop. */
const struct mf_kept *mf_kept_store_find(struct mf_kept_store *s, const char *key);
void mf_kept_store_drop(struct mf_kept_store *s, const char *key);

/* A store within this process, which its sessions share. */
struct mf_local_memfd_store {
    struct mf_memfd_store memfd_store; /* must be the first member: sessions get a pointer to it */
    struct mf_kept_store store;
};
void mf_local_memfd_store_init(struct mf_local_memfd_store *k, uint64_t max_bytes);
void mf_local_memfd_store_release(struct mf_local_memfd_store *k);
