/* The spool: results not yet acknowledged by the coordinator, in one append-only file of records (record.h).
 * The file outlives the worker. A restarted worker sends the results of the file first.
 *
 *   magic "MFR1": the payload is the JSON body of a RESULT
 *   magic "MFA1": the result is acknowledged; the payload is unit, attempt, seq, i64 LE each. Written
 *                 without a sync: if this record is lost, the result is sent again, which is harmless
 *
 * Durability: append() writes a result to the file before the result is sent, so the result survives a crash
 * of the worker. It survives a power failure after sync(). sync() is due when the oldest unacknowledged,
 * unsynced record is MF_SPOOL_SYNC_MS old. A responding coordinator has committed the result long before
 * sync() is due. A power failure loses at most the results of the last MF_SPOOL_SYNC_MS. The leases of
 * their units expire, and the units are measured again.
 *
 * The file is truncated when all results are acknowledged. It is rewritten (temporary file, fsync, rename)
 * when it is large and mostly acknowledged. At load, torn and corrupt records are skipped and removed. The
 * file is locked, so that only one process at a time uses it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/agent/record.h"

#define MF_SPOOL_SYNC_MS    100
#define MF_SPOOL_RECORD_MAX MF_RECORD_MAX
/* maximum size of all unacknowledged results; append fails beyond this size */
#define MF_SPOOL_BYTES_MAX   (256u << 20)
#define MF_SPOOL_REWRITE_MIN (4u << 20)

struct mf_spool;

struct mf_spool_key {
    int64_t unit, attempt, seq;
};

/* Opens or creates <folder>/<name>.spool; the folder must exist. *ret_damaged (optional): bytes removed.
 * Returns -EBUSY if another process has the spool open, -ELOOP if it is a symbolic link, and -EINVAL if it is
 * no regular file. */
int mf_spool_open(const char *folder, const char *name, struct mf_spool **ret, uint64_t *ret_damaged);
struct mf_spool *mf_spool_close(struct mf_spool *s);

/* Writes a record. The body must contain the key as `unit`, `attempt`, `seq`. On an error such as -ENOSPC the
 * file is unchanged. Returns -EFBIG if the record is too long or the spool would exceed MF_SPOOL_BYTES_MAX.
 */
int mf_spool_append(struct mf_spool *s, const struct mf_spool_key *key, const char *body, size_t len);
/* Removes a record; unknown keys are ignored. */
int mf_spool_acknowledge(struct mf_spool *s, const struct mf_spool_key *key);
/* Returns the time of the next sync() (mf_now_ms clock); INT64_MAX: nothing to sync. */
int64_t mf_spool_sync_due_ms(const struct mf_spool *s);
int mf_spool_sync(struct mf_spool *s);

/* Iterates over unacknowledged records, oldest first. next() returns the oldest record not marked as sent,
 * sent() marks a record as sent, and resend() clears all marks. */
bool mf_spool_next(struct mf_spool *s, struct mf_spool_key *ret_key, const char **ret_body, size_t *ret_len);
void mf_spool_sent(struct mf_spool *s);
void mf_spool_resend(struct mf_spool *s);
/* True if next() has a record. */
bool mf_spool_has_unsent(struct mf_spool *s);
size_t mf_spool_n(const struct mf_spool *s);
