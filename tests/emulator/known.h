/* Memory that kernels may touch: the buffers that a launch was handed, each by its exact bounds. Everything else is out of
 * bounds, as it would be on a device where nothing happens to lie beside. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mf_known_range {
    uintptr_t from, to;
    bool writable;
};

struct mf_known {
    struct mf_known_range *ranges; /* by address, apart from each other */
    size_t n, cap, last;           /* last: where the last question was answered */
};

/* -ENOMEM; -EEXIST: it overlaps another. One that is there already may become writable. */
int mf_known_add(struct mf_known *k, const void *p, size_t bytes, bool writable);
/* The range that begins nearest below or at the address; NULL: none. */
const struct mf_known_range *mf_known_below(struct mf_known *k, uintptr_t at);
void mf_known_remove(struct mf_known *k, const void *p); /* the range that begins there */
void mf_known_forget(struct mf_known *k);                /* all of them */
void mf_known_release(struct mf_known *k);
