#include "worker/agent/agent_private.h"

#include <errno.h>
#include <string.h>

#define AHEAD_SHAPES_MAX 16 /* maximum shapes per message */
#define UNREADABLE_LINES 5  /* maximum log lines per period about unreadable messages */

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
    int64_t beat_ms = MF_LINK_BEAT_MS;
    (void)mf_json_i64(m, "beat_ms", 10, 600000, &beat_ms);
    int64_t lease_ms = 3 * beat_ms;
    (void)mf_json_i64(m, "lease_ms", 10, 3600000, &lease_ms);
    a->warned_refusal[0] = '\0';
    if (!mf_link_accepts(&a->link, MF_LINK_EVENT_WELCOME))
        return;
    mf_link_set_intervals(&a->link, beat_ms, lease_ms);
    const cJSON *keep = mf_json_array(m, "keep");
    for (size_t i = a->n_jobs; i-- > 0;) {
        if (!is_kept(keep, a->jobs[i]))
            mf_agent_abandon_job(a, i);
    }
    if (!mf_link_is_joined(&a->link))
        log_info("%s: joined the farm at %s", a->o.name, a->o.coordinator);
    bool quarantined = false;
    (void)mf_json_bool(m, "quarantined", &quarantined);
    if (quarantined)
        log_warn("%s: the coordinator has quarantined this worker and sends it no units; `moefarm workers "
                 "--json` or "
                 "the status page says why",
                 a->o.name);
    mf_agent_apply(a, MF_LINK_EVENT_WELCOME);
    mf_agent_start_next_job(a);
}

static bool is_held(const struct mf_agent *a, const struct mf_job *j)
{
    for (size_t i = 0; i < a->n_jobs; i++) {
        if (a->jobs[i]->unit == j->unit && a->jobs[i]->attempt == j->attempt)
            return true;
    }
    return false;
}

/* Answers a malformed unit with a RESULT. Without this answer, every BEAT would extend the unit's lease. */
static void refuse_unit(struct mf_agent *a, const cJSON *body, const char *why)
{
    log_warn("%s: malformed unit: %s", a->o.name, why);
    cJSON *refusal = mf_job_refusal(body, why);
    int r = refusal ? mf_agent_spool_result(a, refusal) : 0;
    if (r < 0)
        mf_agent_stop_on_spool_error(a, r);
}

/* True if enumerated steps of the shape will be probed. False for search=enumerate, which only lists steps,
 * and for races, which need few steps. */
static bool leads_to_probes(const struct mf_job *job)
{
    const char *search = "";
    (void)mf_json_text(mf_json_object(job->body, "options"), "search", &search);
    return job->kind == MF_UNIT_PROBE || (job->kind == MF_UNIT_ENUMERATE && strcmp(search, "enumerate") != 0);
}

/* Requests compilation for a shape unless the shape is still in the list of compiled shapes. A repeated
 * request is cheap, because the code objects are already in the cache. */
static void compile_ahead(struct mf_agent *a, const char *shape)
{
    uint64_t hash = mf_hash64(shape, strlen(shape), MF_HASH_SEED);
    for (size_t i = 0; i < MF_MIN(a->n_compiled_ahead, MF_ARRAY_LEN(a->compiled_ahead)); i++) {
        if (a->compiled_ahead[i] == hash)
            return;
    }
    if (mf_runner_pool_compile_ahead(a->runner_pool, shape) < 0)
        return;
    a->compiled_ahead[a->n_compiled_ahead++ % MF_ARRAY_LEN(a->compiled_ahead)] = hash;
    log_debug("%s: compiling ahead for %s", a->o.name, shape);
}

/* Compiles the code of the unit's shape and of the shapes listed in `next` while the worker measures. */
static void compile_upcoming(struct mf_agent *a, const struct mf_job *job)
{
    const char *shape;
    const cJSON *next;
    int n = 0;
    if (leads_to_probes(job) && mf_json_text(job->body, "shape", &shape) == 0)
        compile_ahead(a, shape);
    cJSON_ArrayForEach (next, mf_json_array(job->body, "next")) {
        struct mf_shape known;
        if (n++ < AHEAD_SHAPES_MAX && cJSON_IsString(next) && mf_shape_parse(next->valuestring, &known) == 0)
            compile_ahead(a, next->valuestring);
    }
}

/* Logs a message with an unreadable body. Answers it if it is a unit, because otherwise the farm would wait
 * for the end of the lease. Returns true if the message is unreadable. */
static bool is_unreadable(struct mf_agent *a, enum mf_message type, const cJSON *m)
{
    const char *why;
    char reason[MF_REASON_MAX];
    if (mf_json_text(m, "unreadable", &why) < 0)
        return false;
    if (mf_log_limit(&a->unreadable_log, UNREADABLE_LINES, mf_now_ms()))
        log_warn("%s: unreadable %s of the coordinator: %s", a->o.name, mf_message_name(type), why);
    mf_format(reason, sizeof(reason), "unreadable UNIT: %s", why);
    if (type == MF_MESSAGE_UNIT && mf_link_accepts(&a->link, MF_LINK_EVENT_UNIT)) {
        mf_agent_apply(a, MF_LINK_EVENT_UNIT);
        refuse_unit(a, m, reason);
    }
    return true;
}

