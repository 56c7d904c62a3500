#include "cli/support/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/support/cli.h"
#include "common/base/cleanup.h"
#include "common/base/durable_file.h"
#include "common/base/fault.h"

int mf_file_read(const char *path, struct mf_buf *buf)
{
    _cleanup_(mf_closep) int own = -1;
    int fd = STDIN_FILENO;
    char piece[65536];
    ssize_t n;

    if (strcmp(path, "-") != 0) {
        own = open(path, O_RDONLY | O_CLOEXEC);
        if (own < 0)
            return mf_cli_fail(MF_EXIT_USAGE, "%s: %s", path, strerrordesc_np(errno));
        fd = own;
    }
    while ((n = read(fd, piece, sizeof(piece))) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return mf_cli_fail(MF_EXIT_USAGE, "%s: %s", path, strerrordesc_np(errno));
        if (mf_buf_add(buf, piece, (size_t)n) < 0)
            return mf_cli_fail(MF_EXIT_USAGE, "%s: larger than the maximum of %zu MiB", path, buf->max >> 20);
    }
    return 0;
}

static int fill(const char *path, int fd, const char *data, size_t len)
{
    struct stat st;
    mode_t mask = umask(0);
    int r;

    (void)umask(mask);
    r = mf_write_all(fd, data, len);
    if (r < 0)
        return r;
    /* mkostemp creates private files. Keep the old table's mode, or apply the umask for a new file */
    if (fchmod(fd, stat(path, &st) == 0 ? st.st_mode & 07777 : 0666 & ~mask) < 0 || fsync(fd) < 0)
        return -errno;
    return 0;
}

static int replace(const char *path, const char *data, size_t len)
{
    _cleanup_(mf_freep) char *temp = NULL;
    _cleanup_(mf_closep) int fd = -1;
    int r;

    if (asprintf(&temp, "%s.XXXXXX", path) < 0) {
        temp = NULL;
        return -ENOMEM;
    }
    fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0)
        return -errno;
    r = fill(path, fd, data, len);
    mf_fault_at(MF_FAULT_TABLE_WRITTEN);
    if (r == 0 && rename(temp, path) < 0)
        r = -errno;
    mf_fault_at(MF_FAULT_TABLE_RENAMED);
    if (r < 0)
        (void)unlink(temp);
    return r;
}

int mf_file_write(const char *path, const char *data, size_t len)
{
    struct mf_target target;
    int r;

    if (!strcmp(path, "-")) {
        /* A file or program gets the exact bytes, a terminal the filtered text */
        bool exact = !isatty(STDOUT_FILENO);
        r = exact || fwrite(data, 1, len, stdout) == len ? 0 : -errno;
        if (r == 0 && fflush(stdout) != 0)
            r = -errno;
        if (r == 0 && exact)
            r = mf_write_all(STDOUT_FILENO, data, len);
        return r < 0 ? mf_cli_fail(MF_EXIT_FAILED, "standard output: %s", strerrordesc_np(-r)) : 0;
    }
    r = mf_target_find(path, &target);
    if (r == -EISDIR)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: is a folder; name a file in it", path);
    if (r == 0)
        r = target.is_stream ? mf_stream_write(&target, data, len) : replace(target.file, data, len);
    return r < 0 ? mf_cli_fail(MF_EXIT_FAILED, "%s: %s", path, strerrordesc_np(-r)) : 0;
}
