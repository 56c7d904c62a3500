/* Handles RESULT messages. This is the hot path: for a result of a current lease, all data is in memory and
 * the only statement is one INSERT.
 *
 *   current lease               the result decides its step, except for a step's first death (see below)
 *   ended lease                 the result is stored as a late sample and decides nothing
 *   known (unit, attempt, seq)  the result is acknowledged again and otherwise ignored
 *
 * A death is a runner that crashed or hung. A runner that is killed from outside looks like a crash of its
 * current step. So the first death of a kernel is stored only as a sample, and the farm retries the step in a
 * separate unit, on another worker if there is one. Meanwhile no other worker of the class runs the kernel
 * (suspect.c). The second death quarantines the kernel for the class and decides the step in all tasks. */
#include "server/farm/farm_private.h"

#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "server/farm/result.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ENUMERATION_STEPS_MAX      8192
#define ENUMERATION_REJECTIONS_MAX 65536
#define FAILURE_EVENTS_PER_SECOND  5

static int refuse(const char **ret_why, const char *why)
{
    *ret_why = why;
    return 1;
}

static int acknowledge(struct mf_slot *slot, const struct mf_result_message *m)
{
    return mf_buf_addf(&slot->acks, "%s[%" PRId64 ",%" PRId64 ",%" PRId64 "]",
                       slot->acks.len ? "," : "{\"acks\":[", m->unit, m->attempt, m->seq);
}

static int acknowledge_duplicate(struct mf_farm *f, struct mf_slot *slot, const struct mf_result_message *m)
{
    f->stats.results_duplicate++;
    return acknowledge(slot, m);
}

/* Returns 1 if the result was stored, 0 if it is a duplicate. */
static int store_result(struct mf_farm *f, struct mf_slot *slot, const struct mf_result_message *m,
                        int64_t task, bool final, bool late, struct mf_result_note note, const cJSON *json)
{
    _cleanup_(mf_freep) char *extra = NULL;
    int r = mf_result_extra(json, &note, &extra);
    if (r < 0)
        return r;
    struct mf_result_row row = {
        .unit = m->unit,
        .attempt = m->attempt,
        .seq = m->seq,
        .step = m->step,
        .pipeline = m->pipeline,
        .task = task,
        .worker = slot->id,
        .status = m->status,
        .reason = m->reason,
        .us = m->status == MF_STATUS_OK || m->status == MF_STATUS_SLOW ? m->us : (double)NAN,
        .mad = m->mad,
        .err = m->err,
        .row_err = m->row_err,
        .verified = m->verified,
        .late = late,
        .final = final,
        .samples = m->samples,
        .n_samples = m->n_samples,
        .extra = extra,
        .at_ms = m->at_ms ? m->at_ms : f->wall_ms,
    };
    r = mf_store_result_add(f->store, &row);
    mf_fault_at(MF_FAULT_RESULT_STORED);
    if (r > 0) {
        slot->n_results++;
        f->stats.results++;
    }
    return r;
}

static struct mf_lease_item *find_item(struct mf_lease *l, int64_t id)
{
    for (size_t i = 0; i < l->n; i++) {
        if (l->items[i].id == id)
            return &l->items[i];
    }
    return NULL;
}

static void record_result(struct mf_lease *l, struct mf_lease_item *item, const struct mf_result_message *m)
{
    item->seq = m->seq;
    item->status = m->status;
    item->us = m->us;
    item->mad = m->mad;
    item->n = m->n_samples;
    item->n_fresh = m->n_fresh;
    item->verified = m->verified;
    l->n_left--;
}

/* ---- probe ---- */

static int add_failure_event(struct mf_farm *f, const struct mf_lease *l, const struct mf_result_message *m)
{
    struct mf_step_row row;
    if (f->now_ms - f->failures_ms >= 1000) {
        f->failures_ms = f->now_ms;
        f->n_failures = 0;
    }
    if (f->n_failures++ >= FAILURE_EVENTS_PER_SECOND)
        return 0;
    int r = mf_store_step_get(f->store, m->step, &row, NULL);
    if (r < 0)
        return r;
    cJSON *body = cJSON_CreateObject();
    mf_json_add_i64(body, "batch", l->task->batch->id);
    mf_json_add_i64(body, "task", l->task->id);
    mf_json_add_i64(body, "step", m->step);
    cJSON_AddStringToObject(body, "name", row.name);
    cJSON_AddStringToObject(body, "status", mf_status_name(m->status));
    cJSON_AddStringToObject(body, "reason", m->reason);
    return mf_event_add(f, l->task->batch->id, "failure", body);
}

