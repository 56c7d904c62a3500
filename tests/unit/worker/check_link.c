/* worker/agent/link.c: every transition, every timer, and the conversations of docs/protocol.md section 1.
 *
 * A conversation is a script of inputs, "TIME:WORD" with times in ms. WORD is one of:
 *   EVENT              reported to the link, like runner_ready. If the event is a message, the events
 *                      `message` and `answer` are reported before it.
 *   jobsN              the worker holds N units
 *   busyN              1: the runner is busy
 *   resultsN           the spool holds N results
 *   onlineN            0: messages cannot be sent (1 at the start)
 *   answersN           1: the coordinator answers each BEAT
 *   leaseN             lease of the next WELCOME (1000 at the start; a BEAT is due every third of it)
 *   end                no input: time passes until then
 * The result is the list of actions, "TIME:ACTION+ACTION". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"
#include "worker/agent/link.h"

#define WARNING_MS 10000

/* In the order of enum mf_link_action. */
static const char *const action_names[] = {
    "warn_lost", "warn_silence", "drop",  "drop_next", "stop_runners", "reconnect", "HELLO",
    "resend",    "results",      "READY", "BEAT",      "BYE",          "close",
};
_Static_assert(MF_ARRAY_LEN(action_names) == MF_LINK_N_ACTIONS, "one name per action");

/* ---- transitions ---- */

#define DROP      MF_LINK_DROP_UNITS
#define DROP_NEXT MF_LINK_DROP_NEXT_UNITS
#define RESEND    MF_LINK_RESEND_RESULTS
#define LEAVE     (MF_LINK_STOP_RUNNERS | MF_LINK_SEND_RESULTS)
#define LOST      (MF_LINK_WARN_LOST | MF_LINK_DROP_UNITS | MF_LINK_RECONNECT)

