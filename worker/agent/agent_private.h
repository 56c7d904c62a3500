/* Inside an agent: what its files share. agent.c: its life, its jobs and its runner; agent_send.c: what it sends;
 * agent_receive.c: what it makes of what it receives. */
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
#include "worker/agent/recovery_time.h"
#include "worker/agent/runner_pool.h"
#include "worker/agent/spool.h"

#define MF_AGENT_JOBS_WANTED     2 /* one that runs and the next */
#define MF_AGENT_JOBS_MAX        3 /* see mf_agent_send_ready */
#define MF_AGENT_AHEAD_KNOWN     64
#define MF_AGENT_HELLO_MIN_MS    100  /* however often it is asked for */
#define MF_AGENT_BEAT_MS         1000 /* until WELCOME says */
#define MF_AGENT_MESSAGES_A_TURN 256
#define MF_AGENT_SENT_MAX        1024 /* RESULTs whose sequence is remembered, for REFUSE */

enum mf_agent_state {
    MF_AGENT_STARTING,
    MF_AGENT_GREETING,
    MF_AGENT_JOINED,
    MF_AGENT_LEAVING,
    MF_AGENT_ENDED
};

struct mf_agent {
    struct mf_agent_options o;
    char instance[17], host[64];
    enum mf_agent_state state;
    int exit_code;
    struct mf_agent_socket socket;
    struct mf_spool *spool;
    struct mf_runner_pool *runner_pool;
    struct mf_recovery_time recovery_time;
    int lock_fd;
    struct mf_job *jobs[MF_AGENT_JOBS_MAX];
    size_t n_jobs;
    struct mf_job *current; /* jobs[0] while the runner is at it; NULL before, and after its last RESULT */
    uint64_t ahead[MF_AGENT_AHEAD_KNOWN]; /* hashes of the shapes whose code was last asked to be compiled */
    size_t n_ahead;                       /* shapes asked for; each takes the place of the oldest */
    bool working;                         /* the runner was given a unit and has not said end */
    bool asked;                           /* READY sent, its UNIT not here yet */
    bool draining, blocked;               /* blocked: the socket took no more results */
    int64_t beat_ms, lease_ms;
    int64_t hello_due_ms, hello_sent_ms, beat_due_ms, heard_ms, leave_by_ms, sent_ms;
    int64_t answered_ms;     /* when the coordinator last said anything, or it was first asked */
    int64_t silence_told_ms; /* when it is said that nothing has come since */
    int64_t waits_from_ms;   /* since then there was nothing to do, or a unit was asked for */
    int told_version;        /* of a coordinator that is none for us; -1: none came */
    char leave_reason[MF_REASON_MAX], refused[64];
    enum mf_phase phase;
    uint64_t phase_since_ns, beat_ns;
    uint64_t idle_since_ns; /* the runner's last unit ended; 0: none has */
    double busy_s[MF_PHASE_N_];
    struct {
        uint64_t sequence;
        struct mf_spool_key key;
    } sent[MF_AGENT_SENT_MAX];
};

/* ---- agent_send.c ---- */

/* What its time is spent on from now. */
void mf_agent_set_phase(struct mf_agent *a, enum mf_phase phase);
void mf_agent_send_hello(struct mf_agent *a);
/* device: what it says of itself now, NULL when that has not changed. */
void mf_agent_send_beat(struct mf_agent *a, const cJSON *device);
/* One unit ahead: asked for as soon as there is room, so that the device does not wait for the network. */
void mf_agent_send_ready(struct mf_agent *a);
/* What of the spool was not sent yet. */
void mf_agent_send_results(struct mf_agent *a);
/* Gets every RESULT of the jobs, and takes it; context: the agent. Durable before it is sent. */
int mf_agent_spool_result(void *context, cJSON *result);

/* ---- agent.c ---- */

void mf_agent_drop_job(struct mf_agent *a, size_t i);
/* A runner in the middle of the job goes with it. */
void mf_agent_abandon(struct mf_agent *a, size_t i);
/* A spool that cannot be written to is the end: results would be lost. */
void mf_agent_give_up(struct mf_agent *a, int r);
/* After every message and death: the first job may be over, the next may start. */
void mf_agent_go_on(struct mf_agent *a);

/* ---- agent_receive.c ---- */

/* Its silence begins anew: the coordinator has said something, be it a refusal, or is asked for the first time. */
void mf_agent_answered(struct mf_agent *a);

void mf_agent_turn_socket(struct mf_agent *a);
