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

#define LEAVE_MS      3000 /* for results to be acknowledged before BYE */
#define BYE_LINGER_MS 500
#define SILENCE_MS    120000 /* of a runner outside any step */
#define ANSWER_MS     10000  /* a coordinator that does not answer for so long is one to look for */
#define TELL_MS       60000  /* at most between two words about that */
#define TURNED_AWAY   "turned away"

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
                  r == -EBUSY ? "another worker of this name has it" : strerror(-r));
        return r;
    }
    if (torn > 0)
        log_warn("%s: the spool ended in %llu bytes that are no record; cut off", a->o.name,
                 (unsigned long long)torn);
    if (mf_spool_n(a->spool) > 0)
        log_info("%s: %zu results of an earlier run to send", a->o.name, mf_spool_n(a->spool));
    struct mf_runner_pool_options runner_pool = {
        .argv = a->o.runner_argv, .keep_bytes = a->o.keep_bytes, .reserve = a->o.reserve};
    r = mf_runner_pool_new(&runner_pool, &a->runner_pool);
    a->socket = (struct mf_agent_socket){.zmq = a->o.zmq,
                                         .endpoint = a->o.coordinator,
                                         .keys = a->o.keys,
                                         .watch = a->o.keys || a->o.reserve,
                                         .other_version = -1};
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
    a->o.silence_ms = o->silence_ms > 0 ? o->silence_ms : ANSWER_MS;
    a->o.idle_ms = o->idle_ms > 0 ? o->idle_ms : SILENCE_MS;
    a->lock_fd = a->told_version = -1;
    a->beat_ms = MF_AGENT_BEAT_MS;
    a->lease_ms = 3 * MF_AGENT_BEAT_MS;
    a->phase = MF_PHASE_WAIT;
    a->phase_since_ns = a->beat_ns = mf_now_ns();
    a->heard_ms = mf_now_ms();
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
        a->waits_from_ms = mf_now_ms();
}

void mf_agent_abandon(struct mf_agent *a, size_t i)
{
    if (a->jobs[i] == a->current) {
        mf_runner_pool_replace(a->runner_pool);
        a->working = false;
        mf_agent_set_phase(a, MF_PHASE_WAIT);
    }
    mf_agent_drop_job(a, i);
}

void mf_agent_give_up(struct mf_agent *a, int r)
{
    log_err(r, "%s: keep a result in the spool", a->o.name);
    a->exit_code = 1;
    mf_agent_stop(a, "its spool cannot be written to");
}

void mf_agent_go_on(struct mf_agent *a)
{
    while (a->n_jobs > 0 && a->jobs[0]->ended)
        mf_agent_drop_job(a, 0);
    if (a->n_jobs == 0 || a->working || a->state == MF_AGENT_LEAVING || a->state == MF_AGENT_ENDED)
        return;
    _cleanup_(cJSON_Deletep) cJSON *request = mf_job_request(a->jobs[0]);
    if (!request)
        return;
    int r = mf_runner_pool_send(a->runner_pool, request);
    if (r == -ENOTCONN)
        return; /* it starts when a runner is ready */
    mf_recovery_time_asked(&a->recovery_time, mf_now_ns());
    log_debug("%s: its runner waited %.3f ms for unit %lld", a->o.name,
              a->idle_since_ns ? (double)(mf_now_ns() - a->idle_since_ns) * 1e-6 : 0,
              (long long)a->jobs[0]->unit);
    a->idle_since_ns = 0;
    a->working = true;
    a->current = a->jobs[0];
    mf_runner_pool_limit(a->runner_pool, a->o.idle_ms);
    mf_agent_set_phase(a, MF_PHASE_LOAD);
    if (r < 0)
        mf_runner_pool_kill(a->runner_pool, strerror(-r));
}

/* Beyond idle_ms: data of large shapes take a small host minutes, in which its runner has nothing to say. */
static int64_t data_ms(const struct mf_job *job)
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
    /* A step that has begun has a limit of its own */
    if (a->current && !a->current->begun)
        mf_runner_pool_limit(a->runner_pool,
                             a->o.idle_ms + (phase == MF_PHASE_DATA ? data_ms(a->current) : 0));
}

/* How long the way back from a death was, once the next step has its result. */
static void note_comeback(struct mf_agent *a, const char *op)
{
    struct mf_recovery_time_ms ms;
    if (strcmp(op, "begin") == 0)
        mf_recovery_time_begun(&a->recovery_time, mf_now_ns());
    if (strcmp(op, "result") == 0 && mf_recovery_time_result(&a->recovery_time, mf_now_ns(), &ms))
        log_info("%s: next step %.1f ms after its runner's death: context %.1f + data %.1f + step %.1f",
                 a->o.name, ms.context + ms.data + ms.step, ms.context, ms.data, ms.step);
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
    note_comeback(a, op);
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
        mf_agent_give_up(a, r);
        return;
    }
    if (limit_ms > 0 || strcmp(op, "result") == 0)
        mf_runner_pool_limit(a->runner_pool, limit_ms > 0 ? limit_ms : a->o.idle_ms);
    if (ends_request(op)) {
        a->working = false;
        a->current = NULL;
        a->idle_since_ns = mf_now_ns();
        mf_runner_pool_limit(a->runner_pool, 0);
        mf_agent_set_phase(a, MF_PHASE_WAIT);
    }
    mf_agent_go_on(a);
    mf_agent_send_ready(a);
}

