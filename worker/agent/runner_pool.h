/* The runners of one device: the one that works, one in reserve, and, where there is something to compile, one that compiles
 * ahead of the one that works.
 *
 *   started ─hello─► greeted (have …, describe sent) ─described─► ready ─► died ─► the reserve, or a new one, started
 *
 * The reserve has been started and has said hello, and does nothing else; so the next step after a death does not wait
 * for a program to load. What is learned from the first runner (described) is told to the next, and what they gave to
 * keep is handed on. The one that compiles ahead opens no device, and nobody waits for it: what it has not made is made by
 * whoever wants it. */
#pragma once

#include <cjson/cJSON.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "worker/agent/runner_host.h"

#define MF_RUNNER_POOL_POLLFDS (3 * MF_RUNNER_POLLFDS) /* each of its runners */

struct mf_runner_pool;

struct mf_runner_pool_options {
    const char *const *argv; /* of a runner */
    uint64_t keep_bytes;     /* of sealed memory held for them */
    bool reserve;
};
/* argv has to outlive it. Starts nothing yet: turn() does. */
int mf_runner_pool_new(const struct mf_runner_pool_options *o, struct mf_runner_pool **ret);
struct mf_runner_pool *mf_runner_pool_free(struct mf_runner_pool *c);

void mf_runner_pool_pollfds(const struct mf_runner_pool *c, struct pollfd fds[MF_RUNNER_POOL_POLLFDS]);
int64_t mf_runner_pool_due_ms(const struct mf_runner_pool *c);
/* After every poll; then next() until it says nothing. */
void mf_runner_pool_turn(struct mf_runner_pool *c);

enum mf_runner_pool_event {
    MF_RUNNER_POOL_NOTHING,
    MF_RUNNER_POOL_READY, /* a runner is described and idle */
    MF_RUNNER_POOL_DESCRIBED, /* the ready one has found its device's ceilings to be higher: mf_runner_pool_described has them */
    MF_RUNNER_POOL_MESSAGE, /* *ret is the caller's */
    MF_RUNNER_POOL_DIED,    /* the one that was ready or on its way there; mf_runner_pool_why says why */
    MF_RUNNER_POOL_HOPELESS, /* no runner gets as far as ready, or none does any more; mf_runner_pool_why says why. Ends the runner_pool */
};
enum mf_runner_pool_event mf_runner_pool_next(struct mf_runner_pool *c, cJSON **ret);

/* Of the death last reported. */
const char *mf_runner_pool_why(const struct mf_runner_pool *c);
bool mf_runner_pool_hung(const struct mf_runner_pool *c);
/* false: it died on its way there, whatever it was to do then. */
bool mf_runner_pool_was_ready(const struct mf_runner_pool *c);
/* Runners that died, over the life of the runner_pool. */
int64_t mf_runner_pool_deaths(const struct mf_runner_pool *c);

/* Of the working runner; 0: there is none. */
pid_t mf_runner_pool_pid(const struct mf_runner_pool *c);
/* To the ready runner. */
int mf_runner_pool_send(struct mf_runner_pool *c, const cJSON *message);
/* Whether its runners compile ahead of measuring; false before the first is ready. */
bool mf_runner_pool_compiles(const struct mf_runner_pool *c);
/* Has the code of a shape (its row as text) compiled while others are measured. -ENOTSUP: these runners compile nothing ahead, or
 * none is ready yet; -EAGAIN: the one that did has just died. */
int mf_runner_pool_ahead(struct mf_runner_pool *c, const char *shape);
/* How long the ready runner may be silent from now on; 0: for ever. */
void mf_runner_pool_limit(struct mf_runner_pool *c, int64_t limit_ms);
/* Kills the working runner: reported as DIED with that reason. */
void mf_runner_pool_kill(struct mf_runner_pool *c, const char *reason);
/* Ends the working runner without a DIED, and starts another (cancel, silence of the coordinator). */
void mf_runner_pool_replace(struct mf_runner_pool *c);
/* Ends all of them, and starts none any more. */
void mf_runner_pool_stop(struct mf_runner_pool *c);

/* NULL before the first READY: `hello` and `described` of the last runner. */
const cJSON *mf_runner_pool_hello(const struct mf_runner_pool *c);
const cJSON *mf_runner_pool_described(const struct mf_runner_pool *c);
