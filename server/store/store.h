/* The store: SQLite access to moefarmd's database (schema.sql), which holds all state of a farm.
 *
 * The writer thread owns the only writing connection. It runs one transaction per iteration of its event loop
 * with synchronous=FULL, so acknowledged data survives a power failure. Any number of read-only connections
 * read WAL snapshots. Each store belongs to one thread.
 *
 * If a statement fails, for example because the disk is full, call mf_store_rollback(). Functions return a
 * negative errno; mf_store_error() has SQLite's message. Only server/store/store*.c include sqlite3.h,
 * through store_private.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/cleanup.h"

struct mf_store;

/* Turns off SQLite's memory statistics, which take a lock per allocation. Call it once per process, before
 * the first store is opened and before other threads exist. Without this call the store works, but is slower.
 */
void mf_store_init(void);
/* Opens the database for writing; creates it or migrates an older version. -EBUSY: another process writes to
 * the database; -ENOTSUP: a newer moefarmd wrote the database. */
int mf_store_open(const char *path, struct mf_store **ret);
/* Opens the database read-only. Returns -ENOENT until the writer has created or migrated the database. */
int mf_store_open_reader(const char *path, struct mf_store **ret);
struct mf_store *mf_store_free(struct mf_store *s);
MF_DEFINE_CLEANUP(struct mf_store *, mf_store_free);

/* Begins a transaction. For a reader, all queries in it see one snapshot. Transactions do not nest. */
int mf_store_begin(struct mf_store *s);
int mf_store_commit(struct mf_store *s);
/* Rolls back the transaction. Does nothing if no transaction is open. */
void mf_store_rollback(struct mf_store *s);
/* Levels of savepoints within a transaction: one request or message, and a part of it. The inner level may be
 * open inside the outer level. */
enum mf_savepoint { MF_SAVEPOINT_MESSAGE = 1, MF_SAVEPOINT_PART = 2 };
int mf_store_savepoint(struct mf_store *s, enum mf_savepoint level);
int mf_store_savepoint_release(struct mf_store *s, enum mf_savepoint level);
/* Rolls back to the savepoint and ends it, with the savepoint inside it. Does nothing if the savepoint is not
 * open. Returns -EIO if the failure has already rolled back the whole transaction. */
int mf_store_savepoint_rollback(struct mf_store *s, enum mf_savepoint level);

/* Returns SQLite's message for the last failure; "" if there was no failure. The text is valid until the next
 * call. */
const char *mf_store_error(const struct mf_store *s);
void mf_store_clear_error(struct mf_store *s);
const char *mf_store_path(const struct mf_store *s);
