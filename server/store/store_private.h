/* What the store*.c files share: statements prepared once and kept, bound by a type text, read by column.
 *
 *     _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
 *     r = mf_sql(s, "SELECT id, name FROM worker WHERE state = ? AND id > ?", &q, "ti", state, after);
 *     while (r >= 0 && (r = mf_sql_next(q)) > 0)
 *         use(mf_sql_i64(q, 0), mf_sql_text(q, 1));
 *
 * The SQL must be a string literal: the cache is keyed by its address. A text that is put together at run time goes through
 * mf_sql_dynamic(), which is not cached. A statement in use (not done yet) cannot be taken a second time: mf_sql() answers -EBUSY. */
#pragma once

#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>

#include "server/store/schema.h"
#include "server/store/store.h"

struct mf_sql {
    struct mf_store *store;
    sqlite3_stmt *stmt;
    const char *key; /* the literal; NULL: not cached, finalised by done */
    bool busy;
};

sqlite3 *mf_store_db(struct mf_store *s);
/* Creates the schema in an empty database, or runs the migrations that an older one lacks, in one transaction.
 * -ENOTSUP: the database is newer; mf_store_error has the sentence. */
int mf_store_apply_schema(struct mf_store *s, const struct mf_schema *schema);

/* Prepares (or takes from the cache) and binds. types, one letter a parameter:
 *   i int64_t   d double (NAN: NULL)   t const char * (NULL: NULL; not copied, must live until done)
 *   b const void * and size_t (blob)   I int64_t, 0 is NULL */
int mf_sql(struct mf_store *s, const char *literal, struct mf_sql **ret, const char *types, ...);
int mf_sqlv(struct mf_store *s, const char *literal, struct mf_sql **ret, const char *types, va_list args);
/* The same for a text that is no literal: compiled each time, parameters bound one by one with mf_sql_bind. */
int mf_sql_dynamic(struct mf_store *s, const char *text, struct mf_sql **ret);
int mf_sql_bind(struct mf_sql *q, int index, const char *types,
                ...); /* from parameter `index`, 1 is the first */

/* 1: a row; 0: no more. */
int mf_sql_next(struct mf_sql *q);
/* mf_sql() and its first row. 1: there is one; 0: none. */
int mf_sql_first(struct mf_store *s, const char *literal, struct mf_sql **ret, const char *types, ...);
/* Resets and unbinds; finalises an uncached one. NULL is fine. */
void mf_sql_done(struct mf_sql *q);
static inline void mf_sql_donep(struct mf_sql **q)
{
    mf_sql_done(*q);
}

/* Runs a statement that gives no rows: the number of rows it changed. */
int mf_sql_run(struct mf_store *s, const char *literal, const char *types, ...);
/* The same where that number is no news: 0. */
int mf_sql_write(struct mf_store *s, const char *literal, const char *types, ...);
/* The first column of the first row. 1: there was one; 0: none (*ret untouched). */
int mf_sql_get_i64(struct mf_store *s, const char *literal, int64_t *ret, const char *types, ...);
/* Does the query, whose one parameter is an id, have a row? 0: it does; -ENOENT: it does not. */
int mf_sql_exists(struct mf_store *s, const char *literal, int64_t id);
struct mf_ids;
/* Adds the first column of every row (store_batch.c, which has mf_ids). */
int mf_sql_ids(struct mf_store *s, const char *literal, struct mf_ids *ret, const char *types, ...);

/* Columns of the current row. */
int64_t mf_sql_i64(const struct mf_sql *q, int column);      /* NULL is 0 */
double mf_sql_double(const struct mf_sql *q, int column);    /* NULL is NAN */
const char *mf_sql_text(const struct mf_sql *q, int column); /* NULL is ""; until the next call on q */
const void *mf_sql_blob(const struct mf_sql *q, int column, size_t *ret_len);
bool mf_sql_null(const struct mf_sql *q, int column);
int64_t mf_store_last_id(struct mf_store *s);

/* Negative errno for a code of SQLite's, whose words are kept for mf_store_error(). 0 for OK, ROW and DONE. */
int mf_store_fault(struct mf_store *s, int code);