static void runner_died(struct mf_agent *a)
{
    /* One that dies before it can begin on the next job fails that job too; one that still owed an `end`, or was never ready,
     * fails none. */
    bool owes_one = a->n_jobs > 0 && !a->working && mf_runner_pool_was_ready(a->runner_pool);
    struct mf_job *job = a->current ? a->current : owes_one ? a->jobs[0] : NULL;
    if (!job || !job->begun)
        log_info("%s: a runner died outside any step: %s", a->o.name, mf_runner_pool_why(a->runner_pool));
    mf_recovery_time_died(&a->recovery_time, mf_now_ns());
    a->working = false;
    a->current = NULL;
    mf_agent_set_phase(a, MF_PHASE_WAIT);
    if (job) {
        int r = mf_job_died(job, mf_runner_pool_hung(a->runner_pool) ? MF_STATUS_HANG : MF_STATUS_CRASH,
                            mf_runner_pool_why(a->runner_pool));
        if (r < 0) {
            mf_agent_give_up(a, r);
            return;
        }
    }
    mf_agent_go_on(a);
    mf_agent_send_ready(a);
}

static void runners_hopeless(struct mf_agent *a)
{
    if (a->state == MF_AGENT_LEAVING || a->state == MF_AGENT_ENDED)
        return;
    log_warn("%s: no runner starts on %s%s: %s", a->o.name, a->o.device,
             a->state == MF_AGENT_STARTING ? "" : " any more", mf_runner_pool_why(a->runner_pool));
    a->exit_code = 1;
    if (a->state == MF_AGENT_STARTING)
        end(a, a->exit_code);
    else /* its units are for others: a device that is gone fails them all */
        mf_agent_stop(a, "no runner starts on its device any more");
}

static void runner_ready(struct mf_agent *a)
{
    mf_recovery_time_ready(&a->recovery_time, mf_now_ns());
    if (a->state == MF_AGENT_STARTING) {
        char class[64] = "?";
        const char *text;
        if (mf_json_text(mf_runner_pool_described(a->runner_pool), "class", &text) == 0)
            (void)mf_copy(class, sizeof(class), text);
        log_info("%s: %s is ready, of class %s", a->o.name, a->o.device, class);
        text = "none";
        (void)mf_json_text(mf_runner_pool_hello(a->runner_pool), "sandbox", &text);
        if (strncmp(text, "no", 2) == 0 || strstr(text, ", no "))
            log_warn("%s: its runners are not kept within all limits of SECURITY.md: %s", a->o.name, text);
        else
            log_info("%s: its runners are kept within %s", a->o.name, text);
        a->state = MF_AGENT_GREETING;
        mf_agent_answered(a);
        mf_agent_send_hello(a);
    }
    mf_agent_go_on(a);
}

static void turn_crew(struct mf_agent *a)
{
    mf_runner_pool_turn(a->runner_pool);
    for (int i = 0; i < MF_AGENT_MESSAGES_A_TURN && a->state != MF_AGENT_ENDED; i++) {
        _cleanup_(cJSON_Deletep) cJSON *message = NULL;
        switch (mf_runner_pool_next(a->runner_pool, &message)) {
        case MF_RUNNER_POOL_NOTHING:
            return;
        case MF_RUNNER_POOL_READY:
            runner_ready(a);
            break;
        case MF_RUNNER_POOL_DESCRIBED: /* before the result that the higher ceiling lets pass */
            if (a->state == MF_AGENT_JOINED)
                mf_agent_send_beat(a, mf_runner_pool_described(a->runner_pool));
            break;
        case MF_RUNNER_POOL_MESSAGE:
            runner_message(a, message);
            break;
        case MF_RUNNER_POOL_DIED:
            runner_died(a);
            break;
        case MF_RUNNER_POOL_HOPELESS:
            runners_hopeless(a);
            return;
        }
    }
}

/* ---- time ---- */

/* A lease without a word: whoever leads the farm has given our units to others by now. */
static void check_silence(struct mf_agent *a)
{
    if (mf_now_ms() - a->heard_ms <= a->lease_ms)
        return;
    a->heard_ms = mf_now_ms();
    if (a->state == MF_AGENT_JOINED)
        log_warn("%s: nothing heard for %lld ms: %s", a->o.name, (long long)a->lease_ms,
                 a->n_jobs > 0 ? "its units are given up" : "it has no unit, and says HELLO again");
    while (a->n_jobs > 0)
        mf_agent_abandon(a, a->n_jobs - 1);
    a->state = MF_AGENT_GREETING;
    a->asked = false;
    /* A half-open connection would take everything and deliver nothing. */
    int r = mf_agent_socket_open(&a->socket);
    if (r < 0)
        log_err(r, "%s: connect to %s", a->o.name, a->o.coordinator);
    a->hello_due_ms = mf_now_ms();
}

