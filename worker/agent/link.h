/* State machine of a worker's link to the coordinator: which messages are due, and what a refusal or a silent
 * coordinator changes. docs/protocol.md section 1 describes the messages.
 *
 *   starting ── runner ready ─► greeting ────── WELCOME ──────► joined
 *      │                        ▲   │                          │    │
 *      │                        └───┼──── REFUSE, silence ─────┘  DRAIN
 *      │                          DRAIN                             │
 *      │                            ▼                               ▼
 *      │                        rejoining ───── WELCOME ──────► draining ─── no unit left ──┐
 *      │                            ▲                              │                        │
 *      │                            └──── REFUSE, silence ─────────┘     any state ── stop ─┤
 *      │                                                                                    ▼
 *      └─ no runner starts ─► ended ◄─── results acknowledged, or MF_LINK_LEAVE_MS ───── leaving
 *
 *   starting   no runner has opened the device: nothing is sent
 *   greeting   HELLO is sent until WELCOME arrives; leased units continue
 *   joined     units are requested, results and BEATs are sent
 *   draining   as joined, but no unit is requested or accepted
 *   rejoining  as greeting, but WELCOME leads back to draining
 *   leaving    runners have ended; unacknowledged results are sent, then BYE
 *   ended      the socket is closed
 *
 * link.c has two tables: transitions (the change that each event makes) and timers (the deadlines of each
 * state). The caller reports events, carries out the returned actions, and calls mf_link_due whenever
 * mf_link_next_ms has passed or an event has happened. A link is a value: it has no socket and no clock.
 * Times are in ms of any monotonic clock. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"

/* one unit runs, and the next is requested early to hide the network latency */
#define MF_LINK_JOBS_WANTED 2
#define MF_LINK_BEAT_MS     1000 /* heartbeat interval until a WELCOME sets another interval */
#define MF_LINK_LEAVE_MS    3000 /* maximum wait for acknowledgements before BYE */

/* clang-format off */
#define MF_LINK_STATE_MAP(X, P)   \
    X(P, STARTING, "starting")    \
    X(P, GREETING, "greeting")    \
    X(P, JOINED, "joined")        \
    X(P, DRAINING, "draining")    \
    X(P, REJOINING, "rejoining")  \
    X(P, LEAVING, "leaving")      \
    X(P, ENDED, "ended")

#define MF_LINK_EVENT_MAP(X, P)                                                                       \
    X(P, RUNNER_READY, "runner_ready")                                                                \
    X(P, RUNNERS_FAILED, "runners_failed") /* no runner starts on the device any more */              \
    X(P, STOP, "stop")                                                                                \
    X(P, MESSAGE, "message")               /* a valid message of any type was received */             \
    X(P, ANSWER, "answer")                 /* message of a coordinator of any version      */         \
    X(P, WELCOME, "welcome")                                                                          \
    X(P, UNIT, "unit")                                                                                \
    X(P, DRAIN, "drain")                                                                              \
    X(P, REFUSE_MESSAGE, "refuse_message") /* REFUSE of one message only: the link does not change */ \
    X(P, REFUSE_UNKNOWN, "refuse_unknown") /* the coordinator does not know the worker (any more) */  \
    X(P, REFUSE_KEY, "refuse_key")         /* the worker's key is revoked */                          \
    X(P, REFUSE_OTHER, "refuse_other")                                                                \
    X(P, HELLO_SENT, "hello_sent")                                                                    \
    X(P, READY_SENT, "ready_sent")                                                                    \
    X(P, BEAT_SENT, "beat_sent")                                                                      \
    X(P, RESULT_SENT, "result_sent")                                                                  \
    X(P, NO_JOBS, "no_jobs")               /* the last leased unit has ended */                       \
    X(P, SILENCE, "silence")               /* timer: no message for a lease */                        \
    X(P, DRAINED, "drained")               /* timer: the running unit has ended after DRAIN */        \
    X(P, LEFT, "left")                     /* timer: all acknowledged, or MF_LINK_LEAVE_MS over */
/* clang-format on */
MF_NAMES_DECLARE(mf_link_state, MF_LINK_, MF_LINK_STATE_MAP);
MF_NAMES_DECLARE(mf_link_event, MF_LINK_EVENT_, MF_LINK_EVENT_MAP);

