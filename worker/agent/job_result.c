#include "worker/agent/job_private.h"

#include <errno.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/text.h"

/* Adds the members common to all RESULTs, then emits the result. Takes ownership of the result, also on
 * error. */
static int emit(struct mf_job *j, cJSON *result, bool last)
{
    _cleanup_(cJSON_Deletep) cJSON *body = result;
    if (!body || !mf_job_add_key(body, j) || !mf_json_add_i64(body, "seq", j->seq + 1) ||
        !mf_json_add_i64(body, "at_ms", mf_wall_ms()) || (last && !cJSON_AddTrueToObject(body, "last")))
        return -ENOMEM;
    j->seq++;
    j->ended |= last;
    return j->emit(j->context, MF_TAKE(body));
}

static cJSON *new_result(const struct mf_job *j, const struct mf_job_item *item, enum mf_status status,
                         const char *reason)
{
    _cleanup_(cJSON_Deletep) cJSON *result = cJSON_CreateObject();
    if (!result || !cJSON_AddStringToObject(result, "status", mf_status_name(status)) ||
        !cJSON_AddStringToObject(result, "reason", reason))
        return NULL;
    if (item && (!mf_json_add_i64(result, mf_job_is_race(j) ? "pipeline" : "step", item->id) ||
                 !mf_json_add_i64(result, "verified", 0)))
        return NULL;
    return MF_TAKE(result);
}

static int end_with(struct mf_job *j, enum mf_status status, const char *reason)
{
    return emit(j, new_result(j, NULL, status, reason), true);
}

static struct mf_job_item *find_item(struct mf_job *j, int64_t id)
{
    for (size_t i = 0; i < j->n_items; i++) {
        if (j->items[i].id == id)
            return &j->items[i];
    }
    return NULL;
}

/* Returns the item that a message refers to, or NULL if there is no such item or the item is done. */
static struct mf_job_item *item_of(struct mf_job *j, const cJSON *message)
{
    int64_t id;
    if (mf_json_i64(message, mf_job_is_race(j) ? "pipeline" : "step", 0, MF_JOB_ID_MAX, &id) < 0)
        return NULL;
    struct mf_job_item *item = find_item(j, id);
    return item && !item->done ? item : NULL;
}

static void mark_done(struct mf_job *j, struct mf_job_item *item)
{
    item->done = true;
    j->n_done++;
    j->begun = NULL;
}

/* Moves all members of the message except `op` to a new RESULT. */
static cJSON *as_result(cJSON *message)
{
    cJSON *result = cJSON_CreateObject(), *next;
    for (cJSON *item = message->child; result && item; item = next) {
        next = item->next;
        if (strcmp(item->string, "op") != 0)
            cJSON_AddItemToArray(result, cJSON_DetachItemViaPointer(message, item));
    }
    return result;
}

static int hold(struct mf_job *j, cJSON *result)
{
    if (!j->held)
        j->held = cJSON_CreateArray();
    if (result && cJSON_AddItemToArray(j->held, result))
        return 0;
    cJSON_Delete(result);
    return -ENOMEM;
}

static int release_held(struct mf_job *j)
{
    while (cJSON_GetArraySize(j->held) > 0) {
        int r = emit(j, cJSON_DetachItemFromArray(j->held, 0), false);
        if (r < 0)
            return r;
    }
    return 0;
}

static int take_race(struct mf_job *j, cJSON *message)
{
    int r = release_held(j);
    return r < 0 ? r : emit(j, as_result(message), true);
}

static int take_result(struct mf_job *j, cJSON *message, char *why, size_t why_cap)
{
    const char *text;
    enum mf_status status;
    if (mf_json_text(message, "status", &text) < 0 || mf_status_parse(text, &status) < 0) {
        mf_format(why, why_cap, "result: status missing or invalid");
        return -EPROTO;
    }
    if (mf_job_is_race(j) && mf_json_object(message, "race"))
        return take_race(j, message);
    struct mf_job_item *item = item_of(j, message);
    if (!item || j->kind == MF_UNIT_ENUMERATE) {
        mf_format(why, why_cap, "result: not an item of the unit");
        return -EPROTO;
    }
    if (mf_job_is_race(j) && status == MF_STATUS_OK) {
        j->begun = NULL;
        return hold(j, as_result(message));
    }
    mark_done(j, item);
    return emit(j, as_result(message), j->kind == MF_UNIT_PROBE && j->n_done == j->n_items);
}

static int flush_enumeration(struct mf_job *j, bool last)
{
    cJSON *result = new_result(j, NULL, MF_STATUS_OK, "");
    j->step_count.sent += (size_t)cJSON_GetArraySize(j->steps);
    j->rejection_count.sent += (size_t)cJSON_GetArraySize(j->rejections);
    if (result && j->steps && cJSON_AddItemToObject(result, "steps", j->steps))
        j->steps = NULL;
    if (result && j->rejections && cJSON_AddItemToObject(result, "rejections", j->rejections))
        j->rejections = NULL;
    return emit(j, result, last);
}

static int gather(struct mf_job *j, cJSON **array, size_t *skip, cJSON *item)
{
    if (*skip > 0) {
        (*skip)--;
        cJSON_Delete(item);
        return 0;
    }
    if (!*array)
        *array = cJSON_CreateArray();
    if (!item || !cJSON_AddItemToArray(*array, item)) {
        cJSON_Delete(item);
        return -ENOMEM;
    }
    if (cJSON_GetArraySize(*array) < MF_JOB_CHUNK_MAX)
        return 0;
    return flush_enumeration(j, false);
}