static int quarantine(struct mf_farm *f, const struct mf_lease *l, const struct mf_lease_item *item,
                      struct mf_result_message *m)
{
    struct mf_step_row row;
    char reason[MF_REASON_MAX], class_text[MF_DEVICE_CLASS_TEXT_MAX];
    struct mf_device_class class;
    mf_format(reason, sizeof(reason), "killed two runners, the second time by %s: %s",
              mf_status_name(m->status), m->reason);
    memcpy(m->reason, reason, sizeof(reason));
    m->status = MF_STATUS_QUARANTINED;
    int r = mf_store_quarantine(f->store, item->kernel, l->task->class_id, reason, f->wall_ms);
    if (r == 0)
        r = mf_store_step_get(f->store, item->id, &row, NULL);
    if (r == 0)
        r = mf_store_class_get(f->store, l->task->class_id, &class);
    if (r < 0)
        return r;
    mf_device_class_print(&class, class_text);
    log_warn("quarantined kernel %s:%s on %s: it %s", row.family, row.name, class_text, reason);
    cJSON *body = cJSON_CreateObject();
    mf_json_add_i64(body, "kernel", item->kernel);
    cJSON_AddStringToObject(body, "name", row.name);
    cJSON_AddStringToObject(body, "class", class_text);
    cJSON_AddStringToObject(body, "reason", reason);
    return mf_event_add(f, 0, "quarantine", body);
}

/* Records a death. The first death of a kernel on a class returns 0 and adds a unit that retries the step.
 * The second one returns 1 and quarantines the kernel. */
static int handle_death(struct mf_farm *f, struct mf_slot *slot, const struct mf_lease *l,
                        const struct mf_lease_item *item, struct mf_result_message *m, int64_t *ret_retry)
{
    int64_t n = 0;
    slot->n_deaths++;
    int r = mf_store_strike(f->store, item->kernel, l->task->class_id, slot->id, l->task->id, m->status,
                            m->reason, f->wall_ms, &n);
    if (r < 0)
        return r;
    if (n < 2 && !mf_suspect_is(f, item->kernel, l->task->class_id)) {
        const struct mf_unit_steps step = {.ids = &item->id, .n = 1, .avoid_worker = l->worker};
        return mf_unit_add_steps(f, l->task, &l->best, &step, ret_retry);
    }
    r = quarantine(f, l, item, m);
    return r < 0 ? r : 1;
}

/* Tells the other units about the fate of the kernel. retry: the unit added by handle_death; 0: none. */
static int settle_suspicion(struct mf_farm *f, const struct mf_slot *slot, const struct mf_lease *l,
                            const struct mf_lease_item *item, const char *reason, int64_t retry)
{
    int64_t class = l->task->class_id;
    if (retry)
        return mf_suspect_add(f, item->kernel, class, retry);
    return item->status == MF_STATUS_QUARANTINED
               ? mf_suspect_quarantine(f, item->kernel, class, slot->id, reason)
               : mf_suspect_survived(f, item->kernel, class, l->unit);
}

static int end_probe(struct mf_farm *f, struct mf_lease *l, const char *reason)
{
    struct mf_task *g = l->task;
    if (l->n_left > 0)
        return mf_lease_fail(f, l, *reason ? reason : "its worker ended it early");
    int r = mf_lease_done(f, l);
    mf_lease_free(l);
    return r == 0 && g->open_units == 0 && g->state == MF_TASK_PROBING ? mf_task_probed(f, g) : r;
}

