/* One logical worker: its DEALER, its spool, its jobs and its runner_pool of runners.
 *
 *   starting ─a runner is ready─► greeting ─WELCOME─► joined ─DRAIN, stop─► leaving ─spool empty, or time is up─► ended
 *                                    ▲                   │
 *                                    └─REFUSE unknown_worker (jobs go on), or silence for a lease (jobs are dropped)
 *
 * At most two jobs: one runs, the next is asked for while it runs. Every RESULT is in the spool before it is sent, and
 * leaves it when acknowledged. Nothing here blocks; many agents share one loop (worker/main.c), each with its own
 * socket. One thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "worker/agent/runner_pool.h"

#define MF_AGENT_POLLITEMS (1 + MF_RUNNER_POOL_POLLFDS) /* the socket and its runners */

struct mf_agent;
struct mf_link_keys;

struct mf_agent_options {
    void *zmq;                       /* context */
    const char *coordinator;         /* "tcp://host:port" */
    const struct mf_link_keys *keys; /* NULL: it has none */
    const char *name;                /* unique in the farm */
    const char *device;
    const char *identity; /* of the device, for its lock; NULL or "": it has none but its name */
    const char *spool_folder;
    const char *lock_folder;
    const char *const *runner_argv; /* of its runners; NULL ends */
    uint64_t keep_bytes;
    bool reserve;       /* keep a second runner started */
    int64_t silence_ms; /* without an answer, after which it says so; 0: 10 s */
    int64_t idle_ms;    /* that a runner may be silent outside any step; 0: two minutes */
};
/* Locks the device and opens the spool; the texts and argv have to outlive it. -errno with the sentence in why. */
int mf_agent_new(const struct mf_agent_options *o, char *why, size_t why_cap, struct mf_agent **ret);
struct mf_agent *mf_agent_free(struct mf_agent *a);

/* Always MF_AGENT_POLLITEMS entries; -1 and NULL for those not in use. */
void mf_agent_pollitems(const struct mf_agent *a, zmq_pollitem_t items[MF_AGENT_POLLITEMS]);
/* When it wants its turn without an event (mf_now_ms clock). */
int64_t mf_agent_due_ms(const struct mf_agent *a);
/* After every poll. */
void mf_agent_turn(struct mf_agent *a);

/* Hands its units back: runners end, results still go out, then BYE. */
void mf_agent_stop(struct mf_agent *a, const char *reason);
/* True when it is over; *ret_exit is then what the process should say of it. */
bool mf_agent_ended(const struct mf_agent *a, int *ret_exit);