static int take_step(struct mf_job *j, cJSON *message, char *why, size_t why_cap)
{
    cJSON *step = mf_json_object(message, "step");
    const char *field;
    struct mf_step parsed;
    if (!step || mf_step_from_json(step, &parsed, &field) < 0) {
        mf_format(why, why_cap, "step: %s missing or invalid", step ? field : "step");
        return -EPROTO;
    }
    return gather(j, &j->steps, &j->step_count.skip, cJSON_DetachItemViaPointer(message, step));
}

static int take_reject(struct mf_job *j, cJSON *message)
{
    return gather(j, &j->rejections, &j->rejection_count.skip, as_result(message));
}

static int take_begin(struct mf_job *j, const cJSON *message, int64_t *ret_limit_ms, char *why,
                      size_t why_cap)
{
    int64_t limit_ms;
    struct mf_job_item *item = item_of(j, message);
    if (!item || mf_json_i64(message, "limit_ms", 1, 86400000, &limit_ms) < 0) {
        mf_format(why, why_cap, "begin: limit_ms missing or invalid, or not an item of the unit");
        return -EPROTO;
    }
    j->begun = item;
    *ret_limit_ms = limit_ms;
    return 0;
}

/* Emits a result with this status and reason for every item of a probe that has no result yet. */
static int fail_remaining(struct mf_job *j, enum mf_status status, const char *reason)
{
    for (size_t i = 0; i < j->n_items; i++) {
        if (j->items[i].done)
            continue;
        mark_done(j, &j->items[i]);
        int r = emit(j, new_result(j, &j->items[i], status, reason), j->n_done == j->n_items);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Emits a result for every step for which the runner sent no result; otherwise the unit would stay open. */
static int take_end(struct mf_job *j)
{
    if (j->ended)
        return 0;
    if (mf_job_is_race(j)) {
        int r = release_held(j);
        return r < 0 ? r : end_with(j, MF_STATUS_UNSUPPORTED, "no pipeline of the race passed verification");
    }
    int r = fail_remaining(j, MF_STATUS_UNSUPPORTED, "the runner sent no result for this step");
    if (r < 0)
        return r;
    return j->ended ? 0 : end_with(j, MF_STATUS_UNSUPPORTED, "the runner sent no result");
}

static int take_error(struct mf_job *j, const cJSON *message)
{
    const char *text = "", *reason = "no reason given";
    enum mf_status status = MF_STATUS_UNSUPPORTED;
    (void)mf_json_text(message, "reason", &reason);
    if (mf_json_text(message, "status", &text) == 0)
        (void)mf_status_parse(text, &status);
    if (status == MF_STATUS_OK)
        status = MF_STATUS_UNSUPPORTED;
    /* If the device memory is too small for the shape's data, every step fails. Report all steps, because
     * another attempt would not help. */
    if (status == MF_STATUS_NO_MEMORY && j->kind == MF_UNIT_PROBE && !j->ended) {
        int r = fail_remaining(j, status, reason);
        if (r < 0)
            return r;
    }
    return j->ended ? 0 : end_with(j, status, reason);
}

int mf_job_message(struct mf_job *j, cJSON *message, int64_t *ret_limit_ms, char *why, size_t why_cap)
{
    const char *op = "";
    (void)mf_json_text(message, "op", &op);
    *ret_limit_ms = 0;
    if (strcmp(op, "begin") == 0)
        return take_begin(j, message, ret_limit_ms, why, why_cap);
    if (strcmp(op, "result") == 0)
        return take_result(j, message, why, why_cap);
    if (strcmp(op, "step") == 0 && j->kind == MF_UNIT_ENUMERATE)
        return take_step(j, message, why, why_cap);
    if (strcmp(op, "reject") == 0 && j->kind == MF_UNIT_ENUMERATE)
        return take_reject(j, message);
    if (strcmp(op, "enumerated") == 0 && j->kind == MF_UNIT_ENUMERATE)
        return flush_enumeration(j, true);
    if (strcmp(op, "end") == 0)
        return take_end(j);
    if (strcmp(op, "error") == 0)
        return take_error(j, message);
    mf_format(why, why_cap, "message '%s' is invalid for a unit of kind %s", op, mf_unit_kind_name(j->kind));
    return -EPROTO;
}

int mf_job_died(struct mf_job *j, enum mf_status status, const char *reason)
{
    cJSON_Delete(MF_TAKE(j->held));
    struct mf_job_item *item = j->begun ? find_item(j, j->begun->id) : NULL;
    j->begun = NULL;
    if (item) {
        mark_done(j, item);
        int r =
            emit(j, new_result(j, item, status, reason), j->kind == MF_UNIT_PROBE && j->n_done == j->n_items);
        if (r < 0 || !mf_job_is_race(j) || j->n_done < j->n_items)
            return r;
        return end_with(j, MF_STATUS_UNSUPPORTED, "every pipeline of the race failed");
    }
    mf_format(j->reason, sizeof(j->reason), "%d runners died outside a step, the last one: %s", ++j->failures,
              reason);
    return j->failures < MF_JOB_FAILURES_MAX ? 0 : end_with(j, status, j->reason);
}
