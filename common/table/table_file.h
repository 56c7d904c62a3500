/* Reads and writes table files, which independent programs share.
 *
 * A writer takes an exclusive flock on PATH.lock before it reads the file, and holds it until the new version
 * is in place, so concurrent writers lose no update. The writer writes the new version to a file in the same
 * folder, syncs it, renames it over the old one, and syncs the folder. At any time, even after a crash or
 * with a full disk, the path holds the complete old or the complete new table. Readers need no lock. The lock
 * file is never removed, because removing it would race with a waiting writer.
 *
 * Symbolic links are followed: the target is replaced or created. A folder (-EISDIR), and a device, a FIFO or
 * an open descriptor such as /dev/stdout (-ENOTSUP), are rejected before any file is created. Only
 * mf_table_file_replace writes to devices, FIFOs and open descriptors. */
#pragma once

#include "common/table/table.h"
#include "common/table/table_merge.h"

#define MF_TABLE_FILE_MAX (64u << 20) /* maximum size of a table in bytes */
#define MF_TABLE_LOCK_MS  30000       /* default time to wait for the lock */

/* Reads the table at path. If the file cannot be read, returns the error of open(2) or read(2), such as
 * -ENOENT. All other errors are those of mf_table_read. Sets why on error. */
int mf_table_file_read(const char *path, struct mf_table **ret, char why[MF_REASON_MAX]);
/* As mf_table_file_read, for one part of each row. */
int mf_table_file_read_part(const char *path, enum mf_table_part part, struct mf_table **ret,
                            char why[MF_REASON_MAX]);

/* Reads the content of the file without parsing it. The size limit of the buffer `ret` applies. */
int mf_table_file_text(const char *path, struct mf_buf *ret, char why[MF_REASON_MAX]);

/* Checks that path is a file or does not exist. Otherwise returns the error that a writer would return, with
 * why. */
int mf_table_file_check_path(const char *path, char why[MF_REASON_MAX]);

/* Checks that a writer could start now: takes the lock and releases it. Errors as for mf_table_file_update,
 * with why. */
int mf_table_file_check(const char *path, int lock_ms, char why[MF_REASON_MAX]);

/* Callback that changes the table while the lock is held. Returns 0 to have the table written, 1 to leave the
 * file unchanged, or a negative error with the reason in why. */
typedef int (*mf_table_edit)(struct mf_table *table, void *data, char why[MF_REASON_MAX]);

/* Locks, reads, edits, writes and unlocks. A missing file is read as an empty tuned table. lock_ms < 0:
 * MF_TABLE_LOCK_MS. -ETIMEDOUT: another writer holds the lock. After other errors (-ENOSPC, -EFBIG, …) the
 * file is unchanged, with one exception: if only the sync of the folder failed, the new table is in place but
 * may not survive a power failure, and why says so. */
int mf_table_file_update(const char *path, int lock_ms, mf_table_edit edit, void *data,
                         char why[MF_REASON_MAX]);

/* Reads and edits the table without lock, and writes nothing. */
int mf_table_file_dry_run(const char *path, mf_table_edit edit, void *data, char why[MF_REASON_MAX]);

/* Merges `fresh` into a table file with mf_table_merge. The file is left unchanged if no row is added or
 * replaced. */
int mf_table_file_merge(const char *path, int lock_ms, const struct mf_table *fresh,
                        const struct mf_merge_options *options, struct mf_merge_result *ret,
                        char why[MF_REASON_MAX]);

/* Callback that decides whether the content of a file may be replaced; the lock is held during the call. text
 * is NULL if there is no file. Returns 0 to allow the replacement, or a negative error with the reason in
 * why. */
typedef int (*mf_table_may_replace)(const char *text, size_t len, void *data, char why[MF_REASON_MAX]);
/* Replaces the file by a serialised table while holding the lock. If the path is a device, a FIFO or a
 * descriptor, writes to it directly and calls `may` with a NULL text. Errors as for mf_table_file_update. */
int mf_table_file_replace(const char *path, int lock_ms, const char *text, size_t len,
                          mf_table_may_replace may, void *data, char why[MF_REASON_MAX]);
