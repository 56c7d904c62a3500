/* Memory that outlives a runner: sealed memory files, kept by key.
 *
 * The worker holds one store and hands its files to every new runner; a runner holds its own and is a struct
 * mf_keeper to sessions. A store has a ceiling of bytes; the file unused for longest goes first. Only files
 * that nobody can change any more are kept: sealed against shrinking, growing and writing. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "worker/runner_wire.h"
#include "worker/unit.h"

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

/* The runner's side: keeps what the worker handed over (`have`), and hands over what sessions make (`keep`). */
struct mf_runner_keeper {
    struct mf_keeper keeper; /* first: sessions see only this */
    struct mf_kept_store store;
    struct mf_channel *channel;
};
void mf_runner_keeper_init(struct mf_runner_keeper *k, struct mf_channel *channel, uint64_t max_bytes);
void mf_runner_keeper_release(struct mf_runner_keeper *k);

#define MF_HUGE_PAGE ((size_t)2 << 20)

/* A new sealable memory file of that size, close-on-exec, in huge pages where that can be; mf_memory_seal ends
 * writing to it (no writable mapping may be left). */
int mf_memory_file(const char *name, uint64_t bytes, int *ret_fd);
int mf_memory_seal(int fd);
/* Maps whole pages of the file, shared, at a multiple of a huge page when as large as one. NULL: errno says why. */
void *mf_memory_map(int fd, size_t bytes, int protection, int flags);
