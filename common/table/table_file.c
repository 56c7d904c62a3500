#include "common/table/table_file.h"

#include "common/base/clock.h"
#include "common/base/durable_file.h"
#include "common/base/fault.h"
#include "common/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_RETRY_MS 5

static int fail(int r, const char *doing, const char *path, char why[MF_REASON_MAX])
{
    mf_format(why, MF_REASON_MAX, "%s %.160s: %s", doing, path, strerror(-r));
    return r;
}

/* --------------------------------------------------------------------------------------------- read */

static int read_all(int fd, struct mf_buf *ret)
{
    char chunk[65536];
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof(chunk));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return 0;
        int r = mf_buf_add(ret, chunk, (size_t)n);
        if (r < 0)
            return r;
    }
}

int mf_table_file_text(const char *path, struct mf_buf *ret, char why[MF_REASON_MAX])
{
    _cleanup_(mf_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(-errno, "open", path, why);
    int r = read_all(fd, ret);
    return r < 0 ? fail(r, "read", path, why) : 0;
}

int mf_table_file_read_part(const char *path, enum mf_table_part part, struct mf_table **ret,
                            char why[MF_REASON_MAX])
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    mf_buf_init(&text, MF_TABLE_FILE_MAX);
    int r = mf_table_file_text(path, &text, why);
    return r < 0 ? r : mf_table_read_part(path, text.data, text.len, part, ret, why);
}

int mf_table_file_read(const char *path, struct mf_table **ret, char why[MF_REASON_MAX])
{
    return mf_table_file_read_part(path, MF_TABLE_ROWS, ret, why);
}

/* -------------------------------------------------------------------------------------------- write */

/* Paths of a table: the file (links resolved), its lock and its next version in the same folder. The names of
 * the lock and the next version do not end in .csv, so production does not load them as tables. */
struct paths {
    char file[PATH_MAX], lock[PATH_MAX + 16], next[PATH_MAX + 16];
};

static void name_paths(const char *file, struct paths *p)
{
    const char *slash = strrchr(file, '/');
    int len = slash ? (int)(slash - file) + 1 : 0;
    mf_format(p->file, sizeof(p->file), "%s", file);
    mf_format(p->lock, sizeof(p->lock), "%s.lock", file);
    mf_format(p->next, sizeof(p->next), "%.*s.%s.next", len, file, file + len);
}

static int find_target(const char *path, struct mf_target *ret, char why[MF_REASON_MAX])
{
    int r = mf_target_find(path, ret);
    if (r == -EISDIR)
        mf_format(why, MF_REASON_MAX, "%.160s is a folder; name a file in it", path);
    return r < 0 && r != -EISDIR ? fail(r, "find", path, why) : r;
}

/* Resolves the path of a table that can be read, changed and replaced. */
static int resolve(const char *path, struct paths *p, char why[MF_REASON_MAX])
{
    struct mf_target target;
    int r = find_target(path, &target, why);
    if (r < 0)
        return r;
    if (target.is_stream) {
        mf_format(why, MF_REASON_MAX, "%.160s is %s; a table must be a regular file", path,
                  target.is_open ? "an open descriptor" : "a device or a FIFO");
        return -ENOTSUP;
    }
    name_paths(target.file, p);
    return 0;
}

static int take_lock(const char *path, int lock_ms, int *ret)
{
    _cleanup_(mf_closep) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return -errno;
    const int64_t deadline = mf_now_ms() + (lock_ms < 0 ? MF_TABLE_LOCK_MS : lock_ms);
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (mf_now_ms() >= deadline)
            return -ETIMEDOUT;
        (void)poll(NULL, 0, LOCK_RETRY_MS);
    }
    *ret = fd;
    fd = -1;
    return 0;
}

/* Writes and syncs the next version. Only the holder of the lock writes it, so a file left by a killed holder
 * can be removed. */
static int write_next(const struct paths *p, const char *data, size_t len)
{
    (void)unlink(p->next);
    _cleanup_(mf_closep) int fd = open(p->next, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return -errno;
    struct stat old;
    if (stat(p->file, &old) == 0) {
        if (fchmod(fd, old.st_mode & 07777) < 0)
            return -errno;
        /* changing the owner fails for other users than root, but only root needs it */
        (void)!fchown(fd, old.st_uid, old.st_gid);
    }
    int r = mf_write_all(fd, data, len);
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    return r;
}

static int put_in_place(const struct paths *p, const char *data, size_t len)
{
    int r = write_next(p, data, len);
    mf_fault_at(MF_FAULT_TABLE_WRITTEN);
    if (r == 0 && rename(p->next, p->file) < 0)
        r = -errno;
    mf_fault_at(MF_FAULT_TABLE_RENAMED);
    if (r < 0)
        (void)unlink(p->next);
    return r;
}

static int write_text(const struct paths *p, const char *text, size_t len, char why[MF_REASON_MAX])
{
    int r = put_in_place(p, text, len);
    if (r < 0)
        return fail(r, "write", p->file, why);
    r = mf_sync_folder(p->file);
    return r < 0 && r != -EINVAL
               ? fail(r, "the new table is in place, but cannot sync the folder of", p->file, why)
               : 0;
}

static int write_table(const struct paths *p, const struct mf_table *t, char why[MF_REASON_MAX])
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    mf_buf_init(&text, MF_TABLE_FILE_MAX);
    int r = mf_table_write(t, MF_TABLE_ALL, &text, why);
    if (r < 0)
        return r;
    return write_text(p, text.data, text.len, why);
}