/* clang-format off */
/* All other events keep the state. They are ignored or start timers. */
static const struct {
    enum mf_link_state from;
    enum mf_link_event event;
    enum mf_link_state to;
    unsigned actions;
} transitions[] = {
    {MF_LINK_STARTING,  MF_LINK_EVENT_RUNNER_READY,   MF_LINK_GREETING,  0},
    {MF_LINK_STARTING,  MF_LINK_EVENT_RUNNERS_FAILED, MF_LINK_ENDED,     MF_LINK_CLOSE},
    {MF_LINK_STARTING,  MF_LINK_EVENT_STOP,           MF_LINK_LEAVING,   LEAVE},

    {MF_LINK_GREETING,  MF_LINK_EVENT_WELCOME,        MF_LINK_JOINED,    RESEND},
    {MF_LINK_GREETING,  MF_LINK_EVENT_DRAIN,          MF_LINK_REJOINING, DROP_NEXT},
    {MF_LINK_GREETING,  MF_LINK_EVENT_REFUSE_UNKNOWN, MF_LINK_GREETING,  0},
    {MF_LINK_GREETING,  MF_LINK_EVENT_REFUSE_KEY,     MF_LINK_GREETING,  DROP},
    {MF_LINK_GREETING,  MF_LINK_EVENT_REFUSE_OTHER,   MF_LINK_GREETING,  0},
    {MF_LINK_GREETING,  MF_LINK_EVENT_SILENCE,        MF_LINK_GREETING,  DROP | MF_LINK_RECONNECT},
    {MF_LINK_GREETING,  MF_LINK_EVENT_STOP,           MF_LINK_LEAVING,   LEAVE},

    {MF_LINK_JOINED,    MF_LINK_EVENT_WELCOME,        MF_LINK_JOINED,    RESEND},
    {MF_LINK_JOINED,    MF_LINK_EVENT_UNIT,           MF_LINK_JOINED,    0},
    {MF_LINK_JOINED,    MF_LINK_EVENT_DRAIN,          MF_LINK_DRAINING,  DROP_NEXT},
    {MF_LINK_JOINED,    MF_LINK_EVENT_REFUSE_UNKNOWN, MF_LINK_GREETING,  0},
    {MF_LINK_JOINED,    MF_LINK_EVENT_REFUSE_KEY,     MF_LINK_GREETING,  DROP},
    {MF_LINK_JOINED,    MF_LINK_EVENT_REFUSE_OTHER,   MF_LINK_GREETING,  0},
    {MF_LINK_JOINED,    MF_LINK_EVENT_SILENCE,        MF_LINK_GREETING,  LOST},
    {MF_LINK_JOINED,    MF_LINK_EVENT_STOP,           MF_LINK_LEAVING,   LEAVE},

    {MF_LINK_DRAINING,  MF_LINK_EVENT_WELCOME,        MF_LINK_DRAINING,  RESEND},
    {MF_LINK_DRAINING,  MF_LINK_EVENT_DRAIN,          MF_LINK_DRAINING,  DROP_NEXT},
    {MF_LINK_DRAINING,  MF_LINK_EVENT_REFUSE_UNKNOWN, MF_LINK_REJOINING, 0},
    {MF_LINK_DRAINING,  MF_LINK_EVENT_REFUSE_KEY,     MF_LINK_REJOINING, DROP},
    {MF_LINK_DRAINING,  MF_LINK_EVENT_REFUSE_OTHER,   MF_LINK_REJOINING, 0},
    {MF_LINK_DRAINING,  MF_LINK_EVENT_SILENCE,        MF_LINK_REJOINING, LOST},
    {MF_LINK_DRAINING,  MF_LINK_EVENT_DRAINED,        MF_LINK_LEAVING,   LEAVE},
    {MF_LINK_DRAINING,  MF_LINK_EVENT_STOP,           MF_LINK_LEAVING,   LEAVE},

    {MF_LINK_REJOINING, MF_LINK_EVENT_WELCOME,        MF_LINK_DRAINING,  RESEND},
    {MF_LINK_REJOINING, MF_LINK_EVENT_DRAIN,          MF_LINK_REJOINING, DROP_NEXT},
    {MF_LINK_REJOINING, MF_LINK_EVENT_REFUSE_UNKNOWN, MF_LINK_REJOINING, 0},
    {MF_LINK_REJOINING, MF_LINK_EVENT_REFUSE_KEY,     MF_LINK_REJOINING, DROP},
    {MF_LINK_REJOINING, MF_LINK_EVENT_REFUSE_OTHER,   MF_LINK_REJOINING, 0},
    {MF_LINK_REJOINING, MF_LINK_EVENT_SILENCE,        MF_LINK_REJOINING, DROP | MF_LINK_RECONNECT},
    {MF_LINK_REJOINING, MF_LINK_EVENT_STOP,           MF_LINK_LEAVING,   LEAVE},

    {MF_LINK_LEAVING,   MF_LINK_EVENT_LEFT,           MF_LINK_ENDED,     MF_LINK_SEND_BYE | MF_LINK_CLOSE},
};
/* clang-format on */

static bool starts_timers_only(enum mf_link_state state, enum mf_link_event event)
{
    static const enum mf_link_event events[] = {
        MF_LINK_EVENT_MESSAGE,    MF_LINK_EVENT_ANSWER,    MF_LINK_EVENT_HELLO_SENT,
        MF_LINK_EVENT_READY_SENT, MF_LINK_EVENT_BEAT_SENT, MF_LINK_EVENT_RESULT_SENT,
        MF_LINK_EVENT_NO_JOBS,
    };
    bool found = false;
    for (size_t i = 0; i < MF_ARRAY_LEN(events); i++)
        found |= events[i] == event;
    return found && state != MF_LINK_ENDED;
}

