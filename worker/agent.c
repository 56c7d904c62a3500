#include "worker/agent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "common/text.h"
#include "worker/agent_socket.h"
#include "worker/crew.h"
#include "worker/device_lock.h"
#include "worker/job.h"
#include "worker/spool.h"
#include "worker/unit.h"

#define JOBS_MAX         2
#define HELLO_MS         1000 /* between two while nobody answers */
#define HELLO_MIN_MS     100  /* however often it is asked for */
#define HELLO_REFUSED_MS 2000
#define BEAT_MS          1000 /* until WELCOME says */
#define LEAVE_MS         3000 /* for results to be acknowledged before BYE */
#define BYE_LINGER_MS    500
#define SILENCE_MS       120000 /* of a runner outside any step */
#define MESSAGES_A_TURN  256
#define SENT_MAX         1024 /* RESULTs whose sequence is remembered, for REFUSE */

enum state { STARTING, GREETING, JOINED, LEAVING, ENDED };

struct mf_agent {
    struct mf_agent_options o;
    char instance[17], host[64];
    enum state state;
    int exit_code;
    struct mf_agent_socket socket;
    struct mf_spool *spool;
    struct mf_crew *crew;
    int lock_fd;
    struct mf_job *jobs[JOBS_MAX];
    size_t n_jobs;
    struct mf_job
        *current; /* jobs[0] while the runner is at it; NULL before, and once its last RESULT is out */
    bool working; /* the runner was given a unit and has not said end */
    bool asked;   /* READY sent, its UNIT not here yet */
    bool draining, blocked; /* blocked: the socket took no more results */
    int64_t beat_ms, lease_ms;
    int64_t hello_due_ms, hello_sent_ms, beat_due_ms, heard_ms, leave_by_ms, sent_ms;
    char leave_reason[MF_REASON_MAX], refused[64];
    enum mf_phase phase;
    uint64_t phase_since_ns, beat_ns;
    double busy_s[MF_PHASE_N_];
    struct {
        uint64_t sequence;
        struct mf_spool_key key;
    } sent[SENT_MAX];
};

static void make_instance(char out[17])
{
    uint64_t bits = 0;
    if (getrandom(&bits, sizeof(bits), 0) != (ssize_t)sizeof(bits))
        bits = mf_now_ns() ^ (uint64_t)getpid() << 40;
    mf_say(out, 17, "%016llx", (unsigned long long)bits);
}

static int set_up(struct mf_agent *a, char *why, size_t why_cap)
{
    int r = mf_device_lock(a->o.lock_folder, a->o.device, why, why_cap, &a->lock_fd);
    if (r < 0)
        return r;
    uint64_t torn = 0;
    r = mf_spool_open(a->o.spool_folder, a->o.name, &a->spool, &torn);
    if (r < 0) {
        mf_say(why, why_cap, "spool %s/%s.spool: %s", a->o.spool_folder, a->o.name,
               r == -EBUSY ? "another worker of this name has it" : strerror(-r));
        return r;
    }
    if (torn > 0)
        log_warn("%s: the spool ended in %llu bytes that are no record; cut off", a->o.name,
                 (unsigned long long)torn);
    if (mf_spool_n(a->spool) > 0)
        log_info("%s: %zu results of an earlier run to send", a->o.name, mf_spool_n(a->spool));
    struct mf_crew_options crew = {
        .argv = a->o.runner_argv, .keep_bytes = a->o.keep_bytes, .reserve = a->o.reserve};
    r = mf_crew_new(&crew, &a->crew);
    a->socket = (struct mf_agent_socket){.zmq = a->o.zmq, .endpoint = a->o.coordinator};
    if (r == 0)
        r = mf_agent_socket_open(&a->socket);
    if (r < 0)
        mf_say(why, why_cap, "coordinator %s: %s", a->o.coordinator, strerror(-r));
    return r;
}

int mf_agent_new(const struct mf_agent_options *o, char *why, size_t why_cap, struct mf_agent **ret)
{
    struct mf_agent *a = calloc(1, sizeof(*a));
    if (!a) {
        mf_say(why, why_cap, "out of memory");
        return -ENOMEM;
    }
    a->o = *o;
    a->lock_fd = -1;
    a->beat_ms = BEAT_MS;
    a->lease_ms = 3 * BEAT_MS;
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
    mf_crew_free(a->crew);
    mf_spool_close(a->spool);
    mf_agent_socket_close(&a->socket, 0);
    if (a->lock_fd >= 0)
        (void)close(a->lock_fd);
    free(a);
    return NULL;
}

