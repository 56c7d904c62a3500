#include "server/store/store.h"
#include "server/store/schema.h"
#include "server/store/store_private.h"
#include "server/store/store_wal.h"

#include "common/base/cleanup.h"
#include "common/base/fault.h"
#include "common/base/text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Number of entries of the statement cache, which uses open addressing. It is a power of two, and at most
 * half of the entries are used. */
#define CACHE_SIZE 512

/* Maximum size of the WAL between two checkpoints: 6144 pages and one transaction */
#define WAL_BYTES (28 << 20)

struct mf_store {
    sqlite3 *db;
    char *path;
    bool writer;
    unsigned savepoints; /* open savepoints, as bits */
    size_t n_cached;
    struct mf_sql *cache[CACHE_SIZE];
    char error[256];
};

int mf_store_errno(struct mf_store *s, int code)
{
    if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE)
        return 0;
    /* SQLite stores the errno of only some failures, and a failed commit is not one of them. So read errno
     * itself */
    int error = (code & 0xff) == SQLITE_IOERR || (code & 0xff) == SQLITE_CANTOPEN ? errno : 0;
    if ((code & 0xff) == SQLITE_FULL)
        error = ENOSPC;
    mf_format(s->error, sizeof(s->error), "%s%s%s", s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(code),
              error ? ": " : "", error ? strerrordesc_np(error) : "");
    if (error == ENOSPC || error == EROFS)
        return -error;
    switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return -EBUSY;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_CONSTRAINT:
        return -EEXIST;
    case SQLITE_CANTOPEN:
        return -ENOENT;
    case SQLITE_READONLY:
        return -EROFS;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return -EBADMSG;
    case SQLITE_TOOBIG:
        return -EFBIG;
    default:
        return -EIO;
    }
}

const char *mf_store_error(const struct mf_store *s)
{
    return s->error;
}

void mf_store_clear_error(struct mf_store *s)
{
    s->error[0] = '\0';
}

const char *mf_store_path(const struct mf_store *s)
{
    return s->path;
}

sqlite3 *mf_store_db(struct mf_store *s)
{
    return s->db;
}

static int run_text(struct mf_store *s, const char *text)
{
    return mf_store_errno(s, sqlite3_exec(s->db, text, NULL, NULL, NULL));
}

/* Reads the schema version. Does not use the statement cache, because the schema may change afterwards. */
static int read_version(struct mf_store *s, int *ret)
{
    sqlite3_stmt *stmt = NULL;
    int r = mf_store_errno(s, sqlite3_prepare_v2(s->db, "PRAGMA user_version", -1, &stmt, NULL));
    if (r == 0) {
        int code = sqlite3_step(stmt);
        r = mf_store_errno(s, code);
        if (code == SQLITE_ROW)
            *ret = sqlite3_column_int(stmt, 0);
    }
    sqlite3_finalize(stmt);
    return r;
}

