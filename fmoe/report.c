/* Reporter: a thread that sends misses to a coordinator. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/secret.h"
#include "common/net/http_client.h"
#include "fmoe/private.h"

#define SECONDS_MAX 86400
#define REQUEST_MS  10000 /* timeout of a request; stopping the reporter waits for one or two requests */

struct reporter {
    struct fmoe *f;
    struct mf_http *http;
    pthread_t thread;
    pthread_mutex_t lock; /* protects stopping and state */
    pthread_cond_t wake;
    bool stopping;
    struct fmoe_reported state;
    int64_t seconds;
    char key[MF_KEY_TEXT_MAX + 24]; /* idempotency key of body */
    char name[MF_KEY_TEXT_MAX];     /* random prefix of this reporter's keys */
    uint64_t number;
    char *body; /* report that is not acknowledged yet; NULL: none */
};

enum answer { ACCEPTED, RETRY, REFUSED };

/* Classifies the HTTP status of a report. Rate limits, server errors and a token that the coordinator does
 * not know yet are temporary. A malformed report never succeeds. */
static enum answer answer_of(long status)
{
    if (status == 200 || status == 201)
        return ACCEPTED;
    return status == 401 || status == 403 || status == 429 || status >= 500 ? RETRY : REFUSED;
}

static enum answer post(struct reporter *r)
{
    const struct mf_http_request q = {.method = "POST",
                                      .path = "/api/v1/misses",
                                      .content_type = "application/json",
                                      .idempotency_key = r->key,
                                      .body = r->body,
                                      .body_len = strlen(r->body)};
    struct mf_http_reply reply;
    enum answer answer = RETRY;

    mf_http_reply_init(&reply);
    if (mf_http_send(r->http, &q, &reply) == 0)
        answer = answer_of(reply.status);
    mf_http_reply_release(&reply);
    return answer;
}

static enum answer report(struct reporter *r)
{
    enum answer answer = ACCEPTED;

    if (!r->body && (fmoe_misses(r->f, NULL, &r->body) < 0 || !r->body))
        return ACCEPTED;
    if (!*r->key)
        (void)snprintf(r->key, sizeof(r->key), "%s/%llu", r->name, (unsigned long long)++r->number);
    answer = post(r);
    (void)pthread_mutex_lock(&r->lock);
    r->state.sent += answer == ACCEPTED;
    r->state.failed += answer == RETRY;
    r->state.refused += answer == REFUSED;
    (void)pthread_mutex_unlock(&r->lock);
    if (answer != RETRY) {
        free(r->body);
        r->body = NULL;
        r->key[0] = '\0';
    }
    return answer;
}

/* Waits until the next report is due. Returns true if the thread must stop. */
static bool wait_interval(struct reporter *r)
{
    struct timespec until;
    bool stopping;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)r->seconds;
    (void)pthread_mutex_lock(&r->lock);
    while (!r->stopping && pthread_cond_timedwait(&r->wake, &r->lock, &until) == 0)
        ;
    stopping = r->stopping;
    (void)pthread_mutex_unlock(&r->lock);
    return stopping;
}

static void *run(void *context)
{
    struct reporter *r = context;
    enum answer last = ACCEPTED;

    while (!wait_interval(r))
        last = report(r);
    if (last != RETRY) /* skip the last report if the coordinator was unreachable, to avoid another wait */
        (void)report(r);
    return NULL;
}

static struct reporter *reporter_free(struct reporter *r)
{
    if (r) {
        (void)mf_http_free(r->http);
        (void)pthread_cond_destroy(&r->wake);
        (void)pthread_mutex_destroy(&r->lock);
        free(r->body);
    }
    free(r);
    return NULL;
}

static int start(struct fmoe *f, const char *url, const char *token_file, int64_t seconds,
                 struct fmoe_error *error, struct reporter *r)
{
    char token[MF_TOKEN_TEXT_MAX] = "";
    uint8_t name[MF_KEY_SIZE];
    pthread_condattr_t attr;
    sigset_t all, before;
    int e = 0;

    if (token_file)
        e = mf_secret_file_read(token_file, token, sizeof(token));
    if (e < 0)
        return fmoe_fail(error, e, "token_file %s: %s", token_file, strerror(-e));
    if (token_file && !*token)
        return fmoe_fail(error, -EINVAL, "token_file %s contains no token", token_file);
    e = mf_http_new(url, &(struct mf_http_access){.token = token, .ca = "", .request_ms = REQUEST_MS},
                    &r->http);
    explicit_bzero(token, sizeof(token));
    if (e == -ELIBACC)
        return fmoe_fail(error, e,
                         "libcurl.so.4, which sends reports, was not found: install Debian's package "
                         "libcurl4");
    if (e < 0)
        return fmoe_fail(error, e, "url '%s': %s", url,
                         e == -EPERM ? "a token requires https or a loopback address"
                                     : "expected http://host:port or https://host:port");
    e = mf_secret_make(name);
    if (e < 0)
        return fmoe_fail(error, e, "cannot generate a key for reports: %s", strerror(-e));
    mf_key_print(name, r->name);
    r->f = f;
    r->seconds = seconds;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&r->wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)pthread_mutex_init(&r->lock, NULL);
    /* block signals in the new thread, so that the program's own threads handle them */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    e = -pthread_create(&r->thread, NULL, run, r);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e < 0 ? fmoe_fail(error, e, "cannot start the report thread: %s", strerror(-e)) : 0;
}

int fmoe_report_start(struct fmoe *f, const char *url, const char *token_file, int64_t seconds,
                      struct fmoe_error *error)
{
    struct reporter *r;
    int e;

    if (seconds < 1 || seconds > SECONDS_MAX)
        return fmoe_fail(error, -EINVAL, "seconds is %lld: expected 1 to %d", (long long)seconds,
                         SECONDS_MAX);
    r = calloc(1, sizeof(*r));
    if (!r)
        return fmoe_fail(error, -ENOMEM, "out of memory");
    (void)pthread_mutex_lock(&f->reporter_lock);
    e = f->reporter ? fmoe_fail(error, -EALREADY, "the report thread is already running")
                    : start(f, url, token_file, seconds, error, r);
    if (e < 0)
        (void)reporter_free(r);
    else
        f->reporter = r;
    (void)pthread_mutex_unlock(&f->reporter_lock);
    return e;
}

void fmoe_report_stop(struct fmoe *f)
{
    struct reporter *r;

    (void)pthread_mutex_lock(&f->reporter_lock);
    r = f->reporter;
    f->reporter = NULL;
    (void)pthread_mutex_unlock(&f->reporter_lock);
    if (!r)
        return;
    (void)pthread_mutex_lock(&r->lock);
    r->stopping = true;
    (void)pthread_cond_signal(&r->wake);
    (void)pthread_mutex_unlock(&r->lock);
    (void)pthread_join(r->thread, NULL);
    (void)reporter_free(r);
}

void fmoe_report_state(struct fmoe *f, struct fmoe_reported *ret)
{
    *ret = (struct fmoe_reported){0};
    (void)pthread_mutex_lock(&f->reporter_lock);
    if (f->reporter) {
        (void)pthread_mutex_lock(&f->reporter->lock);
        *ret = f->reporter->state;
        (void)pthread_mutex_unlock(&f->reporter->lock);
    }
    (void)pthread_mutex_unlock(&f->reporter_lock);
}
