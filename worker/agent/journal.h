/* The journal: which units a worker has in hand, and what of them is done, so that a worker that is started again goes on
 * where its predecessor fell. <folder>/<name>.units, beside the spool and under its lock, of records (worker/agent/record.h)
 * with magic "MFU1", each a JSON object with one of:
 *
 *   instance   text: whose file it is. A successor says it in HELLO, as proof that it has what that one had
 *   unit       the UNIT, with class and revision: of the device and the kernels that it was leased for
 *   begun      [unit, attempt]: a runner of this instance was asked for it, or for what is left of it
 *   done       [unit, attempt, seq, item]: a RESULT of that step or pipeline is in the spool, or acknowledged
 *   gone       [unit, attempt]: ended, or given back
 *
 * The file is cut to its instance when no unit is in hand. A worker that always has one has it rewritten (new file, fsync,
 * rename) once it is large and has grown to twice what it was rewritten to: with the records of the units in hand, in
 * their order, and of the instances that said something of them, so that either file tells a successor the same.
 *
 * Nothing is lost without it but time: a unit that is not in it is leased anew. So what is appended is never synced, and
 * what fails ends the journal, not the work; where it is a rewriting that fails, the old file goes on. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What as many instances fell at with nothing done between may be what kills workers. */
#define MF_JOURNAL_STUCK 2

#define MF_JOURNAL_REWRITE_MIN (1u << 20)
/* Beyond it the journal ends. Three units in hand, each of 8 MiB and with all that can be said of its steps, are less than half
 * of it, and the file is rewritten at twice that. */
#define MF_JOURNAL_BYTES_MAX (128u << 20)

struct mf_journal_item {
    int64_t id, seq;
};

/* A unit as a predecessor left it. */
struct mf_journal_unit {
    int64_t unit, attempt;
    cJSON *body; /* UNIT; the taker sets it NULL */
    const char *class, *revision;
    uint64_t from; /* where its record is in the file */
    struct mf_journal_item *done;
    size_t n_done, cap_done;
    int begun_by; /* the last instance that was at it, counted from 1 in the file; 0: none was */
    int n_fell;   /* instances that were at it when they fell, since something of it was done */
    cJSON *record;
};

/* A unit in hand. What the file says of it before `from` is of an earlier time that it was. */
struct mf_journal_held {
    int64_t unit, attempt;
    uint64_t from;
};

struct mf_journal {
    int fd; /* -1: it has failed */
    char *path;
    uint64_t bytes;
    uint64_t rewrite_at; /* bytes */
    struct mf_journal_held *held;
    size_t n_held, cap_held;
    char predecessor[64]; /* instance; "": none */
    char instance[64];
    struct mf_journal_unit *found;
    size_t n_found, cap_found;
    int n_instances; /* in the file when it was read */
};

/* Reads what a predecessor left, and goes on in its file under the new instance. */
int mf_journal_open(const char *folder, const char *name, const char *instance, struct mf_journal *ret);
void mf_journal_release(struct mf_journal *j);

void mf_journal_take(struct mf_journal *j, cJSON *unit, const char *class, const char *revision);
/* Of a unit that was found. */
void mf_journal_retake(struct mf_journal *j, const struct mf_journal_unit *found);
void mf_journal_begun(struct mf_journal *j, int64_t unit, int64_t attempt);
void mf_journal_done(struct mf_journal *j, int64_t unit, int64_t attempt, struct mf_journal_item item);

/* With what goes out of hand there is something to leave out of the file. -errno: what was met when it was rewritten; the one
 * that has the name goes on, and the next try is when that is twice as large. */
int mf_journal_gone(struct mf_journal *j, int64_t unit, int64_t attempt);
/* What was found is not needed any more; what of it was not retaken is out of hand. */
int mf_journal_forget(struct mf_journal *j);