static void on_unit(struct mf_agent *a, const cJSON *m)
{
    char why[MF_REASON_MAX] = "out of memory";
    struct mf_job *job = NULL;
    if (!mf_link_accepts(&a->link, MF_LINK_EVENT_UNIT))
        return; /* the coordinator gets this unit back with BYE */
    mf_agent_apply(a, MF_LINK_EVENT_UNIT);
    cJSON *copy = cJSON_Duplicate(m, true);
    if (!copy || mf_job_new(copy, mf_agent_spool_result, a, &job, why, sizeof(why)) < 0) {
        refuse_unit(a, m, why);
    } else if (a->n_jobs == MF_AGENT_JOBS_MAX || is_held(a, job)) {
        mf_job_free(job); /* the unit is a duplicate or was not requested; no BEAT extends its lease */
    } else {
        mf_fault_at(MF_FAULT_UNIT_RECEIVED);
        a->jobs[a->n_jobs++] = job;
        compile_upcoming(a, job);
        mf_agent_start_next_job(a);
    }
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
        mf_fault_at(MF_FAULT_ACK_RECEIVED);
        int r = mf_spool_acknowledge(a->spool, &(struct mf_spool_key){part[0], part[1], part[2]});
        mf_fault_at(MF_FAULT_ACK_APPLIED);
        if (r < 0)
            log_err(r, "%s: cannot compact the spool", a->o.name);
    }
}

static void on_beat(struct mf_agent *a, const cJSON *m)
{
    (void)a;
    (void)m; /* the message has no content */
}

static void on_cancel(struct mf_agent *a, const cJSON *m)
{
    int64_t unit, attempt;
    if (mf_json_i64(m, "unit", 0, INT64_C(1) << 53, &unit) < 0 ||
        mf_json_i64(m, "attempt", 0, INT64_C(1) << 53, &attempt) < 0)
        return;
    for (size_t i = a->n_jobs; i-- > 0;) {
        if (a->jobs[i]->unit == unit && a->jobs[i]->attempt == attempt)
            mf_agent_abandon_job(a, i);
    }
    mf_agent_start_next_job(a);
}

static void on_drain(struct mf_agent *a, const cJSON *m)
{
    (void)m;
    if (!mf_link_accepts(&a->link, MF_LINK_EVENT_DRAIN))
        return;
    log_info("%s: draining: finishing the running unit, then leaving", a->o.name);
    (void)mf_copy(a->leave_reason, sizeof(a->leave_reason), "drained");
    mf_agent_apply(a, MF_LINK_EVENT_DRAIN);
}

/* Drops a RESULT that the coordinator refuses, because the worker would otherwise resend it for ever. */
static void drop_refused_result(struct mf_agent *a, const cJSON *m, const char *reason)
{
    int64_t sequence;
    if (mf_json_i64(m, "sequence", 1, INT64_C(1) << 53, &sequence) < 0 ||
        a->sent_results[sequence % MF_AGENT_SENT_MAX].sequence != (uint64_t)sequence)
        return;
    const struct mf_spool_key *key = &a->sent_results[sequence % MF_AGENT_SENT_MAX].key;
    log_warn("%s: dropped result %lld of unit %lld, refused by the coordinator: %s", a->o.name,
             (long long)key->seq, (long long)key->unit, reason);
    (void)mf_spool_acknowledge(a->spool, key);
}

static void on_refuse(struct mf_agent *a, const cJSON *m)
{
    const char *code = "", *reason = "";
    (void)mf_json_text(m, "code", &code);
    (void)mf_json_text(m, "reason", &reason);
    enum mf_link_event event = mf_link_refusal(code);
    if (event == MF_LINK_EVENT_REFUSE_MESSAGE) {
        log_warn("%s: the coordinator refused a message: %s", a->o.name, reason);
        drop_refused_result(a, m, reason);
        return;
    }
    if (!mf_link_accepts(&a->link, event))
        return;
    if (event != MF_LINK_EVENT_REFUSE_UNKNOWN) {
        if (strcmp(a->warned_refusal, code) != 0)
            log_warn("%s: the coordinator refuses this worker (%s): %s", a->o.name, code, reason);
        (void)mf_copy(a->warned_refusal, sizeof(a->warned_refusal), code);
    }
    mf_agent_apply(a, event);
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

/* Warns once per protocol version. A REFUSE of another version may be unreadable, but the header of the
 * message contains the version. */
static void warn_version_mismatch(struct mf_agent *a)
{
    if (a->socket.peer_version == a->warned_version)
        return;
    a->warned_version = a->socket.peer_version;
    log_warn("%s: the coordinator at %s speaks protocol version %d, this worker version %d; "
             "install the same release of both",
             a->o.name, a->o.coordinator, a->warned_version, MF_WIRE_VERSION);
}

void mf_agent_receive_all(struct mf_agent *a)
{
    for (int i = 0; i < MF_AGENT_MESSAGES_PER_RUN && a->link.state != MF_LINK_ENDED; i++) {
        enum mf_message type;
        _cleanup_(cJSON_Deletep) cJSON *m = NULL;
        uint64_t n_invalid = a->socket.n_invalid;
        int got = mf_agent_socket_receive(&a->socket, &type, &m);
        warn_version_mismatch(a);
        if (a->socket.n_invalid > n_invalid)
            mf_agent_apply(a, MF_LINK_EVENT_ANSWER);
        if (got == 0)
            return;
        mf_agent_apply(a, MF_LINK_EVENT_MESSAGE);
        for (size_t k = 0; k < MF_ARRAY_LEN(handlers); k++) {
            if (handlers[k].type != type)
                continue;
            /* A message without a handler is not an answer of a coordinator. A received HELLO, for example,
             * is the worker's own message: TCP may connect a local port to itself if no process listens on
             * that port. */
            mf_agent_apply(a, MF_LINK_EVENT_ANSWER);
            if (!is_unreadable(a, type, m))
                handlers[k].handle(a, m);
        }
    }
}