static void end(struct mf_agent *a, int exit_code)
{
    mf_crew_stop(a->crew);
    mf_agent_socket_close(&a->socket, BYE_LINGER_MS);
    a->state = ENDED;
    a->exit_code = exit_code;
}

/* ---- time by phase ---- */

static void set_phase(struct mf_agent *a, enum mf_phase phase)
{
    uint64_t now = mf_now_ns();
    a->busy_s[a->phase] += (double)(now - a->phase_since_ns) / 1e9;
    a->phase_since_ns = now;
    a->phase = phase;
}

/* Shares of the time since the last beat; starts the next one. */
static bool add_busy(struct mf_agent *a, cJSON *beat)
{
    set_phase(a, a->phase);
    double seconds = (double)(a->phase_since_ns - a->beat_ns) / 1e9;
    a->beat_ns = a->phase_since_ns;
    cJSON *busy = cJSON_AddObjectToObject(beat, "busy");
    for (int i = 0; busy && i < MF_PHASE_N_; i++) {
        if (!cJSON_AddNumberToObject(busy, mf_phase_name((enum mf_phase)i),
                                     seconds > 0 ? a->busy_s[i] / seconds : 0))
            return false;
        a->busy_s[i] = 0;
    }
    return busy != NULL;
}

/* ---- what is sent ---- */

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
    const cJSON *hello = mf_crew_hello(a->crew), *device = mf_crew_described(a->crew);
    static const char *const of_device[] = {"class", "model", "simulated"};
    static const char *const of_hello[] = {"revision", "families"};
    bool ok = cJSON_AddStringToObject(m, "worker", a->o.name) &&
              cJSON_AddStringToObject(m, "instance", a->instance) &&
              cJSON_AddStringToObject(m, "host", a->host) && mf_json_add_i64(m, "pid", (int64_t)getpid()) &&
              cJSON_AddStringToObject(m, "version", MF_VERSION) && add_copy(m, "device", device) &&
              add_running(a, m);
    for (size_t i = 0; ok && i < MF_ARRAY_LEN(of_device); i++)
        ok = add_copy(m, of_device[i], cJSON_GetObjectItemCaseSensitive(device, of_device[i]));
    for (size_t i = 0; ok && i < MF_ARRAY_LEN(of_hello); i++)
        ok = add_copy(m, of_hello[i], cJSON_GetObjectItemCaseSensitive(hello, of_hello[i]));
    return ok;
}

static void send_hello(struct mf_agent *a)
{
    int64_t now = mf_now_ms();
    _cleanup_(cJSON_Deletep) cJSON *m = cJSON_CreateObject();
    a->hello_due_ms = now + HELLO_MS;
    if (m && fill_hello(a, m) && mf_agent_socket_send_json(&a->socket, MF_MESSAGE_HELLO, m) == 0)
        a->hello_sent_ms = now;
    else
        a->hello_due_ms = now + HELLO_MIN_MS;
}

/* device: what it says of itself now, NULL when that has not changed. */
static void send_beat(struct mf_agent *a, const cJSON *device)
{
    _cleanup_(cJSON_Deletep) cJSON *m = cJSON_CreateObject();
    a->beat_due_ms = mf_now_ms() + a->beat_ms;
    if (m && add_running(a, m) && add_busy(a, m) && (!device || add_copy(m, "device", device)))
        (void)mf_agent_socket_send_json(&a->socket, MF_MESSAGE_BEAT, m);
}

/* One unit ahead: asked for as soon as there is room, so that the device does not wait for the network. */
static void send_ready(struct mf_agent *a)
{
    if (a->state != JOINED || a->draining || a->asked || a->n_jobs == JOBS_MAX)
        return;
    _cleanup_(cJSON_Deletep) cJSON *m = cJSON_CreateObject();
    if (m && mf_json_add_i64(m, "credit", 1) &&
        mf_agent_socket_send_json(&a->socket, MF_MESSAGE_READY, m) == 0)
        a->asked = true;
}

static void send_results(struct mf_agent *a)
{
    struct mf_spool_key key;
    const char *body;
    size_t len;
    a->blocked = false;
    if (a->state != JOINED && a->state != LEAVING)
        return;
    while (mf_spool_next(a->spool, &key, &body, &len)) {
        if (mf_agent_socket_send(&a->socket, MF_MESSAGE_RESULT, body, len) < 0) {
            a->blocked = true;
            return;
        }
        uint64_t sequence = a->socket.sequence;
        a->sent[sequence % SENT_MAX].sequence = sequence;
        a->sent[sequence % SENT_MAX].key = key;
        a->sent_ms = mf_now_ms();
        mf_spool_sent(a->spool);
    }
}

