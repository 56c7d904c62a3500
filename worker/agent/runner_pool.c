#include "worker/agent/runner_pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/status.h"
#include "kernels/core/device.h"
#include "worker/agent/memfd_store.h"
#include "worker/agent/runner_host.h"
#include "worker/runner/device_info.h"

#define START_TIMEOUT_MS  60000 /* for `hello`, and again for `described` */
#define RETRY_MS          100   /* doubled for each runner in a row that dies before it is ready */
#define RETRY_MAX_MS      10000
#define DYING_MAX         4
#define DYING_TIMEOUT_MS  10000 /* a process may take long to exit, for example to write a core dump */
#define FIRST_START_TRIES 3     /* failed starts before the first runner was ready */
#define RESTART_TRIES     7     /* the same after one was ready; 6 s or more, enough for a driver reset */

enum state { STARTED, GREETED, READY };

struct member {
    struct mf_runner_host *host;
    enum state state;
    cJSON *hello;
};

struct mf_runner_pool {
    struct mf_runner_pool_options o;
    struct member working, reserve;
    struct mf_runner_host *compiler;         /* compiles ahead; NULL: nothing to compile yet, or it died */
    struct mf_runner_host *dying[DYING_MAX]; /* reported as dead, not exited yet */
    struct mf_kept_store kept;
    cJSON *hello, *described;
    int failures; /* failed starts in a row */
    int64_t start_at_ms, reserve_at_ms, compiler_at_ms;
    bool stopped, hung, failed;
    bool was_ready; /* whether the runner that died last was ready */
    int64_t deaths;
    char kill_reason[MF_REASON_MAX], why[MF_REASON_MAX];
};

int mf_runner_pool_new(const struct mf_runner_pool_options *o, struct mf_runner_pool **ret)
{
    struct mf_runner_pool *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->o = *o;
    mf_kept_store_init(&c->kept, o->keep_bytes);
    *ret = c;
    return 0;
}

static void clear_member(struct member *p)
{
    mf_runner_host_free(p->host);
    cJSON_Delete(p->hello);
    *p = (struct member){0};
}

struct mf_runner_pool *mf_runner_pool_free(struct mf_runner_pool *c)
{
    if (!c)
        return NULL;
    mf_runner_pool_stop(c);
    mf_kept_store_release(&c->kept);
    cJSON_Delete(c->hello);
    cJSON_Delete(c->described);
    free(c);
    return NULL;
}

static void clear_pollfds(struct pollfd *fds)
{
    for (int i = 0; i < MF_RUNNER_POLLFDS; i++)
        fds[i] = (struct pollfd){.fd = -1};
}

void mf_runner_pool_pollfds(const struct mf_runner_pool *c, struct pollfd fds[MF_RUNNER_POOL_POLLFDS])
{
    const struct mf_runner_host *hosts[] = {c->working.host, c->reserve.host, c->compiler};
    for (size_t i = 0; i < MF_ARRAY_LEN(hosts); i++) {
        struct pollfd *to = fds + i * MF_RUNNER_POLLFDS;
        if (hosts[i])
            mf_runner_host_pollfds(hosts[i], to);
        else
            clear_pollfds(to);
    }
}

static bool wants_reserve(const struct mf_runner_pool *c)
{
    return c->o.reserve && !c->stopped && !c->reserve.host && c->working.host && c->working.state == READY;
}

int64_t mf_runner_pool_due_ms(const struct mf_runner_pool *c)
{
    int64_t due = INT64_MAX;
    if (c->working.host)
        due = mf_runner_host_deadline_ms(c->working.host);
    else if (!c->stopped)
        due = c->start_at_ms;
    if (wants_reserve(c))
        due = MF_MIN(due, c->reserve_at_ms);
    return due;
}

static int start(struct mf_runner_pool *c, struct member *p)
{
    clear_member(p);
    int r = mf_runner_host_start(c->o.argv, &p->host);
    if (r == 0)
        mf_runner_host_limit(p->host, START_TIMEOUT_MS);
    return r;
}

_Static_assert(MF_KEPT_MAX <= MF_CHANNEL_FDS_MAX,
               "all kept files may be queued for a runner that does not read yet");

static int hand_over_kept(struct mf_runner_pool *c, struct mf_runner_host *host)
{
    for (size_t i = 0; i < c->kept.n; i++) {
        _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("have");
        if (!m || !cJSON_AddStringToObject(m, "key", c->kept.items[i].key) ||
            !mf_json_add_i64(m, "bytes", (int64_t)c->kept.items[i].bytes))
            return -ENOMEM;
        int r = mf_runner_host_send(host, m, c->kept.items[i].fd);
        if (r < 0)
            return r;
    }
    return 0;
}