static int lock_table(const char *path, int lock_ms, struct paths *p, int *ret_lock, char why[MF_REASON_MAX])
{
    int r = resolve(path, p, why);
    if (r < 0)
        return r;
    r = take_lock(p->lock, lock_ms, ret_lock);
    return r < 0 ? fail(r, "lock", p->lock, why) : 0;
}

/* Checks that the folder of the table is writable. */
static int check_folder(const struct paths *p, char why[MF_REASON_MAX])
{
    char folder[PATH_MAX];
    const char *slash = strrchr(p->file, '/');
    mf_format(folder, sizeof(folder), "%.*s", slash ? (int)(slash - p->file) + 1 : 1, slash ? p->file : ".");
    if (slash && slash > p->file)
        folder[slash - p->file] = '\0';
    if (access(folder, W_OK | X_OK) == 0)
        return 0;
    if (errno != ENOENT)
        return fail(-errno, "write into", folder, why);
    mf_format(why, MF_REASON_MAX, "the folder %.160s does not exist", folder);
    return -ENOENT;
}

int mf_table_file_check_path(const char *path, char why[MF_REASON_MAX])
{
    struct paths p;
    return resolve(path, &p, why);
}

int mf_table_file_check(const char *path, int lock_ms, char why[MF_REASON_MAX])
{
    _cleanup_(mf_closep) int lock = -1;
    struct paths p;
    int r = resolve(path, &p, why);
    if (r < 0)
        return r;
    r = check_folder(&p, why);
    return r < 0 ? r : lock_table(path, lock_ms, &p, &lock, why);
}

static int read_or_create(const struct paths *p, struct mf_table **ret, char why[MF_REASON_MAX])
{
    int r = mf_table_file_read(p->file, ret, why);
    return r == -ENOENT ? mf_table_new(p->file, true, ret) : r;
}

int mf_table_file_dry_run(const char *path, mf_table_edit edit, void *data, char why[MF_REASON_MAX])
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    struct paths p;
    int r = resolve(path, &p, why);
    if (r == 0)
        r = read_or_create(&p, &t, why);
    if (r == 0)
        r = edit(t, data, why);
    return r < 0 ? r : 0;
}

int mf_table_file_update(const char *path, int lock_ms, mf_table_edit edit, void *data,
                         char why[MF_REASON_MAX])
{
    _cleanup_(mf_closep) int lock = -1;
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    struct paths p;
    int r = lock_table(path, lock_ms, &p, &lock, why);
    if (r < 0)
        return r;
    r = read_or_create(&p, &t, why);
    if (r < 0)
        return r;
    r = edit(t, data, why);
    if (r != 0)
        return r < 0 ? r : 0;
    return write_table(&p, t, why);
}

struct merge {
    const struct mf_table *fresh;
    const struct mf_merge_options *options;
    struct mf_merge_result result;
};

static int merge_into(struct mf_table *table, void *data, char why[MF_REASON_MAX])
{
    struct merge *m = data;
    int r = mf_table_merge(table, m->fresh, m->options, &m->result, why);
    if (r < 0)
        return r;
    return m->result.n[MF_MERGED_ADDED] + m->result.n[MF_MERGED_REPLACED] > 0 ? 0 : 1;
}

int mf_table_file_merge(const char *path, int lock_ms, const struct mf_table *fresh,
                        const struct mf_merge_options *options, struct mf_merge_result *ret,
                        char why[MF_REASON_MAX])
{
    struct merge m = {fresh, options, MF_MERGE_RESULT_INIT};
    int r = mf_table_file_update(path, lock_ms, merge_into, &m, why);
    if (r < 0) {
        mf_merge_result_release(&m.result);
        return r;
    }
    *ret = m.result;
    return 0;
}

static int put_file(const char *path, int lock_ms, const char *text, size_t len, mf_table_may_replace may,
                    void *data, char why[MF_REASON_MAX])
{
    _cleanup_(mf_closep) int lock = -1;
    _cleanup_(mf_buf_release) struct mf_buf old;
    struct paths p;
    mf_buf_init(&old, MF_TABLE_FILE_MAX);
    int r = lock_table(path, lock_ms, &p, &lock, why);
    if (r < 0)
        return r;
    r = mf_table_file_text(p.file, &old, why);
    if (r < 0 && r != -ENOENT)
        return r;
    r = may(r < 0 ? NULL : old.data, old.len, data, why);
    return r < 0 ? r : write_text(&p, text, len, why);
}

int mf_table_file_replace(const char *path, int lock_ms, const char *text, size_t len,
                          mf_table_may_replace may, void *data, char why[MF_REASON_MAX])
{
    struct mf_target target;
    int r = find_target(path, &target, why);
    if (r < 0)
        return r;
    if (!target.is_stream)
        return put_file(path, lock_ms, text, len, may, data, why);
    r = may(NULL, 0, data, why);
    if (r < 0)
        return r;
    r = mf_stream_write(&target, text, len);
    return r < 0 ? fail(r, "write", path, why) : 0;
}