static int handle_step(struct mf_farm *f, struct mf_slot *slot, struct mf_lease *l,
                       struct mf_lease_item *item, struct mf_result_message *m, const cJSON *json)
{
    mf_result_judge(m, &item->work, &slot->ceilings);
    bool died = m->status == MF_STATUS_CRASH || m->status == MF_STATUS_HANG;
    struct mf_result_note note = {.died = died ? mf_status_name(m->status) : NULL};
    int64_t retry = 0;
    int r = 1;
    if (died)
        r = handle_death(f, slot, l, item, m, &retry);
    if (r < 0)
        return r;
    bool final = r > 0;
    r = store_result(f, slot, m, l->task->id, final, false, note, json);
    if (r < 0)
        return r;
    record_result(l, item, m);
    if (m->status == MF_STATUS_OK)
        mf_best_times_add(&l->best, mf_lease_item_rivals(item), l->worker, m->us);
    r = final ? mf_task_measured(f, l->task, mf_lease_item_rivals(item), slot->id, m->status, m->us) : 0;
    if (r == 0 && m->status != MF_STATUS_OK && m->status != MF_STATUS_SLOW)
        r = add_failure_event(f, l, m);
    return r < 0 ? r : settle_suspicion(f, slot, l, item, m->reason, retry);
}

static int handle_probe(struct mf_farm *f, struct mf_slot *slot, struct mf_lease *l,
                        struct mf_result_message *m, const cJSON *json, const char **ret_why)
{
    int r = 0;
    if (m->step) {
        struct mf_lease_item *item = find_item(l, m->step);
        if (!item)
            return refuse(ret_why, "step: not in this unit");
        if (item->seq && item->seq != m->seq)
            return refuse(ret_why, "step: this attempt has sent its result already");
        if (item->seq)
            return acknowledge_duplicate(f, slot, m);
        r = handle_step(f, slot, l, item, m, json);
    } else if (!m->last || m->status == MF_STATUS_OK) {
        return refuse(ret_why, "probe: expected a step, or last with a status other than ok");
    }
    if (r == 0)
        r = acknowledge(slot, m);
    return r == 0 && (m->last || l->n_left == 0) ? end_probe(f, l, m->step ? "" : m->reason) : r;
}

int mf_deliver_unit_failed(struct mf_farm *f, struct mf_lease *l, const char *reason)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < l->n; i++) {
        const struct mf_lease_item *item = &l->items[i];
        if (item->seq)
            continue;
        /* seq is negative, because no worker sent this result */
        struct mf_result_row row = {.unit = l->unit,
                                    .attempt = l->attempt,
                                    .seq = -(int64_t)i - 1,
                                    .step = item->id,
                                    .task = l->task->id,
                                    .worker = l->worker,
                                    .status = MF_STATUS_CRASH,
                                    .reason = reason,
                                    .us = (double)NAN,
                                    .mad = (double)NAN,
                                    .err = (double)NAN,
                                    .row_err = (double)NAN,
                                    .final = true,
                                    .at_ms = f->wall_ms};
        r = mf_store_result_add(f->store, &row);
        if (r > 0)
            r = mf_task_measured(f, l->task, item->covers, l->worker, MF_STATUS_CRASH, (double)NAN);
    }
    return r < 0 ? r : 0;
}

/* ---- race ---- */

/* Judges the winner of an outcome like a step: if the time of its rerun is implausible, another pipeline
 * wins. Returns true and sets m's reason if it is implausible. */
static bool is_implausible(const struct mf_slot *slot, struct mf_lease *l, const cJSON *outcome,
                           struct mf_result_message *m)
{
    int64_t winner;
    struct mf_lease_item *item =
        mf_json_i64(outcome, "winner", 1, INT64_MAX, &winner) == 0 ? find_item(l, winner) : NULL;
    if (!item || mf_json_double(outcome, "us", &m->us) < 0)
        return false;
    m->status = MF_STATUS_OK;
    mf_result_judge(m, &item->work, &slot->ceilings);
    if (m->status == MF_STATUS_OK)
        return false;
    item->status = m->status;
    return true;
}