/* Gets every RESULT of the jobs. Durable before it is sent. */
static int spool_result(void *context, cJSON *result)
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
    send_results(a);
    return 0;
}

/* ---- jobs ---- */

static void drop_job(struct mf_agent *a, size_t i)
{
    if (a->jobs[i] == a->current)
        a->current = NULL;
    mf_job_free(a->jobs[i]);
    a->n_jobs--;
    memmove(&a->jobs[i], &a->jobs[i + 1], (a->n_jobs - i) * sizeof(a->jobs[0]));
}

/* A runner in the middle of the job goes with it. */
static void abandon(struct mf_agent *a, size_t i)
{
    if (a->jobs[i] == a->current) {
        mf_crew_replace(a->crew);
        a->working = false;
        set_phase(a, MF_PHASE_WAIT);
    }
    drop_job(a, i);
}

/* A spool that cannot be written to is the end: results would be lost. */
static void give_up(struct mf_agent *a, int r)
{
    log_err(r, "%s: keep a result in the spool", a->o.name);
    a->exit_code = 1;
    mf_agent_stop(a, "its spool cannot be written to");
}

/* After every message and death: the first job may be over, the next may start. */
static void go_on(struct mf_agent *a)
{
    while (a->n_jobs > 0 && a->jobs[0]->ended)
        drop_job(a, 0);
    if (a->n_jobs == 0 || a->working || a->state == LEAVING || a->state == ENDED)
        return;
    _cleanup_(cJSON_Deletep) cJSON *request = mf_job_request(a->jobs[0]);
    if (!request)
        return;
    int r = mf_crew_send(a->crew, request);
    if (r == -ENOTCONN)
        return; /* it starts when a runner is ready */
    a->working = true;
    a->current = a->jobs[0];
    mf_crew_limit(a->crew, SILENCE_MS);
    set_phase(a, MF_PHASE_LOAD);
    if (r < 0)
        mf_crew_kill(a->crew, strerror(-r));
}

static void take_phase(struct mf_agent *a, const cJSON *message)
{
    const char *name;
    enum mf_phase phase;
    if (mf_json_text(message, "name", &name) == 0 && mf_phase_parse(name, &phase) == 0)
        set_phase(a, phase);
}

static bool ends_request(const char *op)
{
    return strcmp(op, "end") == 0 || strcmp(op, "enumerated") == 0 || strcmp(op, "error") == 0;
}

static void runner_message(struct mf_agent *a, const cJSON *message)
{
    const char *op = "";
    (void)mf_json_text(message, "op", &op);
    if (strcmp(op, "phase") == 0) {
        take_phase(a, message);
        return;
    }
    int r = 0;
    int64_t limit_ms = 0;
    char why[MF_REASON_MAX] = "";
    if (a->current)
        r = mf_job_message(a->current, message, &limit_ms, why, sizeof(why));
    if (r == -EPROTO) {
        mf_crew_kill(a->crew, why);
        return;
    }
    if (r < 0) {
        give_up(a, r);
        return;
    }
    if (limit_ms > 0 || strcmp(op, "result") == 0)
        mf_crew_limit(a->crew, limit_ms > 0 ? limit_ms : SILENCE_MS);
    if (ends_request(op)) {
        a->working = false;
        a->current = NULL;
        mf_crew_limit(a->crew, 0);
        set_phase(a, MF_PHASE_WAIT);
    }
    go_on(a);
    send_ready(a);
}

static void runner_died(struct mf_agent *a)
{
    /* One that dies before it can begin on the next job fails that job too; one that still owed an `end` fails none. */
    struct mf_job *job = a->current ? a->current : a->working || a->n_jobs == 0 ? NULL : a->jobs[0];
    if (!job || !job->begun)
        log_info("%s: a runner died outside any step: %s", a->o.name, mf_crew_why(a->crew));
    a->working = false;
    a->current = NULL;
    set_phase(a, MF_PHASE_WAIT);
    if (job) {
        int r =
            mf_job_died(job, mf_crew_hung(a->crew) ? MF_STATUS_HANG : MF_STATUS_CRASH, mf_crew_why(a->crew));
        if (r < 0) {
            give_up(a, r);
            return;
        }
    }
    go_on(a);
    send_ready(a);
}

static void runners_hopeless(struct mf_agent *a)
{
    log_warn("%s: no runner starts on %s: %s", a->o.name, a->o.device, mf_crew_why(a->crew));
    end(a, 1);
}

