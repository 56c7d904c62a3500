#include "server/store/store_backup.h"
#include "server/store/store_private.h"
#include "server/store/store_refusal.h"

#include "common/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP_PAGES 1024 /* pages (4 MiB) that one sqlite3_backup_step copies */

/* Opens the copy. Sets *ret even on failure, except on -ENOMEM; the caller closes *ret. */
static int open_copy(const char *path, sqlite3 **ret)
{
    int code = sqlite3_open_v2(path, ret, SQLITE_OPEN_READWRITE | SQLITE_OPEN_EXRESCODE, NULL);
    return code == SQLITE_OK ? 0 : code == SQLITE_NOMEM ? -ENOMEM : -EIO;
}

/* Copies all pages within the read transaction of `from`. Without this transaction SQLite would restart the
 * backup after each commit of the writer. */
static int copy_pages(struct mf_store *from, sqlite3 *to)
{
    sqlite3_backup *b = sqlite3_backup_init(to, "main", mf_store_db(from), "main");
    if (!b)
        return -EIO;
    int code;
    do
        code = sqlite3_backup_step(b, STEP_PAGES);
    while (code == SQLITE_OK);
    int end = sqlite3_backup_finish(b);
    if (code != SQLITE_DONE)
        return code == SQLITE_FULL ? -ENOSPC : -EIO;
    return end == SQLITE_OK ? 0 : -EIO;
}

/* Converts the copy to a single file without WAL and checks all its pages. */
static int check_copy(sqlite3 *db, char *why, size_t why_cap)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_exec(db, "PRAGMA journal_mode = DELETE", NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &q, NULL) != SQLITE_OK) {
        mf_format(why, why_cap, "cannot read the copy: %s", sqlite3_errmsg(db));
        return -EIO;
    }
    const char *result = sqlite3_step(q) == SQLITE_ROW ? (const char *)sqlite3_column_text(q, 0) : NULL;
    int r = result && strcmp(result, "ok") == 0 ? 0 : -EBADMSG;
    if (r < 0)
        mf_format(why, why_cap, "the database is damaged (%s); restore a backup (docs/operations.md)",
                  result ? result : sqlite3_errmsg(db));
    (void)sqlite3_finalize(q);
    return r;
}

static int copy_into(const char *path, const char *copy, char *why, size_t why_cap)
{
    _cleanup_(mf_store_freep) struct mf_store *from = NULL;
    sqlite3 *to = NULL;
    int64_t n;
    int r = mf_store_open_reader(path, &from);
    if (r < 0) {
        mf_store_open_error(path, r, why, why_cap);
        return r;
    }
    r = mf_store_begin(from);
    if (r >= 0) /* the snapshot starts at the first read */
        r = mf_sql_get_i64(from, "SELECT count(*) FROM farm", &n, "");
    if (r >= 0)
        r = open_copy(copy, &to);
    if (r >= 0)
        r = copy_pages(from, to);
    mf_store_rollback(from);
    if (r < 0)
        mf_format(why, why_cap, "cannot copy %s: %s", path, to ? sqlite3_errmsg(to) : mf_store_error(from));
    else
        r = check_copy(to, why, why_cap);
    (void)sqlite3_close(to);
    return r;
}

/* Syncs the file, then links it to its final name. Never replaces an existing file. */
static int publish(const char *temporary, const char *copy, int64_t *ret_bytes)
{
    char folder[PATH_MAX];
    struct stat st;
    const char *slash = strrchr(copy, '/');
    mf_format(folder, sizeof(folder), "%.*s", slash ? (int)(slash - copy) + 1 : 1, slash ? copy : ".");
    _cleanup_(mf_closep) int file = open(temporary, O_RDONLY | O_CLOEXEC);
    _cleanup_(mf_closep) int directory = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0 || directory < 0 || fsync(file) < 0 || fstat(file, &st) < 0 || link(temporary, copy) < 0 ||
        fsync(directory) < 0)
        return -errno;
    *ret_bytes = st.st_size;
    return 0;
}

int mf_store_backup(const char *path, const char *copy, int64_t *ret_bytes, char *why, size_t why_cap)
{
    char temporary[PATH_MAX];
    int r =
        snprintf(temporary, sizeof(temporary), "%s.%ld", copy, (long)getpid()) < PATH_MAX ? 0 : -ENAMETOOLONG;
    if (r == 0 && access(copy, F_OK) == 0)
        r = -EEXIST;
    int fd = r == 0 ? open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (r == 0 && fd < 0)
        r = -errno;
    if (r < 0) {
        mf_format(why, why_cap, "cannot create %s: %s", copy, strerror(-r));
        return r;
    }
    (void)close(fd);
    r = copy_into(path, temporary, why, why_cap);
    if (r == 0 && (r = publish(temporary, copy, ret_bytes)) < 0)
        mf_format(why, why_cap, "cannot create %s: %s", copy, strerror(-r));
    (void)unlink(temporary);
    return r;
}
