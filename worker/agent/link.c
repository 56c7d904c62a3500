#include "worker/agent/link.h"

#include <string.h>

#include "common/base/cleanup.h"

MF_NAMES_DEFINE(mf_link_state, MF_LINK_, MF_LINK_STATE_MAP)
MF_NAMES_DEFINE(mf_link_event, MF_LINK_EVENT_, MF_LINK_EVENT_MAP)

#define HELLO_MS       1000  /* interval between HELLOs while the coordinator does not answer */
#define REFUSED_MS     500   /* delay of the next HELLO after a REFUSE */
#define RETRY_MS       100   /* delay before an attempt to send a message again */
#define WARNING_MAX_MS 60000 /* maximum interval between two warnings */
#define STARTS_MAX     4

/* Intervals that are not constants. */
enum {
    NEVER = -1,
    BEAT = -2,
    LEASE = -3,
    WARNING = -4,
    DOUBLE = -5, /* the time since the timer was started, at most WARNING_MAX_MS */
};

/* Sets of states, as bits. */
enum {
    STARTING = 1 << MF_LINK_STARTING,
    GREETING = 1 << MF_LINK_GREETING,
    JOINED = 1 << MF_LINK_JOINED,
    DRAINING = 1 << MF_LINK_DRAINING,
    REJOINING = 1 << MF_LINK_REJOINING,
    LEAVING = 1 << MF_LINK_LEAVING,
    ENDED = 1 << MF_LINK_ENDED,

    GREETS = GREETING | REJOINING,
    SERVES = JOINED | DRAINING,
    ANY = STARTING | GREETS | SERVES | LEAVING,
};
#define SAME MF_LINK_N_ /* the state does not change */

/* Sets of actions. */
enum {
    UNANSWERED = MF_LINK_DROP_UNITS | MF_LINK_RECONNECT,
    LOST = MF_LINK_WARN_LOST | UNANSWERED,
    LEAVE = MF_LINK_STOP_RUNNERS | MF_LINK_SEND_RESULTS,
};

/* Facts about the worker's units and results, as bits. */
enum {
    HAS_ROOM = 1 << 0, /* another unit may be requested */
    NO_JOBS = 1 << 1,
    FINISHED = 1 << 2, /* no jobs, and the runner is idle */
    RESULTS = 1 << 3,  /* the spool has results */
    NO_RESULTS = 1 << 4,
};

/* clang-format off */
#define EVENT(name)  MF_LINK_EVENT_##name
#define TO(name)     MF_LINK_##name
#define ON(name, ms) {MF_LINK_TIMER_##name, ms}

static const struct transition {
    enum mf_link_event event;
    unsigned from; /* states in which the transition applies */
    enum mf_link_state to;
    unsigned actions;
    struct start {
        enum mf_link_timer timer;
        int64_t delay;
    } starts[STARTS_MAX];
} transitions[] = {
    {EVENT(RUNNER_READY),   STARTING,           TO(GREETING),  0,
        {ON(HELLO, 0), ON(SILENCE, LEASE), ON(WARNING, WARNING)}},

    {EVENT(WELCOME),        GREETING|JOINED,    TO(JOINED),    MF_LINK_RESEND_RESULTS,
        {ON(SILENCE, LEASE), ON(RESEND, LEASE), ON(READY, 0), ON(BEAT, 0)}},
    {EVENT(WELCOME),        REJOINING|DRAINING, TO(DRAINING),  MF_LINK_RESEND_RESULTS,
        {ON(SILENCE, LEASE), ON(RESEND, LEASE), ON(BEAT, 0)}},

    {EVENT(REFUSE_UNKNOWN), GREETING|JOINED,    TO(GREETING),  0,                  {ON(HELLO, 0)}},
    {EVENT(REFUSE_UNKNOWN), REJOINING|DRAINING, TO(REJOINING), 0,                  {ON(HELLO, 0)}},
    {EVENT(REFUSE_KEY),     GREETING|JOINED,    TO(GREETING),  MF_LINK_DROP_UNITS, {ON(HELLO, REFUSED_MS)}},
    {EVENT(REFUSE_KEY),     REJOINING|DRAINING, TO(REJOINING), MF_LINK_DROP_UNITS, {ON(HELLO, REFUSED_MS)}},
    {EVENT(REFUSE_OTHER),   GREETING|JOINED,    TO(GREETING),  0,                  {ON(HELLO, REFUSED_MS)}},
    {EVENT(REFUSE_OTHER),   REJOINING|DRAINING, TO(REJOINING), 0,                  {ON(HELLO, REFUSED_MS)}},

    /* After silence for the length of a lease, the coordinator has leased the units to other workers. The old
     * connection may be half-open, which means that it accepts messages and delivers none. */
    {EVENT(SILENCE),        JOINED,             TO(GREETING),  LOST,               {ON(HELLO, 0)}},
    {EVENT(SILENCE),        DRAINING,           TO(REJOINING), LOST,               {ON(HELLO, 0)}},
    {EVENT(SILENCE),        GREETS,             SAME,          UNANSWERED,         {ON(HELLO, 0)}},

    {EVENT(UNIT),           JOINED,             SAME,          0,                  {ON(READY, 0)}},
    {EVENT(DRAIN),          SERVES,             TO(DRAINING),  MF_LINK_DROP_NEXT_UNITS, {ON(DRAINED, 0)}},
    {EVENT(DRAIN),          GREETS,             TO(REJOINING), MF_LINK_DROP_NEXT_UNITS, {ON(DRAINED, 0)}},

    {EVENT(DRAINED),        DRAINING,           TO(LEAVING),   LEAVE,
        {ON(ACKNOWLEDGED, 0), ON(LEAVE, MF_LINK_LEAVE_MS)}},
    {EVENT(STOP),           SERVES,             TO(LEAVING),   LEAVE,
        {ON(ACKNOWLEDGED, 0), ON(LEAVE, MF_LINK_LEAVE_MS)}},
    {EVENT(STOP),           STARTING|GREETS,    TO(LEAVING),   LEAVE,              {ON(LEAVE, 0)}},
    {EVENT(RUNNERS_FAILED), STARTING,           TO(ENDED),     MF_LINK_CLOSE,      {{0}}},
    {EVENT(LEFT),           LEAVING,            TO(ENDED),     MF_LINK_SEND_BYE | MF_LINK_CLOSE, {{0}}},

    {EVENT(MESSAGE),        ANY,                SAME,          0, {ON(SILENCE, LEASE)}},
    {EVENT(ANSWER),         ANY,                SAME,          0, {ON(WARNING, WARNING)}},
    {EVENT(HELLO_SENT),     GREETS,             SAME,          0, {ON(HELLO, HELLO_MS)}},
    {EVENT(READY_SENT),     JOINED,             SAME,          0, {ON(READY, NEVER), ON(READY_AGAIN, LEASE)}},
    {EVENT(BEAT_SENT),      SERVES,             SAME,          0, {ON(BEAT, BEAT)}},
    {EVENT(RESULT_SENT),    ANY,                SAME,          0, {ON(RESEND, LEASE)}},
    {EVENT(NO_JOBS),        ANY,                SAME,          0, {ON(READY_AGAIN, LEASE)}},
};

