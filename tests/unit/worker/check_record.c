/* worker/agent/record.c: partial writes are continued, errors are returned. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"
#include "worker/agent/record.h"

static const char payload[] = "a payload";

/* The next pwritev writes at most this many bytes, or returns this errno. */
static size_t partial_bytes;
static int fail_errno;

ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int n, off_t at);
ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int n, off_t at)
{
    size_t done = 0;
    for (int i = 0; i < n && !fail_errno; i++) {
        size_t len = MF_MIN(parts[i].iov_len, partial_bytes - done);
        ck_assert_int_eq(pwrite(fd, parts[i].iov_base, len, at + (off_t)done), (ssize_t)len);
        done += len;
    }
    errno = fail_errno;
    return fail_errno ? -1 : (ssize_t)done;
}

static int file;

static void setup(void)
{
    partial_bytes = fail_errno = 0;
    file = memfd_create("record", MFD_CLOEXEC);
    ck_assert_int_ge(file, 0);
}

static void teardown(void)
{
    (void)close(file);
}

static void write_and_read(void)
{
    char magic[5];
    size_t len = 0;
    _cleanup_(mf_freep) char *read = NULL;
    const uint64_t at = 7, size = at + MF_RECORD_HEADER + strlen(payload);
    ck_assert_int_eq(mf_record_write(file, "MFXX", payload, strlen(payload), at), 0);
    ck_assert_int_eq(mf_record_read(file, at, size, magic, &read, &len), 1);
    ck_assert_str_eq(magic, "MFXX");
    ck_assert_uint_eq(len, strlen(payload));
    ck_assert_str_eq(read, payload);
    ck_assert_int_eq(lseek(file, 0, SEEK_END), (off_t)size);
}

/* _i: number of bytes that the first write accepts, from none to all. */
MF_TEST(partial_write, .rows = MF_RECORD_HEADER + sizeof(payload))
{
    partial_bytes = (size_t)_i;
    write_and_read();
}

MF_TEST(interrupted_write)
{
    fail_errno = EINTR;
    write_and_read();
}

MF_TEST(failed_write)
{
    fail_errno = ENOSPC;
    ck_assert_int_eq(mf_record_write(file, "MFXX", payload, strlen(payload), 0), -ENOSPC);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = setup, .teardown = teardown});
}
