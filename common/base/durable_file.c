#include "common/base/durable_file.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define LINKS_MAX 40 /* the kernel's limit of symbolic links in one path */

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

static char *file_name(char *file)
{
    char *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

/* Writes the directory part of `file` with its trailing slash, or "." if `file` has no slash. */
static void folder_of(const char *file, char ret[PATH_MAX])
{
    const char *slash = strrchr(file, '/');
    mf_format(ret, PATH_MAX, "%.*s", slash ? (int)(slash - file) + 1 : 1, slash ? file : ".");
}

/* Returns N if `file`, under any path, names entry N of this process's descriptor directory (/proc/self/fd),
 * otherwise -1. The entry is a symbolic link whose text is only the path that the file had when it was
 * opened. */
static int own_descriptor(const char *file)
{
    static const char *const folders[] = {"/proc/self/fd", "/proc/thread-self/fd"};
    char folder[PATH_MAX], real[PATH_MAX], own[PATH_MAX];
    const char *slash = strrchr(file, '/');
    int64_t n;
    if (mf_parse_i64(slash ? slash + 1 : file, 0, INT_MAX, &n) < 0)
        return -1;
    folder_of(file, folder);
    if (!realpath(folder, real))
        return -1;
    for (size_t i = 0; i < MF_ARRAY_LEN(folders); i++) {
        if (realpath(folders[i], own) && strcmp(real, own) == 0)
            return (int)n;
    }
    return -1;
}

/* True if `file` is in /proc. A symbolic link in /proc refers to an open file; the link's text is only the
 * path that the file had when it was opened. */
static bool is_in_proc(const char *file)
{
    char folder[PATH_MAX];
    struct statfs fs;
    folder_of(file, folder);
    return statfs(folder, &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC;
}

/* Follows symbolic links in the last path component only, because open(2) itself follows links in the
 * directories. Stops at a link to an open file of a process. */
static int follow_links(struct mf_target *t)
{
    char to[PATH_MAX] = "", *file = t->file;
    for (int i = 0; i < LINKS_MAX; i++) {
        t->descriptor = own_descriptor(file);
        t->is_open = t->descriptor >= 0;
        if (t->is_open)
            return 0;
        ssize_t n = readlink(file, to, sizeof(to));
        if (n < 0)
            return errno == EINVAL || errno == ENOENT ? 0 : -errno;
        t->is_open = is_in_proc(file);
        if (t->is_open)
            return 0;
        char *from = to[0] == '/' ? file : file_name(file);
        if ((size_t)(from - file) + (size_t)n >= PATH_MAX)
            return -ENAMETOOLONG;
        memcpy(from, to, (size_t)n);
        from[n] = '\0';
    }
    return -ELOOP;
}

int mf_target_find(const char *path, struct mf_target *ret)
{
    struct mf_target t = {.descriptor = -1};
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (!exists && errno != ENOENT)
        return -errno;
    int r = mf_copy(t.file, sizeof(t.file), path);
    if (r == 0 && exists && !S_ISREG(st.st_mode))
        t.is_stream = true;
    else if (r == 0)
        r = follow_links(&t);
    if (r < 0)
        return r;
    if (!exists) { /* a missing file cannot be open */
        t.is_open = false;
        t.descriptor = -1;
    }
    t.is_stream = t.is_stream || t.is_open;
    if (exists ? S_ISDIR(st.st_mode) : *path && !*file_name(t.file))
        return -EISDIR;
    *ret = t;
    return 0;
}

/* Writes to the existing descriptor if this process has the file open, because a new descriptor would have
 * its own position and lack O_APPEND. Opens and truncates a file that only another process has open, as a
 * shell's ">" does. */
int mf_stream_write(const struct mf_target *target, const void *data, size_t len)
{
    if (target->descriptor >= 0)
        return mf_write_all(target->descriptor, data, len);
    int empty = target->is_open ? O_TRUNC : 0;
    _cleanup_(mf_closep) int fd = open(target->file, O_WRONLY | O_CLOEXEC | O_NOCTTY | empty);
    return fd < 0 ? -errno : mf_write_all(fd, data, len);
}

int mf_sync_folder(const char *path)
{
    _cleanup_(mf_freep) char *folder = strdup(path);
    if (!folder)
        return -ENOMEM;
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0'; /* the directory of "/name" is "/" */
    _cleanup_(mf_closep) int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

static int sync_and_rename(const char *next, const char *path)
{
    _cleanup_(mf_closep) int fd = open(next, O_RDONLY | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 || rename(next, path) < 0 ? -errno : 0;
}

int mf_replace_file(const char *next, const char *path)
{
    int r = sync_and_rename(next, path);
    if (r < 0) {
        (void)unlink(next);
        return r;
    }
    r = mf_sync_folder(path);
    return r == -EINVAL ? 0 : r;
}