/* A timer fires when it is due, the link is in one of the timer's states, and the timer's facts hold. Its
 * actions are then due, and its event makes a transition. The timer is due again after `next`, unless the
 * transition or a later event sets another time. */
static const struct timer {
    unsigned states;
    unsigned facts;
    int64_t next;
    int64_t min_ms; /* minimum interval between two actions */
    unsigned actions;
    enum mf_link_event event;
} timers[MF_LINK_N_TIMERS] = {
#define TIMER(name) [MF_LINK_TIMER_##name]
#define NONE        MF_LINK_EVENT_N_
    /*                     states         facts       next      min  actions                 event */
    TIMER(SILENCE)      = {GREETS|SERVES, 0,          LEASE,    0,   0,                      EVENT(SILENCE)},
    TIMER(WARNING)      = {GREETS,        0,          DOUBLE,   0,   MF_LINK_WARN_SILENCE,   NONE},
    TIMER(HELLO)        = {GREETS,        0,          RETRY_MS, 100, MF_LINK_SEND_HELLO,     NONE},
    /* No acknowledgement arrived for the length of a lease, so the connection has lost the results */
    TIMER(RESEND)       = {SERVES,        RESULTS,    LEASE,    0,   MF_LINK_RESEND_RESULTS, NONE},
    TIMER(READY)        = {JOINED,        HAS_ROOM,   RETRY_MS, 0,   MF_LINK_SEND_READY,     NONE},
    /* No unit arrived for the length of a lease, so the coordinator may have lost READY while the connection
     * stayed up */
    TIMER(READY_AGAIN)  = {JOINED,        NO_JOBS,    RETRY_MS, 0,   MF_LINK_SEND_READY,     NONE},
    TIMER(BEAT)         = {SERVES,        0,          BEAT,     0,   MF_LINK_SEND_BEAT,      NONE},
    TIMER(DRAINED)      = {DRAINING,      FINISHED,   NEVER,    0,   0,                      EVENT(DRAINED)},
    TIMER(ACKNOWLEDGED) = {LEAVING,       NO_RESULTS, NEVER,    0,   0,                      EVENT(LEFT)},
    TIMER(LEAVE)        = {LEAVING,       0,          NEVER,    0,   0,                      EVENT(LEFT)},
};

static const struct {
    const char *code;
    enum mf_link_event event;
} refusals[] = {
    {"malformed",      EVENT(REFUSE_MESSAGE)},
    {"too_large",      EVENT(REFUSE_MESSAGE)},
    {"unknown_worker", EVENT(REFUSE_UNKNOWN)},
    {"unknown_key",    EVENT(REFUSE_KEY)},
};
/* clang-format on */

enum mf_link_event mf_link_refusal(const char *code)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(refusals); i++) {
        if (strcmp(refusals[i].code, code) == 0)
            return refusals[i].event;
    }
    return MF_LINK_EVENT_REFUSE_OTHER;
}

