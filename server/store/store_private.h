/* Shared by the store*.c files: prepared statements that are cached, bound by a type string and read by
 * column.
 *
 *       _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
 *       r = mf_sql(s, "SELECT id, name FROM worker WHERE state = ? AND id > ?", &q, "ti", state, after);
 *       while (r >= 0 && (r = mf_sql_next(q)) > 0)
 *           use(mf_sql_i64(q, 0), mf_sql_text(q, 1));
 *
 * The SQL must be a string literal, because the cache is keyed by its address. For SQL composed at run time
 * use mf_sql_dynamic(), which does not cache. A statement cannot be used twice at the same time. For a
 * statement in use, mf_sql() returns -EBUSY until mf_sql_done() is called. */
#pragma once

#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>

#include "server/store/schema.h"
#include "server/store/store.h"

struct mf_sql {
    struct mf_store *store;
    sqlite3_stmt *stmt;
    const char *key; /* address of the literal; NULL: not cached, mf_sql_done finalises it */
    bool busy;
};

sqlite3 *mf_store_db(struct mf_store *s);
/* Creates the schema in an empty database, or runs the missing migrations, in one transaction. -ENOTSUP: the
 * database is newer; see mf_store_error. */
int mf_store_apply_schema(struct mf_store *s, const struct mf_schema *schema);

/* Prepares a statement, or takes it from the cache, and binds its parameters. types has one letter per
 * parameter:
 *
 *   i int64_t   d double (NAN: NULL)   t const char * (NULL: NULL; not copied, must live until mf_sql_done)
 *   b const void * and size_t (blob)   I int64_t (0: NULL) */
int mf_sql(struct mf_store *s, const char *literal, struct mf_sql **ret, const char *types, ...);
int mf_sqlv(struct mf_store *s, const char *literal, struct mf_sql **ret, const char *types, va_list args);
/* Same as mf_sql, for SQL that is not a literal. Compiles the text at each call; bind parameters with
 * mf_sql_bind. */
int mf_sql_dynamic(struct mf_store *s, const char *text, struct mf_sql **ret);
int mf_sql_bind(struct mf_sql *q, int index, const char *types,
                ...); /* binds parameters from `index` on; the first is 1 */

/* Returns 1 if there is a row, 0 at the end. */
int mf_sql_next(struct mf_sql *q);
/* Calls mf_sql() and mf_sql_next(). Returns 1 if there is a row, 0 if not. */
int mf_sql_first(struct mf_store *s, const char *literal, struct mf_sql **ret, const char *types, ...);
/* Resets the statement and releases it; finalises it if not cached. Accepts NULL. */
void mf_sql_done(struct mf_sql *q);
static inline void mf_sql_donep(struct mf_sql **q)
{
    mf_sql_done(*q);
}

/* Runs a statement that returns no rows. Returns the number of rows changed. */
int mf_sql_run(struct mf_store *s, const char *literal, const char *types, ...);
/* Same as mf_sql_run, but returns 0 on success. */
int mf_sql_write(struct mf_store *s, const char *literal, const char *types, ...);
/* Reads the first column of the first row. Returns 1; 0 if there is no row (*ret unchanged). */
int mf_sql_get_i64(struct mf_store *s, const char *literal, int64_t *ret, const char *types, ...);
/* Returns 0 if the query, whose only parameter is an id, has a row; otherwise -ENOENT. */
int mf_sql_exists(struct mf_store *s, const char *literal, int64_t id);
/* Condition on table worker w: the worker gets units. */
#define MF_WORKER_AVAILABLE "w.state IN ('idle', 'busy') AND w.quarantined = ''"
struct mf_ids;
/* Adds the first column of every row to ret (defined in store_batch.c). */
int mf_sql_ids(struct mf_store *s, const char *literal, struct mf_ids *ret, const char *types, ...);

/* Columns of the current row. */
int64_t mf_sql_i64(const struct mf_sql *q, int column);      /* NULL: 0 */
double mf_sql_double(const struct mf_sql *q, int column);    /* NULL: NAN */
const char *mf_sql_text(const struct mf_sql *q, int column); /* NULL: ""; valid until the next call on q */
const void *mf_sql_blob(const struct mf_sql *q, int column, size_t *ret_len);
bool mf_sql_null(const struct mf_sql *q, int column);
int64_t mf_store_last_id(struct mf_store *s);

/* Converts an SQLite result code to a negative errno and stores SQLite's message for mf_store_error().
 * Returns 0 for OK, ROW and DONE. */
int mf_store_errno(struct mf_store *s, int code);
