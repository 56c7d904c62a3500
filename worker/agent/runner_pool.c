#include "worker/agent/runner_pool_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

/* delay of the first restart; doubled after every further runner that dies before it is ready */
#define RETRY_MS     100
#define RETRY_MAX_MS 10000
/* maximum time for a dead runner's process to exit; writing a core dump can take long */
#define DYING_TIMEOUT_MS  10000
#define FIRST_START_TRIES 3 /* maximum number of failed starts while no runner has been ready yet */
/* maximum number of failed starts after a runner was ready; these starts take 6 s or more, enough for a
 * driver reset */
#define RESTART_TRIES 7

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

static void clear_member(struct mf_member *p)
{
    mf_runner_host_free(p->host);
    cJSON_Delete(p->hello);
    *p = (struct mf_member){0};
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
    return c->o.reserve && !c->stopped && !c->reserve.host && c->working.host &&
           c->working.state == MF_MEMBER_READY;
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

static int start(struct mf_runner_pool *c, struct mf_member *p)
{
    clear_member(p);
    int r = mf_runner_host_start(c->o.argv, c->o.isolation, &p->host);
    if (r == 0)
        mf_runner_host_limit(p->host,
                             c->o.start_limit_ms > 0 ? c->o.start_limit_ms : MF_RUNNER_POOL_START_MS);
    return r;
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
        c->reserve = (struct mf_member){0};
        if (c->working.hello)
            mf_runner_pool_greet(c);
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

/* Keeps a dead runner until its process has exited, without waiting. If there are too many dead runners,
 * waits for the exit of the oldest. */
static void add_dying(struct mf_runner_pool *c, struct mf_runner_host *host)
{
    mf_runner_host_free(c->dying[MF_RUNNER_POOL_DYING_MAX - 1]);
    memmove(&c->dying[1], &c->dying[0], (MF_RUNNER_POOL_DYING_MAX - 1) * sizeof(c->dying[0]));
    c->dying[0] = host;
}

static void reap_dying(struct mf_runner_pool *c)
{
    for (int i = 0; i < MF_RUNNER_POOL_DYING_MAX; i++) {
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
    struct mf_member *p = &c->working;
    c->hung = mf_runner_host_hung(p->host);
    c->deaths++;
    mf_runner_host_why(p->host, c->why, sizeof(c->why));
    if (c->kill_reason[0]) {
        c->hung = false;
        (void)mf_copy(c->why, sizeof(c->why), c->kill_reason);
        c->kill_reason[0] = '\0';
    }
    c->was_ready = p->state == MF_MEMBER_READY;
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
        mf_runner_pool_take_hello(c, &c->reserve, message);
    } else if (event == MF_RUNNER_MESSAGE) {
        cJSON_Delete(message);
    } else if (event == MF_RUNNER_DIED) {
        clear_member(&c->reserve);
        c->reserve_at_ms = mf_now_ms() + RETRY_MAX_MS;
    }
}

/* Discards the compiling runner's messages, because only `hello` is expected. */
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
            event == MF_RUNNER_DIED ? note_death(c) : mf_runner_pool_take_message(c, message, ret);
        if (out != MF_RUNNER_POOL_NOTHING)
            return out;
    }
    return c->failed ? MF_RUNNER_POOL_FAILED : MF_RUNNER_POOL_NOTHING;
}

enum mf_runner_pool_event mf_runner_pool_iterate(struct mf_runner_pool *c, cJSON **ret, int64_t until_ms)
{
    struct pollfd fds[MF_RUNNER_POOL_POLLFDS];
    mf_runner_pool_run_once(c);
    enum mf_runner_pool_event event = mf_runner_pool_next(c, ret);
    if (event != MF_RUNNER_POOL_NOTHING)
        return event;
    mf_runner_pool_pollfds(c, fds);
    int64_t left = MF_MIN(mf_runner_pool_due_ms(c), until_ms) - mf_now_ms();
    (void)poll(fds, MF_RUNNER_POOL_POLLFDS, (int)MF_MAX(left, 0));
    return MF_RUNNER_POOL_NOTHING;
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
    if (!c->working.host || c->working.state != MF_MEMBER_READY)
        return -ENOTCONN;
    return mf_runner_host_send(c->working.host, message, -1);
}

bool mf_runner_pool_compiles(const struct mf_runner_pool *c)
{
    return c->described && mf_runner_pool_can(c->hello, "ahead");
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
    int r = c->compiler ? 0 : mf_runner_host_start(c->o.argv, c->o.isolation, &c->compiler);
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
    (void)mf_copy(c->kill_reason, sizeof(c->kill_reason), reason);
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
    for (int i = 0; i < MF_RUNNER_POOL_DYING_MAX; i++)
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
