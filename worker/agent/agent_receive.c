#include "worker/agent/agent_private.h"

#include <errno.h>
#include <string.h>

#define HELLO_REFUSED_MS 500 /* until the next HELLO after a REFUSE */
#define AHEAD_MOST       16  /* shapes of one message */

static bool is_kept(const cJSON *keep, const struct mf_job *j)
{
    const cJSON *item;
    cJSON_ArrayForEach (item, keep) {
        int64_t unit, attempt;
        if (mf_json_i64(item, "unit", 0, INT64_C(1) << 53, &unit) == 0 &&
            mf_json_i64(item, "attempt", 0, INT64_C(1) << 53, &attempt) == 0 && unit == j->unit &&
            attempt == j->attempt)
            return true;
    }
    return false;
}

static void on_welcome(struct mf_agent *a, const cJSON *m)
{
    int64_t beat_ms = MF_AGENT_BEAT_MS, lease_ms = 3 * MF_AGENT_BEAT_MS;
    (void)mf_json_i64(m, "beat_ms", 10, 600000, &beat_ms);
    lease_ms = 3 * beat_ms;
    (void)mf_json_i64(m, "lease_ms", 10, 3600000, &lease_ms);
    a->beat_ms = beat_ms;
    a->lease_ms = lease_ms;
    a->refused[0] = '\0';
    if (a->state == MF_AGENT_LEAVING)
        return;
    const cJSON *keep = mf_json_array(m, "keep");
    for (size_t i = a->n_jobs; i-- > 0;) {
        if (!is_kept(keep, a->jobs[i]))
            mf_agent_abandon(a, i);
    }
    if (a->state != MF_AGENT_JOINED)
        log_info("%s: joined the farm at %s", a->o.name, a->o.coordinator);
    a->state = MF_AGENT_JOINED;
    a->asked = false;
    a->beat_due_ms = mf_now_ms();
    mf_spool_resend(a->spool);
    mf_agent_send_results(a);
    mf_agent_send_ready(a);
    mf_agent_go_on(a);
}

static bool is_held(const struct mf_agent *a, const struct mf_job *j)
{
    for (size_t i = 0; i < a->n_jobs; i++) {
        if (a->jobs[i]->unit == j->unit && a->jobs[i]->attempt == j->attempt)
            return true;
    }
    return false;
}

/* A unit that cannot be understood is answered: its lease would otherwise run on with every beat. */
static void refuse_unit(struct mf_agent *a, const cJSON *body, const char *why)
{
    log_warn("%s: a unit that cannot be run: %s", a->o.name, why);
    cJSON *refusal = mf_job_refusal(body, why);
    int r = refusal ? mf_agent_spool_result(a, refusal) : 0;
    if (r < 0)
        mf_agent_give_up(a, r);
}

/* Will what is offered for the shape be measured? Nothing of one that is only listed, and a race wants a few. */
static bool leads_to_probes(const struct mf_job *job)
{
    const char *search = "";
    (void)mf_json_text(mf_json_object(job->body, "options"), "search", &search);
    return job->kind == MF_UNIT_PROBE || (job->kind == MF_UNIT_ENUMERATE && strcmp(search, "enumerate") != 0);
}

/* Once for each shape, as long as it is remembered: what is there already is found to be, and costs little. */
static void compile_ahead(struct mf_agent *a, const char *shape)
{
    uint64_t hash = mf_hash64(shape, strlen(shape), MF_HASH_SEED);
    for (size_t i = 0; i < MF_MIN(a->n_ahead, MF_ARRAY_LEN(a->ahead)); i++) {
        if (a->ahead[i] == hash)
            return;
    }
    if (mf_runner_pool_ahead(a->runner_pool, shape) < 0)
        return;
    a->ahead[a->n_ahead++ % MF_ARRAY_LEN(a->ahead)] = hash;
    log_debug("%s: the code of %s is compiled ahead", a->o.name, shape);
}

