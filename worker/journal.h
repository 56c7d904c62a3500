/* The journal: which units a worker has in hand, and what of them is done, so that a worker that is started again goes on
 * where its predecessor fell. <folder>/<name>.units, beside the spool and under its lock, of records (worker/record.h)
 * with magic "MFU1", each a JSON object with one of:
 *
 *   instance   text: whose file it is. A successor says it in HELLO, as proof that it has what that one had
 *   unit       the UNIT, with class and revision: of the device and the kernels that it was leased for
 *   begun      [unit, attempt]: a runner of this instance was asked for it, or for what is left of it
 *   done       [unit, attempt, seq, item]: a RESULT of that step or pipeline is in the spool, or acknowledged
 *   gone       [unit, attempt]: ended, or given back
 *
 * The file is cut to its instance when no unit is in hand. Nothing is lost without it but time: a unit that is not in it
 * is leased anew. So it is never synced, and what fails ends the journal, not the work. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What as many instances fell at with nothing done between may be what kills workers. */
#define MF_JOURNAL_STUCK 2

struct mf_journal_item {
    int64_t id, seq;
};

/* A unit as a predecessor left it. */
struct mf_journal_unit {
    int64_t unit, attempt;
    cJSON *body; /* UNIT; the taker sets it NULL */
    const char *class, *revision;
    struct mf_journal_item *done;
    size_t n_done, cap_done;
    int begun_by; /* the last instance that was at it, counted from 1 in the file; 0: none was */
    int n_fell;   /* instances that were at it when they fell, since something of it was done */
    cJSON *record;
};

struct mf_journal {
    int fd; /* -1: it has failed */
    uint64_t bytes;
    size_t n_in_hand;
    char predecessor[64]; /* instance; "": none */
    char instance[64];
    struct mf_journal_unit *found;
    size_t n_found, cap_found;
    int n_instances; /* in the file when it was read */
};

/* Reads what a predecessor left, and goes on in its file under the new instance. */
int mf_journal_open(const char *folder, const char *name, const char *instance, struct mf_journal *ret);
void mf_journal_release(struct mf_journal *j);
/* What was found is not needed any more; what of it was not retaken is out of hand. */
void mf_journal_forget(struct mf_journal *j);

void mf_journal_take(struct mf_journal *j, cJSON *unit, const char *class, const char *revision);
/* Of a unit that was found. */
void mf_journal_retake(struct mf_journal *j);
void mf_journal_begun(struct mf_journal *j, int64_t unit, int64_t attempt);
void mf_journal_done(struct mf_journal *j, int64_t unit, int64_t attempt, struct mf_journal_item item);
void mf_journal_gone(struct mf_journal *j, int64_t unit, int64_t attempt);
