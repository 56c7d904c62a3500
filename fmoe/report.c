/* The reporter: a thread that hands misses to a farm. */
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
#define REQUEST_MS  10000 /* whoever ends the reporter waits for one or two */

struct reporter {
    struct fmoe *f;
    struct mf_http *http;
    pthread_t thread;
    pthread_mutex_t lock; /* of ends and state */
    pthread_cond_t wake;
    bool ends;
    struct fmoe_reported state;
    int64_t seconds;
    char key[MF_KEY_TEXT_MAX + 24]; /* of the report in hand */
    char name[MF_KEY_TEXT_MAX];     /* of this reporter: what makes its keys nobody else's */
    uint64_t number;
    char *body; /* in hand: not acknowledged yet; NULL: none */
};

enum answer { TAKEN, LATER, NEVER };

/* Too much, too often, or from nobody that the farm knows yet, may pass; what it cannot read never will. */
static enum answer answer_of(long status)
{
    if (status == 200 || status == 201)
        return TAKEN;
    return status == 401 || status == 403 || status == 429 || status >= 500 ? LATER : NEVER;
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
    enum answer answer = LATER;

    mf_http_reply_init(&reply);
    if (mf_http_send(r->http, &q, &reply) == 0)
        answer = answer_of(reply.status);
    mf_http_reply_release(&reply);
    return answer;
}

static enum answer report(struct reporter *r)
{
    enum answer answer = TAKEN;

    if (!r->body && (fmoe_misses(r->f, NULL, &r->body) < 0 || !r->body))
        return TAKEN;
    if (!*r->key)
        (void)snprintf(r->key, sizeof(r->key), "%s/%llu", r->name, (unsigned long long)++r->number);
    answer = post(r);
    (void)pthread_mutex_lock(&r->lock);
    r->state.sent += answer == TAKEN;
    r->state.failed += answer == LATER;
    r->state.refused += answer == NEVER;
    (void)pthread_mutex_unlock(&r->lock);
    if (answer != LATER) {
        free(r->body);
        r->body = NULL;
        r->key[0] = '\0';
    }
    return answer;
}

/* -> true: it ends */
static bool wait_for_turn(struct reporter *r)
{
    struct timespec until;
    bool ends;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)r->seconds;
    (void)pthread_mutex_lock(&r->lock);
    while (!r->ends && pthread_cond_timedwait(&r->wake, &r->lock, &until) == 0)
        ;
    ends = r->ends;
    (void)pthread_mutex_unlock(&r->lock);
    return ends;
}

static void *run(void *context)
{
    struct reporter *r = context;
    enum answer last = TAKEN;

    while (!wait_for_turn(r))
        last = report(r);
    if (last != LATER) /* a farm that did not answer is not waited for */
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
        return fmoe_fail(error, -EINVAL, "token_file %s holds no token", token_file);
    e = mf_http_new(url, &(struct mf_http_access){.token = token, .ca = "", .request_ms = REQUEST_MS},
                    &r->http);
    explicit_bzero(token, sizeof(token));
    if (e < 0)
        return fmoe_fail(error, e, "url '%s': %s", url,
                         e == -EPERM ? "a token goes over https, or to this machine"
                                     : "expected http://host:port or https://host:port");
    e = mf_secret_make(name);
    if (e < 0)
        return fmoe_fail(error, e, "no randomness for the report's keys");
    mf_key_print(name, r->name);
    r->f = f;
    r->seconds = seconds;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&r->wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)pthread_mutex_init(&r->lock, NULL);
    /* a signal is for a thread of the program's */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    e = -pthread_create(&r->thread, NULL, run, r);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e < 0 ? fmoe_fail(error, e, "starting a thread: %s", strerror(-e)) : 0;
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
    (void)pthread_mutex_lock(&f->reporting);
    e = f->reporter ? fmoe_fail(error, -EALREADY, "misses are reported already")
                    : start(f, url, token_file, seconds, error, r);
    if (e < 0)
        (void)reporter_free(r);
    else
        f->reporter = r;
    (void)pthread_mutex_unlock(&f->reporting);
    return e;
}

void fmoe_report_stop(struct fmoe *f)
{
    struct reporter *r;

    (void)pthread_mutex_lock(&f->reporting);
    r = f->reporter;
    f->reporter = NULL;
    (void)pthread_mutex_unlock(&f->reporting);
    if (!r)
        return;
    (void)pthread_mutex_lock(&r->lock);
    r->ends = true;
    (void)pthread_cond_signal(&r->wake);
    (void)pthread_mutex_unlock(&r->lock);
    (void)pthread_join(r->thread, NULL);
    (void)reporter_free(r);
}

void fmoe_report_state(struct fmoe *f, struct fmoe_reported *ret)
{
    *ret = (struct fmoe_reported){0};
    (void)pthread_mutex_lock(&f->reporting);
    if (f->reporter) {
        (void)pthread_mutex_lock(&f->reporter->lock);
        *ret = f->reporter->state;
        (void)pthread_mutex_unlock(&f->reporter->lock);
    }
    (void)pthread_mutex_unlock(&f->reporting);
}
