#include "emulator/known.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Returns the index of the first range that starts above the address. */
static size_t beyond(const struct mf_known *k, uintptr_t at)
{
    size_t low = 0, high = k->n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (k->ranges[mid].from <= at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

const struct mf_known_range *mf_known_below(struct mf_known *k, uintptr_t at)
{
    if (k->last < k->n && at >= k->ranges[k->last].from && at < k->ranges[k->last].to)
        return &k->ranges[k->last];
    size_t i = beyond(k, at);
    if (i == 0)
        return NULL;
    k->last = i - 1;
    return &k->ranges[i - 1];
}

static int make_room(struct mf_known *k)
{
    size_t cap = k->cap ? k->cap * 2 : 32;
    if (k->n < k->cap)
        return 0;
    struct mf_known_range *more = reallocarray(k->ranges, cap, sizeof(*more));
    if (!more)
        return -ENOMEM;
    k->ranges = more;
    k->cap = cap;
    return 0;
}

int mf_known_add(struct mf_known *k, const void *p, size_t bytes, bool writable)
{
    uintptr_t from = (uintptr_t)p, to = from + bytes;
    size_t at = beyond(k, from);

    if (at > 0 && k->ranges[at - 1].from == from && k->ranges[at - 1].to == to) {
        k->ranges[at - 1].writable |= writable;
        return 0;
    }
    if ((at > 0 && k->ranges[at - 1].to > from) || (at < k->n && k->ranges[at].from < to))
        return -EEXIST;
    int r = make_room(k);
    if (r < 0)
        return r;
    memmove(&k->ranges[at + 1], &k->ranges[at], (k->n - at) * sizeof(k->ranges[0]));
    k->ranges[at] = (struct mf_known_range){from, to, writable};
    k->n++;
    return 0;
}

void mf_known_remove(struct mf_known *k, const void *p)
{
    size_t at = beyond(k, (uintptr_t)p);
    if (at == 0 || k->ranges[at - 1].from != (uintptr_t)p)
        return;
    memmove(&k->ranges[at - 1], &k->ranges[at], (k->n - at) * sizeof(k->ranges[0]));
    k->n--;
    k->last = 0;
}

void mf_known_forget(struct mf_known *k)
{
    k->n = k->last = 0;
}

void mf_known_release(struct mf_known *k)
{
    free(k->ranges);
    *k = (struct mf_known){0};
}
