/* Memory that kernels may access: registered buffers with their exact bounds. Every other address is out of
 * bounds, even where a device would have mapped memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mf_known_range {
    uintptr_t from, to;
    bool writable;
};

struct mf_known {
    struct mf_known_range *ranges; /* sorted by address, disjoint */
    size_t n, cap, last;           /* last: index of the previous result of mf_known_below */
};

/* Adds a range. Returns -EEXIST if it overlaps another range, -ENOMEM if memory is exhausted. Adding the same
 * range again may make it writable. */
int mf_known_add(struct mf_known *k, const void *p, size_t bytes, bool writable);
/* Returns the range with the highest start at or below the address; NULL if every range starts above it. */
const struct mf_known_range *mf_known_below(struct mf_known *k, uintptr_t at);
void mf_known_remove(struct mf_known *k, const void *p); /* removes the range that starts at p */
void mf_known_forget(struct mf_known *k);                /* removes all ranges */
void mf_known_release(struct mf_known *k);
