/* Memory that steps see: whole memory files, mapped. A foreign program can map the same file, which is why a region
 * is known by its addresses (mf_session_locate). The list of regions belongs to the process; one thread uses it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/device.h"
#include "measure/session/unit.h"

struct mf_region {
    uint8_t *at; /* NULL: none, or the device has it alone */
    size_t bytes;
    int fd;
    struct mf_device *device; /* that has a copy in memory of its own; NULL: launches see `at` */
    uint8_t *copy;            /* of all of it */
    bool bare;                /* the host has pages only of what was written or pulled */
};
#define MF_REGION_INIT \
    {                  \
        .fd = -1       \
    }

/* Zeroed, writable, of whole pages. -ENOMEM. */
int mf_region_new(size_t bytes, struct mf_region *ret);
/* The same for what a device writes and the host hardly ever looks at: pages come when all of it is pulled. */
int mf_region_new_bare(size_t bytes, struct mf_region *ret);
/* A finished file of whole pages: sealed, mapped read-only with every page present, and handed to the memfd_store (may be
 * NULL). Takes the descriptor in any case. */
int mf_region_seal(int fd, size_t bytes, struct mf_memfd_store *memfd_store, const char *key,
                   struct mf_region *ret);
/* What the memfd_store has under the key, mapped read-only with every page present. -ENOENT: nothing of that size. */
int mf_region_find(struct mf_memfd_store *memfd_store, const char *key, size_t bytes, struct mf_region *ret);
/* From now on a write to it is a fault: a step that writes to its input dies of it. */
void mf_region_protect(struct mf_region *r);
void mf_region_release(struct mf_region *r);

/* Devices with memory of their own see a copy of the region: made here, zeroed, and equal to the region after a push; pull
 * takes what launches wrote back; of some bytes, or of all. Nothing to do on the others, nor for a device of NULL. -ENOMEM, -EIO. */
int mf_region_copy(struct mf_region *r, struct mf_device *device);
/* Memory of such a device alone, zeroed: nothing to push, pull or map. -ENOMEM. */
int mf_region_on_device(size_t bytes, struct mf_device *device, struct mf_region *ret);
int mf_region_push(const struct mf_region *r);
int mf_region_pull(const struct mf_region *r);
/* Pages of a bare one, so that writing to these bytes is no signal where there is no memory. -ENOMEM. */
int mf_region_back(const struct mf_region *r, size_t at, size_t bytes);
int mf_region_push_some(const struct mf_region *r, size_t at, size_t bytes);
int mf_region_pull_some(const struct mf_region *r, size_t at, size_t bytes);
/* An address in the region as launches on the device see it. */
static inline void *mf_region_seen(const struct mf_region *r, const void *address)
{
    const uint8_t *p = (const uint8_t *)address;
    return r->device && p ? r->copy + (p - r->at) : (void *)(uintptr_t)p;
}

/* Where it begins for launches. */
static inline void *mf_region_start(const struct mf_region *r)
{
    return r->device ? r->copy : r->at;
}