MF_TEST(makes_each_transition, .rows = MF_LINK_N_ * MF_LINK_EVENT_N_)
{
    enum mf_link_state from = (enum mf_link_state)(_i / MF_LINK_EVENT_N_), to = from;
    enum mf_link_event event = (enum mf_link_event)(_i % MF_LINK_EVENT_N_);
    bool accepts = false;
    unsigned actions = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(transitions); i++) {
        if (transitions[i].from == from && transitions[i].event == event) {
            to = transitions[i].to;
            actions = transitions[i].actions;
            accepts = true;
        }
    }
    struct mf_link l, before;
    mf_link_init(&l, WARNING_MS);
    l.state = from;
    before = l;
    if (!starts_timers_only(from, event))
        ck_assert_msg(mf_link_accepts(&l, event) == accepts, "%s: %s", mf_link_state_name(from),
                      mf_link_event_name(event));
    unsigned got = mf_link_apply(&l, event, 10);
    ck_assert_msg(l.state == to && got == actions, "%s: %s: %s with actions %#x, expected %s with %#x",
                  mf_link_state_name(from), mf_link_event_name(event), mf_link_state_name(l.state), got,
                  mf_link_state_name(to), actions);
    if (!accepts && !starts_timers_only(from, event))
        ck_assert_mem_eq(&l, &before, sizeof(l));
}

static const struct {
    const char *code;
    enum mf_link_event event;
} refusals[] = {
    {"unknown_worker", MF_LINK_EVENT_REFUSE_UNKNOWN}, {"malformed", MF_LINK_EVENT_REFUSE_MESSAGE},
    {"too_large", MF_LINK_EVENT_REFUSE_MESSAGE},      {"no_memory", MF_LINK_EVENT_REFUSE_OTHER},
    {"version", MF_LINK_EVENT_REFUSE_OTHER},          {"class_conflict", MF_LINK_EVENT_REFUSE_OTHER},
    {"name_taken", MF_LINK_EVENT_REFUSE_OTHER},       {"unknown_key", MF_LINK_EVENT_REFUSE_KEY},
    {"not_its_name", MF_LINK_EVENT_REFUSE_OTHER},     {"", MF_LINK_EVENT_REFUSE_OTHER},
};

MF_TEST(knows_each_refusal, .rows = MF_ARRAY_LEN(refusals))
{
    ck_assert_int_eq(mf_link_refusal(refusals[_i].code), refusals[_i].event);
}

/* ---- conversations ---- */

struct conversation {
    struct mf_link link;
    struct mf_link_work work;
    int64_t now;
    int online, answers, lease;
    unsigned shown; /* actions that are part of the result */
    char text[1024];
};

static void report(struct conversation *c, enum mf_link_event event);

static void add_text(struct conversation *c, unsigned actions)
{
    char separator = ':';
    char *end = c->text + strlen(c->text);
    if (!(actions & c->shown))
        return;
    size_t room = sizeof(c->text) - (size_t)(end - c->text);
    int n = snprintf(end, room, "%s%lld", end == c->text ? "" : " ", (long long)c->now);
    for (int i = 0; i < MF_LINK_N_ACTIONS; i++) {
        if (actions & c->shown & 1u << i) {
            n += snprintf(end + n, room - (size_t)n, "%c%s", separator, action_names[i]);
            separator = '+';
        }
    }
}

/* Carries out actions as the agent does. */
static void carry_out(struct conversation *c, unsigned actions)
{
    add_text(c, actions);
    if (actions & (MF_LINK_DROP_UNITS | MF_LINK_STOP_RUNNERS)) {
        bool had_jobs = c->work.n_jobs > 0;
        c->work.n_jobs = 0;
        c->work.runner_busy = false;
        if (had_jobs)
            report(c, MF_LINK_EVENT_NO_JOBS);
    }
    if (actions & MF_LINK_DROP_NEXT_UNITS)
        c->work.n_jobs = MF_MIN(c->work.n_jobs, 1u);
    if (c->online && actions & MF_LINK_SEND_HELLO)
        report(c, MF_LINK_EVENT_HELLO_SENT);
    if (c->online && actions & MF_LINK_RESEND_RESULTS && c->work.n_results > 0)
        report(c, MF_LINK_EVENT_RESULT_SENT);
    if (c->online && actions & MF_LINK_SEND_READY)
        report(c, MF_LINK_EVENT_READY_SENT);
    if (actions & MF_LINK_SEND_BEAT) {
        report(c, MF_LINK_EVENT_BEAT_SENT);
        if (c->answers) {
            report(c, MF_LINK_EVENT_MESSAGE);
            report(c, MF_LINK_EVENT_ANSWER);
        }
    }
}

