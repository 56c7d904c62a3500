#include "worker/agent/agent_private.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define RUNNING_MAX 64 /* maximum number of running units that the coordinator accepts in one message */

/* ---- time by phase ---- */

void mf_agent_set_phase(struct mf_agent *a, enum mf_phase phase)
{
    uint64_t now = mf_now_ns();
    a->busy_s[a->phase] += (double)(now - a->phase_since_ns) / 1e9;
    a->phase_since_ns = now;
    a->phase = phase;
}

/* Adds the fraction of the time since the last BEAT that was spent in each phase, and starts the next
 * interval. */
static bool add_busy(struct mf_agent *a, cJSON *beat)
{
    mf_agent_set_phase(a, a->phase);
    double seconds = (double)(a->phase_since_ns - a->busy_since_ns) / 1e9;
    a->busy_since_ns = a->phase_since_ns;
    cJSON *busy = cJSON_AddObjectToObject(beat, "busy");
    for (int i = 0; busy && i < MF_PHASE_N_; i++) {
        if (!cJSON_AddNumberToObject(busy, mf_phase_name((enum mf_phase)i),
                                     seconds > 0 ? a->busy_s[i] / seconds : 0))
            return false;
        a->busy_s[i] = 0;
    }
    return busy != NULL;
}

/* ---- messages ---- */

static bool add_running(const struct mf_agent *a, cJSON *to)
{
    cJSON *array = cJSON_AddArrayToObject(to, "running");
    for (size_t i = 0; array && i < a->n_jobs; i++) {
        cJSON *job = mf_job_running(a->jobs[i]);
        if (!cJSON_AddItemToArray(array, job)) {
            cJSON_Delete(job);
            return false;
        }
    }
    return array != NULL;
}

/* Lists a unit whose last result is still in the spool, because that result ends the unit's lease. Returns
 * false only if memory is exhausted: the JSON is valid, because the worker itself wrote the spool. */
static bool add_ended(cJSON *array, const char *body, size_t len)
{
    static const char *const keys[] = {"unit", "attempt", "epoch"};
    _cleanup_(cJSON_Deletep) cJSON *result = mf_json_parse(body, len, MF_SPOOL_RECORD_MAX);
    cJSON *unit = cJSON_CreateObject();
    bool ok = result && cJSON_AddItemToArray(array, unit);
    if (!ok)
        cJSON_Delete(unit);
    for (size_t i = 0; ok && i < MF_ARRAY_LEN(keys); i++) {
        int64_t value = 0;
        (void)mf_json_i64(result, keys[i], 0, INT64_C(1) << 53, &value);
        ok = mf_json_add_i64(unit, keys[i], value);
    }
    return ok;
}

static bool add_spooled(const struct mf_agent *a, cJSON *m)
{
    cJSON *array = mf_json_array(m, "running");
    struct mf_spool_key key;
    const char *body;
    size_t len;
    bool ok = true;
    mf_spool_resend(a->spool);
    while (ok && mf_spool_next(a->spool, &key, &body, &len)) {
        if (strstr(body, "\"last\":true") && cJSON_GetArraySize(array) < RUNNING_MAX)
            ok = add_ended(array, body, len);
        mf_spool_sent(a->spool);
    }
    mf_spool_resend(a->spool); /* WELCOME sends all results of the spool */
    return ok;
}

static bool add_copy(cJSON *to, const char *key, const cJSON *from)
{
    cJSON *copy = cJSON_Duplicate(from, true);
    if (copy && cJSON_AddItemToObject(to, key, copy))
        return true;
    cJSON_Delete(copy);
    return false;
}