static int migrate(struct mf_store *s, const struct mf_schema *schema)
{
    int version = 0;
    /* IMMEDIATE, so that if two moefarmd processes start in a new folder at the same time, one waits for the
     * other */
    int r = run_text(s, "BEGIN IMMEDIATE");
    if (r == 0)
        r = read_version(s, &version);
    if (r == 0 && (version < 0 || version > schema->version)) {
        mf_format(
            s->error, sizeof(s->error),
            "the database has schema version %d, this moefarmd supports versions up to %d: start the newer "
            "moefarmd",
            version, schema->version);
        r = -ENOTSUP;
    }
    if (r == 0 && version == 0)
        r = run_text(s, schema->create);
    for (int i = version; r == 0 && i > 0 && i < schema->version; i++)
        r = run_text(s, schema->migrations[i - 1]);
    if (r == 0 && version != schema->version) {
        char text[40];
        mf_format(text, sizeof(text), "PRAGMA user_version = %d", schema->version);
        r = run_text(s, text);
    }
    mf_fault_at(MF_FAULT_SCHEMA_WRITTEN);
    if (r == 0)
        return run_text(s, "COMMIT");
    if (!sqlite3_get_autocommit(s->db))
        (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return r;
}

/* Foreign keys are off meanwhile. Otherwise dropping a table, which is how SQLite changes a UNIQUE
 * constraint, would look for the references to each of its rows. */
int mf_store_apply_schema(struct mf_store *s, const struct mf_schema *schema)
{
    int r = run_text(s, "PRAGMA foreign_keys = OFF");
    if (r == 0)
        r = migrate(s, schema);
    int on = run_text(s, "PRAGMA foreign_keys = ON");
    return r < 0 ? r : on;
}

static int open_at(const char *path, int flags, const char *vfs, struct mf_store **ret)
{
    struct mf_store *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->path = strdup(path);
    int code = s->path
                   ? sqlite3_open_v2(path, &s->db, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, vfs)
                   : SQLITE_NOMEM;
    int r = mf_store_errno(s, code);
    if (r < 0) {
        mf_store_free(s);
        return r;
    }
    (void)sqlite3_busy_timeout(s->db, 2000);
    *ret = s;
    return 0;
}

/* Extends the WAL file with zeros to the size that it reaches between two checkpoints. Commits then overwrite
 * existing blocks, so fdatasync does not wait for the file system's journal to record a new file length. This
 * makes commits several times faster on ext4. SQLite ignores the zeros, because no frame checksum matches
 * them. */
static int preallocate_wal(struct mf_store *s)
{
    static const char zeros[1 << 16];
    sqlite3_file *wal = NULL;
    sqlite3_int64 size = 0;
    int code = sqlite3_file_control(s->db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &wal);
    if (code != SQLITE_OK || !wal || !wal->pMethods)
        return 0;
    code = wal->pMethods->xFileSize(wal, &size);
    for (; code == SQLITE_OK && size < WAL_BYTES; size += (sqlite3_int64)sizeof(zeros))
        code = wal->pMethods->xWrite(wal, zeros, sizeof(zeros), size);
    if (code == SQLITE_OK)
        code = wal->pMethods->xSync(wal, SQLITE_SYNC_NORMAL);
    return mf_store_errno(s, code);
}

void mf_store_init(void)
{
    (void)sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
}

/* Creates the database in a file beside it that only its owner can read, and links the file to its name when
 * it is complete. So a file with this name is always a whole database: a shorter one was truncated or belongs
 * to another program. */
static int create(const char *path)
{
    _cleanup_(mf_freep) char *temporary = NULL;
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    if (asprintf(&temporary, "%s.new", path) < 0) {
        temporary = NULL;
        return -ENOMEM;
    }
    (void)unlink(temporary);
    _cleanup_(mf_closep) int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int r = open_at(temporary, SQLITE_OPEN_READWRITE, NULL, &s);
    if (r == 0)
        r = run_text(s, "PRAGMA synchronous = FULL");
    if (r == 0)
        r = mf_store_apply_schema(s, &mf_schema);
    s = mf_store_free(s);
    if (r == 0 && link(temporary, path) < 0 && errno != EEXIST)
        r = -errno;
    (void)unlink(temporary);
    return r;
}

/* Returns -EBADMSG unless the file begins as a SQLite database does. SQLite itself takes an empty or very
 * short file for a new database. */
static int check_header(const char *path)
{
    static const char magic[16] = "SQLite format 3";
    char head[100]; /* SQLite's header */
    _cleanup_(mf_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof(head));
    if (n < 0)
        return -errno;
    return n == (ssize_t)sizeof(head) && memcmp(head, magic, sizeof(magic)) == 0 ? 0 : -EBADMSG;
}

int mf_store_open(const char *path, struct mf_store **ret)
{
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    int version = 0, r = access(path, F_OK) < 0 && errno == ENOENT ? create(path) : 0;
    if (r == 0)
        r = check_header(path);
    if (r == 0)
        r = mf_store_wal_register();
    if (r == 0)
        r = open_at(path, SQLITE_OPEN_READWRITE, MF_STORE_WAL, &s);
    if (r == 0)
        r = read_version(s, &version);
    if (r == 0 && version == 0)
        r = -EBADMSG; /* a database of another program */
    if (r < 0)
        return r;
    s->writer = true;
    /* Checkpoints are rare, so that a page that many transactions change is copied to the database only once
     */
    r = run_text(s,
                 "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                 "PRAGMA wal_autocheckpoint = 6144; PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY;"
                 "PRAGMA journal_size_limit = 67108864");
    if (r == 0)
        r = mf_store_apply_schema(s, &mf_schema);
    if (r == 0)
        r = preallocate_wal(s);
    if (r < 0)
        return r;
    *ret = MF_TAKE(s);
    return 0;
}

int mf_store_open_reader(const char *path, struct mf_store **ret)
{
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    int version = 0;
    int r = open_at(path, SQLITE_OPEN_READONLY, NULL, &s);
    if (r == 0)
        r = run_text(s, "PRAGMA query_only = ON; PRAGMA cache_size = -16384; PRAGMA mmap_size = 268435456");
    if (r == 0)
        r = read_version(s, &version);
    if (r == 0 && version != mf_schema.version)
        r = -ENOENT; /* the writer has not created or migrated the schema yet */
    if (r < 0)
        return r;
    *ret = MF_TAKE(s);
    return 0;
}

struct mf_store *mf_store_free(struct mf_store *s)
{
    if (!s)
        return NULL;
    for (size_t i = 0; i < CACHE_SIZE; i++) {
        if (s->cache[i])
            sqlite3_finalize(s->cache[i]->stmt);
        free(s->cache[i]);
    }
    (void)sqlite3_close(s->db);
    free(s->path);
    free(s);
    return NULL;
}

int mf_store_begin(struct mf_store *s)
{
    return mf_sql_run(s, s->writer ? "BEGIN IMMEDIATE" : "BEGIN", "");
}

int mf_store_commit(struct mf_store *s)
{
    return mf_sql_run(s, "COMMIT", "");
}

void mf_store_rollback(struct mf_store *s)
{
    s->savepoints = 0;
    /* After some failures SQLite has rolled back already, and ROLLBACK would fail */
    if (!sqlite3_get_autocommit(s->db))
        (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
}

int mf_store_savepoint(struct mf_store *s, enum mf_savepoint level)
{
    assert(s->savepoints < (unsigned)level);
    int r = mf_sql_run(s, level == MF_SAVEPOINT_MESSAGE ? "SAVEPOINT message" : "SAVEPOINT part", "");
    if (r >= 0)
        s->savepoints |= level;
    return r;
}

int mf_store_savepoint_release(struct mf_store *s, enum mf_savepoint level)
{
    assert(s->savepoints & level);
    s->savepoints &= level - 1u;
    return mf_sql_run(s, level == MF_SAVEPOINT_MESSAGE ? "RELEASE message" : "RELEASE part", "");
}

int mf_store_savepoint_rollback(struct mf_store *s, enum mf_savepoint level)
{
    if (!(s->savepoints & level))
        return 0;
    s->savepoints &= level - 1u;
    /* A failure such as a full disk may have rolled back the whole transaction. Later statements would then
     * run outside it */
    if (sqlite3_get_autocommit(s->db))
        return -EIO;
    return run_text(s, level == MF_SAVEPOINT_MESSAGE ? "ROLLBACK TO message; RELEASE message"
                                                     : "ROLLBACK TO part; RELEASE part");
}

/* Returns the cache slot of a literal: the slot that holds its statement, or the empty slot in which to
 * insert the statement. */
static struct mf_sql **cache_slot(struct mf_store *s, const char *literal)
{
    size_t i = (size_t)(((uintptr_t)literal * UINT64_C(0x9E3779B97F4A7C15)) >> 40) % CACHE_SIZE;
    while (s->cache[i] && s->cache[i]->key != literal)
        i = (i + 1) % CACHE_SIZE;
    return &s->cache[i];
}

static int compile(struct mf_store *s, const char *text, unsigned flags, struct mf_sql **ret)
{
    struct mf_sql *q = calloc(1, sizeof(*q));
    if (!q)
        return -ENOMEM;
    q->store = s;
    int r = mf_store_errno(s, sqlite3_prepare_v3(s->db, text, -1, flags, &q->stmt, NULL));
    if (r < 0) {
        free(q);
        return r;
    }
    *ret = q;
    return 0;
}

static int bind_all(struct mf_sql *q, int index, const char *types, va_list args)
{
    int code = SQLITE_OK;
    for (; *types && code == SQLITE_OK; types++, index++) {
        switch (*types) {
        case 'i':
            code = sqlite3_bind_int64(q->stmt, index, va_arg(args, int64_t));
            break;
        case 'I': {
            int64_t value = va_arg(args, int64_t);
            code = value ? sqlite3_bind_int64(q->stmt, index, value) : sqlite3_bind_null(q->stmt, index);
            break;
        }
        case 'd': {
            double value = va_arg(args, double);
            code =
                isnan(value) ? sqlite3_bind_null(q->stmt, index) : sqlite3_bind_double(q->stmt, index, value);
            break;
        }
        case 't':
            code = sqlite3_bind_text(q->stmt, index, va_arg(args, const char *), -1, SQLITE_STATIC);
            break;
        case 'b': {
            const void *data = va_arg(args, const void *);
            size_t len = va_arg(args, size_t);
            code = sqlite3_bind_blob64(q->stmt, index, data, len, SQLITE_STATIC);
            break;
        }
        default:
            assert(!"unknown letter in types");
        }
    }
    return mf_store_errno(q->store, code);
}

int mf_sqlv(struct mf_store *s, const char *literal, struct mf_sql **ret, const char *types, va_list args)
{
    struct mf_sql **slot = cache_slot(s, literal);
    if (!*slot) {
        assert(s->n_cached < CACHE_SIZE / 2);
        int r = compile(s, literal, SQLITE_PREPARE_PERSISTENT, slot);
        if (r < 0)
            return r;
        (*slot)->key = literal;
        s->n_cached++;
    }
    struct mf_sql *q = *slot;
    if (q->busy)
        return -EBUSY;
    int r = bind_all(q, 1, types, args);
    if (r < 0)
        return r;
    q->busy = true;
    *ret = q;
    return 0;
}

int mf_sql(struct mf_store *s, const char *literal, struct mf_sql **ret, const char *types, ...)
{
    va_list args;
    va_start(args, types);
    int r = mf_sqlv(s, literal, ret, types, args);
    va_end(args);
    return r;
}

int mf_sql_dynamic(struct mf_store *s, const char *text, struct mf_sql **ret)
{
    int r = compile(s, text, 0, ret);
    if (r == 0)
        (*ret)->busy = true;
    return r;
}

int mf_sql_bind(struct mf_sql *q, int index, const char *types, ...)
{
    va_list args;
    va_start(args, types);
    int r = bind_all(q, index, types, args);
    va_end(args);
    return r;
}

int mf_sql_next(struct mf_sql *q)
{
    int code = sqlite3_step(q->stmt);
    return code == SQLITE_ROW ? 1 : mf_store_errno(q->store, code);
}

static int firstv(struct mf_store *s, const char *literal, struct mf_sql **ret, const char *types,
                  va_list args)
{
    int r = mf_sqlv(s, literal, ret, types, args);
    return r < 0 ? r : mf_sql_next(*ret);
}

int mf_sql_first(struct mf_store *s, const char *literal, struct mf_sql **ret, const char *types, ...)
{
    va_list args;
    va_start(args, types);
    int r = firstv(s, literal, ret, types, args);
    va_end(args);
    return r;
}

void mf_sql_done(struct mf_sql *q)
{
    if (!q)
        return;
    (void)sqlite3_reset(q->stmt);
    if (q->key) {
        q->busy = false;
        return;
    }
    sqlite3_finalize(q->stmt);
    free(q);
}

static int runv(struct mf_store *s, const char *literal, const char *types, va_list args)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = firstv(s, literal, &q, types, args);
    return r < 0 ? r : sqlite3_changes(s->db);
}

int mf_sql_run(struct mf_store *s, const char *literal, const char *types, ...)
{
    va_list args;
    va_start(args, types);
    int r = runv(s, literal, types, args);
    va_end(args);
    return r;
}

int mf_sql_write(struct mf_store *s, const char *literal, const char *types, ...)
{
    va_list args;
    va_start(args, types);
    int r = runv(s, literal, types, args);
    va_end(args);
    return r < 0 ? r : 0;
}

int mf_sql_get_i64(struct mf_store *s, const char *literal, int64_t *ret, const char *types, ...)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    va_list args;
    va_start(args, types);
    int r = firstv(s, literal, &q, types, args);
    va_end(args);
    if (r > 0)
        *ret = mf_sql_i64(q, 0);
    return r;
}

