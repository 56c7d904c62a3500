/* Memory that outlives a session: sealed memory files, kept by key. A store has a ceiling of bytes; the file unused for longest
 * goes first. Only files that nobody can change any more are kept: sealed against shrinking, growing and writing. */
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
    uint64_t used; /* turn of its last use */
};

struct mf_kept_store {
    struct mf_kept items[MF_KEPT_MAX];
    size_t n;
    uint64_t bytes, max_bytes, turn;
    void (*evicted)(void *context, const char *key); /* optional: told of what had to go for room */
    void *context;
};

void mf_kept_store_init(struct mf_kept_store *s, uint64_t max_bytes);
void mf_kept_store_release(struct mf_kept_store *s);
/* Takes the descriptor in any case. A key that is there already is replaced. -EPERM: not sealed; -EINVAL: key or
 * size is wrong; -EFBIG: larger than the store. */
int mf_kept_store_add(struct mf_kept_store *s, const char *key, int fd, uint64_t bytes);
/* NULL: not there. Counts as a use; valid until the next add or drop. */
const struct mf_kept *mf_kept_store_find(struct mf_kept_store *s, const char *key);
void mf_kept_store_drop(struct mf_kept_store *s, const char *key);

/* A store of this process: what one session made the next one finds. */
struct mf_local_memfd_store {
    struct mf_memfd_store memfd_store; /* first: sessions see only this */
    struct mf_kept_store store;
};
void mf_local_memfd_store_init(struct mf_local_memfd_store *k, uint64_t max_bytes);
void mf_local_memfd_store_release(struct mf_local_memfd_store *k);
