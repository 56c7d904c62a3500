#include "kernels/core/tmpdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

#define VARIABLE  "TMPDIR="
#define PREFIX    "moefarm-compile."
#define TRIES_MAX 10

extern char **environ;

static char *path_of(char *text)
{
    return text + strlen(VARIABLE);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    (void)remove(path);
    return 0;
}

/* Removes a directory. Tries several times, because children of a killed program may still create files in it
 * until it is gone. */
static void remove_all(const char *folder)
{
    for (int i = 0; i < TRIES_MAX && access(folder, F_OK) == 0; i++)
        (void)nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static int open_folder(const char *folder)
{
    return open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static bool is_stale(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0;
}

static void remove_stale(const char *parent)
{
    char path[PATH_MAX];
    DIR *d = opendir(parent);
    if (!d)
        return;
    for (const struct dirent *e; (e = readdir(d));) {
        if (strncmp(e->d_name, PREFIX, strlen(PREFIX)) != 0)
            continue;
        mf_format(path, sizeof(path), "%s/%s", parent, e->d_name);
        _cleanup_(mf_closep) int fd = open_folder(path);
        if (fd >= 0 && is_stale(fd))
            remove_all(path);
    }
    (void)closedir(d);
}

/* Locks a new directory. Returns false if another process, in remove_stale, removed or locked the directory
 * first. On a file system without such locks, returns true without a lock, because remove_stale then removes
 * nothing. */
static bool lock_folder(const char *folder, int *ret)
{
    _cleanup_(mf_closep) int fd = open_folder(folder);
    if (fd < 0 || (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) || access(folder, F_OK) < 0)
        return false;
    *ret = fd;
    fd = -1;
    return true;
}

void mf_tmpdir_make(struct mf_tmpdir *ret)
{
    const char *ours = getenv("TMPDIR"), *parent = ours && *ours ? ours : "/tmp";
    *ret = (struct mf_tmpdir){.lock = -1};
    remove_stale(parent);
    for (int i = 0; i < TRIES_MAX; i++) {
        _cleanup_(mf_freep) char *text = NULL;
        if (asprintf(&text, VARIABLE "%s/" PREFIX "XXXXXX", parent) < 0) {
            text = NULL;
            return;
        }
        if (!mkdtemp(path_of(text)))
            return;
        if (lock_folder(path_of(text), &ret->lock)) {
            ret->text = MF_TAKE(text);
            return;
        }
    }
}

void mf_tmpdir_remove(struct mf_tmpdir *t)
{
    if (!t->text)
        return;
    remove_all(path_of(t->text));
    mf_closep(&t->lock);
    free(t->text);
    *t = (struct mf_tmpdir){.lock = -1};
}

char **mf_tmpdir_environment(const struct mf_tmpdir *t)
{
    size_t n = 0, kept = 0;
    while (environ[n])
        n++;
    char **env = calloc(n + 2, sizeof(*env));
    if (!env)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        if (!t->text || strncmp(environ[i], VARIABLE, strlen(VARIABLE)) != 0)
            env[kept++] = environ[i];
    }
    env[kept] = t->text;
    return env;
}
