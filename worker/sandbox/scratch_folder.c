#include "worker/sandbox/scratch_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

/* Deletion without recursion: the subfolders of a folder are moved to the top, so that no path is longer than
 * one name and no more than two folders are open. */
struct emptying {
    int top;
    uint64_t n_moved; /* makes the names of moved folders unique */
};

static DIR *open_folder(int parent, const char *name)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (fd >= 0 && !folder)
        (void)close(fd);
    return folder;
}

static bool is_folder(int parent, const char *name)
{
    struct stat status;
    return fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(status.st_mode);
}

/* Moves a subfolder to the top, under a name that is free there. The mode of the moved folder must permit
 * writing, because the move changes its entry "..". */
static int move_to_top(struct emptying *e, int parent, const char *name)
{
    char moved[48];
    if (fchmodat(parent, name, 0700, 0) < 0)
        return -errno;
    do
        mf_format(moved, sizeof(moved), "moved-%llu", (unsigned long long)e->n_moved++);
    while (faccessat(e->top, moved, F_OK, AT_SYMLINK_NOFOLLOW) == 0);
    return renameat(parent, name, e->top, moved) < 0 ? -errno : 0;
}

static bool is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Deletes the files of a folder at the top, moves its subfolders to the top, and deletes the folder. */
static int delete_folder(struct emptying *e, const char *name)
{
    if (fchmodat(e->top, name, 0700, 0) < 0)
        return -errno;
    DIR *folder = open_folder(e->top, name);
    int r = folder ? 0 : -errno;
    for (struct dirent *item; r == 0 && (item = readdir(folder));) {
        if (is_dot(item->d_name))
            continue;
        if (is_folder(dirfd(folder), item->d_name))
            r = move_to_top(e, dirfd(folder), item->d_name);
        else if (unlinkat(dirfd(folder), item->d_name, 0) < 0)
            r = -errno;
    }
    if (folder)
        (void)closedir(folder);
    return r == 0 && unlinkat(e->top, name, AT_REMOVEDIR) < 0 ? -errno : r;
}

/* Deletes the entries that the top has now. Returns their number, or a negative errno. */
static int delete_entries(struct emptying *e)
{
    DIR *folder = open_folder(e->top, ".");
    int n = 0, r = folder ? 0 : -errno;
    for (struct dirent *item; r == 0 && (item = readdir(folder));) {
        if (is_dot(item->d_name))
            continue;
        if (is_folder(e->top, item->d_name))
            r = delete_folder(e, item->d_name);
        else if (unlinkat(e->top, item->d_name, 0) < 0)
            r = -errno;
        n++;
    }
    if (folder)
        (void)closedir(folder);
    return r < 0 ? r : n;
}

int mf_scratch_make(const char *path)
{
    struct stat status;
    int n;
    if (mkdir(path, 0700) == 0)
        return 0;
    if (errno != EEXIST || lstat(path, &status) < 0)
        return -errno;
    if (!S_ISDIR(status.st_mode)) /* a symbolic link would give the runner another folder */
        return -ENOTDIR;
    if (chmod(path, 0700) < 0)
        return -errno;
    _cleanup_(mf_closep) int top = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct emptying e = {.top = top};
    if (top < 0)
        return -errno;
    while ((n = delete_entries(&e)) > 0)
        ;
    return n;
}
