/* Memory regions that kernels read and write. Each region is a whole memory file, mapped. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/device.h"
#include "measure/session/unit.h"

struct mf_region {
    uint8_t *at; /* host address; NULL: no region, or device memory only */
    size_t bytes;
    int fd;
    /* device that holds a copy of the region in its own memory; NULL: launches use `at` */
    struct mf_device *device;
    uint8_t *copy; /* device copy of the whole region */
    bool sparse;   /* true: the host has pages only for bytes written or pulled */
};
#define MF_REGION_INIT \
    {                  \
        .fd = -1       \
    }

/* Creates a zeroed, writable region, rounded up to whole pages. Returns 0 or -ENOMEM. */
int mf_region_new(size_t bytes, struct mf_region *ret);
/* Creates a region like mf_region_new, but without host pages, for data that a device writes and the host
 * rarely reads. mf_region_pull allocates the pages. */
int mf_region_new_sparse(size_t bytes, struct mf_region *ret);
/* Seals a finished file of whole pages, maps it read-only with all pages present, and adds it to memfd_store
 * (may be NULL). Takes ownership of the descriptor, even on error. */
int mf_region_seal(int fd, size_t bytes, struct mf_memfd_store *memfd_store, const char *key,
                   struct mf_region *ret);
/* Maps the file stored under the key read-only, with all pages present. Returns -ENOENT if the store has no
 * such file of that size. */
int mf_region_find(struct mf_memfd_store *memfd_store, const char *key, size_t bytes, struct mf_region *ret);
/* Write-protects the host mapping, so that a step that writes to its input faults, and the file, so that a
 * family that finds it in /proc can map it only for reading. Does nothing if the host has no copy. Returns 0
 * or -errno. */
int mf_region_protect(struct mf_region *r);
void mf_region_release(struct mf_region *r);

/* mf_region_alloc_copy allocates a zeroed copy on a device that has its own memory. mf_region_push copies the
 * host's data to the device, and mf_region_pull copies the device's data to the host. These functions do
 * nothing if `device` is NULL or has no memory of its own. On error they return -ENOMEM or -EIO. */
int mf_region_alloc_copy(struct mf_region *r, struct mf_device *device);
/* Allocates zeroed memory only on a device that has its own memory. The region cannot be pushed, pulled or
 * mapped. Returns 0 or -ENOMEM. */
int mf_region_on_device(size_t bytes, struct mf_device *device, struct mf_region *ret);
int mf_region_push(const struct mf_region *r);
int mf_region_pull(const struct mf_region *r);
/* Allocates host pages of a sparse region. A write to a page that is not allocated raises SIGBUS if memory is
 * exhausted. Returns 0 or -ENOMEM. */
int mf_region_populate(const struct mf_region *r, size_t at, size_t bytes);
int mf_region_push_range(const struct mf_region *r, size_t at, size_t bytes);
int mf_region_pull_range(const struct mf_region *r, size_t at, size_t bytes);
/* Converts a host address in the region to the address for launches. */
static inline void *mf_region_launch_address(const struct mf_region *r, const void *address)
{
    const uint8_t *p = (const uint8_t *)address;
    return r->device && p ? r->copy + (p - r->at) : (void *)(uintptr_t)p;
}

/* Returns the first address of the region for launches. */
static inline void *mf_region_launch_start(const struct mf_region *r)
{
    return r->device ? r->copy : r->at;
}
