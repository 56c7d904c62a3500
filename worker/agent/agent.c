#include "worker/agent/agent_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/cpus.h"
#include "common/moe/shape.h"
#include "worker/agent/device_lock.h"
#include "worker/agent/timeouts.h"

#define LEAVE_MS               3000 /* wait for acknowledgements before BYE */
#define BYE_LINGER_MS          500
#define RUNNER_IDLE_TIMEOUT_MS 120000 /* maximum silence of a runner outside a step */
#define SILENCE_WARNING_MS     10000  /* silence of the coordinator before the first warning */
#define WARNING_INTERVAL_MS    60000  /* maximum interval between warnings */
#define HANDSHAKE_FAILED       "handshake failed"

static void make_instance(char out[17])
{
    uint64_t bits = 0;
    if (getrandom(&bits, sizeof(bits), 0) != (ssize_t)sizeof(bits))
        bits = mf_now_ns() ^ (uint64_t)getpid() << 40;
    mf_format(out, 17, "%016llx", (unsigned long long)bits);
}

static int set_up(struct mf_agent *a, char *why, size_t why_cap)
{
    int r = mf_device_lock(a->o.lock_folder, a->o.device, a->o.identity, why, why_cap, &a->lock_fd);
    if (r < 0)
        return r;
    uint64_t torn = 0;
    r = mf_spool_open(a->o.spool_folder, a->o.name, &a->spool, &torn);
    if (r < 0) {
        mf_format(why, why_cap, "spool %s/%s.spool: %s", a->o.spool_folder, a->o.name,
                  r == -EBUSY ? "in use by another worker of this name" : strerror(-r));
        return r;
    }
    if (torn > 0)
        log_warn("%s: spool: removed an incomplete record of %llu bytes at the end", a->o.name,
                 (unsigned long long)torn);
    if (mf_spool_n(a->spool) > 0)
        log_info("%s: sending %zu results of an earlier run", a->o.name, mf_spool_n(a->spool));
    struct mf_runner_pool_options runner_pool = {
        .argv = a->o.runner_argv, .keep_bytes = a->o.keep_bytes, .reserve = a->o.reserve};
    r = mf_runner_pool_new(&runner_pool, &a->runner_pool);
    a->socket = (struct mf_agent_socket){.zmq = a->o.zmq,
                                         .endpoint = a->o.coordinator,
                                         .keys = a->o.keys,
                                         .watch_handshake = a->o.keys || a->o.reserve,
                                         .peer_version = -1};
    if (r == 0)
        r = mf_agent_socket_open(&a->socket);
    if (r < 0)
        mf_format(why, why_cap, "coordinator %s: %s", a->o.coordinator, strerror(-r));
    return r;
}

int mf_agent_new(const struct mf_agent_options *o, char *why, size_t why_cap, struct mf_agent **ret)
{
    struct mf_agent *a = calloc(1, sizeof(*a));
    if (!a) {
        mf_format(why, why_cap, "out of memory");
        return -ENOMEM;
    }
    a->o = *o;
    a->o.silence_warning_ms = o->silence_warning_ms > 0 ? o->silence_warning_ms : SILENCE_WARNING_MS;
    a->o.runner_idle_timeout_ms =
        o->runner_idle_timeout_ms > 0 ? o->runner_idle_timeout_ms : RUNNER_IDLE_TIMEOUT_MS;
    a->lock_fd = a->warned_version = -1;
    a->beat_ms = MF_AGENT_BEAT_MS;
    a->lease_ms = 3 * MF_AGENT_BEAT_MS;
    a->phase = MF_PHASE_WAIT;
    a->phase_since_ns = a->busy_since_ns = mf_now_ns();
    a->last_message_ms = mf_now_ms();
    make_instance(a->instance);
    if (gethostname(a->host, sizeof(a->host) - 1) < 0)
        (void)mf_copy(a->host, sizeof(a->host), "unknown");
    int r = set_up(a, why, why_cap);
    if (r < 0) {
        mf_agent_free(a);
        return r;
    }
    *ret = a;
    return 0;
}

