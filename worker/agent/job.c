#include "worker/agent/job_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/text.h"

bool mf_job_is_race(const struct mf_job *j)
{
    return j->kind == MF_UNIT_RACE || j->kind == MF_UNIT_COMPARE;
}

static int read_key(const cJSON *body, struct mf_job *j)
{
    if (mf_json_i64(body, "unit", 0, MF_JOB_ID_MAX, &j->unit) < 0 ||
        mf_json_i64(body, "attempt", 0, MF_JOB_ID_MAX, &j->attempt) < 0 ||
        mf_json_i64(body, "epoch", 0, MF_JOB_ID_MAX, &j->epoch) < 0)
        return -EINVAL;
    return 0;
}

static int read_items(struct mf_job *j, const char *list, char *why, size_t why_cap)
{
    const cJSON *array = mf_json_array(j->body, list), *item;
    int n = array ? cJSON_GetArraySize(array) : 0;
    if (n < 1 || n > MF_JOB_ITEMS_MAX) {
        mf_format(why, why_cap, "%s: expected an array of 1 to %d members", list, MF_JOB_ITEMS_MAX);
        return -EINVAL;
    }
    j->items = calloc((size_t)n, sizeof(*j->items));
    if (!j->items)
        return -ENOMEM;
    cJSON_ArrayForEach (item, array) {
        struct mf_job_item *to = &j->items[j->n_items];
        to->name = "";
        (void)mf_json_text(item, "name", &to->name);
        if (mf_json_i64(item, "id", 0, MF_JOB_ID_MAX, &to->id) < 0) {
            mf_format(why, why_cap, "%s[%zu].id: missing or invalid", list, j->n_items);
            return -EINVAL;
        }
        j->n_items++;
    }
    return 0;
}

static int read_body(struct mf_job *j, char *why, size_t why_cap)
{
    const char *kind;
    if (read_key(j->body, j) < 0) {
        mf_format(why, why_cap, "unit, attempt, epoch: expected numbers");
        return -EINVAL;
    }
    if (mf_json_text(j->body, "kind", &kind) < 0 || mf_unit_kind_parse(kind, &j->kind) < 0) {
        mf_format(why, why_cap, "kind: expected enumerate, probe, race or compare");
        return -EINVAL;
    }
    if (j->kind == MF_UNIT_PROBE)
        return read_items(j, "steps", why, why_cap);
    if (mf_job_is_race(j))
        return read_items(j, "pipelines", why, why_cap);
    return 0;
}

int mf_job_new(cJSON *body, mf_emit_fn emit, void *context, struct mf_job **ret, char *why, size_t why_cap)
{
    struct mf_job *j = calloc(1, sizeof(*j));
    if (!j) {
        cJSON_Delete(body);
        return -ENOMEM;
    }
    j->body = body;
    j->emit = emit;
    j->context = context;
    mf_format(why, why_cap, "out of memory");
    int r = read_body(j, why, why_cap);
    if (r < 0) {
        mf_job_free(j);
        return r;
    }
    *ret = j;
    return 0;
}

struct mf_job *mf_job_free(struct mf_job *j)
{
    if (!j)
        return NULL;
    cJSON_Delete(j->body);
    cJSON_Delete(j->steps);
    cJSON_Delete(j->rejections);
    cJSON_Delete(j->held);
    free(j->items);
    free(j);
    return NULL;
}

bool mf_job_add_key(cJSON *body, const struct mf_job *j)
{
    return mf_json_add_i64(body, "unit", j->unit) && mf_json_add_i64(body, "attempt", j->attempt) &&
           mf_json_add_i64(body, "epoch", j->epoch);
}

cJSON *mf_job_refusal(const cJSON *body, const char *why)
{
    struct mf_job key = {0};
    if (read_key(body, &key) < 0)
        return NULL;
    _cleanup_(cJSON_Deletep) cJSON *result = cJSON_CreateObject();
    if (!result || !mf_job_add_key(result, &key) || !mf_json_add_i64(result, "seq", 1) ||
        !cJSON_AddStringToObject(result, "status", mf_status_name(MF_STATUS_UNSUPPORTED)) ||
        !cJSON_AddStringToObject(result, "reason", why) || !mf_json_add_i64(result, "at_ms", mf_wall_ms()) ||
        !cJSON_AddTrueToObject(result, "last"))
        return NULL;
    return MF_TAKE(result);
}

/* Returns the members of the list whose items are not done. The result refers to the members and does not
 * copy them. */
static cJSON *remaining_items(const struct mf_job *j, cJSON *list)
{
    cJSON *left = cJSON_CreateArray(), *item;
    size_t i = 0;
    cJSON_ArrayForEach (item, list) {
        if (!j->items[i++].done && (!left || !cJSON_AddItemReferenceToArray(left, item))) {
            cJSON_Delete(left);
            return NULL;
        }
    }
    return left;
}

/* Adds one member of the UNIT message to the runner's request. Finished items are left out, and a comparison
 * is sent as a race. */
static bool add_request_member(const struct mf_job *j, cJSON *request, cJSON *member)
{
    const char *list = mf_job_is_race(j) ? "pipelines" : "steps";
    if (j->n_items > 0 && cJSON_IsArray(member) && strcmp(member->string, list) == 0) {
        cJSON *left = remaining_items(j, member);
        if (cJSON_AddItemToObject(request, list, left))
            return true;
        cJSON_Delete(left);
        return false;
    }
    if (j->kind == MF_UNIT_COMPARE && strcmp(member->string, "kind") == 0)
        return cJSON_AddStringToObject(request, "kind", mf_unit_kind_name(MF_UNIT_RACE));
    return cJSON_AddItemReferenceToObject(request, member->string, member);
}

cJSON *mf_job_request(struct mf_job *j)
{
    j->begun = NULL;
    cJSON_Delete(MF_TAKE(j->steps));
    cJSON_Delete(MF_TAKE(j->rejections));
    cJSON_Delete(MF_TAKE(j->held));
    j->step_count.skip = j->step_count.sent;
    j->rejection_count.skip = j->rejection_count.sent;
    _cleanup_(cJSON_Deletep) cJSON *m = cJSON_CreateObject();
    if (!m || !cJSON_AddStringToObject(m, "op", j->kind == MF_UNIT_ENUMERATE ? "enumerate" : "unit"))
        return NULL;
    cJSON *item;
    cJSON_ArrayForEach (item, j->body) {
        if (!add_request_member(j, m, item))
            return NULL;
    }
    return MF_TAKE(m);
}

cJSON *mf_job_running(const struct mf_job *j)
{
    _cleanup_(cJSON_Deletep) cJSON *o = cJSON_CreateObject();
    if (!o || !mf_job_add_key(o, j) || !cJSON_AddStringToObject(o, "step", j->begun ? j->begun->name : "") ||
        !mf_json_add_i64(o, "done", (int64_t)j->n_done) || !mf_json_add_i64(o, "total", (int64_t)j->n_items))
        return NULL;
    return MF_TAKE(o);
}
