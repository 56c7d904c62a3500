#include "measure/session/region.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/cleanup.h"
#include "measure/session/memory.h"

static size_t whole_pages(size_t bytes)
{
    size_t page = 4096;
    return bytes == 0 ? page : (bytes + page - 1) / page * page;
}

static int map(struct mf_region *r, int protection, int flags)
{
    void *at = mf_memory_map(r->fd, r->bytes, protection, flags);
    if (!at)
        return -errno;
    r->at = at;
    return 0;
}

static void unmap(struct mf_region *r)
{
    if (!r->at)
        return;
    (void)munmap(r->at, r->bytes);
    r->at = NULL;
}

static int make(size_t bytes, bool sparse, struct mf_region *ret)
{
    struct mf_region r = {.bytes = whole_pages(bytes), .fd = -1, .sparse = sparse};
    int result = mf_memory_file_sparse("moefarm", r.bytes, &r.fd);
    if (result == 0 && !sparse)
        result = mf_memory_populate(r.fd, r.bytes);
    if (result == 0)
        result = map(&r, PROT_READ | PROT_WRITE, sparse ? 0 : MAP_POPULATE);
    if (result < 0) {
        mf_region_release(&r);
        return -ENOMEM;
    }
    *ret = r;
    return 0;
}

int mf_region_new(size_t bytes, struct mf_region *ret)
{
    return make(bytes, false, ret);
}

int mf_region_new_sparse(size_t bytes, struct mf_region *ret)
{
    return make(bytes, true, ret);
}

int mf_region_seal(int fd, size_t bytes, struct mf_memfd_store *memfd_store, const char *key,
                   struct mf_region *ret)
{
    struct mf_region r = {.bytes = whole_pages(bytes), .fd = fd};
    int result = mf_memory_seal(fd);
    if (result == 0)
        result = map(&r, PROT_READ, MAP_POPULATE);
    if (result < 0) {
        mf_region_release(&r);
        return result;
    }
    int kept = memfd_store ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    /* If memfd_store cannot take the file, ignore the error, because this session has its own mapping. */
    if (kept >= 0)
        (void)memfd_store->keep(memfd_store, key, kept, r.bytes);
    *ret = r;
    return 0;
}

int mf_region_find(struct mf_memfd_store *memfd_store, const char *key, size_t bytes, struct mf_region *ret)
{
    struct mf_region r = {.bytes = whole_pages(bytes), .fd = -1};
    uint64_t kept_bytes = 0;
    int fd = memfd_store ? memfd_store->find(memfd_store, key, &kept_bytes) : -1;
    if (fd < 0 || kept_bytes != r.bytes)
        return -ENOENT;
    r.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (r.fd < 0)
        return -errno;
    int result = map(&r, PROT_READ, MAP_POPULATE);
    if (result < 0) {
        mf_region_release(&r);
        return result;
    }
    *ret = r;
    return 0;
}

int mf_region_protect(struct mf_region *r)
{
    if (!r->at)
        return 0;
    return mprotect(r->at, r->bytes, PROT_READ) < 0 ? -errno : mf_memory_seal_for_others(r->fd);
}

int mf_region_alloc_copy(struct mf_region *r, struct mf_device *device)
{
    if (!device || !device->ops->own_memory || r->device)
        return 0;
    r->copy = device->ops->alloc(device, r->bytes);
    if (!r->copy)
        return -ENOMEM;
    r->device = device;
    return 0;
}

int mf_region_on_device(size_t bytes, struct mf_device *device, struct mf_region *ret)
{
    struct mf_region r = {.bytes = whole_pages(bytes), .fd = -1, .device = device};
    r.copy = device->ops->alloc(device, r.bytes);
    if (!r.copy)
        return -ENOMEM;
    *ret = r;
    return 0;
}

int mf_region_push_range(const struct mf_region *r, size_t at, size_t bytes)
{
    return r->device ? r->device->ops->copy(r->device, r->copy + at, r->at + at, bytes) : 0;
}

int mf_region_pull_range(const struct mf_region *r, size_t at, size_t bytes)
{
    return r->device ? r->device->ops->copy(r->device, r->at + at, r->copy + at, bytes) : 0;
}

int mf_region_push(const struct mf_region *r)
{
    return mf_region_push_range(r, 0, r->bytes);
}

int mf_region_populate(const struct mf_region *r, size_t at, size_t bytes)
{
    return r->sparse && fallocate(r->fd, 0, (off_t)at, (off_t)bytes) < 0 ? -ENOMEM : 0;
}

int mf_region_pull(const struct mf_region *r)
{
    int result = r->sparse ? mf_memory_populate(r->fd, r->bytes) : 0;
    return result < 0 ? result : mf_region_pull_range(r, 0, r->bytes);
}

void mf_region_release(struct mf_region *r)
{
    if (r->device)
        r->device->ops->release(r->device, r->copy, r->bytes);
    unmap(r);
    mf_closep(&r->fd);
    *r = (struct mf_region)MF_REGION_INIT;
}