static void runner_ready(struct mf_agent *a)
{
    if (a->state == STARTING) {
        char class[64] = "?";
        const char *text;
        if (mf_json_text(mf_crew_described(a->crew), "class", &text) == 0)
            (void)mf_copy(class, sizeof(class), text);
        log_info("%s: %s is ready, of class %s", a->o.name, a->o.device, class);
        a->state = GREETING;
        send_hello(a);
    }
    go_on(a);
}

static void turn_crew(struct mf_agent *a)
{
    mf_crew_turn(a->crew);
    for (int i = 0; i < MESSAGES_A_TURN && a->state != ENDED; i++) {
        _cleanup_(cJSON_Deletep) cJSON *message = NULL;
        switch (mf_crew_next(a->crew, &message)) {
        case MF_CREW_NOTHING:
            return;
        case MF_CREW_READY:
            runner_ready(a);
            break;
        case MF_CREW_DESCRIBED: /* before the result that the higher ceiling lets pass */
            if (a->state == JOINED)
                send_beat(a, mf_crew_described(a->crew));
            break;
        case MF_CREW_MESSAGE:
            runner_message(a, message);
            break;
        case MF_CREW_DIED:
            runner_died(a);
            break;
        case MF_CREW_HOPELESS:
            runners_hopeless(a);
            return;
        }
    }
}

/* ---- what is received ---- */

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
    int64_t beat_ms = BEAT_MS, lease_ms = 3 * BEAT_MS;
    (void)mf_json_i64(m, "beat_ms", 10, 600000, &beat_ms);
    lease_ms = 3 * beat_ms;
    (void)mf_json_i64(m, "lease_ms", 10, 3600000, &lease_ms);
    a->beat_ms = beat_ms;
    a->lease_ms = lease_ms;
    a->refused[0] = '\0';
    if (a->state == LEAVING)
        return;
    const cJSON *keep = mf_json_array(m, "keep");
    for (size_t i = a->n_jobs; i-- > 0;) {
        if (!is_kept(keep, a->jobs[i]))
            abandon(a, i);
    }
    if (a->state != JOINED)
        log_info("%s: joined the farm at %s", a->o.name, a->o.coordinator);
    a->state = JOINED;
    a->asked = false;
    a->beat_due_ms = mf_now_ms();
    mf_spool_resend(a->spool);
    send_results(a);
    send_ready(a);
    go_on(a);
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
    int r = refusal ? spool_result(a, refusal) : 0;
    if (r < 0)
        give_up(a, r);
}

static void on_unit(struct mf_agent *a, const cJSON *m)
{
    char why[MF_REASON_MAX] = "out of memory";
    struct mf_job *job = NULL;
    if (a->state != JOINED || a->draining)
        return; /* BYE gives it back */
    a->asked = false;
    cJSON *copy = cJSON_Duplicate(m, true);
    if (!copy || mf_job_new(copy, spool_result, a, &job, why, sizeof(why)) < 0) {
        refuse_unit(a, m, why);
    } else if (a->n_jobs == JOBS_MAX || is_held(a, job)) {
        mf_job_free(job); /* sent twice, or never asked for: its lease ends without a beat */
    } else {
        a->jobs[a->n_jobs++] = job;
        go_on(a);
    }
    send_ready(a);
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
        int r = mf_spool_acknowledge(a->spool, &(struct mf_spool_key){part[0], part[1], part[2]});
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
            abandon(a, i);
    }
    go_on(a);
    send_ready(a);
}

static void on_drain(struct mf_agent *a, const cJSON *m)
{
    (void)m;
    log_info("%s: drained: finishes what runs, then leaves", a->o.name);
    a->draining = true;
    while (a->n_jobs > 1)
        drop_job(a, a->n_jobs - 1);
}

