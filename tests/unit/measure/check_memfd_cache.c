#include "measure/session/memfd_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/text.h"
#include "measure/session/memory.h"
#include "support/mf_check.h"

static int sealed(size_t bytes)
{
    int fd;
    ck_assert_int_eq(mf_memory_file("kept", bytes, &fd), 0);
    ck_assert_int_eq(mf_memory_seal(fd), 0);
    return fd;
}

static char evicted[256];

static void note_evicted(void *context, const char *key)
{
    (void)context;
    (void)strncat(evicted, key, sizeof(evicted) - strlen(evicted) - 1);
}

MF_TEST(kept_by_key)
{
    struct mf_kept_store s;
    mf_kept_store_init(&s, 3 * 4096);
    s.evicted = note_evicted;
    evicted[0] = '\0';
    ck_assert_int_eq(mf_kept_store_add(&s, "a", sealed(4096), 4096), 0);
    ck_assert_int_eq(mf_kept_store_add(&s, "b", sealed(4096), 4096), 0);
    ck_assert_int_eq(mf_kept_store_add(&s, "c", sealed(4096), 4096), 0);
    ck_assert_ptr_nonnull(mf_kept_store_find(&s, "a"));
    /* b is now the least recently used. */
    ck_assert_int_eq(mf_kept_store_add(&s, "d", sealed(4096), 4096), 0);
    ck_assert_str_eq(evicted, "b");
    ck_assert_ptr_null(mf_kept_store_find(&s, "b"));
    /* A file of two pages evicts two files of one page. Adding a key again replaces its file, and s.bytes
     * counts only the new file. */
    ck_assert_int_eq(mf_kept_store_add(&s, "e", sealed(8192), 8192), 0);
    ck_assert_str_eq(evicted, "bca");
    ck_assert_int_eq(mf_kept_store_add(&s, "e", sealed(4096), 4096), 0);
    ck_assert_uint_eq(s.bytes, 2 * 4096);
    mf_kept_store_drop(&s, "e");
    ck_assert_uint_eq(s.n, 1);
    mf_kept_store_release(&s);
}

MF_TEST(invalid_files_are_rejected)
{
    struct mf_kept_store s;
    int fd;
    mf_kept_store_init(&s, 4096);
    ck_assert_int_eq(mf_memory_file("open", 4096, &fd), 0);
    ck_assert_int_eq(mf_kept_store_add(&s, "unsealed", fd, 4096), -EPERM);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1); /* closed on error, too */
    ck_assert_int_eq(mf_kept_store_add(&s, "large", sealed(8192), 8192), -EFBIG);
    ck_assert_int_eq(mf_kept_store_add(&s, "short", sealed(4096), 4097), -EINVAL);
    ck_assert_int_eq(mf_kept_store_add(&s, "", sealed(4096), 4096), -EINVAL);
    ck_assert_int_eq(mf_kept_store_add(&s, "pipe", open("/dev/null", O_RDONLY | O_CLOEXEC), 4096), -EINVAL);
    ck_assert_uint_eq(s.n, 0);
    mf_kept_store_release(&s);
}

/* Returns 's' if the mapping at this address is shared, 'p' if it is private. */
static char sharing_of(const void *at)
{
    char line[256], start[32], permissions[8] = "";
    FILE *maps = fopen("/proc/self/maps", "re");
    ck_assert_ptr_nonnull(maps);
    mf_format(start, sizeof(start), "%lx-", (unsigned long)(uintptr_t)at);
    while (fgets(line, sizeof(line), maps)) {
        if (strncmp(line, start, strlen(start)) == 0)
            ck_assert_int_eq(sscanf(line, "%*s %7s", permissions), 1);
    }
    (void)fclose(maps);
    return permissions[3];
}

/* A file larger than a huge page is mapped at a multiple of the huge page size, is zero-filled, and can be
 * sealed once its writable mapping is gone. */
MF_TEST(large_file)
{
    size_t bytes = 2 * MF_HUGE_PAGE + 3 * 4096;
    int fd;
    ck_assert_int_eq(mf_memory_file("large", bytes, &fd), 0);
    unsigned char *at = mf_memory_map(fd, bytes, PROT_READ | PROT_WRITE, 0);
    ck_assert_ptr_nonnull(at);
    ck_assert_uint_eq((uintptr_t)at % MF_HUGE_PAGE, 0);
    size_t n_set = 0;
    for (size_t i = 0; i < bytes; i++)
        n_set += at[i] != 0;
    ck_assert_uint_eq(n_set, 0);
    at[bytes - 1] = 7;
    ck_assert_int_eq(mf_memory_seal(fd), -EBUSY);
    ck_assert_int_eq(munmap(at, bytes), 0);
    ck_assert_int_eq(mf_memory_seal(fd), 0);
    ck_assert_ptr_null(mf_memory_map(fd, bytes, PROT_READ | PROT_WRITE, 0));
    ck_assert_int_eq(errno, EPERM);
    at = mf_memory_map(fd, bytes, PROT_READ, MAP_POPULATE);
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(at[bytes - 1], 7);
    ck_assert_int_eq(sharing_of(at), 'p'); /* Linux before 6.7 refuses a shared mapping of a sealed file */
    ck_assert_int_eq(munmap(at, bytes), 0);
    (void)close(fd);
}

/* A later session of the process finds the file until another file needs the space. */
MF_TEST(local_memfd_store_evicts)
{
    struct mf_local_memfd_store k;
    uint64_t bytes = 0;
    mf_local_memfd_store_init(&k, 4096);
    ck_assert_int_eq(k.memfd_store.find(&k.memfd_store, "w1", &bytes), -1);
    ck_assert_int_eq(k.memfd_store.keep(&k.memfd_store, "w1", sealed(4096), 4096), 0);
    ck_assert_int_ge(k.memfd_store.find(&k.memfd_store, "w1", &bytes), 0);
    ck_assert_uint_eq(bytes, 4096);
    ck_assert_int_eq(k.memfd_store.keep(&k.memfd_store, "w2", sealed(4096), 4096), 0);
    ck_assert_int_eq(k.memfd_store.find(&k.memfd_store, "w1", &bytes), -1);
    k.memfd_store.drop(&k.memfd_store, "w2");
    ck_assert_int_eq(k.memfd_store.find(&k.memfd_store, "w2", &bytes), -1);
    mf_local_memfd_store_release(&k);
}

int main(void)
{
    return mf_check_main(NULL);
}
