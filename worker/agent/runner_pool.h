/* The runners of one device: the working runner, a reserve runner, and a runner that compiles ahead if there
 * is code to compile.
 *
 *   started ─hello─► greeted (have …, describe sent) ─described─► ready ─► died ─► reserve or new runner
 *
 * The reserve has started and sent `hello`, so that the next step after a death does not wait for a program
 * to load. The pool passes the `described` message of the first runner and all kept memory files to later
 * runners. The compiling runner opens no device. No process waits for the compiling runner, because every
 * runner can compile the code it needs. */
#pragma once

#include <cjson/cJSON.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "worker/agent/runner_host.h"

#define MF_RUNNER_POOL_POLLFDS (3 * MF_RUNNER_POLLFDS) /* one set for each runner */

struct mf_runner_pool;

struct mf_runner_pool_options {
    const char *const *argv; /* command line of a runner */
    enum mf_isolation isolation;
    uint64_t keep_bytes; /* limit of the memfd store */
    bool reserve;
    int64_t start_limit_ms; /* time limit for `hello`; 0: 60 s */
};
/* Creates a pool without starting a process. mf_runner_pool_run_once starts the processes. argv must outlive
 * the pool. */
int mf_runner_pool_new(const struct mf_runner_pool_options *o, struct mf_runner_pool **ret);
struct mf_runner_pool *mf_runner_pool_free(struct mf_runner_pool *c);

void mf_runner_pool_pollfds(const struct mf_runner_pool *c, struct pollfd fds[MF_RUNNER_POOL_POLLFDS]);
int64_t mf_runner_pool_due_ms(const struct mf_runner_pool *c);
/* Call it after every poll, then call mf_runner_pool_next until it returns MF_RUNNER_POOL_NOTHING. */
void mf_runner_pool_run_once(struct mf_runner_pool *c);

enum mf_runner_pool_event {
    MF_RUNNER_POOL_NOTHING,
    MF_RUNNER_POOL_READY,     /* a runner is described and idle */
    MF_RUNNER_POOL_DESCRIBED, /* the working runner measured higher ceilings: see mf_runner_pool_described */
    MF_RUNNER_POOL_MESSAGE,   /* the caller owns *ret */
    /* the working runner died, whether or not it was ready: see mf_runner_pool_why */
    MF_RUNNER_POOL_DIED,
    /* no runner becomes ready, and the pool starts no more runners: see mf_runner_pool_why */
    MF_RUNNER_POOL_FAILED,
};
enum mf_runner_pool_event mf_runner_pool_next(struct mf_runner_pool *c, cJSON **ret);
/* Runs one iteration, for callers without an event loop of their own. Returns the pool's next event. If the
 * pool has no event, waits for input, but not beyond the time `until_ms`, and returns MF_RUNNER_POOL_NOTHING.
 */
enum mf_runner_pool_event mf_runner_pool_iterate(struct mf_runner_pool *c, cJSON **ret, int64_t until_ms);

/* Returns the reason of the last reported death. */
const char *mf_runner_pool_why(const struct mf_runner_pool *c);
bool mf_runner_pool_hung(const struct mf_runner_pool *c);
/* True if the runner that died last was ready before its death. */
bool mf_runner_pool_was_ready(const struct mf_runner_pool *c);
/* Returns the number of runner deaths over the life of the pool. */
int64_t mf_runner_pool_deaths(const struct mf_runner_pool *c);

/* Returns the process id of the working runner's supervisor; 0 if no runner works. */
pid_t mf_runner_pool_pid(const struct mf_runner_pool *c);
/* Sends a message to the working runner. Returns -ENOTCONN if the runner is not ready. */
int mf_runner_pool_send(struct mf_runner_pool *c, const cJSON *message);
/* True if the runners can compile ahead; false before the first runner is ready. */
bool mf_runner_pool_compiles(const struct mf_runner_pool *c);
/* Compiles the code of a shape (its row as text) in another runner while the working runner measures. Returns
 * -ENOTSUP if the runners cannot compile ahead or no runner is ready yet, and -EAGAIN if the compiling runner
 * has just died. */
int mf_runner_pool_compile_ahead(struct mf_runner_pool *c, const char *shape);
/* Sets the maximum silence of the working runner from now on; 0: no limit. */
void mf_runner_pool_limit(struct mf_runner_pool *c, int64_t limit_ms);
/* Kills the working runner. The event MF_RUNNER_POOL_DIED then has the given reason. */
void mf_runner_pool_kill(struct mf_runner_pool *c, const char *reason);
/* Ends the working runner without MF_RUNNER_POOL_DIED and starts another runner. Used after CANCEL and if the
 * coordinator is silent. */
void mf_runner_pool_replace(struct mf_runner_pool *c);
/* Ends all runners and starts no more. */
void mf_runner_pool_stop(struct mf_runner_pool *c);

/* Return `hello` and `described` of the last ready runner; NULL before the first MF_RUNNER_POOL_READY. */
const cJSON *mf_runner_pool_hello(const struct mf_runner_pool *c);
const cJSON *mf_runner_pool_described(const struct mf_runner_pool *c);