int mf_sql_exists(struct mf_store *s, const char *literal, int64_t id)
{
    int64_t found;
    int r = mf_sql_get_i64(s, literal, &found, "i", id);
    return r == 0 ? -ENOENT : r < 0 ? r : 0;
}

int64_t mf_sql_i64(const struct mf_sql *q, int column)
{
    return sqlite3_column_int64(q->stmt, column);
}

double mf_sql_double(const struct mf_sql *q, int column)
{
    return mf_sql_null(q, column) ? (double)NAN : sqlite3_column_double(q->stmt, column);
}

const char *mf_sql_text(const struct mf_sql *q, int column)
{
    const unsigned char *text = sqlite3_column_text(q->stmt, column);
    return text ? (const char *)text : "";
}

const void *mf_sql_blob(const struct mf_sql *q, int column, size_t *ret_len)
{
    const void *data = sqlite3_column_blob(q->stmt, column);
    *ret_len = (size_t)sqlite3_column_bytes(q->stmt, column);
    return data;
}

bool mf_sql_null(const struct mf_sql *q, int column)
{
    return sqlite3_column_type(q->stmt, column) == SQLITE_NULL;
}

int64_t mf_store_last_id(struct mf_store *s)
{
    return sqlite3_last_insert_rowid(s->db);
}