/* Judges the outcomes of all groups of a closing result. */
static void judge_outcomes(const struct mf_slot *slot, struct mf_lease *l, struct mf_result_message *m)
{
    const cJSON *group;
    enum mf_status status = m->status;
    bool bad = is_implausible(slot, l, m->race, m);
    cJSON_ArrayForEach (group, mf_json_array(m->race, "groups"))
        bad |= is_implausible(slot, l, group, m);
    m->status = bad ? MF_STATUS_IMPLAUSIBLE : status;
    m->us = (double)NAN; /* the row of a closing result has no time */
}

static int handle_race(struct mf_farm *f, struct mf_slot *slot, struct mf_lease *l,
                       struct mf_result_message *m, const cJSON *json, const char **ret_why)
{
    struct mf_lease_item *item = NULL;
    if (m->pipeline) {
        item = find_item(l, m->pipeline);
        if (!item)
            return refuse(ret_why, "pipeline: not in this unit");
        if (item->seq && item->seq != m->seq)
            return refuse(ret_why, "pipeline: this attempt has sent its result already");
        if (item->seq)
            return acknowledge_duplicate(f, slot, m);
        mf_result_judge(m, &item->work, &slot->ceilings);
    } else if (!m->last) {
        return refuse(ret_why, "race: expected a pipeline, or last");
    } else {
        judge_outcomes(slot, l, m);
    }
    /* Results under another routing profile, of comparisons and of reruns do not decide the race */
    bool compares = l->kind == MF_UNIT_COMPARE;
    const struct mf_result_note note = {.routing = l->routing,
                                        .unit = compares   ? "compare"
                                                : l->rerun ? "rerun"
                                                           : NULL};
    int r = store_result(f, slot, m, l->task->id, !l->routing && !note.unit, false, note, json);
    if (r < 0)
        return r;
    if (item)
        record_result(l, item, m);
    r = acknowledge(slot, m);
    if (r < 0 || !m->last)
        return r;
    /* Retry the unit if the race could not run. If the race ran and no pipeline survived, the results state
     * the reason */
    if (!m->race && l->n_left == l->n)
        return mf_lease_fail(f, l, *m->reason ? m->reason : "its worker sent no result");
    r = mf_lease_done(f, l);
    if (r == 0 && l->routing)
        r = mf_task_regret_done(f, l->task, l, m->race, "no pipeline survived under this profile");
    else if (r == 0 && l->rerun)
        r = mf_task_rerun_done(f, l->task, l, m->race, "the pipeline failed");
    else if (r == 0 && compares)
        r = mf_task_compared(f, l->task, l);
    else if (r == 0)
        r = mf_task_raced(f, l->task, l, m->race);
    mf_lease_free(l);
    return r;
}

/* ---- enumerate ---- */

static int add_step(struct mf_farm *f, int64_t enumeration, const cJSON *json, const char **ret_why)
{
    struct mf_step step;
    if (mf_step_from_json(json, &step, ret_why) < 0)
        return 1;
    _cleanup_(mf_freep) char *body = mf_step_print(&step);
    if (!body)
        return -ENOMEM;
    int r = mf_store_step_add(f->store, enumeration, &step, body);
    return r < 0 ? r : 0;
}

static int add_rejection(struct mf_farm *f, int64_t enumeration, const cJSON *json, const char **ret_why)
{
    const char *family, *kernel, *rule, *reason;
    char short_kernel[MF_STEP_NAME_MAX], short_reason[MF_REASON_MAX];
    if (mf_json_text(json, "family", &family) < 0 || !mf_is_name(family, MF_FAMILY_NAME_MAX - 1) ||
        mf_json_text(json, "kernel", &kernel) < 0 || mf_json_text(json, "rule", &rule) < 0 ||
        !mf_is_name(rule, 40) || mf_json_text(json, "reason", &reason) < 0)
        return refuse(ret_why, "rejections: expected family, kernel, rule and reason in each");
    mf_format(short_kernel, sizeof(short_kernel), "%s", kernel);
    mf_format(short_reason, sizeof(short_reason), "%s", reason);
    return mf_store_rejection_add(f->store, enumeration, 0, family, short_kernel, rule, short_reason);
}

