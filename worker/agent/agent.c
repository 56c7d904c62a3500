#include "worker/agent/agent_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "worker/agent/device_lock.h"

#define BYE_LINGER_MS          500
#define RUNNER_IDLE_TIMEOUT_MS 120000 /* maximum silence of a runner outside a step */
#define SILENCE_WARNING_MS     10000  /* silence of the coordinator before the first warning */
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
    uint64_t damaged = 0;
    r = mf_spool_open(a->o.spool_folder, a->o.name, &a->spool, &damaged);
    if (r < 0) {
        mf_format(why, why_cap, "spool %s/%s.spool: %s", a->o.spool_folder, a->o.name,
                  r == -EBUSY   ? "in use by another worker of this name"
                  : r == -ELOOP ? "is a symbolic link; replace it by a file or delete it"
                                : strerror(-r));
        return r;
    }
    if (damaged > 0)
        log_warn("%s: spool: removed %llu bytes of incomplete or damaged records", a->o.name,
                 (unsigned long long)damaged);
    if (mf_spool_n(a->spool) > 0)
        log_info("%s: sending %zu results of an earlier run", a->o.name, mf_spool_n(a->spool));
    struct mf_runner_pool_options runner_pool = {.argv = a->o.runner_argv,
                                                 .isolation = a->o.isolation,
                                                 .keep_bytes = a->o.keep_bytes,
                                                 .reserve = a->o.reserve,
                                                 .start_limit_ms = a->o.start_limit_ms};
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
    mf_link_init(&a->link, a->o.silence_warning_ms);
    a->phase = MF_PHASE_WAIT;
    a->phase_since_ns = a->busy_since_ns = mf_now_ns();
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

/* ---- actions of the link ---- */

static void warn_lost(struct mf_agent *a)
{
    log_warn("%s: no message from the coordinator for %lld ms: %s", a->o.name, (long long)a->link.lease_ms,
             a->n_jobs > 0 ? "dropping the leased units" : "sending HELLO again");
}

/* libzmq retries without an error if no process listens at the address or the peer speaks another protocol.
 * The warning repeats, so that the end of a log shows it. */
static void warn_silence(struct mf_agent *a)
{
    if (strcmp(a->warned_refusal, HANDSHAKE_FAILED) == 0)
        return;
    log_warn("%s: no answer from %s for %lld s: check the address (moefarmd --hub) and that moefarmd runs",
             a->o.name, a->o.coordinator, (long long)mf_link_silent_ms(&a->link, mf_now_ms()) / 1000);
}

static void drop_units(struct mf_agent *a)
{
    while (a->n_jobs > 0)
        mf_agent_abandon_job(a, a->n_jobs - 1);
}

static void drop_next_units(struct mf_agent *a)
{
    while (a->n_jobs > 1)
        mf_agent_drop_job(a, a->n_jobs - 1);
}

static void stop_runners(struct mf_agent *a)
{
    mf_runner_pool_stop(a->runner_pool);
    while (a->n_jobs > 0)
        mf_agent_drop_job(a, a->n_jobs - 1);
    a->runner_busy = false;
}

static void reconnect(struct mf_agent *a)
{
    int r = mf_agent_socket_open(&a->socket);
    if (r < 0)
        log_err(r, "%s: cannot connect to %s", a->o.name, a->o.coordinator);
}

static void resend_results(struct mf_agent *a)
{
    mf_spool_resend(a->spool);
    mf_agent_send_results(a);
}

static void send_beat(struct mf_agent *a)
{
    mf_agent_send_beat(a, NULL);
}

static void close_link(struct mf_agent *a)
{
    mf_runner_pool_stop(a->runner_pool);
    mf_agent_socket_close(&a->socket, BYE_LINGER_MS);
}

/* Actions, in the order of enum mf_link_action. */
static const struct {
    enum mf_link_action action;
    void (*carry_out)(struct mf_agent *a);
} actions[] = {
    {MF_LINK_WARN_LOST, warn_lost},
    {MF_LINK_WARN_SILENCE, warn_silence},
    {MF_LINK_DROP_UNITS, drop_units},
    {MF_LINK_DROP_NEXT_UNITS, drop_next_units},
    {MF_LINK_STOP_RUNNERS, stop_runners},
    {MF_LINK_RECONNECT, reconnect},
    {MF_LINK_SEND_HELLO, mf_agent_send_hello},
    {MF_LINK_RESEND_RESULTS, resend_results},
    {MF_LINK_SEND_RESULTS, mf_agent_send_results},
    {MF_LINK_SEND_READY, mf_agent_send_ready},
    {MF_LINK_SEND_BEAT, send_beat},
    {MF_LINK_SEND_BYE, mf_agent_send_bye},
    {MF_LINK_CLOSE, close_link},
};