struct mf_agent *mf_agent_free(struct mf_agent *a)
{
    if (!a)
        return NULL;
    for (size_t i = 0; i < a->n_jobs; i++)
        mf_job_free(a->jobs[i]);
    mf_runner_pool_free(a->runner_pool);
    mf_spool_close(a->spool);
    mf_agent_socket_close(&a->socket, 0);
    if (a->lock_fd >= 0)
        (void)close(a->lock_fd);
    free(a);
    return NULL;
}

static void end(struct mf_agent *a, int exit_code)
{
    mf_runner_pool_stop(a->runner_pool);
    mf_agent_socket_close(&a->socket, BYE_LINGER_MS);
    a->state = MF_AGENT_ENDED;
    a->exit_code = exit_code;
}

/* ---- jobs ---- */

void mf_agent_drop_job(struct mf_agent *a, size_t i)
{
    if (a->jobs[i] == a->current)
        a->current = NULL;
    mf_job_free(a->jobs[i]);
    a->n_jobs--;
    memmove(&a->jobs[i], &a->jobs[i + 1], (a->n_jobs - i) * sizeof(a->jobs[0]));
    if (a->n_jobs == 0)
        a->waiting_since_ms = mf_now_ms();
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

void mf_agent_stop_on_spool_error(struct mf_agent *a, int r)
{
    log_err(r, "%s: cannot write a result to the spool", a->o.name);
    a->exit_code = 1;
    mf_agent_stop(a, "cannot write to the spool");
}

void mf_agent_start_next_job(struct mf_agent *a)
{
    while (a->n_jobs > 0 && a->jobs[0]->ended)
        mf_agent_drop_job(a, 0);
    if (a->n_jobs == 0 || a->runner_busy || a->state == MF_AGENT_LEAVING || a->state == MF_AGENT_ENDED)
        return;
    _cleanup_(cJSON_Deletep) cJSON *request = mf_job_request(a->jobs[0]);
    if (!request)
        return;
    int r = mf_runner_pool_send(a->runner_pool, request);
    if (r == -ENOTCONN)
        return; /* no runner is ready yet; runner_ready() calls again */
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

/* Added to runner_idle_timeout_ms: a small host can take minutes to create the data of a large shape. */
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
    /* A begun step has its own limit */
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
    mf_agent_send_ready(a);
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
    mf_agent_send_ready(a);
}

static void runner_pool_failed(struct mf_agent *a)
{
    if (a->state == MF_AGENT_LEAVING || a->state == MF_AGENT_ENDED)
        return;
    log_warn("%s: cannot start a runner on %s%s: %s", a->o.name, a->o.device,
             a->state == MF_AGENT_STARTING ? "" : " any more", mf_runner_pool_why(a->runner_pool));
    a->exit_code = 1;
    if (a->state == MF_AGENT_STARTING)
        end(a, a->exit_code);
    else /* leave, so that other workers get the units */
        mf_agent_stop(a, "cannot start a runner on the device any more");
}

static void runner_ready(struct mf_agent *a)
{
    mf_recovery_time_ready(&a->recovery_time, mf_now_ns());
    if (a->state == MF_AGENT_STARTING) {
        char class[64] = "?";
        const char *text;
        if (mf_json_text(mf_runner_pool_described(a->runner_pool), "class", &text) == 0)
            (void)mf_copy(class, sizeof(class), text);
        log_info("%s: device %s is ready (class %s)", a->o.name, a->o.device, class);
        text = "none";
        (void)mf_json_text(mf_runner_pool_hello(a->runner_pool), "sandbox", &text);
        if (strncmp(text, "no", 2) == 0 || strstr(text, ", no "))
            log_warn("%s: runner sandbox is incomplete, see SECURITY.md: %s", a->o.name, text);
        else
            log_info("%s: runner sandbox: %s", a->o.name, text);
        a->state = MF_AGENT_GREETING;
        mf_agent_note_answer(a);
        mf_agent_send_hello(a);
    }
    mf_agent_start_next_job(a);
}

static void run_runner_pool(struct mf_agent *a)
{
    mf_runner_pool_run_once(a->runner_pool);
    for (int i = 0; i < MF_AGENT_MESSAGES_PER_RUN && a->state != MF_AGENT_ENDED; i++) {
        _cleanup_(cJSON_Deletep) cJSON *message = NULL;
        switch (mf_runner_pool_next(a->runner_pool, &message)) {
        case MF_RUNNER_POOL_NOTHING:
            return;
        case MF_RUNNER_POOL_READY:
            runner_ready(a);
            break;
        case MF_RUNNER_POOL_DESCRIBED: /* sent before the result that depends on the higher ceiling */
            if (a->state == MF_AGENT_JOINED)
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

/* ---- time ---- */

/* After a lease without a message, the coordinator has leased the units to other workers. */
static void check_silence(struct mf_agent *a)
{
    if (mf_now_ms() - a->last_message_ms <= a->lease_ms)
        return;
    a->last_message_ms = mf_now_ms();
    if (a->state == MF_AGENT_JOINED)
        log_warn("%s: no message from the coordinator for %lld ms: %s", a->o.name, (long long)a->lease_ms,
                 a->n_jobs > 0 ? "dropping the leased units" : "sending HELLO again");
    while (a->n_jobs > 0)
        mf_agent_abandon_job(a, a->n_jobs - 1);
    a->state = MF_AGENT_GREETING;
    a->unit_requested = false;
    /* The old connection may be half-open: it would accept messages and deliver none */
    int r = mf_agent_socket_open(&a->socket);
    if (r < 0)
        log_err(r, "%s: cannot connect to %s", a->o.name, a->o.coordinator);
    a->hello_due_ms = mf_now_ms();
}

/* libzmq retries without an error if no process listens at the address or the peer speaks another protocol.
 * The warning repeats at doubling intervals, at most WARNING_INTERVAL_MS, so the end of a log shows it. */
static void warn_silence(struct mf_agent *a)
{
    int64_t now = mf_now_ms(), silent_ms = now - a->last_answer_ms;
    if (now < a->silence_warning_due_ms || strcmp(a->warned_refusal, HANDSHAKE_FAILED) == 0)
        return;
    a->silence_warning_due_ms = now + MF_MIN(silent_ms, WARNING_INTERVAL_MS);
    log_warn("%s: no answer from %s for %lld s: check the address (moefarmd --hub) and that moefarmd runs",
             a->o.name, a->o.coordinator, (long long)silent_ms / 1000);
}

static void run_leaving(struct mf_agent *a)
{
    if (mf_spool_n(a->spool) > 0 && mf_now_ms() < a->leave_deadline_ms)
        return;
    _cleanup_(cJSON_Deletep) cJSON *m = cJSON_CreateObject();
    if (m && cJSON_AddStringToObject(m, "reason", a->leave_reason))
        (void)mf_agent_socket_send_json(&a->socket, MF_MESSAGE_BYE, m);
    log_info("%s: leaving the farm: %s", a->o.name, a->leave_reason);
    (void)mf_spool_sync(a->spool);
    end(a, a->exit_code);
}

static void run_timers(struct mf_agent *a)
{
    int64_t now = mf_now_ms();
    if (now >= mf_spool_sync_due_ms(a->spool)) {
        int r = mf_spool_sync(a->spool);
        if (r < 0)
            mf_agent_stop_on_spool_error(a, r);
    }
    if (a->state == MF_AGENT_LEAVING) {
        run_leaving(a);
        return;
    }
    if (a->draining && a->n_jobs == 0 && !a->runner_busy && a->state == MF_AGENT_JOINED)
        mf_agent_stop(a, "drained");
    if (a->state == MF_AGENT_GREETING || a->state == MF_AGENT_JOINED)
        check_silence(a);
    if (mf_agent_socket_handshake_failed(&a->socket) && strcmp(a->warned_refusal, HANDSHAKE_FAILED) != 0) {
        log_warn(
            "%s: %s rejects the connection: %s", a->o.name, a->o.coordinator,
            a->o.keys
                ? "the worker's key is revoked or belongs to another farm, or the coordinator uses no keys"
                : "it requires a key; get an enrolment token and pass it with --enrol");
        (void)mf_copy(a->warned_refusal, sizeof(a->warned_refusal), HANDSHAKE_FAILED);
    }
    if (a->state == MF_AGENT_GREETING)
        warn_silence(a);
    if (a->state == MF_AGENT_GREETING && now >= a->hello_due_ms)
        mf_agent_send_hello(a);
    if (a->state == MF_AGENT_JOINED && now >= a->beat_due_ms)
        mf_agent_send_beat(a, NULL);
    /* Sent, but not acknowledged for a lease: the connection lost it. */
    if (a->state == MF_AGENT_JOINED && mf_spool_n(a->spool) > 0 &&
        now - a->last_result_sent_ms > a->lease_ms) {
        mf_spool_resend(a->spool);
        mf_agent_send_results(a);
    }
    mf_agent_send_ready(a);
}

void mf_agent_pollitems(const struct mf_agent *a, zmq_pollitem_t items[MF_AGENT_POLLITEMS])
{
    struct pollfd fds[MF_RUNNER_POOL_POLLFDS];
    mf_runner_pool_pollfds(a->runner_pool, fds);
    items[0] = (zmq_pollitem_t){.socket = a->socket.socket, .fd = -1, .events = ZMQ_POLLIN};
    if (a->send_blocked)
        items[0].events |= ZMQ_POLLOUT;
    for (int i = 0; i < MF_RUNNER_POOL_POLLFDS; i++) {
        short events =
            (short)((fds[i].events & POLLIN ? ZMQ_POLLIN : 0) | (fds[i].events & POLLOUT ? ZMQ_POLLOUT : 0));
        items[1 + i] = (zmq_pollitem_t){.fd = fds[i].fd, .events = events};
    }
}

int64_t mf_agent_due_ms(const struct mf_agent *a)
{
    int64_t due = MF_MIN(mf_runner_pool_due_ms(a->runner_pool), mf_spool_sync_due_ms(a->spool));
    if (a->state == MF_AGENT_GREETING)
        due = MF_MIN(due, MF_MIN(a->hello_due_ms, a->last_message_ms + a->lease_ms + 1));
    if (a->state == MF_AGENT_JOINED)
        due = MF_MIN(due, MF_MIN(a->beat_due_ms, a->last_message_ms + a->lease_ms + 1));
    if (a->state == MF_AGENT_LEAVING)
        due = MF_MIN(due, mf_spool_n(a->spool) == 0 ? mf_now_ms() : a->leave_deadline_ms);
    return due;
}

void mf_agent_run_once(struct mf_agent *a)
{
    if (a->state == MF_AGENT_ENDED)
        return;
    run_runner_pool(a);
    mf_agent_receive_all(a);
    if (a->state == MF_AGENT_ENDED)
        return;
    if (a->send_blocked)
        mf_agent_send_results(a);
    run_timers(a);
}

void mf_agent_stop(struct mf_agent *a, const char *reason)
{
    if (a->state == MF_AGENT_LEAVING || a->state == MF_AGENT_ENDED)
        return;
    bool joined = a->state == MF_AGENT_JOINED;
    mf_runner_pool_stop(a->runner_pool);
    while (a->n_jobs > 0)
        mf_agent_drop_job(a, a->n_jobs - 1);
    a->runner_busy = false;
    a->state = MF_AGENT_LEAVING;
    a->leave_deadline_ms = mf_now_ms() + (joined ? LEAVE_MS : 0);
    (void)mf_copy(a->leave_reason, sizeof(a->leave_reason), reason);
    mf_agent_send_results(a);
}

bool mf_agent_ended(const struct mf_agent *a, int *ret_exit)
{
    if (a->state == MF_AGENT_ENDED)
        *ret_exit = a->exit_code;
    return a->state == MF_AGENT_ENDED;
}
