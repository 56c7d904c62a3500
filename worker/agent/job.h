/* A job: a unit that the worker holds, from UNIT to its last RESULT. It knows what is still to do, so that a new
 * runner can go on where the old one fell, and turns a runner's messages into RESULT bodies.
 *
 *   waiting ─► running (request sent) ─► ended (the last RESULT is out)
 *                 └─ runner died ─► waiting, less what is done and the step that killed it
 *
 * Every RESULT goes through emit() once, in order, numbered by seq from 1. A race's good results are held until its
 * closing one and dropped when its runner dies: samples of a race are paired or nothing. A
 * comparison is a race whose plan drops nobody, and that is what a runner is asked. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/status.h"
#include "common/moe/step.h"

/* clang-format off */
#define MF_UNIT_KIND_MAP(X, P)   \
    X(P, ENUMERATE, "enumerate") \
    X(P, PROBE, "probe")         \
    X(P, RACE, "race")           \
    X(P, COMPARE, "compare")
/* clang-format on */
MF_NAMES_DECLARE(mf_unit_kind, MF_UNIT_, MF_UNIT_KIND_MAP);

#define MF_JOB_ITEMS_MAX    65536
#define MF_JOB_CHUNK_MAX    256 /* steps or rejections of one RESULT */
#define MF_JOB_FAILURES_MAX 3   /* runners that may die in it outside any step */

struct mf_job_item { /* a step or a pipeline */
    int64_t id;
    const char *name; /* of the step; "" for a pipeline */
    bool done;
};

/* Gets a finished RESULT body; takes it. A negative return is passed up. */
typedef int (*mf_emit_fn)(void *context, cJSON *body);

struct mf_job {
    int64_t unit, attempt, epoch, seq;
    enum mf_unit_kind kind;
    cJSON *body; /* the UNIT */
    struct mf_job_item *items;
    size_t n_items, n_done;
    const struct mf_job_item *begun; /* its runner is at this one */
    cJSON *steps, *rejections;       /* enumerate: gathered for the next RESULT */
    struct {
        size_t sent, skip; /* given out in RESULTs; to leave out, since an enumeration is told again */
    } step_count, rejection_count;
    cJSON *held; /* race: good results so far */
    int failures;
    char reason[MF_REASON_MAX]; /* of the last failure */
    bool ended;
    mf_emit_fn emit;
    void *context;
};

/* Takes the body. -EINVAL with the sentence in why: the worker ends such a unit with it when unit, attempt and epoch
 * could be read (mf_job_refuse_body), else there is nothing to answer. */
int mf_job_new(cJSON *body, mf_emit_fn emit, void *context, struct mf_job **ret, char *why, size_t why_cap);
struct mf_job *mf_job_free(struct mf_job *j);
/* The one RESULT of a unit that could not be understood; NULL when not even its key could be read. */
cJSON *mf_job_refusal(const cJSON *body, const char *why);

/* What a runner is asked: the unit less what is done. NULL: out of memory. Begins anew what a death interrupted. It refers to
 * members of the job's body, and has to go before the job does. */
cJSON *mf_job_request(struct mf_job *j);

/* A message of the runner, of which only op is left afterwards: the rest may move into a RESULT. -EPROTO: it makes no sense
 * here, with the sentence in why. *ret_limit_ms is set, when it says how long the runner may now be silent (0 otherwise). */
int mf_job_message(struct mf_job *j, cJSON *message, int64_t *ret_limit_ms, char *why, size_t why_cap);

/* Its runner died: the step that had begun gets the status, or the failure is counted; ends the unit after too
 * many. */
int mf_job_died(struct mf_job *j, enum mf_status status, const char *reason);
/* {"unit", "attempt", "epoch", "step", "done", "total"}, as in HELLO and BEAT; NULL: out of memory. */
cJSON *mf_job_running(const struct mf_job *j);
