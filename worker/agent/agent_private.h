/* Private parts of an agent. agent.c: creation, shutdown and the due actions of the link; agent_runner.c:
 * jobs and runners; agent_send.c: messages sent; agent_receive.c: messages received. */
#pragma once

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "measure/session/unit.h"
#include "worker/agent/agent.h"
#include "worker/agent/agent_socket.h"
#include "worker/agent/job.h"
#include "worker/agent/link.h"
#include "worker/agent/recovery_time.h"
#include "worker/agent/runner_pool.h"
#include "worker/agent/spool.h"

/* The worker repeats READY if no unit arrives for the length of a lease. If the first UNIT was only late, two
 * units arrive. The worker sends another READY after the first of them, so that a third unit arrives. */
#define MF_AGENT_JOBS_MAX         (MF_LINK_JOBS_WANTED + 1)
#define MF_AGENT_AHEAD_REMEMBERED 64
#define MF_AGENT_MESSAGES_PER_RUN 256
/* maximum number of RESULTs for which the sequence number is remembered, to handle a later REFUSE */
#define MF_AGENT_SENT_MAX 1024

struct mf_agent {
    struct mf_agent_options o;
    char instance[17], host[64];
    struct mf_link link;
    int exit_code;
    struct mf_agent_socket socket;
    struct mf_spool *spool;
    struct mf_runner_pool *runner_pool;
    struct mf_recovery_time recovery_time;
    int lock_fd;

    struct mf_job *jobs[MF_AGENT_JOBS_MAX]; /* in the order received */
    size_t n_jobs;
    struct mf_job *current; /* jobs[0] while the runner works on it, else NULL */
    bool runner_busy;       /* true: the runner got a unit and has not sent `end` for that unit */

    /* Hashes of shapes whose code is compiled ahead. A ring buffer: the newest shape replaces the oldest. */
    uint64_t compiled_ahead[MF_AGENT_AHEAD_REMEMBERED];
    size_t n_compiled_ahead; /* number of shapes added so far, including replaced shapes */

    /* Conditions already logged, to log each only once */
    struct mf_log_limit unreadable_log;
    int warned_version;      /* protocol version of the last mismatch; -1: none */
    char warned_refusal[64]; /* code of the last REFUSE, or "handshake failed" */

    char leave_reason[MF_REASON_MAX];

    /* Time accounting, mf_now_ns clock */
    enum mf_phase phase;
    uint64_t phase_since_ns;
    uint64_t busy_since_ns;     /* start of the interval that busy_s covers: time of the last BEAT */
    double busy_s[MF_PHASE_N_]; /* seconds per phase since the last BEAT */
    /* end of the runner's last unit; 0 if it has run no unit since its start */
    uint64_t runner_idle_since_ns;

    struct {
        uint64_t sequence;
        struct mf_spool_key key;
    } sent_results[MF_AGENT_SENT_MAX]; /* indexed by sequence number modulo MF_AGENT_SENT_MAX */
};

/* ---- agent_send.c ---- */

/* Switches to a phase; BEAT reports the time spent in each. */
void mf_agent_set_phase(struct mf_agent *a, enum mf_phase phase);
void mf_agent_send_hello(struct mf_agent *a);
/* Sends a BEAT. device: new description of the device, or NULL if it has not changed. */
void mf_agent_send_beat(struct mf_agent *a, const cJSON *device);
/* Requests one unit. */
void mf_agent_send_ready(struct mf_agent *a);
void mf_agent_send_bye(struct mf_agent *a);
/* Sends all results of the spool that are not marked as sent, if the state of the link allows it. */
void mf_agent_send_results(struct mf_agent *a);
/* mf_emit_fn of every job; `context` is the agent. Takes ownership of the RESULT, writes it to the spool,
 * then sends it. */
int mf_agent_spool_result(void *context, cJSON *result);

/* ---- agent.c ---- */

/* Reports an event to the link and carries out the actions. */
void mf_agent_apply(struct mf_agent *a, enum mf_link_event event);
/* Leaves the farm, because results would be lost without a writable spool. r: the error of the spool. */
void mf_agent_stop_on_spool_error(struct mf_agent *a, int r);

/* ---- agent_runner.c ---- */

void mf_agent_drop_job(struct mf_agent *a, size_t i);
/* Drops a job. If it is running, its runner is replaced. */
void mf_agent_abandon_job(struct mf_agent *a, size_t i);
/* Drops ended jobs. If the runner is idle, sends it the next job. Call this function after every message and
 * after every death of a runner. */
void mf_agent_start_next_job(struct mf_agent *a);
/* Handles the messages of the runners, at most MF_AGENT_MESSAGES_PER_RUN of them. */
void mf_agent_run_runner_pool(struct mf_agent *a);

/* ---- agent_receive.c ---- */

/* Handles the received messages, at most MF_AGENT_MESSAGES_PER_RUN of them. */
void mf_agent_receive_all(struct mf_agent *a);