/* libzmq tries for ever and says nothing where nobody listens, or somebody of another kind does. In twice the time, then in a
 * minute more each, it is said again: who looks at the log late finds it too. */
static void tell_silence(struct mf_agent *a)
{
    int64_t now = mf_now_ms(), silent_ms = now - a->answered_ms;
    if (now < a->silence_told_ms || strcmp(a->refused, TURNED_AWAY) == 0)
        return;
    a->silence_told_ms = now + MF_MIN(silent_ms, TELL_MS);
    log_warn(
        "%s: no answer from %s for %lld s: is it the hub's address (moefarmd --hub), and does moefarmd run "
        "there?",
        a->o.name, a->o.coordinator, (long long)silent_ms / 1000);
}

static void turn_leaving(struct mf_agent *a)
{
    if (mf_spool_n(a->spool) > 0 && mf_now_ms() < a->leave_by_ms)
        return;
    _cleanup_(cJSON_Deletep) cJSON *m = cJSON_CreateObject();
    if (m && cJSON_AddStringToObject(m, "reason", a->leave_reason))
        (void)mf_agent_socket_send_json(&a->socket, MF_MESSAGE_BYE, m);
    log_info("%s: leaves: %s", a->o.name, a->leave_reason);
    (void)mf_spool_sync(a->spool);
    end(a, a->exit_code);
}

static void turn_time(struct mf_agent *a)
{
    int64_t now = mf_now_ms();
    if (now >= mf_spool_sync_due_ms(a->spool)) {
        int r = mf_spool_sync(a->spool);
        if (r < 0)
            mf_agent_give_up(a, r);
    }
    if (a->state == MF_AGENT_LEAVING) {
        turn_leaving(a);
        return;
    }
    if (a->draining && a->n_jobs == 0 && !a->working && a->state == MF_AGENT_JOINED)
        mf_agent_stop(a, "drained");
    if (a->state == MF_AGENT_GREETING || a->state == MF_AGENT_JOINED)
        check_silence(a);
    if (mf_agent_socket_turned_away(&a->socket) && strcmp(a->refused, TURNED_AWAY) != 0) {
        log_warn("%s: %s turns it away: %s", a->o.name, a->o.coordinator,
                 a->o.keys ? "its key is revoked or of another farm, or the coordinator takes none"
                           : "it takes workers with a key only; ask for a token, and give it by --enrol");
        (void)mf_copy(a->refused, sizeof(a->refused), TURNED_AWAY);
    }
    if (a->state == MF_AGENT_GREETING)
        tell_silence(a);
    if (a->state == MF_AGENT_GREETING && now >= a->hello_due_ms)
        mf_agent_send_hello(a);
    if (a->state == MF_AGENT_JOINED && now >= a->beat_due_ms)
        mf_agent_send_beat(a, NULL);
    /* Sent, but never answered: the connection lost it. */
    if (a->state == MF_AGENT_JOINED && mf_spool_n(a->spool) > 0 && now - a->sent_ms > a->lease_ms) {
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
    if (a->blocked)
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
        due = MF_MIN(due, MF_MIN(a->hello_due_ms, a->heard_ms + a->lease_ms + 1));
    if (a->state == MF_AGENT_JOINED)
        due = MF_MIN(due, MF_MIN(a->beat_due_ms, a->heard_ms + a->lease_ms + 1));
    if (a->state == MF_AGENT_LEAVING)
        due = MF_MIN(due, mf_spool_n(a->spool) == 0 ? mf_now_ms() : a->leave_by_ms);
    return due;
}

void mf_agent_turn(struct mf_agent *a)
{
    if (a->state == MF_AGENT_ENDED)
        return;
    turn_crew(a);
    mf_agent_turn_socket(a);
    if (a->state == MF_AGENT_ENDED)
        return;
    if (a->blocked)
        mf_agent_send_results(a);
    turn_time(a);
}

void mf_agent_stop(struct mf_agent *a, const char *reason)
{
    if (a->state == MF_AGENT_LEAVING || a->state == MF_AGENT_ENDED)
        return;
    bool known = a->state == MF_AGENT_JOINED;
    mf_runner_pool_stop(a->runner_pool);
    while (a->n_jobs > 0)
        mf_agent_drop_job(a, a->n_jobs - 1);
    a->working = false;
    a->state = MF_AGENT_LEAVING;
    a->leave_by_ms = mf_now_ms() + (known ? LEAVE_MS : 0);
    (void)mf_copy(a->leave_reason, sizeof(a->leave_reason), reason);
    mf_agent_send_results(a);
}

bool mf_agent_ended(const struct mf_agent *a, int *ret_exit)
{
    if (a->state == MF_AGENT_ENDED)
        *ret_exit = a->exit_code;
    return a->state == MF_AGENT_ENDED;
}