static int64_t interval_ms(const struct mf_link *l, enum mf_link_timer timer, int64_t interval,
                           int64_t now_ms)
{
    const int64_t by_name[] = {
        [-BEAT] = l->beat_ms,
        [-LEASE] = l->lease_ms,
        [-WARNING] = l->warning_ms,
        [-DOUBLE] = MF_MIN(now_ms - l->timers[timer].started_ms, WARNING_MAX_MS),
    };
    return interval < 0 ? by_name[-interval] : interval;
}

static void set_due(struct mf_link *l, enum mf_link_timer timer, int64_t interval, int64_t now_ms)
{
    int64_t due_ms = now_ms + interval_ms(l, timer, interval, now_ms);
    l->timers[timer].due_ms =
        interval == NEVER ? INT64_MAX : MF_MAX(due_ms, l->timers[timer].fired_ms + timers[timer].min_ms);
}

static void start(struct mf_link *l, const struct start *s, int64_t now_ms)
{
    l->timers[s->timer].started_ms = now_ms;
    set_due(l, s->timer, s->delay, now_ms);
}

void mf_link_init(struct mf_link *l, int64_t warning_ms)
{
    *l = (struct mf_link){.state = MF_LINK_STARTING,
                          .beat_ms = MF_LINK_BEAT_MS,
                          .lease_ms = 3 * MF_LINK_BEAT_MS,
                          .warning_ms = warning_ms};
    for (int i = 0; i < MF_LINK_N_TIMERS; i++) {
        l->timers[i].fired_ms = INT64_MIN / 2; /* min_ms does not delay the first action */
        l->timers[i].due_ms = INT64_MAX;
    }
}

void mf_link_set_intervals(struct mf_link *l, int64_t beat_ms, int64_t lease_ms)
{
    l->beat_ms = beat_ms;
    l->lease_ms = lease_ms;
}

/* Returns NULL if the event has no effect in this state. */
static const struct transition *find_transition(enum mf_link_state state, enum mf_link_event event)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(transitions); i++) {
        if (transitions[i].event == event && transitions[i].from & 1u << state)
            return &transitions[i];
    }
    return NULL;
}

bool mf_link_accepts(const struct mf_link *l, enum mf_link_event event)
{
    return find_transition(l->state, event) != NULL;
}

unsigned mf_link_apply(struct mf_link *l, enum mf_link_event event, int64_t now_ms)
{
    const struct transition *t = find_transition(l->state, event);
    if (!t)
        return 0;
    if (t->to != SAME)
        l->state = t->to;
    for (int i = 0; i < STARTS_MAX && t->starts[i].timer != MF_LINK_NO_TIMER; i++)
        start(l, &t->starts[i], now_ms);
    return t->actions;
}

static unsigned facts_of(const struct mf_link_work *w)
{
    return (w->n_jobs < MF_LINK_JOBS_WANTED ? HAS_ROOM : 0u) | (w->n_jobs == 0 ? NO_JOBS : 0u) |
           (w->n_jobs == 0 && !w->runner_busy ? FINISHED : 0u) | (w->n_results > 0 ? RESULTS : NO_RESULTS);
}

static bool runs(const struct mf_link *l, enum mf_link_timer timer, unsigned facts)
{
    const struct timer *t = &timers[timer];
    return (t->states & 1u << l->state) && (facts & t->facts) == t->facts;
}

unsigned mf_link_due(struct mf_link *l, const struct mf_link_work *work, int64_t now_ms)
{
    unsigned actions = 0, facts = facts_of(work);
    for (enum mf_link_timer i = MF_LINK_NO_TIMER + 1; i < MF_LINK_N_TIMERS; i++) {
        if (!runs(l, i, facts) || now_ms < l->timers[i].due_ms)
            continue;
        l->timers[i].fired_ms = now_ms;
        set_due(l, i, timers[i].next, now_ms);
        actions |= timers[i].actions | mf_link_apply(l, timers[i].event, now_ms);
    }
    return actions;
}

int64_t mf_link_next_ms(const struct mf_link *l, const struct mf_link_work *work)
{
    int64_t next_ms = INT64_MAX;
    unsigned facts = facts_of(work);
    for (enum mf_link_timer i = MF_LINK_NO_TIMER + 1; i < MF_LINK_N_TIMERS; i++) {
        if (runs(l, i, facts))
            next_ms = MF_MIN(next_ms, l->timers[i].due_ms);
    }
    return next_ms;
}

bool mf_link_is_joined(const struct mf_link *l)
{
    return SERVES & 1u << l->state;
}

bool mf_link_is_leaving(const struct mf_link *l)
{
    return (LEAVING | ENDED) & 1u << l->state;
}

bool mf_link_sends_results(const struct mf_link *l)
{
    return (SERVES | LEAVING) & 1u << l->state;
}

int64_t mf_link_silent_ms(const struct mf_link *l, int64_t now_ms)
{
    return now_ms - l->timers[MF_LINK_TIMER_WARNING].started_ms;
}