static int end_enumerate(struct mf_farm *f, struct mf_lease *l, const struct mf_result_message *m)
{
    int64_t enumeration = l->enumeration;
    if (m->status != MF_STATUS_OK)
        return mf_lease_fail(f, l, m->reason);
    int r = mf_lease_done(f, l);
    mf_lease_free(l);
    if (r == 0)
        r = mf_store_enumeration_complete(f->store, enumeration);
    return r < 0 ? r : mf_tasks_enumerated(f, enumeration, NULL);
}

/* Returns 1 if an item is refused. The items before the refused item have then been written. */
static int add_all(struct mf_farm *f, int64_t enumeration, const struct mf_result_message *m,
                   const char **ret_why)
{
    const cJSON *item;
    int r = 0;
    cJSON_ArrayForEach (item, m->steps) {
        r = add_step(f, enumeration, item, ret_why);
        if (r != 0)
            return r;
    }
    cJSON_ArrayForEach (item, m->rejections) {
        r = add_rejection(f, enumeration, item, ret_why);
        if (r != 0)
            return r;
    }
    return 0;
}

/* Returns 1 if the list is refused. Then no item of the list is written. */
static int add_list(struct mf_farm *f, int64_t enumeration, const struct mf_result_message *m,
                    const char **ret_why)
{
    int64_t n_steps, n_rejections;
    int r = mf_store_enumeration_counts(f->store, enumeration, &n_steps, &n_rejections);
    if (r < 0)
        return r;
    if (n_steps + cJSON_GetArraySize(m->steps) > ENUMERATION_STEPS_MAX)
        return refuse(ret_why, "steps: expected at most 8192 for a shape and family");
    if (n_rejections + cJSON_GetArraySize(m->rejections) > ENUMERATION_REJECTIONS_MAX)
        return refuse(ret_why,
                      "rejections: expected at most 65536 for a shape and family; use a pattern as kernel");
    r = mf_store_savepoint(f->store, MF_SAVEPOINT_PART);
    if (r < 0)
        return r;
    int refused = add_all(f, enumeration, m, ret_why);
    if (refused < 0)
        return refused;
    r = refused ? mf_store_savepoint_rollback(f->store, MF_SAVEPOINT_PART)
                : mf_store_savepoint_release(f->store, MF_SAVEPOINT_PART);
    return r < 0 ? r : refused;
}

static int handle_enumerate(struct mf_farm *f, struct mf_slot *slot, struct mf_lease *l,
                            struct mf_result_message *m, const char **ret_why)
{
    int r = mf_store_enumeration_begin(f->store, l->enumeration, slot->id);
    if (r == 0)
        r = add_list(f, l->enumeration, m, ret_why);
    if (r == 0)
        r = acknowledge(slot, m);
    return r == 0 && m->last ? end_enumerate(f, l, m) : r;
}

/* ---- results without a current lease ---- */

/* Checks that the slot's worker had the attempt. Otherwise the farm would store results of a worker that
 * never measured anything, or take the owner's results for duplicates of them. */
static int check_owner(struct mf_farm *f, const struct mf_slot *slot, const struct mf_result_message *m,
                       const char **ret_why)
{
    int64_t epoch, worker;
    int r = mf_store_grant_get(f->store, m->unit, m->attempt, &epoch, &worker);
    if (r < 0)
        return r;
    if (r == 0)
        return refuse(ret_why, "attempt: never granted");
    /* The database was restored from an older copy and has granted the same attempt number again */
    if (m->epoch != epoch)
        return refuse(ret_why,
                      "attempt: granted in an epoch that the database has lost (restored from a backup)");
    return worker == slot->id ? 0 : refuse(ret_why, "attempt: granted to another worker");
}

/* True if the unit lists the step or pipeline of the message. */
static bool lists_item(const struct mf_unit_row *row, const struct mf_result_message *m)
{
    _cleanup_(cJSON_Deletep) cJSON *body = cJSON_Parse(row->body);
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_array(body, m->step ? "steps" : "pipelines")) {
        if (cJSON_IsNumber(item) && (int64_t)item->valuedouble == (m->step ? m->step : m->pipeline))
            return true;
    }
    return false;
}