static bool fill_hello(const struct mf_agent *a, cJSON *m)
{
    const cJSON *hello = mf_runner_pool_hello(a->runner_pool),
                *device = mf_runner_pool_described(a->runner_pool);
    static const char *const of_device[] = {"class", "model", "simulated"};
    static const char *const of_hello[] = {"revision", "families"};
    static const char *const optional[] = {"sandbox", "refused_families"};
    bool ok = cJSON_AddStringToObject(m, "worker", a->o.name) &&
              cJSON_AddStringToObject(m, "instance", a->instance) &&
              cJSON_AddStringToObject(m, "host", a->host) && mf_json_add_i64(m, "pid", (int64_t)getpid()) &&
              cJSON_AddStringToObject(m, "version", MF_VERSION) && add_copy(m, "device", device) &&
              cJSON_AddBoolToObject(m, "compiles", mf_runner_pool_compiles(a->runner_pool)) &&
              add_running(a, m) && add_spooled(a, m);
    for (size_t i = 0; ok && i < MF_ARRAY_LEN(of_device); i++)
        ok = add_copy(m, of_device[i], cJSON_GetObjectItemCaseSensitive(device, of_device[i]));
    for (size_t i = 0; ok && i < MF_ARRAY_LEN(of_hello); i++)
        ok = add_copy(m, of_hello[i], cJSON_GetObjectItemCaseSensitive(hello, of_hello[i]));
    for (size_t i = 0; ok && i < MF_ARRAY_LEN(optional); i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(hello, optional[i]);
        ok = !item || add_copy(m, optional[i], item);
    }
    return ok;
}

void mf_agent_send_hello(struct mf_agent *a)
{
    _cleanup_(cJSON_Deletep) cJSON *m = cJSON_CreateObject();
    if (m && fill_hello(a, m) && mf_agent_socket_send_json(&a->socket, MF_MESSAGE_HELLO, m) == 0)
        mf_agent_apply(a, MF_LINK_EVENT_HELLO_SENT);
    mf_fault_at(MF_FAULT_HELLO_SENT);
}

void mf_agent_send_beat(struct mf_agent *a, const cJSON *device)
{
    _cleanup_(cJSON_Deletep) cJSON *m = cJSON_CreateObject();
    if (m && add_running(a, m) && add_busy(a, m) && (!device || add_copy(m, "device", device)))
        (void)mf_agent_socket_send_json(&a->socket, MF_MESSAGE_BEAT, m);
    mf_agent_apply(a, MF_LINK_EVENT_BEAT_SENT);
}

void mf_agent_send_ready(struct mf_agent *a)
{
    _cleanup_(cJSON_Deletep) cJSON *m = cJSON_CreateObject();
    if (m && mf_json_add_i64(m, "credit", 1) &&
        mf_agent_socket_send_json(&a->socket, MF_MESSAGE_READY, m) == 0)
        mf_agent_apply(a, MF_LINK_EVENT_READY_SENT);
}

void mf_agent_send_bye(struct mf_agent *a)
{
    _cleanup_(cJSON_Deletep) cJSON *m = cJSON_CreateObject();
    if (m && cJSON_AddStringToObject(m, "reason", a->leave_reason))
        (void)mf_agent_socket_send_json(&a->socket, MF_MESSAGE_BYE, m);
    log_info("%s: leaving the farm: %s", a->o.name, a->leave_reason);
    (void)mf_spool_sync(a->spool);
}

void mf_agent_send_results(struct mf_agent *a)
{
    struct mf_spool_key key;
    const char *body;
    size_t len;
    if (!mf_link_sends_results(&a->link))
        return;
    while (mf_spool_next(a->spool, &key, &body, &len)) {
        if (mf_agent_socket_send(&a->socket, MF_MESSAGE_RESULT, body, len) < 0)
            return; /* mf_agent_pollitems waits until the socket is writable */
        uint64_t sequence = a->socket.sequence;
        a->sent_results[sequence % MF_AGENT_SENT_MAX].sequence = sequence;
        a->sent_results[sequence % MF_AGENT_SENT_MAX].key = key;
        mf_agent_apply(a, MF_LINK_EVENT_RESULT_SENT);
        mf_spool_sent(a->spool);
        mf_fault_at(MF_FAULT_RESULT_SENT);
    }
}

int mf_agent_spool_result(void *context, cJSON *result)
{
    struct mf_agent *a = context;
    _cleanup_(cJSON_Deletep) cJSON *body = result;
    _cleanup_(mf_freep) char *text = mf_json_print(body);
    struct mf_spool_key key;
    const int64_t max = INT64_C(1) << 53;
    if (!text || mf_json_i64(body, "unit", 0, max, &key.unit) < 0 ||
        mf_json_i64(body, "attempt", 0, max, &key.attempt) < 0 ||
        mf_json_i64(body, "seq", 0, max, &key.seq) < 0)
        return -ENOMEM;
    int r = mf_spool_append(a->spool, &key, text, strlen(text));
    if (r < 0)
        return r;
    mf_fault_at(MF_FAULT_RESULT_SPOOLED);
    mf_agent_send_results(a);
    return 0;
}
