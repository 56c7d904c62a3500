#include "common/durable.h"

#include "common/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int mf_write_all(int fd, const void *data, size_t len)
{
    const char *from = data;
    while (len > 0) {
        ssize_t n = write(fd, from, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        from += n;
        len -= (size_t)n;
    }
    return 0;
}

int mf_sync_folder(const char *path)
{
    _cleanup_(mf_freep) char *folder = strdup(path);
    if (!folder)
        return -ENOMEM;
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0'; /* of "/name" the slash is the folder */
    _cleanup_(mf_closep) int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

static int sync_and_rename(const char *next, const char *path)
{
    _cleanup_(mf_closep) int fd = open(next, O_RDONLY | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 || rename(next, path) < 0 ? -errno : 0;
}

int mf_put_in_place(const char *next, const char *path)
{
    int r = sync_and_rename(next, path);
    if (r < 0) {
        (void)unlink(next);
        return r;
    }
    r = mf_sync_folder(path);
    return r == -EINVAL ? 0 : r;
}
