#include "server/store/store_refusal.h"
#include "server/store/schema.h"
#include "server/store/store_private.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Messages for errors whose errno text does not help. The path comes before the message. */
static const struct {
    int r;
    const char *text;
} reasons[] = {
    {-EBADMSG, "is damaged or not a moefarmd database; restore a backup (docs/operations.md)"},
    {-EBUSY, "is open for writing in another process: stop that process first"},
    {-ENOMEM, "cannot be opened: out of memory"},
};

static const char *reason_of(int r)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(reasons); i++) {
        if (reasons[i].r == r)
            return reasons[i].text;
    }
    return NULL;
}

/* Returns false if the file has no readable schema version. */
static bool read_version(const char *path, int *ret)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    bool read = sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK &&
                sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &q, NULL) == SQLITE_OK &&
                sqlite3_step(q) == SQLITE_ROW;
    if (read)
        *ret = sqlite3_column_int(q, 0);
    (void)sqlite3_finalize(q);
    (void)sqlite3_close(db);
    return read;
}

/* SQLite creates files next to a database, even if it only reads the database, but does not report that it
 * could not create them. Returns 0 if the folder is writable or does not exist; otherwise a negative errno.
 */
static int check_folder(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    mf_format(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    return access(folder, W_OK | X_OK) < 0 && errno != ENOENT ? -errno : 0;
}

/* Returns true and sets why if the file itself is the cause. */
static bool explain_file(const char *path, char *why, size_t why_cap)
{
    struct stat st;
    int found = stat(path, &st);
    if (found < 0 && errno == ENOENT)
        mf_format(why, why_cap, "%s: no such file; check that --state names the folder of a moefarmd", path);
    else if (found == 0 && !S_ISREG(st.st_mode))
        mf_format(why, why_cap, "%s is not a regular file, so it cannot be the database: move it away", path);
    else if (found < 0 || access(path, R_OK | W_OK) < 0)
        mf_format(why, why_cap, "%s: %s", path, strerror(errno));
    else
        return false;
    return true;
}

static void explain_version(const char *path, int version, char *why, size_t why_cap)
{
    mf_format(why, why_cap, "%s: schema version %d, this program needs %d: %s", path, version,
              mf_schema.version,
              version > mf_schema.version ? "use the programs of the newer release"
                                          : "start moefarmd of this release once to migrate the database");
}

void mf_store_open_error(const char *path, int r, char *why, size_t why_cap)
{
    const char *text = reason_of(r);
    int version, folder = check_folder(path);
    if (text)
        mf_format(why, why_cap, "%s %s", path, text);
    else if (folder < 0)
        mf_format(why, why_cap,
                  "the folder of %s is not writable, which SQLite requires even for reading: %s", path,
                  strerror(-folder));
    else if (explain_file(path, why, why_cap))
        return;
    else if (read_version(path, &version) && version != mf_schema.version)
        explain_version(path, version, why, why_cap);
    else
        mf_format(why, why_cap, "%s: %s", path, strerror(-r));
}