/* A RESULT that can never be taken would be sent for ever. */
static void forget_refused(struct mf_agent *a, const cJSON *m, const char *reason)
{
    int64_t sequence;
    if (mf_json_i64(m, "sequence", 1, INT64_C(1) << 53, &sequence) < 0 ||
        a->sent[sequence % SENT_MAX].sequence != (uint64_t)sequence)
        return;
    const struct mf_spool_key *key = &a->sent[sequence % SENT_MAX].key;
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
    if (a->state != JOINED && a->state != GREETING)
        return;
    a->state = GREETING;
    a->asked = false;
    if (strcmp(code, "unknown_worker") == 0) {
        a->hello_due_ms = MF_MAX(now, a->hello_sent_ms + HELLO_MIN_MS);
        return;
    }
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

static void turn_socket(struct mf_agent *a)
{
    for (int i = 0; i < MESSAGES_A_TURN && a->state != ENDED; i++) {
        enum mf_message type;
        _cleanup_(cJSON_Deletep) cJSON *m = NULL;
        if (mf_agent_socket_receive(&a->socket, &type, &m) == 0)
            return;
        a->heard_ms = mf_now_ms();
        for (size_t k = 0; k < MF_ARRAY_LEN(handlers); k++) {
            if (handlers[k].type == type)
                handlers[k].handle(a, m);
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
    if (a->n_jobs > 0)
        log_warn("%s: nothing heard for %lld ms: its units are given up", a->o.name, (long long)a->lease_ms);
    while (a->n_jobs > 0)
        abandon(a, a->n_jobs - 1);
    a->state = GREETING;
    a->asked = false;
    /* A half-open connection would take everything and deliver nothing. */
    int r = mf_agent_socket_open(&a->socket);
    if (r < 0)
        log_err(r, "%s: connect to %s", a->o.name, a->o.coordinator);
    a->hello_due_ms = mf_now_ms();
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
            give_up(a, r);
    }
    if (a->state == LEAVING) {
        turn_leaving(a);
        return;
    }
    if (a->draining && a->n_jobs == 0 && !a->working && a->state == JOINED)
        mf_agent_stop(a, "drained");
    if (a->state == GREETING || a->state == JOINED)
        check_silence(a);
    if (a->state == GREETING && now >= a->hello_due_ms)
        send_hello(a);
    if (a->state == JOINED && now >= a->beat_due_ms)
        send_beat(a, NULL);
    /* Sent, but never answered: the connection lost it. */
    if (a->state == JOINED && mf_spool_n(a->spool) > 0 && now - a->sent_ms > a->lease_ms) {
        mf_spool_resend(a->spool);
        send_results(a);
    }
    send_ready(a);
}

void mf_agent_pollitems(const struct mf_agent *a, zmq_pollitem_t items[MF_AGENT_POLLITEMS])
{
    struct pollfd fds[MF_CREW_POLLFDS];
    mf_crew_pollfds(a->crew, fds);
    items[0] = (zmq_pollitem_t){.socket = a->socket.socket, .fd = -1, .events = ZMQ_POLLIN};
    if (a->blocked)
        items[0].events |= ZMQ_POLLOUT;
    for (int i = 0; i < MF_CREW_POLLFDS; i++) {
        short events =
            (short)((fds[i].events & POLLIN ? ZMQ_POLLIN : 0) | (fds[i].events & POLLOUT ? ZMQ_POLLOUT : 0));
        items[1 + i] = (zmq_pollitem_t){.fd = fds[i].fd, .events = events};
    }
}

int64_t mf_agent_due_ms(const struct mf_agent *a)
{
    int64_t due = MF_MIN(mf_crew_due_ms(a->crew), mf_spool_sync_due_ms(a->spool));
    if (a->state == GREETING)
        due = MF_MIN(due, MF_MIN(a->hello_due_ms, a->heard_ms + a->lease_ms + 1));
    if (a->state == JOINED)
        due = MF_MIN(due, MF_MIN(a->beat_due_ms, a->heard_ms + a->lease_ms + 1));
    if (a->state == LEAVING)
        due = MF_MIN(due, mf_spool_n(a->spool) == 0 ? mf_now_ms() : a->leave_by_ms);
    return due;
}

void mf_agent_turn(struct mf_agent *a)
{
    if (a->state == ENDED)
        return;
    turn_crew(a);
    turn_socket(a);
    if (a->state == ENDED)
        return;
    if (a->blocked)
        send_results(a);
    turn_time(a);
}

void mf_agent_stop(struct mf_agent *a, const char *reason)
{
    if (a->state == LEAVING || a->state == ENDED)
        return;
    bool known = a->state == JOINED;
    mf_crew_stop(a->crew);
    while (a->n_jobs > 0)
        drop_job(a, a->n_jobs - 1);
    a->working = false;
    a->state = LEAVING;
    a->leave_by_ms = mf_now_ms() + (known ? LEAVE_MS : 0);
    (void)mf_copy(a->leave_reason, sizeof(a->leave_reason), reason);
    send_results(a);
}

bool mf_agent_ended(const struct mf_agent *a, int *ret_exit)
{
    if (a->state == ENDED)
        *ret_exit = a->exit_code;
    return a->state == ENDED;
}
