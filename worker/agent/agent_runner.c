#include "worker/agent/agent_private.h"

#include <errno.h>
#include <string.h>

#include "common/base/cpus.h"
#include "common/moe/shape.h"
#include "common/moe/timeouts.h"

void mf_agent_drop_job(struct mf_agent *a, size_t i)
{
    if (a->jobs[i] == a->current)
        a->current = NULL;
    mf_job_free(a->jobs[i]);
    a->n_jobs--;
    memmove(&a->jobs[i], &a->jobs[i + 1], (a->n_jobs - i) * sizeof(a->jobs[0]));
    if (a->n_jobs == 0)
        mf_agent_apply(a, MF_LINK_EVENT_NO_JOBS);
}

void mf_agent_abandon_job(struct mf_agent *a, size_t i)
{
    if (a->jobs[i] == a->current) {
        mf_runner_pool_replace(a->runner_pool);
        a->runner_busy = false;
        mf_agent_set_phase(a, MF_PHASE_WAIT);
    }
    mf_agent_drop_job(a, i);
}

void mf_agent_start_next_job(struct mf_agent *a)
{
    while (a->n_jobs > 0 && a->jobs[0]->ended)
        mf_agent_drop_job(a, 0);
    if (a->n_jobs == 0 || a->runner_busy || mf_link_is_leaving(&a->link))
        return;
    _cleanup_(cJSON_Deletep) cJSON *request = mf_job_request(a->jobs[0]);
    if (!request)
        return;
    int r = mf_runner_pool_send(a->runner_pool, request);
    if (r == -ENOTCONN)
        return; /* no runner is ready yet; runner_ready() calls this function again */
    mf_recovery_time_unit_sent(&a->recovery_time, mf_now_ns());
    log_debug("%s: runner was idle for %.3f ms before unit %lld", a->o.name,
              a->runner_idle_since_ns ? (double)(mf_now_ns() - a->runner_idle_since_ns) * 1e-6 : 0,
              (long long)a->jobs[0]->unit);
    a->runner_idle_since_ns = 0;
    a->runner_busy = true;
    a->current = a->jobs[0];
    mf_runner_pool_limit(a->runner_pool, a->o.runner_idle_timeout_ms);
    mf_agent_set_phase(a, MF_PHASE_LOAD);
    if (r < 0)
        mf_runner_pool_kill(a->runner_pool, strerror(-r));
}

/* Returns the time to add to runner_idle_timeout_ms while data is created. On a small host, creating the data
 * of a large shape can take minutes. */
static int64_t data_timeout_ms(const struct mf_job *job)
{
    const char *row;
    struct mf_shape shape;
    if (mf_json_text(job->body, "shape", &row) < 0 || mf_shape_parse(row, &shape) < 0)
        return 0;
    return mf_data_timeout_ms(&shape, mf_cpus_allowed());
}

static void take_phase(struct mf_agent *a, const cJSON *message)
{
    const char *name;
    enum mf_phase phase;
    if (mf_json_text(message, "name", &name) < 0 || mf_phase_parse(name, &phase) < 0)
        return;
    mf_agent_set_phase(a, phase);
    /* A begun step has its own silence limit. */
    if (a->current && !a->current->begun)
        mf_runner_pool_limit(a->runner_pool, a->o.runner_idle_timeout_ms +
                                                 (phase == MF_PHASE_DATA ? data_timeout_ms(a->current) : 0));
}

/* Logs the recovery time once the first step after a runner death has a result. */
static void log_recovery(struct mf_agent *a, const char *op)
{
    struct mf_recovery_time_ms ms;
    if (strcmp(op, "begin") == 0)
        mf_recovery_time_begun(&a->recovery_time, mf_now_ns());
    if (strcmp(op, "result") == 0 && mf_recovery_time_result(&a->recovery_time, mf_now_ns(), &ms))
        log_info("%s: recovered %.1f ms after a runner died: context %.1f + data %.1f + step %.1f", a->o.name,
                 ms.context + ms.data + ms.step, ms.context, ms.data, ms.step);
}

static bool ends_request(const char *op)
{
    return strcmp(op, "end") == 0 || strcmp(op, "enumerated") == 0 || strcmp(op, "error") == 0;
}