/* The code of its shape, and of those that the coordinator says come next, is compiled while others are measured. */
static void look_ahead(struct mf_agent *a, const struct mf_job *job)
{
    const char *shape;
    const cJSON *next;
    int n = 0;
    if (leads_to_probes(job) && mf_json_text(job->body, "shape", &shape) == 0)
        compile_ahead(a, shape);
    cJSON_ArrayForEach (next, mf_json_array(job->body, "next")) {
        struct mf_shape known;
        if (n++ < AHEAD_MOST && cJSON_IsString(next) && mf_shape_parse(next->valuestring, &known) == 0)
            compile_ahead(a, next->valuestring);
    }
}

static void on_unit(struct mf_agent *a, const cJSON *m)
{
    char why[MF_REASON_MAX] = "out of memory";
    struct mf_job *job = NULL;
    if (a->state != MF_AGENT_JOINED || a->draining)
        return; /* BYE gives it back */
    a->asked = false;
    cJSON *copy = cJSON_Duplicate(m, true);
    if (!copy || mf_job_new(copy, mf_agent_spool_result, a, &job, why, sizeof(why)) < 0) {
        refuse_unit(a, m, why);
    } else if (a->n_jobs == MF_AGENT_JOBS_MAX || is_held(a, job)) {
        mf_job_free(job); /* sent twice, or never asked for: its lease ends without a beat */
    } else {
        mf_fault_at(MF_FAULT_UNIT_TAKEN);
        a->jobs[a->n_jobs++] = job;
        look_ahead(a, job);
        mf_agent_go_on(a);
    }
    mf_agent_send_ready(a);
}

static void on_ack(struct mf_agent *a, const cJSON *m)
{
    const cJSON *item;
    const double max = 0x1p53;
    cJSON_ArrayForEach (item, mf_json_array(m, "acks")) {
        int64_t part[3];
        bool good = cJSON_IsArray(item) && cJSON_GetArraySize(item) == 3;
        for (int i = 0; good && i < 3; i++) {
            const cJSON *number = cJSON_GetArrayItem(item, i);
            good = cJSON_IsNumber(number) && number->valuedouble >= 0 && number->valuedouble <= max;
            part[i] = good ? (int64_t)number->valuedouble : 0;
        }
        if (!good)
            continue;
        mf_fault_at(MF_FAULT_ACK_TAKEN);
        int r = mf_spool_acknowledge(a->spool, &(struct mf_spool_key){part[0], part[1], part[2]});
        mf_fault_at(MF_FAULT_ACK_KEPT);
        if (r < 0)
            log_err(r, "%s: shorten the spool", a->o.name);
    }
}

static void on_beat(struct mf_agent *a, const cJSON *m)
{
    (void)a;
    (void)m; /* that it came is all it says */
}

static void on_cancel(struct mf_agent *a, const cJSON *m)
{
    int64_t unit, attempt;
    if (mf_json_i64(m, "unit", 0, INT64_C(1) << 53, &unit) < 0 ||
        mf_json_i64(m, "attempt", 0, INT64_C(1) << 53, &attempt) < 0)
        return;
    for (size_t i = a->n_jobs; i-- > 0;) {
        if (a->jobs[i]->unit == unit && a->jobs[i]->attempt == attempt)
            mf_agent_abandon(a, i);
    }
    mf_agent_go_on(a);
    mf_agent_send_ready(a);
}

static void on_drain(struct mf_agent *a, const cJSON *m)
{
    (void)m;
    log_info("%s: drained: finishes what runs, then leaves", a->o.name);
    a->draining = true;
    while (a->n_jobs > 1)
        mf_agent_drop_job(a, a->n_jobs - 1);
}

