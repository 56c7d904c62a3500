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

#define MF_CREW_POLLFDS (3 * MF_RUNNER_POLLFDS) /* each of its runners */

struct mf_crew;

struct mf_crew_options {
    const char *const *argv; /* of a runner */
    uint64_t keep_bytes;     /* of sealed memory held for them */
    bool reserve;
};
/* argv has to outlive it. Starts nothing yet: turn() does. */
int mf_crew_new(const struct mf_crew_options *o, struct mf_crew **ret);
struct mf_crew *mf_crew_free(struct mf_crew *c);

void mf_crew_pollfds(const struct mf_crew *c, struct pollfd fds[MF_CREW_POLLFDS]);
int64_t mf_crew_due_ms(const struct mf_crew *c);
/* After every poll; then next() until it says nothing. */
void mf_crew_turn(struct mf_crew *c);

enum mf_crew_event {
    MF_CREW_NOTHING,
    MF_CREW_READY, /* a runner is described and idle */
    MF_CREW_DESCRIBED, /* the ready one has found its device's ceilings to be higher: mf_crew_described has them */
    MF_CREW_MESSAGE, /* *ret is the caller's */
    MF_CREW_DIED,    /* the one that was ready or on its way there; mf_crew_why says why */
    MF_CREW_HOPELESS, /* no runner gets as far as ready, or none does any more; mf_crew_why says why. Ends the crew */
};
enum mf_crew_event mf_crew_next(struct mf_crew *c, cJSON **ret);

/* Of the death last reported. */
const char *mf_crew_why(const struct mf_crew *c);
bool mf_crew_hung(const struct mf_crew *c);
/* false: it died on its way there, whatever it was to do then. */
bool mf_crew_was_ready(const struct mf_crew *c);
/* Runners that died, over the life of the crew. */
int64_t mf_crew_deaths(const struct mf_crew *c);

/* Of the working runner; 0: there is none. */
pid_t mf_crew_pid(const struct mf_crew *c);
/* To the ready runner. */
int mf_crew_send(struct mf_crew *c, const cJSON *message);
/* Whether its runners compile ahead of measuring; false before the first is ready. */
bool mf_crew_compiles(const struct mf_crew *c);
/* Has the code of a shape (its row as text) compiled while others are measured. -ENOTSUP: these runners compile nothing ahead, or
 * none is ready yet; -EAGAIN: the one that did has just died. */
int mf_crew_ahead(struct mf_crew *c, const char *shape);
/* How long the ready runner may be silent from now on; 0: for ever. */
void mf_crew_limit(struct mf_crew *c, int64_t limit_ms);
/* Kills the working runner: reported as DIED with that reason. */
void mf_crew_kill(struct mf_crew *c, const char *reason);
/* Ends the working runner without a DIED, and starts another (cancel, silence of the coordinator). */
void mf_crew_replace(struct mf_crew *c);
/* Ends all of them, and starts none any more. */
void mf_crew_stop(struct mf_crew *c);

/* NULL before the first READY: `hello` and `described` of the last runner. */
const cJSON *mf_crew_hello(const struct mf_crew *c);
const cJSON *mf_crew_described(const struct mf_crew *c);