static void runner_message(struct mf_agent *a, cJSON *message)
{
    const char *op = "";
    (void)mf_json_text(message, "op", &op);
    if (strcmp(op, "phase") == 0) {
        take_phase(a, message);
        return;
    }
    log_recovery(a, op);
    int r = 0;
    int64_t limit_ms = 0;
    char why[MF_REASON_MAX] = "";
    if (a->current)
        r = mf_job_message(a->current, message, &limit_ms, why, sizeof(why));
    if (r == -EPROTO) {
        mf_runner_pool_kill(a->runner_pool, why);
        return;
    }
    if (r < 0) {
        mf_agent_stop_on_spool_error(a, r);
        return;
    }
    if (limit_ms > 0 || strcmp(op, "result") == 0)
        mf_runner_pool_limit(a->runner_pool, limit_ms > 0 ? limit_ms : a->o.runner_idle_timeout_ms);
    if (ends_request(op)) {
        a->runner_busy = false;
        a->current = NULL;
        a->runner_idle_since_ns = mf_now_ns();
        mf_runner_pool_limit(a->runner_pool, 0);
        mf_agent_set_phase(a, MF_PHASE_WAIT);
    }
    mf_agent_start_next_job(a);
}

static void runner_died(struct mf_agent *a)
{
    /* A runner that dies between two jobs counts as a failure of the next job. A runner that dies after
     * the last result of a job but before its `end`, or before it was ready, fails no job. */
    bool died_between_jobs = a->n_jobs > 0 && !a->runner_busy && mf_runner_pool_was_ready(a->runner_pool);
    struct mf_job *job = a->current ? a->current : died_between_jobs ? a->jobs[0] : NULL;
    if (!job || !job->begun)
        log_info("%s: runner died outside a step: %s", a->o.name, mf_runner_pool_why(a->runner_pool));
    mf_recovery_time_died(&a->recovery_time, mf_now_ns());
    a->runner_busy = false;
    a->current = NULL;
    mf_agent_set_phase(a, MF_PHASE_WAIT);
    if (job) {
        int r = mf_job_died(job, mf_runner_pool_hung(a->runner_pool) ? MF_STATUS_HANG : MF_STATUS_CRASH,
                            mf_runner_pool_why(a->runner_pool));
        if (r < 0) {
            mf_agent_stop_on_spool_error(a, r);
            return;
        }
    }
    mf_agent_start_next_job(a);
}

static void runner_pool_failed(struct mf_agent *a)
{
    bool starting = mf_link_accepts(&a->link, MF_LINK_EVENT_RUNNERS_FAILED);
    if (mf_link_is_leaving(&a->link))
        return;
    log_warn("%s: cannot start a runner on %s%s: %s", a->o.name, a->o.device, starting ? "" : " any more",
             mf_runner_pool_why(a->runner_pool));
    a->exit_code = 1;
    if (starting)
        mf_agent_apply(a, MF_LINK_EVENT_RUNNERS_FAILED);
    else /* leave the farm, so that other workers get the units */
        mf_agent_stop(a, "cannot start a runner on the device any more");
}

static void log_device(const struct mf_agent *a)
{
    const char *class = "?", *sandbox = "none";
    (void)mf_json_text(mf_runner_pool_described(a->runner_pool), "class", &class);
    log_info("%s: device %s is ready (class %s)", a->o.name, a->o.device, class);
    (void)mf_json_text(mf_runner_pool_hello(a->runner_pool), "sandbox", &sandbox);
    if (strncmp(sandbox, "no", 2) == 0 || strstr(sandbox, ", no "))
        log_warn("%s: runner sandbox is incomplete, see SECURITY.md: %s", a->o.name, sandbox);
    else
        log_info("%s: runner sandbox: %s", a->o.name, sandbox);
}

static void runner_ready(struct mf_agent *a)
{
    mf_recovery_time_ready(&a->recovery_time, mf_now_ns());
    if (mf_link_accepts(&a->link, MF_LINK_EVENT_RUNNER_READY)) {
        log_device(a);
        mf_agent_apply(a, MF_LINK_EVENT_RUNNER_READY);
    }
    mf_agent_start_next_job(a);
}

void mf_agent_run_runner_pool(struct mf_agent *a)
{
    mf_runner_pool_run_once(a->runner_pool);
    for (int i = 0; i < MF_AGENT_MESSAGES_PER_RUN && a->link.state != MF_LINK_ENDED; i++) {
        _cleanup_(cJSON_Deletep) cJSON *message = NULL;
        switch (mf_runner_pool_next(a->runner_pool, &message)) {
        case MF_RUNNER_POOL_NOTHING:
            return;
        case MF_RUNNER_POOL_READY:
            runner_ready(a);
            break;
        case MF_RUNNER_POOL_DESCRIBED: /* send the higher ceilings before the result that depends on them */
            if (mf_link_is_joined(&a->link))
                mf_agent_send_beat(a, mf_runner_pool_described(a->runner_pool));
            break;
        case MF_RUNNER_POOL_MESSAGE:
            runner_message(a, message);
            break;
        case MF_RUNNER_POOL_DIED:
            runner_died(a);
            break;
        case MF_RUNNER_POOL_FAILED:
            runner_pool_failed(a);
            return;
        }
    }
}