static int ask_to_describe(struct mf_runner_pool *c, struct mf_runner_host *host)
{
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("describe");
    if (!m)
        return -ENOMEM;
    if (c->described) {
        cJSON *known = cJSON_Duplicate(c->described, true);
        if (!known || !cJSON_AddItemToObject(m, "known", known)) {
            cJSON_Delete(known);
            return -ENOMEM;
        }
    }
    return mf_runner_host_send(host, m, -1);
}

static void set_kill_reason(struct mf_runner_pool *c, const char *reason)
{
    (void)mf_copy(c->kill_reason, sizeof(c->kill_reason), reason);
}

/* The working runner has sent hello: send it the kept files and `describe`. */
static void greet(struct mf_runner_pool *c)
{
    struct member *p = &c->working;
    int r = hand_over_kept(c, p->host);
    if (r == 0)
        r = ask_to_describe(c, p->host);
    if (r < 0) {
        set_kill_reason(c, strerror(-r));
        mf_runner_host_kill(p->host);
        return;
    }
    p->state = GREETED;
    mf_runner_host_limit(p->host, START_TIMEOUT_MS);
}

static bool has_capability(const cJSON *hello, const char *name)
{
    const cJSON *list = mf_json_array(hello, "can"), *item;
    cJSON_ArrayForEach (item, list) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0)
            return true;
    }
    return false;
}

static void take_hello(struct mf_runner_pool *c, struct member *p, cJSON *message)
{
    int64_t protocol;
    const char *revision;
    if (strcmp(mf_channel_op(message), "hello") != 0 ||
        mf_json_i64(message, "protocol", 1, 1, &protocol) < 0 ||
        mf_json_text(message, "revision", &revision) < 0 || !mf_json_array(message, "families") ||
        !has_capability(message, "unit")) {
        cJSON_Delete(message);
        set_kill_reason(
            c, "the first message is not a hello of protocol 1 with revision, families and can: [\"unit\"]");
        mf_runner_host_kill(p->host);
        return;
    }
    p->hello = message;
    mf_runner_host_limit(p->host, 0);
    if (p == &c->working)
        greet(c);
}

static void take_kept(struct mf_runner_pool *c, const cJSON *message)
{
    int fd = mf_runner_host_take_fd(c->working.host);
    const char *key;
    int64_t bytes;
    if (fd < 0)
        return;
    if (mf_json_text(message, "key", &key) < 0 || mf_json_i64(message, "bytes", 1, INT64_MAX, &bytes) < 0)
        (void)close(fd);
    else
        (void)mf_kept_store_add(&c->kept, key, fd, (uint64_t)bytes);
}

static void take_drop(struct mf_runner_pool *c, const cJSON *message)
{
    const char *key;
    if (mf_json_text(message, "key", &key) == 0)
        mf_kept_store_drop(&c->kept, key);
}

