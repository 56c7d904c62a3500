#include "server/link/map.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static size_t home(const struct mf_map *m, uint64_t key)
{
    return (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (m->cap - 1);
}

void mf_map_release(struct mf_map *m)
{
    free(m->entries);
    *m = (struct mf_map){0};
}

/* Returns the slot of the key, or the empty slot in which to insert it. */
static size_t find_slot(const struct mf_map *m, uint64_t key)
{
    size_t i = home(m, key);
    while (m->entries[i].key && m->entries[i].key != key)
        i = (i + 1) & (m->cap - 1);
    return i;
}

void *mf_map_get(const struct mf_map *m, uint64_t key)
{
    return m->cap ? m->entries[find_slot(m, key)].value : NULL;
}

static int grow(struct mf_map *m)
{
    struct mf_map bigger = {.n = m->n, .cap = m->cap ? m->cap * 2 : 16};
    bigger.entries = calloc(bigger.cap, sizeof(*bigger.entries));
    if (!bigger.entries)
        return -ENOMEM;
    MF_MAP_EACH(m, e)
    bigger.entries[find_slot(&bigger, e->key)] = *e;
    free(m->entries);
    *m = bigger;
    return 0;
}

int mf_map_put(struct mf_map *m, uint64_t key, void *value)
{
    assert(key && value);
    int r = (m->n + 1) * 2 > m->cap ? grow(m) : 0;
    if (r < 0)
        return r;
    struct mf_map_entry *e = &m->entries[find_slot(m, key)];
    m->n += !e->key;
    *e = (struct mf_map_entry){key, value};
    return 0;
}

void *mf_map_remove(struct mf_map *m, uint64_t key)
{
    size_t hole = m->cap ? find_slot(m, key) : 0;
    if (!m->cap || !m->entries[hole].key)
        return NULL;
    void *value = m->entries[hole].value;
    /* Shift each following entry back into the hole, unless its home slot lies behind the hole. */
    for (size_t i = (hole + 1) & (m->cap - 1); m->entries[i].key; i = (i + 1) & (m->cap - 1)) {
        size_t from_home = (i - home(m, m->entries[i].key)) & (m->cap - 1);
        if (from_home >= ((i - hole) & (m->cap - 1))) {
            m->entries[hole] = m->entries[i];
            hole = i;
        }
    }
    m->entries[hole] = (struct mf_map_entry){0, NULL};
    m->n--;
    return value;
}