/* Actions, as bits. The caller carries them out in this order. */
enum mf_link_action {
    MF_LINK_WARN_LOST = 1 << 0,       /* log that the coordinator was silent for the length of a lease */
    MF_LINK_WARN_SILENCE = 1 << 1,    /* log that no coordinator answers, see mf_link_silent_ms */
    MF_LINK_DROP_UNITS = 1 << 2,      /* drop all units; replace a busy runner */
    MF_LINK_DROP_NEXT_UNITS = 1 << 3, /* drop all units except the running one */
    MF_LINK_STOP_RUNNERS = 1 << 4,    /* end the runners and drop all units */
    MF_LINK_RECONNECT = 1 << 5,
    MF_LINK_SEND_HELLO = 1 << 6,
    MF_LINK_RESEND_RESULTS = 1 << 7, /* send all results of the spool again */
    MF_LINK_SEND_RESULTS = 1 << 8,   /* send the results that are not marked as sent */
    MF_LINK_SEND_READY = 1 << 9,
    MF_LINK_SEND_BEAT = 1 << 10,
    MF_LINK_SEND_BYE = 1 << 11,
    MF_LINK_CLOSE = 1 << 12, /* end the runners, close the socket */
};
#define MF_LINK_N_ACTIONS 13

enum mf_link_timer {
    MF_LINK_NO_TIMER,
    MF_LINK_TIMER_SILENCE,
    MF_LINK_TIMER_WARNING,
    MF_LINK_TIMER_HELLO,
    MF_LINK_TIMER_RESEND,
    MF_LINK_TIMER_READY,
    MF_LINK_TIMER_READY_AGAIN,
    MF_LINK_TIMER_BEAT,
    MF_LINK_TIMER_DRAINED,
    MF_LINK_TIMER_ACKNOWLEDGED,
    MF_LINK_TIMER_LEAVE,
    MF_LINK_N_TIMERS
};

struct mf_link {
    enum mf_link_state state;
    int64_t beat_ms, lease_ms; /* both set by WELCOME */
    int64_t warning_ms;        /* silence before the first warning */
    struct {
        int64_t started_ms; /* time at which an event started the timer */
        int64_t fired_ms;
        int64_t due_ms; /* INT64_MAX: not started */
    } timers[MF_LINK_N_TIMERS];
};

/* The work that the worker holds: units and unacknowledged results. Some timers fire or wait depending on it.
 */
struct mf_link_work {
    size_t n_jobs, n_results; /* n_results: unacknowledged results in the spool */
    bool runner_busy;
};

/* warning_ms: silence of the coordinator before the first MF_LINK_WARN_SILENCE. */
void mf_link_init(struct mf_link *l, int64_t warning_ms);
/* Sets the intervals that a WELCOME contains. Call it before reporting MF_LINK_EVENT_WELCOME. */
void mf_link_set_intervals(struct mf_link *l, int64_t beat_ms, int64_t lease_ms);
/* Returns the event for the code of a REFUSE. */
enum mf_link_event mf_link_refusal(const char *code);

/* True if the event has an effect in this state. */
bool mf_link_accepts(const struct mf_link *l, enum mf_link_event event);
/* Makes the transition of an event and returns the actions to carry out. An event without a transition
 * changes nothing and returns no actions. */
unsigned mf_link_apply(struct mf_link *l, enum mf_link_event event, int64_t now_ms);
/* Returns the actions that are due and starts their timers again. If a message could not be sent, its _SENT
 * event is missing and the action is due again after 100 ms. */
unsigned mf_link_due(struct mf_link *l, const struct mf_link_work *work, int64_t now_ms);
/* Returns the time of the next action if no event happens; INT64_MAX: no action is due. */
int64_t mf_link_next_ms(const struct mf_link *l, const struct mf_link_work *work);

/* True if the state is joined or draining. The coordinator then accepts BEATs. */
bool mf_link_is_joined(const struct mf_link *l);
/* True if the state is leaving or ended. No unit may then start. */
bool mf_link_is_leaving(const struct mf_link *l);
/* True if the state is joined, draining or leaving. */
bool mf_link_sends_results(const struct mf_link *l);
/* Returns the time since the last answer of a coordinator. */
int64_t mf_link_silent_ms(const struct mf_link *l, int64_t now_ms);
