/* One logical worker: its ZeroMQ socket, spool, jobs and pool of runners. link.h has its states.
 *
 * An agent holds at most two jobs: one runs, and the next is requested while the first runs. Every RESULT is
 * written to the spool before it is sent, and removed from the spool when the coordinator acknowledges it. No
 * call blocks. Many agents share one event loop (worker/main.c), but each agent has its own socket.
 * Single-threaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "worker/agent/runner_pool.h"

#define MF_AGENT_POLLITEMS (1 + MF_RUNNER_POOL_POLLFDS) /* the socket and the runners */

struct mf_agent;
struct mf_link_keys;

struct mf_agent_options {
    void *zmq;                       /* ZeroMQ context */
    const char *coordinator;         /* "tcp://host:port" */
    const struct mf_link_keys *keys; /* NULL: no CURVE */
    const char *name;                /* unique in the farm */
    const char *device;
    const char *identity; /* device identity for the lock; NULL or "": lock by device name */
    const char *spool_folder;
    const char *lock_folder;
    const char *const *runner_argv; /* command line of a runner, NULL-terminated */
    enum mf_isolation isolation;    /* of the runners */
    uint64_t keep_bytes;
    bool reserve;                   /* true: keep a second runner started */
    int64_t start_limit_ms;         /* time that a runner has to start; 0: 60 s */
    int64_t silence_warning_ms;     /* silence of the coordinator before a warning; 0: 10 s */
    int64_t runner_idle_timeout_ms; /* maximum silence of a runner outside a step; 0: 120 s */
};
/* Locks the device and opens the spool. The strings and argv must outlive the agent. On error, returns -errno
 * and writes the reason to `why`. */
int mf_agent_new(const struct mf_agent_options *o, char *why, size_t why_cap, struct mf_agent **ret);
struct mf_agent *mf_agent_free(struct mf_agent *a);

/* Fills all MF_AGENT_POLLITEMS entries; unused entries have fd -1 and socket NULL. */
void mf_agent_pollitems(const struct mf_agent *a, zmq_pollitem_t items[MF_AGENT_POLLITEMS]);
/* Returns the time at which mf_agent_run_once must be called if no event happens (mf_now_ms clock). */
int64_t mf_agent_due_ms(const struct mf_agent *a);
/* Runs one iteration of the event loop. Call it after every poll. */
void mf_agent_run_once(struct mf_agent *a);

/* Starts the shutdown: runners end, leased units are returned, pending results are sent, and then BYE is
 * sent. */
void mf_agent_stop(struct mf_agent *a, const char *reason);
/* True once the agent has ended; *ret_exit is then the exit code for the process. */
bool mf_agent_ended(const struct mf_agent *a, int *ret_exit);
