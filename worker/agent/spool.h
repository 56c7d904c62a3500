/* The spool: results that the coordinator has not acknowledged, in one append-only file of records (worker/agent/record.h). What is
 * in it survives the worker; a worker that starts again sends it first.
 *
 *   magic "MFR1": payload is the RESULT's JSON body
 *   magic "MFA1": that result is acknowledged; payload unit, attempt, seq, i64 LE each. Written without a sync: a lost one
 *                 has the result sent again, which is harmless
 *
 * When a result is safe: append() has written it to the file before it is sent anywhere, so it survives any
 * death of the worker at once. It survives a loss of power after sync(), which is called when the oldest record
 * neither acknowledged nor synced is MF_SPOOL_SYNC_MS old: an answering coordinator has committed long before, and a
 * power cut takes at most that much, from a lease that then ends without those results and has them measured again.
 *
 * The file is cut to nothing when all is acknowledged, and rewritten (temporary file, fsync, rename) when it is
 * large and most of it is acknowledged. A torn or corrupted record ends the readable part at load: what follows
 * is cut off. The file is locked: one process at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/agent/record.h"

#define MF_SPOOL_SYNC_MS     100
#define MF_SPOOL_RECORD_MAX  MF_RECORD_MAX
#define MF_SPOOL_BYTES_MAX   (256u << 20) /* unacknowledged; beyond it append refuses */
#define MF_SPOOL_REWRITE_MIN (4u << 20)

struct mf_spool;

struct mf_spool_key {
    int64_t unit, attempt, seq;
};

/* Opens or makes <folder>/<name>.spool; the folder has to exist. -EBUSY: another process has it.
 * *ret_torn (optional): bytes cut off at the end. */
int mf_spool_open(const char *folder, const char *name, struct mf_spool **ret, uint64_t *ret_torn);
struct mf_spool *mf_spool_close(struct mf_spool *s);

/* Writes a record. The key has to be in the body as `unit`, `attempt`, `seq`. -ENOSPC and the like leave the
 * file as it was; -EFBIG: too long, or too much unacknowledged. */
int mf_spool_append(struct mf_spool *s, const struct mf_spool_key *key, const char *body, size_t len);
/* Forgets a record; unknown keys are ignored. */
int mf_spool_acknowledge(struct mf_spool *s, const struct mf_spool_key *key);
/* When sync() is due (mf_now_ms clock); INT64_MAX: nothing to sync. */
int64_t mf_spool_sync_due_ms(const struct mf_spool *s);
int mf_spool_sync(struct mf_spool *s);

/* Unacknowledged records, oldest first, as they have to be sent: next() gives the oldest not yet marked as
 * sent, until sent() marks it; resend() takes all marks away. */
bool mf_spool_next(struct mf_spool *s, struct mf_spool_key *ret_key, const char **ret_body, size_t *ret_len);
void mf_spool_sent(struct mf_spool *s);
void mf_spool_resend(struct mf_spool *s);
size_t mf_spool_n(const struct mf_spool *s);
