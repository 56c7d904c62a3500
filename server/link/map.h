/* A map from non-zero 64-bit keys to pointers, which it does not own. Open addressing with backward-shift
 * deletion; grows, never shrinks. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct mf_map_entry {
    uint64_t key; /* 0: empty */
    void *value;
};

struct mf_map {
    struct mf_map_entry *entries;
    size_t n, cap; /* cap: 0 or a power of two */
};

void mf_map_release(struct mf_map *m);
/* NULL: not there. */
void *mf_map_get(const struct mf_map *m, uint64_t key);
/* Replaces. -ENOMEM. */
int mf_map_put(struct mf_map *m, uint64_t key, void *value);
/* The value that was there, or NULL. */
void *mf_map_remove(struct mf_map *m, uint64_t key);

/* Every entry, in no order. The map must not change meanwhile. */
#define MF_MAP_EACH(m, e)                                                               \
    for (struct mf_map_entry *e = (m)->entries; e && e != (m)->entries + (m)->cap; e++) \
        if (e->key)