/* A RESULT that can never be taken would be sent for ever. */
static void forget_refused(struct mf_agent *a, const cJSON *m, const char *reason)
{
    int64_t sequence;
    if (mf_json_i64(m, "sequence", 1, INT64_C(1) << 53, &sequence) < 0 ||
        a->sent[sequence % MF_AGENT_SENT_MAX].sequence != (uint64_t)sequence)
        return;
    const struct mf_spool_key *key = &a->sent[sequence % MF_AGENT_SENT_MAX].key;
    log_warn("%s: result %lld of unit %lld was refused and is dropped: %s", a->o.name, (long long)key->seq,
             (long long)key->unit, reason);
    (void)mf_spool_acknowledge(a->spool, key);
}

static void on_refuse(struct mf_agent *a, const cJSON *m)
{
    const char *code = "", *reason = "";
    int64_t now = mf_now_ms();
    (void)mf_json_text(m, "code", &code);
    (void)mf_json_text(m, "reason", &reason);
    if (strcmp(code, "malformed") == 0 || strcmp(code, "too_large") == 0) {
        log_warn("%s: a message was refused: %s", a->o.name, reason);
        forget_refused(a, m, reason);
        return;
    }
    if (a->state != MF_AGENT_JOINED && a->state != MF_AGENT_GREETING)
        return;
    a->state = MF_AGENT_GREETING;
    a->asked = false;
    if (strcmp(code, "unknown_worker") == 0) {
        a->hello_due_ms = MF_MAX(now, a->hello_sent_ms + MF_AGENT_HELLO_MIN_MS);
        return;
    }
    if (strcmp(code, "unknown_key") == 0) /* what it measures now is no longer wanted */
        while (a->n_jobs > 0)
            mf_agent_abandon(a, a->n_jobs - 1);
    if (strcmp(a->refused, code) != 0)
        log_warn("%s: the coordinator does not take this worker (%s): %s", a->o.name, code, reason);
    (void)mf_copy(a->refused, sizeof(a->refused), code);
    a->hello_due_ms = now + HELLO_REFUSED_MS;
}

/* clang-format off */
static const struct {
    enum mf_message type;
    void (*handle)(struct mf_agent *a, const cJSON *m);
} handlers[] = {
    {MF_MESSAGE_WELCOME, on_welcome},
    {MF_MESSAGE_UNIT,    on_unit},
    {MF_MESSAGE_ACK,     on_ack},
    {MF_MESSAGE_BEAT,    on_beat},
    {MF_MESSAGE_CANCEL,  on_cancel},
    {MF_MESSAGE_DRAIN,   on_drain},
    {MF_MESSAGE_REFUSE,  on_refuse},
};
/* clang-format on */

/* Its REFUSE may be of a version that cannot be read here; that it came says enough, once. */
static void tell_version(struct mf_agent *a)
{
    if (a->socket.other_version == a->told_version)
        return;
    a->told_version = a->socket.other_version;
    log_warn("%s: the coordinator at %s speaks version %d of the protocol and this worker version %d: "
             "neither takes"
             " the other's messages; bring both to one release",
             a->o.name, a->o.coordinator, a->told_version, MF_WIRE_VERSION);
}

void mf_agent_answered(struct mf_agent *a)
{
    a->answered_ms = mf_now_ms();
    a->silence_told_ms = a->answered_ms + a->o.silence_ms;
}

void mf_agent_turn_socket(struct mf_agent *a)
{
    for (int i = 0; i < MF_AGENT_MESSAGES_A_TURN && a->state != MF_AGENT_ENDED; i++) {
        enum mf_message type;
        _cleanup_(cJSON_Deletep) cJSON *m = NULL;
        uint64_t n_refused = a->socket.n_refused;
        int got = mf_agent_socket_receive(&a->socket, &type, &m);
        tell_version(a);
        if (a->socket.n_refused > n_refused)
            mf_agent_answered(a);
        if (got == 0)
            return;
        a->heard_ms = mf_now_ms();
        for (size_t k = 0; k < MF_ARRAY_LEN(handlers); k++) {
            if (handlers[k].type != type)
                continue;
            /* Its own HELLO is no answer: TCP may connect a port where nobody listens to itself */
            mf_agent_answered(a);
            handlers[k].handle(a, m);
        }
    }
}
