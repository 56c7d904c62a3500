/* A job: one leased unit, from UNIT to its last RESULT. It tracks the remaining steps, so that a new runner
 * can continue after a runner died, and converts runner messages to RESULT bodies.
 *
 *   waiting ─► running (request sent) ─► ended (last RESULT emitted)
 *                └─ runner died ─► waiting, without the finished steps and the step that killed the runner
 *
 * Every RESULT goes through emit() once, in order, with seq counting from 1. Successful results of a race are
 * held until the closing race result and dropped if the runner dies: race samples are paired, so a partial
 * race is worthless. A comparison is a race whose plan drops no pipeline; the runner gets it as a race. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/status.h"
#include "common/moe/step.h"
#include "common/moe/unit_kind.h"

#define MF_JOB_ITEMS_MAX    65536
#define MF_JOB_CHUNK_MAX    256 /* maximum steps or rejections per RESULT */
#define MF_JOB_FAILURES_MAX 3   /* number of runner deaths outside a step after which the unit ends */

struct mf_job_item { /* a step or a pipeline */
    int64_t id;
    const char *name; /* step name; "" for a pipeline */
    bool done;
};

/* Receives a finished RESULT body and takes ownership. A negative return value is passed to the caller of the
 * job. */
typedef int (*mf_emit_fn)(void *context, cJSON *body);

struct mf_job {
    int64_t unit, attempt, epoch, seq;
    enum mf_unit_kind kind;
    cJSON *body; /* the UNIT message */
    struct mf_job_item *items;
    size_t n_items, n_done;
    const struct mf_job_item *begun; /* item the runner has begun */
    cJSON *steps, *rejections;       /* enumerate: collected for the next RESULT */
    struct {
        /* sent: number of entries emitted in RESULTs; skip: number of entries to drop, because a new runner
         * enumerates from the start */
        size_t sent, skip;
    } step_count, rejection_count;
    cJSON *held; /* race: successful results so far */
    int failures;
    char reason[MF_REASON_MAX]; /* reason of the last runner death outside a step */
    bool ended;
    mf_emit_fn emit;
    void *context;
};

/* Creates a job and takes ownership of the body, also on error. Returns -EINVAL with the reason in why if the
 * unit is malformed; the worker then ends the unit with mf_job_refusal. */
int mf_job_new(cJSON *body, mf_emit_fn emit, void *context, struct mf_job **ret, char *why, size_t why_cap);
struct mf_job *mf_job_free(struct mf_job *j);
/* Returns the RESULT that ends a malformed unit. Returns NULL if out of memory, or if unit, attempt or epoch
 * cannot be read, in which case no answer is possible. */
cJSON *mf_job_refusal(const cJSON *body, const char *why);

/* Returns the request for the runner: the unit without finished items. Discards partial results of a runner
 * that died. The request refers to members of the job's body, so free the request before the job. NULL: out
 * of memory. */
cJSON *mf_job_request(struct mf_job *j);

/* Handles a message of the runner. If a RESULT is due, moves the message's members except `op` into the
 * RESULT. Returns -EPROTO with the reason in why if the message is invalid in this state. *ret_limit_ms: new
 * limit for the runner's silence, or 0. */
int mf_job_message(struct mf_job *j, cJSON *message, int64_t *ret_limit_ms, char *why, size_t why_cap);

/* Handles the death of the runner. If a step had begun, the result of the step gets `status`. Otherwise the
 * death is a failure of the unit, and MF_JOB_FAILURES_MAX failures end the unit. */
int mf_job_died(struct mf_job *j, enum mf_status status, const char *reason);
/* Returns {"unit", "attempt", "epoch", "step", "done", "total"} for HELLO and BEAT; NULL: out of memory. */
cJSON *mf_job_running(const struct mf_job *j);
