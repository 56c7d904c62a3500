#include "common/durable.h"

#include "common/cleanup.h"

#include <errno.h>
#include <fcntl.h>
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