static enum mf_runner_pool_event take_described(struct mf_runner_pool *c, cJSON *message)
{
    _cleanup_(cJSON_Deletep) cJSON *m = message;
    struct mf_device_info info;
    const char *field = "op", *reason = "no reason given";
    if (strcmp(mf_channel_op(m), "error") == 0) {
        (void)mf_json_text(m, "reason", &reason);
        mf_format(c->why, sizeof(c->why), "%s", reason);
        c->failed = !c->described;
        if (c->failed)
            return MF_RUNNER_POOL_FAILED;
        set_kill_reason(c, reason);
        mf_runner_host_kill(c->working.host);
        return MF_RUNNER_POOL_NOTHING;
    }
    if (strcmp(mf_channel_op(m), "described") != 0 || mf_device_info_parse(m, &info, &field) < 0) {
        char text[MF_REASON_MAX];
        mf_format(text, sizeof(text), "described: %s missing or invalid", field);
        set_kill_reason(c, text);
        mf_runner_host_kill(c->working.host);
        return MF_RUNNER_POOL_NOTHING;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(m, "op");
    cJSON_Delete(c->described);
    c->described = MF_TAKE(m);
    cJSON_Delete(c->hello);
    c->hello = MF_TAKE(c->working.hello);
    c->working.state = READY;
    c->failures = 0;
    mf_runner_host_limit(c->working.host, 0);
    return MF_RUNNER_POOL_READY;
}

/* The runner measured higher ceilings of the device. Later runners and the coordinator get them. */
static enum mf_runner_pool_event take_new_ceilings(struct mf_runner_pool *c, cJSON *message)
{
    struct mf_device_info info;
    const char *field;
    if (mf_device_info_parse(message, &info, &field) < 0) {
        cJSON_Delete(message);
        return MF_RUNNER_POOL_NOTHING;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(message, "op");
    cJSON_Delete(c->described);
    c->described = message;
    return MF_RUNNER_POOL_DESCRIBED;
}

/* Handles a message of the working runner; MF_RUNNER_POOL_MESSAGE: the caller owns *ret. */
static enum mf_runner_pool_event take_message(struct mf_runner_pool *c, cJSON *message, cJSON **ret)
{
    const char *op = mf_channel_op(message);
    if (c->working.state == STARTED) {
        take_hello(c, &c->working, message);
        return MF_RUNNER_POOL_NOTHING;
    }
    bool keep = strcmp(op, "keep") == 0;
    if (keep || strcmp(op, "drop") == 0) {
        if (keep)
            take_kept(c, message);
        else
            take_drop(c, message);
        cJSON_Delete(message);
        return MF_RUNNER_POOL_NOTHING;
    }
    if (c->working.state == GREETED)
        return take_described(c, message);
    if (strcmp(op, "described") == 0)
        return take_new_ceilings(c, message);
    *ret = message;
    return MF_RUNNER_POOL_MESSAGE;
}

static void note_start_failure(struct mf_runner_pool *c)
{
    int64_t wait = RETRY_MS;
    for (int i = 1; i < c->failures && wait < RETRY_MAX_MS; i++)
        wait *= 2;
    c->start_at_ms = mf_now_ms() + MF_MIN(wait, RETRY_MAX_MS);
    if (++c->failures >= (c->described ? RESTART_TRIES : FIRST_START_TRIES))
        c->failed = true;
}

/* Makes the reserve the working runner; without a reserve, starts a new runner. */
static void ensure_working(struct mf_runner_pool *c)
{
    if (c->stopped || c->failed || c->working.host)
        return;
    if (c->reserve.host) {
        c->working = c->reserve;
        c->reserve = (struct member){0};
        if (c->working.hello)
            greet(c);
        return;
    }
    if (mf_now_ms() < c->start_at_ms)
        return;
    int r = start(c, &c->working);
    if (r < 0) {
        mf_format(c->why, sizeof(c->why), "cannot start %s: %s", c->o.argv[0], strerror(-r));
        note_start_failure(c);
    }
}

/* Keeps a dead runner until its process has exited, without waiting. If there are too many, waits for the
 * oldest. */
static void add_dying(struct mf_runner_pool *c, struct mf_runner_host *host)
{
    mf_runner_host_free(c->dying[DYING_MAX - 1]);
    memmove(&c->dying[1], &c->dying[0], (DYING_MAX - 1) * sizeof(c->dying[0]));
    c->dying[0] = host;
}

static void reap_dying(struct mf_runner_pool *c)
{
    for (int i = 0; i < DYING_MAX; i++) {
        if (!c->dying[i])
            continue;
        mf_runner_host_run_once(c->dying[i]);
        if (mf_now_ms() - mf_runner_host_died_ms(c->dying[i]) > DYING_TIMEOUT_MS)
            mf_runner_host_kill(c->dying[i]);
        if (mf_runner_host_exited(c->dying[i]))
            c->dying[i] = mf_runner_host_free(c->dying[i]);
    }
}

static enum mf_runner_pool_event note_death(struct mf_runner_pool *c)
{
    struct member *p = &c->working;
    c->hung = mf_runner_host_hung(p->host);
    c->deaths++;
    mf_runner_host_why(p->host, c->why, sizeof(c->why));
    if (c->kill_reason[0]) {
        c->hung = false;
        (void)mf_copy(c->why, sizeof(c->why), c->kill_reason);
        c->kill_reason[0] = '\0';
    }
    c->was_ready = p->state == READY;
    add_dying(c, MF_TAKE(p->host));
    clear_member(p);
    if (!c->was_ready)
        note_start_failure(c);
    ensure_working(c);
    return c->failed ? MF_RUNNER_POOL_FAILED : MF_RUNNER_POOL_DIED;
}

static void run_reserve(struct mf_runner_pool *c)
{
    if (wants_reserve(c) && mf_now_ms() >= c->reserve_at_ms && start(c, &c->reserve) < 0)
        c->reserve_at_ms = mf_now_ms() + RETRY_MAX_MS;
    if (!c->reserve.host)
        return;
    mf_runner_host_run_once(c->reserve.host);
    cJSON *message = NULL;
    enum mf_runner_event event = mf_runner_host_next(c->reserve.host, &message);
    if (event == MF_RUNNER_MESSAGE && !c->reserve.hello) {
        take_hello(c, &c->reserve, message);
    } else if (event == MF_RUNNER_MESSAGE) {
        cJSON_Delete(message);
    } else if (event == MF_RUNNER_DIED) {
        clear_member(&c->reserve);
        c->reserve_at_ms = mf_now_ms() + RETRY_MAX_MS;
    }
}

/* Discards its messages; only `hello` is expected. */
static void run_compiler(struct mf_runner_pool *c)
{
    enum mf_runner_event event = MF_RUNNER_MESSAGE;
    if (c->compiler)
        mf_runner_host_run_once(c->compiler);
    while (c->compiler && event == MF_RUNNER_MESSAGE) {
        cJSON *message = NULL;
        event = mf_runner_host_next(c->compiler, &message);
        cJSON_Delete(message);
    }
    if (event != MF_RUNNER_DIED)
        return;
    c->compiler = mf_runner_host_free(c->compiler);
    c->compiler_at_ms = mf_now_ms() + RETRY_MAX_MS;
}

void mf_runner_pool_run_once(struct mf_runner_pool *c)
{
    if (c->stopped)
        return;
    ensure_working(c);
    if (c->working.host)
        mf_runner_host_run_once(c->working.host);
    run_reserve(c);
    run_compiler(c);
    reap_dying(c);
}

enum mf_runner_pool_event mf_runner_pool_next(struct mf_runner_pool *c, cJSON **ret)
{
    while (c->working.host && !c->failed) {
        cJSON *message = NULL;
        enum mf_runner_event event = mf_runner_host_next(c->working.host, &message);
        if (event == MF_RUNNER_NOTHING)
            break;
        enum mf_runner_pool_event out =
            event == MF_RUNNER_DIED ? note_death(c) : take_message(c, message, ret);
        if (out != MF_RUNNER_POOL_NOTHING)
            return out;
    }
    return c->failed ? MF_RUNNER_POOL_FAILED : MF_RUNNER_POOL_NOTHING;
}

const char *mf_runner_pool_why(const struct mf_runner_pool *c)
{
    return c->why;
}

bool mf_runner_pool_hung(const struct mf_runner_pool *c)
{
    return c->hung;
}

bool mf_runner_pool_was_ready(const struct mf_runner_pool *c)
{
    return c->was_ready;
}

int64_t mf_runner_pool_deaths(const struct mf_runner_pool *c)
{
    return c->deaths;
}

pid_t mf_runner_pool_pid(const struct mf_runner_pool *c)
{
    return c->working.host ? mf_runner_host_pid(c->working.host) : 0;
}

int mf_runner_pool_send(struct mf_runner_pool *c, const cJSON *message)
{
    if (!c->working.host || c->working.state != READY)
        return -ENOTCONN;
    return mf_runner_host_send(c->working.host, message, -1);
}

bool mf_runner_pool_compiles(const struct mf_runner_pool *c)
{
    return c->described && has_capability(c->hello, "ahead");
}

int mf_runner_pool_compile_ahead(struct mf_runner_pool *c, const char *shape)
{
    if (c->stopped || !mf_runner_pool_compiles(c))
        return -ENOTSUP;
    if (!c->compiler && mf_now_ms() < c->compiler_at_ms)
        return -EAGAIN;
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("ahead");
    if (!m || !cJSON_AddItemReferenceToObject(m, "known", c->described) ||
        !cJSON_AddStringToObject(m, "shape", shape))
        return -ENOMEM;
    int r = c->compiler ? 0 : mf_runner_host_start(c->o.argv, &c->compiler);
    return r < 0 ? r : mf_runner_host_send(c->compiler, m, -1);
}

void mf_runner_pool_limit(struct mf_runner_pool *c, int64_t limit_ms)
{
    if (c->working.host)
        mf_runner_host_limit(c->working.host, limit_ms);
}

void mf_runner_pool_kill(struct mf_runner_pool *c, const char *reason)
{
    if (!c->working.host)
        return;
    set_kill_reason(c, reason);
    mf_runner_host_kill(c->working.host);
}

void mf_runner_pool_replace(struct mf_runner_pool *c)
{
    clear_member(&c->working);
    c->kill_reason[0] = '\0';
    ensure_working(c);
}

void mf_runner_pool_stop(struct mf_runner_pool *c)
{
    c->stopped = true;
    clear_member(&c->working);
    clear_member(&c->reserve);
    c->compiler = mf_runner_host_free(c->compiler);
    for (int i = 0; i < DYING_MAX; i++)
        c->dying[i] = mf_runner_host_free(c->dying[i]);
}

const cJSON *mf_runner_pool_hello(const struct mf_runner_pool *c)
{
    return c->hello;
}

const cJSON *mf_runner_pool_described(const struct mf_runner_pool *c)
{
    return c->described;
}
