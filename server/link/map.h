/* Hash map from non-zero 64-bit keys to pointers. The map does not own the objects behind the pointers. Uses
 * open addressing with backward-shift deletion; the map grows and never shrinks. */
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
/* Returns NULL if the key is absent. */
void *mf_map_get(const struct mf_map *m, uint64_t key);
/* Inserts or replaces. Returns 0 or -ENOMEM. */
int mf_map_put(struct mf_map *m, uint64_t key, void *value);
/* Returns the removed value, or NULL if the key is absent. */
void *mf_map_remove(struct mf_map *m, uint64_t key);

/* Iterates over all entries in no particular order. The body must not change the map. */
#define MF_MAP_EACH(m, e)                                                               \
    for (struct mf_map_entry *e = (m)->entries; e && e != (m)->entries + (m)->cap; e++) \
        if (e->key)
