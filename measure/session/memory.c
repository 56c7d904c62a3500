#include "measure/session/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "kernels/core/device.h"

/* Linux has MADV_POPULATE_WRITE since 5.14 and MADV_COLLAPSE since 6.1. Older headers lack them. */
#ifndef MADV_POPULATE_WRITE
#    define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#    define MADV_COLLAPSE 25
#endif

#define MANY_BYTES (64u << 20)

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

struct collapse {
    char *at;
    size_t bytes;
};

static void collapse_thread(void *context, int thread, int n_threads)
{
    const struct collapse *c = context;
    bool able = true;
    for (size_t i = (size_t)thread * MF_HUGE_PAGE; i < c->bytes && able;
         i += (size_t)n_threads * MF_HUGE_PAGE) {
        /* madvise returns an error if there is no memory; a page fault would raise SIGBUS */
        able = madvise(c->at + i, 4096, MADV_POPULATE_WRITE) == 0 &&
               madvise(c->at + i, MF_HUGE_PAGE, MADV_COLLAPSE) == 0;
    }
}

/* Converts the file to huge pages where supported (Linux 6.1). One touched page is enough to convert 2 MiB,
 * whatever the value of shmem_enabled, and the file can still be sealed afterwards. Without kernel support
 * the file keeps small pages. Large files are populated by all threads, because in a virtual machine one
 * thread populates less than 1 GB/s of new memory. */
static void prefer_huge(int fd, uint64_t bytes)
{
    size_t whole = (size_t)(bytes / MF_HUGE_PAGE * MF_HUGE_PAGE);
    if (whole == 0)
        return;
    struct collapse c = {.at = mf_memory_map(fd, whole, PROT_READ | PROT_WRITE, 0), .bytes = whole};
    if (!c.at)
        return;
    if (whole >= MANY_BYTES)
        mf_pool_run(collapse_thread, &c, mf_pool_threads());
    else
        collapse_thread(&c, 0, 1);
    (void)munmap(c.at, whole);
}

void *mf_memory_map(int fd, size_t bytes, int protection, int flags)
{
    size_t reach = bytes < MF_HUGE_PAGE ? bytes : bytes + MF_HUGE_PAGE;
    char *reserved = mmap(NULL, reach, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return NULL;
    size_t before = reach == bytes ? 0 : (MF_HUGE_PAGE - (uintptr_t)reserved % MF_HUGE_PAGE) % MF_HUGE_PAGE;
    /* Linux before 6.7 maps a write-sealed file only privately. Without writes, both kinds are the same. */
    int sharing = protection & PROT_WRITE ? MAP_SHARED : MAP_PRIVATE;
    char *at = mmap(reserved + before, bytes, protection, sharing | MAP_FIXED | flags, fd, 0);
    if (at == MAP_FAILED) {
        int error = errno;
        (void)munmap(reserved, reach);
        errno = error;
        return NULL;
    }
    if (before > 0)
        (void)munmap(reserved, before);
    if (reach > before + bytes)
        (void)munmap(at + bytes, reach - before - bytes);
    return at;
}

int mf_memory_file_sparse(const char *name, uint64_t bytes, int *ret_fd)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)bytes) < 0) {
        int r = -errno;
        (void)close(fd);
        return r;
    }
    *ret_fd = fd;
    return 0;
}

int mf_memory_file(const char *name, uint64_t bytes, int *ret_fd)
{
    int r = mf_memory_file_sparse(name, bytes, ret_fd);
    if (r == 0)
        prefer_huge(*ret_fd, bytes);
    return r;
}

int mf_memory_populate(int fd, uint64_t bytes)
{
    prefer_huge(fd, bytes);
    /* One fallocate is much faster than a page fault per page. */
    return fallocate(fd, 0, 0, (off_t)bytes) < 0 ? -ENOMEM : 0;
}

int mf_memory_seal(int fd)
{
    return fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) < 0 ? -errno : 0;
}

int mf_memory_seal_for_others(int fd)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
    return fcntl(fd, F_ADD_SEALS, seals) < 0 ? -errno : 0;
}

int mf_memory_check_sealed(int fd, uint64_t bytes)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (bytes == 0 || st.st_size < 0 || (uint64_t)st.st_size < bytes)
        return -EINVAL;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & SEALS) == SEALS ? 0 : -EPERM;
}

uint64_t mf_memory_available(void)
{
    _cleanup_(mf_fclosep) FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib;
    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            return kib * 1024;
    }
    return UINT64_MAX;
}