/* Stores a late sample. The number of late samples is bounded: an attempt has at most one per item. */
static int store_late(struct mf_farm *f, struct mf_slot *slot, const struct mf_unit_row *row,
                      const struct mf_result_message *m, const cJSON *json, const char **ret_why)
{
    /* Results of an enumeration and unit-end messages are useless if they arrive late */
    if (row->kind == MF_UNIT_ENUMERATE || (!m->step && !m->pipeline))
        return acknowledge(slot, m);
    if (!lists_item(row, m))
        return refuse(ret_why, "step or pipeline: not in this unit");
    int r = mf_store_has_result(f->store, m->unit, m->attempt, m->step, m->pipeline);
    if (r > 0)
        return acknowledge_duplicate(f, slot, m);
    if (r == 0)
        r = store_result(f, slot, m, row->task, false, true, (struct mf_result_note){0}, json);
    if (r == 0)
        return acknowledge_duplicate(f, slot, m); /* its seq is known */
    if (r < 0)
        return r;
    f->stats.results_late++;
    return acknowledge(slot, m);
}

static int handle_late(struct mf_farm *f, struct mf_slot *slot, const struct mf_result_message *m,
                       const cJSON *json, const char **ret_why)
{
    struct mf_unit_row row = {0};
    int r = mf_store_unit_get(f->store, m->unit, &row);
    _cleanup_(mf_freep) char *body = row.body;
    if (r == -ENOENT)
        return refuse(ret_why, "unit: unknown id");
    if (r == 0)
        r = check_owner(f, slot, m, ret_why);
    return r == 0 ? store_late(f, slot, &row, m, json, ret_why) : r;
}

/* Returns the lease that the message names, if the slot has it. */
static struct mf_lease *find_lease(struct mf_farm *f, const struct mf_slot *slot,
                                   const struct mf_result_message *m)
{
    struct mf_lease *l = mf_map_get(&f->leases, (uint64_t)m->unit);
    return l && l->attempt == m->attempt && l->epoch == m->epoch && l->slot == slot ? l : NULL;
}

int mf_deliver_refused(struct mf_farm *f, struct mf_slot *slot, const cJSON *json, const char *why)
{
    struct mf_result_message m = {0};
    const char *unused;
    char reason[MF_REASON_MAX];
    (void)mf_result_read_key(json, &m, &unused);
    struct mf_lease *l = m.unit ? find_lease(f, slot, &m) : NULL;
    if (!l || (!m.last && l->kind != MF_UNIT_ENUMERATE))
        return 0;
    mf_format(reason, sizeof(reason), "its %s was refused: %s",
              l->kind == MF_UNIT_ENUMERATE ? "list of steps" : "last result", why);
    return mf_lease_fail_and_cancel(f, l, reason);
}

/* Charges the time since the slot's last result to the probes of the lease's task. A worker runs its leases
 * one after the other, so this is the time that the result took. */
static void charge(struct mf_farm *f, struct mf_slot *slot, struct mf_lease *l)
{
    if (l->kind == MF_UNIT_PROBE)
        l->task->counts.probe_ms += f->now_ms - slot->progress_ms;
    slot->progress_ms = f->now_ms;
}

int mf_deliver(struct mf_farm *f, struct mf_slot *slot, const cJSON *json, const char **ret_why)
{
    struct mf_result_message m;
    if (mf_result_read(json, &m, ret_why) < 0)
        return 1;
    struct mf_lease *l = find_lease(f, slot, &m);
    if (!l)
        return handle_late(f, slot, &m, json, ret_why);
    charge(f, slot, l);
    int r = m.differs ? mf_store_enumeration_dispute(f->store, m.step, m.pipeline, slot->id) : 0;
    if (r < 0)
        return r;
    switch (l->kind) {
    case MF_UNIT_ENUMERATE:
        return handle_enumerate(f, slot, l, &m, ret_why);
    case MF_UNIT_PROBE:
        return handle_probe(f, slot, l, &m, json, ret_why);
    case MF_UNIT_RACE:
    case MF_UNIT_COMPARE:
        return handle_race(f, slot, l, &m, json, ret_why);
    case MF_UNIT_N_:
        break;
    }
    return refuse(ret_why, "unit: its kind has no results");
}