static bool is_message(enum mf_link_event event)
{
    return event == MF_LINK_EVENT_WELCOME || event == MF_LINK_EVENT_UNIT || event == MF_LINK_EVENT_DRAIN ||
           event == MF_LINK_EVENT_REFUSE_UNKNOWN || event == MF_LINK_EVENT_REFUSE_KEY ||
           event == MF_LINK_EVENT_REFUSE_OTHER;
}

static void report(struct conversation *c, enum mf_link_event event)
{
    if (is_message(event)) {
        carry_out(c, mf_link_apply(&c->link, MF_LINK_EVENT_MESSAGE, c->now));
        carry_out(c, mf_link_apply(&c->link, MF_LINK_EVENT_ANSWER, c->now));
    }
    if (event == MF_LINK_EVENT_WELCOME)
        mf_link_set_intervals(&c->link, c->lease / 3, c->lease);
    carry_out(c, mf_link_apply(&c->link, event, c->now));
}

/* Runs the timers that are due. Afterwards the link must not be due again immediately, because the event loop
 * would spin. */
static void run_due(struct conversation *c)
{
    carry_out(c, mf_link_due(&c->link, &c->work, c->now));
    if (mf_link_next_ms(&c->link, &c->work) <= c->now)
        carry_out(c, mf_link_due(&c->link, &c->work, c->now)); /* DRAINED, then LEFT */
    ck_assert_int_gt(mf_link_next_ms(&c->link, &c->work), c->now);
}

static void run_until(struct conversation *c, int64_t until)
{
    while (mf_link_next_ms(&c->link, &c->work) < until) {
        c->now = MF_MAX(c->now, mf_link_next_ms(&c->link, &c->work));
        run_due(c);
    }
    c->now = until;
}

static bool set_value(struct conversation *c, const char *word)
{
    int value;
    if (sscanf(word, "jobs%d", &value) == 1) {
        c->work.n_jobs = (size_t)value;
        if (value == 0)
            report(c, MF_LINK_EVENT_NO_JOBS);
        return true;
    }
    if (sscanf(word, "results%d", &value) == 1) {
        c->work.n_results = (size_t)value;
        return true;
    }
    if (sscanf(word, "busy%d", &value) == 1) {
        c->work.runner_busy = value;
        return true;
    }
    return sscanf(word, "online%d", &c->online) == 1 || sscanf(word, "answers%d", &c->answers) == 1 ||
           sscanf(word, "lease%d", &c->lease) == 1 || strcmp(word, "end") == 0;
}

static void converse(struct conversation *c, const char *script)
{
    char word[64];
    int n;
    long long at;
    enum mf_link_event event;
    for (const char *s = script; sscanf(s, " %lld:%63s%n", &at, word, &n) == 2; s += n) {
        run_until(c, at);
        if (!set_value(c, word)) {
            ck_assert_msg(mf_link_event_parse(word, &event) == 0, "%s: '%s'", script, word);
            report(c, event);
        }
    }
    run_due(c);
}

#define ALL     ((1u << MF_LINK_N_ACTIONS) - 1)
#define NO_BEAT (ALL & ~(unsigned)MF_LINK_SEND_BEAT)