static void carry_out(struct mf_agent *a, unsigned due)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(actions); i++) {
        if (due & actions[i].action)
            actions[i].carry_out(a);
    }
}

static void log_state(const struct mf_agent *a, enum mf_link_state before, const char *cause)
{
    if (a->link.state != before)
        log_debug("%s: link: %s, then %s: %s", a->o.name, mf_link_state_name(before), cause,
                  mf_link_state_name(a->link.state));
}

void mf_agent_apply(struct mf_agent *a, enum mf_link_event event)
{
    enum mf_link_state before = a->link.state;
    unsigned due = mf_link_apply(&a->link, event, mf_now_ms());
    log_state(a, before, mf_link_event_name(event));
    carry_out(a, due);
}

static struct mf_link_work work_of(const struct mf_agent *a)
{
    return (struct mf_link_work){
        .n_jobs = a->n_jobs, .n_results = mf_spool_n(a->spool), .runner_busy = a->runner_busy};
}

static void run_link(struct mf_agent *a)
{
    struct mf_link_work work = work_of(a);
    enum mf_link_state before = a->link.state;
    unsigned due = mf_link_due(&a->link, &work, mf_now_ms());
    log_state(a, before, "timer");
    carry_out(a, due);
}

/* ---- life ---- */

static void sync_spool(struct mf_agent *a)
{
    int r = mf_now_ms() >= mf_spool_sync_due_ms(a->spool) ? mf_spool_sync(a->spool) : 0;
    if (r < 0)
        mf_agent_stop_on_spool_error(a, r);
}

static void check_handshake(struct mf_agent *a)
{
    if (!mf_agent_socket_handshake_failed(&a->socket) || strcmp(a->warned_refusal, HANDSHAKE_FAILED) == 0)
        return;
    log_warn("%s: %s rejects the connection: %s", a->o.name, a->o.coordinator,
             a->o.keys
                 ? "the worker's key is revoked or belongs to another farm, or the coordinator uses no keys"
                 : "it requires a key; get an enrolment token and pass it with --enrol");
    (void)mf_copy(a->warned_refusal, sizeof(a->warned_refusal), HANDSHAKE_FAILED);
}

void mf_agent_pollitems(const struct mf_agent *a, zmq_pollitem_t items[MF_AGENT_POLLITEMS])
{
    struct pollfd fds[MF_RUNNER_POOL_POLLFDS];
    mf_runner_pool_pollfds(a->runner_pool, fds);
    items[0] = (zmq_pollitem_t){.socket = a->socket.socket, .fd = -1, .events = ZMQ_POLLIN};
    /* Wait until the socket is writable, because unsent results mean that the send queue was full. */
    if (mf_link_sends_results(&a->link) && mf_spool_has_unsent(a->spool))
        items[0].events |= ZMQ_POLLOUT;
    for (int i = 0; i < MF_RUNNER_POOL_POLLFDS; i++) {
        short events =
            (short)((fds[i].events & POLLIN ? ZMQ_POLLIN : 0) | (fds[i].events & POLLOUT ? ZMQ_POLLOUT : 0));
        items[1 + i] = (zmq_pollitem_t){.fd = fds[i].fd, .events = events};
    }
}

int64_t mf_agent_due_ms(const struct mf_agent *a)
{
    struct mf_link_work work = work_of(a);
    int64_t due_ms = MF_MIN(mf_runner_pool_due_ms(a->runner_pool), mf_spool_sync_due_ms(a->spool));
    return MF_MIN(due_ms, mf_link_next_ms(&a->link, &work));
}

void mf_agent_run_once(struct mf_agent *a)
{
    if (a->link.state == MF_LINK_ENDED)
        return;
    mf_agent_run_runner_pool(a);
    mf_agent_receive_all(a);
    if (a->link.state == MF_LINK_ENDED)
        return;
    mf_agent_send_results(a);
    sync_spool(a);
    if (!mf_link_is_leaving(&a->link))
        check_handshake(a);
    run_link(a);
}

void mf_agent_stop(struct mf_agent *a, const char *reason)
{
    if (!mf_link_accepts(&a->link, MF_LINK_EVENT_STOP))
        return;
    (void)mf_copy(a->leave_reason, sizeof(a->leave_reason), reason);
    mf_agent_apply(a, MF_LINK_EVENT_STOP);
}

void mf_agent_stop_on_spool_error(struct mf_agent *a, int r)
{
    log_err(r, "%s: cannot write a result to the spool", a->o.name);
    a->exit_code = 1;
    mf_agent_stop(a, "cannot write to the spool");
}

bool mf_agent_ended(const struct mf_agent *a, int *ret_exit)
{
    if (a->link.state == MF_LINK_ENDED)
        *ret_exit = a->exit_code;
    return a->link.state == MF_LINK_ENDED;
}
