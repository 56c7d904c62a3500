/* The store: moefarm's database, the only truth (schema/). SQLite in WAL mode.
 *
 * One connection writes: the writing thread's, one transaction a turn, synchronous=FULL, so that what was
 * acknowledged survives a power cut. Any number of readers hold read-only connections and see snapshots. A store belongs to one
 * thread for ever.
 *
 * A transaction that failed half-way (disk full, say) is rolled back by mf_store_rollback(); statements
 * return negative errno and keep SQLite's words for mf_store_error(). Only server/store*.c include sqlite3.h, through
 * store_private.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/cleanup.h"

struct mf_store;

/* Once in a process, before its first store and its first thread: has SQLite keep no account of its memory, which it would
 * lock at each allocation, and use our cache (store_cache.h). A process that does not call it works as well, and slower. */
void mf_store_init(void);
/* Opens for writing; creates the file and migrates an older one. -EBUSY: another process writes to it;
 * -ENOTSUP: it was written by a newer moefarmd. */
int mf_store_open(const char *path, struct mf_store **ret);
/* Opens read-only. -ENOENT until the writer has made it. */
int mf_store_open_reader(const char *path, struct mf_store **ret);
struct mf_store *mf_store_free(struct mf_store *s);
MF_DEFINE_CLEANUP(struct mf_store *, mf_store_free);

/* A writer's turn, or a reader's snapshot over several queries. They do not nest. */
int mf_store_begin(struct mf_store *s);
int mf_store_commit(struct mf_store *s);
/* Harmless when no transaction is open. */
void mf_store_rollback(struct mf_store *s);
/* A part of a transaction that can be undone on its own: one request of the turn, or what a message writes before it is known
 * to be good. They do not nest. */
int mf_store_savepoint(struct mf_store *s);
int mf_store_release(struct mf_store *s);
/* -EIO: what failed in it has undone the whole transaction. */
int mf_store_undo(struct mf_store *s);

/* What SQLite said of the last failure; "" for none. Valid until the next call. */
const char *mf_store_error(const struct mf_store *s);
/* Path of the database file. */
const char *mf_store_path(const struct mf_store *s);
