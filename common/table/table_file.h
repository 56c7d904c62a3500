/* Tables on disk, shared by programs that do not know of each other.
 *
 * A writer holds an exclusive flock on PATH.lock from before it reads the file until its new version is in
 * place, so that two writers lose nothing. The new version is written to a file beside it, synced, renamed
 * over it, and the folder synced: at every moment, also after a crash or on a full disk, the path holds
 * the whole old table or the whole new one. Readers need no lock. The lock file stays: removing it would
 * race with a writer that waits on it. A link is followed: what it points to is replaced, or made. A folder, a device,
 * a FIFO and an open descriptor (/dev/stdout) are refused before anything is made beside them: -EISDIR, -ENOTSUP; one call says
 * that it takes all but the first. */
#pragma once

#include "common/table/table.h"
#include "common/table/table_merge.h"

#define MF_TABLE_FILE_MAX (64u << 20) /* bytes of a table */
#define MF_TABLE_LOCK_MS  30000       /* how long a writer waits for the lock by default */

/* Reads the table at path. -ENOENT and the like: it cannot be read; otherwise as mf_table_read. Each with why. */
int mf_table_file_read(const char *path, struct mf_table **ret, char why[MF_REASON_MAX]);
/* That part of it. */
int mf_table_file_read_part(const char *path, enum mf_table_part part, struct mf_table **ret,
                            char why[MF_REASON_MAX]);

/* Its bytes, whatever they are; ret has the ceiling. */
int mf_table_file_text(const char *path, struct mf_buf *ret, char why[MF_REASON_MAX]);

/* Whether what is at path is a file, or nothing yet: what no writer takes is refused with its error. */
int mf_table_file_is_one(const char *path, char why[MF_REASON_MAX]);

/* Whether a writer could begin now: takes the lock and lets it go. Errors as of mf_table_file_update, each with why. */
int mf_table_file_check(const char *path, int lock_ms, char why[MF_REASON_MAX]);

/* What an update does to the table while the lock is held. 0: write it; 1: leave the file as it is;
 * negative: give up with that error, having set why. */
typedef int (*mf_table_edit)(struct mf_table *table, void *data, char why[MF_REASON_MAX]);

/* Lock, read (a file that is not there is an empty tuned table), edit, write, unlock. lock_ms < 0 takes
 * MF_TABLE_LOCK_MS. -ETIMEDOUT: another writer kept the lock; -ENOSPC, -EFBIG, …: the file is as it was, with
 * one exception that why names: when only the folder could not be synced, the new table is in place but may
 * not survive a power cut. */
int mf_table_file_update(const char *path, int lock_ms, mf_table_edit edit, void *data,
                         char why[MF_REASON_MAX]);

/* What an update would do: read and edit, without the lock, and nothing is written or made. */
int mf_table_file_try(const char *path, mf_table_edit edit, void *data, char why[MF_REASON_MAX]);

/* mf_table_merge on a file. The file is not touched when no row was added or replaced. */
int mf_table_file_merge(const char *path, int lock_ms, const struct mf_table *fresh,
                        const struct mf_merge_options *options, struct mf_merge_result *ret,
                        char why[MF_REASON_MAX]);

/* Whether a file's bytes may be replaced; called under the lock. text NULL: there is no file. 0: they may; negative: give up
 * with that error, having set why. */
typedef int (*mf_table_may)(const char *text, size_t len, void *data, char why[MF_REASON_MAX]);
/* Puts bytes that are a table already in the file's place, under the same lock. A device, a FIFO or a descriptor is written into, as
 * one that holds nothing. Errors as of mf_table_file_update. */
int mf_table_file_put(const char *path, int lock_ms, const char *text, size_t len, mf_table_may may,
                      void *data, char why[MF_REASON_MAX]);