/* clang-format off */
static const struct {
    const char *name;
    unsigned shown;
    const char *script, *actions;
    enum mf_link_state end;
} conversations[] = {
    {"HELLO is sent every second until it is answered", ALL,
     "0:runner_ready 2500:end", "0:HELLO 1000:HELLO 2000:HELLO", MF_LINK_GREETING},
    {"after a lease without an answer the link is connected again", ALL,
     "0:runner_ready 3500:end", "0:HELLO 1000:HELLO 2000:HELLO 3000:drop+reconnect+HELLO", MF_LINK_GREETING},
    {"the lease of the first HELLO begins with it, however long the runner took", ALL,
     "5000:runner_ready 6500:end", "5000:HELLO 6000:HELLO", MF_LINK_GREETING},
    {"HELLO that cannot be sent is tried every 100 ms", ALL,
     "0:online0 0:runner_ready 250:online1 450:end", "0:HELLO 100:HELLO 200:HELLO 300:HELLO",
     MF_LINK_GREETING},
    {"WELCOME: results, READY, a BEAT every beat_ms", ALL,
     "0:runner_ready 10:answers1 10:welcome 700:end", "0:HELLO 10:resend 10:READY+BEAT 343:BEAT 676:BEAT",
     MF_LINK_JOINED},
    {"WELCOME twice: results, READY and BEAT are sent again", ALL,
     "0:runner_ready 10:welcome 20:welcome 30:end",
     "0:HELLO 10:resend 10:READY+BEAT 20:resend 20:READY+BEAT", MF_LINK_JOINED},
    {"no BEAT before the next WELCOME", ALL,
     "0:runner_ready 10:welcome 20:refuse_unknown 900:end", "0:HELLO 10:resend 10:READY+BEAT 100:HELLO",
     MF_LINK_GREETING},
    {"a device BEAT postpones the next one", ALL,
     "0:runner_ready 10:welcome 300:beat_sent 640:end", "0:HELLO 10:resend 10:READY+BEAT 633:BEAT",
     MF_LINK_JOINED},
    {"messages before HELLO are ignored", ALL, "0:welcome 0:unit 0:drain 100:runner_ready 150:end",
     "100:HELLO", MF_LINK_GREETING},

    {"a refused HELLO is sent again after 0.5 s", ALL,
     "0:runner_ready 10:refuse_other 520:refuse_other 1100:end", "0:HELLO 510:HELLO 1020:HELLO",
     MF_LINK_GREETING},
    {"unknown worker: HELLO at once, units continue", NO_BEAT,
     "0:runner_ready 10:welcome 10:jobs1 500:refuse_unknown 510:welcome 520:end",
     "0:HELLO 10:resend 10:READY 500:HELLO 510:resend 510:READY", MF_LINK_JOINED},
    {"unknown worker: at least 100 ms between two HELLOs", ALL,
     "0:runner_ready 10:refuse_unknown 110:refuse_unknown 250:end", "0:HELLO 100:HELLO 200:HELLO",
     MF_LINK_GREETING},
    {"a revoked key drops the units", NO_BEAT,
     "0:runner_ready 10:welcome 10:jobs2 300:refuse_key 850:end", "0:HELLO 10:resend 300:drop 800:HELLO",
     MF_LINK_GREETING},

    {"a silent coordinator: units are dropped after a lease", NO_BEAT,
     "0:runner_ready 10:welcome 10:jobs1 1015:end",
     "0:HELLO 10:resend 10:READY 1010:warn_lost+drop+reconnect+HELLO", MF_LINK_GREETING},
    {"a message of any type begins the lease again", NO_BEAT,
     "0:runner_ready 10:welcome 10:jobs1 200:message 1205:end",
     "0:HELLO 10:resend 10:READY 1200:warn_lost+drop+reconnect+HELLO", MF_LINK_GREETING},
    {"no warning while joined: the lease ends first", MF_LINK_WARN_SILENCE | MF_LINK_WARN_LOST,
     "0:runner_ready 5:lease20000 10:welcome 20015:end", "20010:warn_lost+warn_silence",
     MF_LINK_GREETING},
    {"a coordinator that answers BEATs keeps its worker", NO_BEAT,
     "0:runner_ready 10:answers1 10:welcome 10:jobs1 60000:end", "0:HELLO 10:resend 10:READY",
     MF_LINK_JOINED},
    {"units continue after unknown_worker for at most a lease", NO_BEAT & ~(unsigned)MF_LINK_SEND_HELLO,
     "0:runner_ready 10:welcome 10:jobs2 500:refuse_unknown 1600:end", "10:resend 1500:drop+reconnect",
     MF_LINK_GREETING},
    {"warnings at doubling intervals, at most a minute", MF_LINK_WARN_SILENCE,
     "0:runner_ready 230000:end",
     "10000:warn_silence 20000:warn_silence 40000:warn_silence 80000:warn_silence 140000:warn_silence "
     "200000:warn_silence", MF_LINK_GREETING},
    {"an answer delays the warning", MF_LINK_WARN_SILENCE,
     "0:runner_ready 9000:refuse_other 18000:refuse_other 28500:end", "28000:warn_silence", MF_LINK_GREETING},
    {"another protocol version: an answer, but no message", ALL & ~(unsigned)MF_LINK_SEND_HELLO,
     "0:runner_ready 4000:answer 13000:answer 14000:end",
     "3000:drop+reconnect 6000:drop+reconnect 9000:drop+reconnect 12000:drop+reconnect", MF_LINK_GREETING},

    {"each UNIT is answered by a READY while there is room", NO_BEAT,
     "0:runner_ready 1:answers1 1:welcome 10:unit 10:jobs1 20:unit 20:jobs2 5000:jobs1 9000:end",
     "0:HELLO 1:resend 1:READY 10:READY 5000:READY", MF_LINK_JOINED},
    {"a lost READY is sent again after a lease", NO_BEAT,
     "0:runner_ready 1:answers1 1:welcome 2500:end", "0:HELLO 1:resend 1:READY 1001:READY 2001:READY",
     MF_LINK_JOINED},
    {"the lease counts from the end of the last unit", NO_BEAT,
     "0:runner_ready 1:answers1 1:welcome 10:unit 10:jobs1 5000:jobs0 6500:end",
     "0:HELLO 1:resend 1:READY 10:READY 6000:READY", MF_LINK_JOINED},
    {"READY that cannot be sent is tried every 100 ms", NO_BEAT,
     "0:runner_ready 1:welcome 1:online0 150:online1 900:end",
     "0:HELLO 1:resend 1:READY 101:READY 201:READY", MF_LINK_JOINED},

    {"results without an acknowledgement are sent again after a lease", NO_BEAT,
     "0:runner_ready 1:answers1 1:welcome 1:jobs2 10:results2 10:result_sent 1500:results0 9000:end",
     "0:HELLO 1:resend 1010:resend", MF_LINK_JOINED},
    {"a new result delays the next try", NO_BEAT,
     "0:runner_ready 1:answers1 1:welcome 1:jobs2 10:results2 10:result_sent 900:result_sent 1950:end",
     "0:HELLO 1:resend 1900:resend", MF_LINK_JOINED},

    {"READY that is due again and cannot be sent is tried every 100 ms", NO_BEAT,
     "0:runner_ready 1:answers1 1:welcome 500:online0 1150:online1 2250:end",
     "0:HELLO 1:resend 1:READY 1001:READY 1101:READY 1201:READY 2201:READY", MF_LINK_JOINED},
    {"results that cannot be sent are tried again after a lease", MF_LINK_RESEND_RESULTS,
     "0:runner_ready 0:results1 0:answers1 1:online0 1:welcome 2500:end", "1:resend 1001:resend 2001:resend",
     MF_LINK_JOINED},

    {"DRAIN: the running unit ends, then BYE", NO_BEAT,
     "0:runner_ready 1:answers1 1:welcome 1:jobs2 1:busy1 50:drain 60:unit 5000:jobs0 5010:busy0 5020:end",
     "0:HELLO 1:resend 50:drop_next 5010:stop_runners+results+BYE+close", MF_LINK_ENDED},
    {"DRAIN without a unit", NO_BEAT,
     "0:runner_ready 1:welcome 50:drain 60:end",
     "0:HELLO 1:resend 1:READY 50:drop_next 50:stop_runners+results+BYE+close", MF_LINK_ENDED},
    {"DRAIN before WELCOME", NO_BEAT,
     "0:runner_ready 10:drain 20:welcome 30:end",
     "0:HELLO 10:drop_next 20:resend 20:stop_runners+results+BYE+close", MF_LINK_ENDED},
    {"DRAIN holds when the coordinator restarts", NO_BEAT,
     "0:runner_ready 1:answers1 1:welcome 1:jobs2 1:busy1 50:drain 500:refuse_unknown 510:welcome 800:busy0 "
     "800:jobs0 900:end",
     "0:HELLO 1:resend 50:drop_next 500:HELLO 510:resend 800:stop_runners+results+BYE+close", MF_LINK_ENDED},
    {"DRAIN, then a silent coordinator", NO_BEAT,
     "0:runner_ready 1:welcome 1:jobs1 1:busy1 50:drain 1500:welcome 1510:end",
     "0:HELLO 1:resend 1:READY 50:drop_next 1050:warn_lost+drop+reconnect+HELLO 1500:resend "
     "1500:stop_runners+results+BYE+close", MF_LINK_ENDED},

    {"while draining, BEATs and results are sent", ALL,
     "0:runner_ready 0:results1 1:answers1 1:welcome 1:jobs2 1:busy1 2:drain 10:online0 10:welcome 1100:end",
     "0:HELLO 1:resend 1:BEAT 2:drop_next 10:resend 10:BEAT 343:BEAT 676:BEAT 1009:BEAT 1010:resend",
     MF_LINK_DRAINING},
    {"while draining, a silent coordinator drops the unit", NO_BEAT,
     "0:runner_ready 1:welcome 1:jobs2 1:busy1 2:drain 10:welcome 1015:end",
     "0:HELLO 1:resend 2:drop_next 10:resend 1010:warn_lost+drop+reconnect+HELLO", MF_LINK_REJOINING},
    {"while draining, a refused worker sends HELLO after 0.5 s", NO_BEAT,
     "0:runner_ready 1:welcome 1:jobs2 1:busy1 2:drain 10:refuse_other 600:refuse_key 1150:end",
     "0:HELLO 1:resend 2:drop_next 510:HELLO 600:drop 1100:HELLO", MF_LINK_REJOINING},
    {"drained: BYE after MF_LINK_LEAVE_MS with unacknowledged results", NO_BEAT,
     "0:runner_ready 0:results1 1:answers1 1:welcome 2:drain 4000:end",
     "0:HELLO 1:resend 1:READY 2:drop_next 2:stop_runners+results 3002:BYE+close", MF_LINK_ENDED},

    {"stop: BYE at once if all results are acknowledged", NO_BEAT,
     "0:runner_ready 1:welcome 1:jobs2 50:stop 60:end",
     "0:HELLO 1:resend 50:stop_runners+results 50:BYE+close", MF_LINK_ENDED},
    {"stop: BYE when the last result is acknowledged", NO_BEAT,
     "0:runner_ready 1:welcome 1:jobs2 1:results1 50:stop 1200:results0 1250:end",
     "0:HELLO 1:resend 50:stop_runners+results 1200:BYE+close", MF_LINK_ENDED},
    {"stop: BYE after MF_LINK_LEAVE_MS with unacknowledged results", NO_BEAT,
     "0:runner_ready 1:welcome 1:jobs2 1:results1 50:stop 1000:stop 1500:welcome 4000:end",
     "0:HELLO 1:resend 50:stop_runners+results 3050:BYE+close", MF_LINK_ENDED},
    {"stop before WELCOME waits for nothing", ALL,
     "0:results3 0:runner_ready 10:stop 20:end", "0:HELLO 10:stop_runners+results 10:BYE+close",
     MF_LINK_ENDED},
    {"stop before a runner is ready", ALL, "5:stop 9:runner_ready 20:end",
     "5:stop_runners+results 5:BYE+close", MF_LINK_ENDED},
    {"no runner starts", ALL, "0:runners_failed 20:stop 9000:end", "0:close", MF_LINK_ENDED},
};
/* clang-format on */

MF_TEST(follows_the_protocol, .rows = MF_ARRAY_LEN(conversations))
{
    struct conversation c = {.online = 1, .lease = 1000, .shown = conversations[_i].shown};
    mf_link_init(&c.link, WARNING_MS);
    converse(&c, conversations[_i].script);
    ck_assert_msg(strcmp(c.text, conversations[_i].actions) == 0, "%s:\n%s\nexpected:\n%s",
                  conversations[_i].name, c.text, conversations[_i].actions);
    ck_assert_msg(c.link.state == conversations[_i].end, "%s: %s", conversations[_i].name,
                  mf_link_state_name(c.link.state));
}

int main(void)
{
    return mf_check_main(NULL);
}
