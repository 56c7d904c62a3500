/* Event loop of the writing thread. One iteration handles up to 64 requests and then up to 512 messages, for
 * at most 5 ms. It then does the periodic work that is due, commits, and only after the commit sends replies.
 * So peers and users are told only of durable changes, and they can repeat any request or message that got no
 * reply. If several workers wait for ACKs, the loop tries to handle their messages in one iteration
 * (wait_for_more). */
#include "server/farm/farm_private.h"

#include "common/base/array.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "server/farm/bus.h"
#include "server/http/request.h"
#include "server/http/route.h"
#include "server/store/store_refusal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define ITERATION_MESSAGES 512
#define ITERATION_REQUESTS 64
#define ITERATION_NS       5000000u
#define WAIT_FOR_MORE_NS   200000u /* about the duration of a commit */
#define HOUSEKEEP_MS       50
/* Deletion of old samples: maximum results per iteration, and pause in ms after an iteration that found none.
 */
#define SAMPLES_PER_SLICE   500
#define SAMPLES_INTERVAL_MS 10000
#define QUEUE_MAX           1000

const double mf_iteration_bucket_s[MF_ITERATION_BUCKETS] = {0.0005, 0.001, 0.002, 0.005, 0.01,
                                                            0.02,   0.05,  0.1,   0.2,   0.5};

/* ---- opening and closing ---- */

static int open_socket(void *zmq, int type, const char *endpoint, bool bind, void **ret)
{
    int linger = 0, queue = QUEUE_MAX;
    void *socket = zmq_socket(zmq, type);
    if (!socket)
        return -errno;
    *ret = socket;
    if (type == ZMQ_PUB && mf_bus_set_no_drop(socket) < 0)
        return -errno;
    if (zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger)) < 0 ||
        zmq_setsockopt(socket, ZMQ_SNDHWM, &queue, sizeof(queue)) < 0 ||
        zmq_setsockopt(socket, ZMQ_RCVHWM, &queue, sizeof(queue)) < 0)
        return -errno;
    return (bind ? zmq_bind(socket, endpoint) : zmq_connect(socket, endpoint)) < 0 ? -errno : 0;
}

static int open_bus(struct mf_farm *f, void *zmq)
{
    int r = open_socket(zmq, ZMQ_PULL, MF_BUS_REQUESTS, true, &f->requests);
    if (r == 0)
        r = open_socket(zmq, ZMQ_PUSH, MF_BUS_REPLIES, false, &f->replies);
    if (r == 0)
        r = open_socket(zmq, ZMQ_PUB, MF_BUS_EVENTS, true, &f->events);
    return r;
}

static void read_clocks(struct mf_farm *f)
{
    f->now_ms = mf_now_ms();
    f->wall_ms = mf_wall_ms();
}

/* Resumes the tasks in state `ranking` when moefarmd starts. Their probes were committed before moefarmd
 * stopped, but their races were not planned. */
static int resume_ranking(struct mf_farm *f)
{
    struct mf_ids ids = {0};
    int r = mf_store_tasks_in_state(f->store, MF_TASK_RANKING, &ids);
    for (size_t i = 0; r == 0 && i < ids.n; i++) {
        struct mf_task *g;
        r = mf_task_get(f, ids.all[i], &g);
        if (r == 0)
            r = mf_ladder_rank(f, g->batch, g->class_id, g->layer_model);
    }
    mf_ids_release(&ids);
    return r;
}

static int load(struct mf_farm *f)
{
    read_clocks(f);
    int64_t n_live = 0;
    int r = mf_store_begin(f->store);
    if (r >= 0)
        r = mf_store_workers_live(f->store, &n_live);
    f->reconnect_deadline_ms = n_live > 1 ? f->now_ms + f->lease_ms : 0;
    if (r >= 0)
        r = mf_store_start_epoch(f->store, f->wall_ms, &f->epoch);
    if (r >= 0)
        r = mf_units_load(f);
    if (r >= 0)
        r = mf_store_batches_remove_partial(f->store);
    if (r >= 0)
        r = mf_store_batches_cancelling(f->store, &f->cancelled);
    if (r >= 0)
        r = resume_ranking(f);
    mf_fault_at(MF_FAULT_FARM_LOADED);
    if (r >= 0)
        r = mf_store_commit(f->store);
    return r < 0 ? r : 0;
}

void mf_farm_reset_state(struct mf_farm *f)
{
    MF_MAP_EACH(&f->leases, e)
    mf_lease_free(e->value);
    MF_MAP_EACH(&f->tasks, e)
    mf_task_free(e->value);
    MF_MAP_EACH(&f->batches, e)
    mf_batch_free(e->value);
    mf_map_release(&f->leases);
    mf_map_release(&f->start_tags);
    mf_map_release(&f->tasks);
    mf_map_release(&f->batches);
    mf_slots_release(&f->slots);
    for (size_t i = 0; i < f->n_new_events; i++)
        free(f->new_events[i].body);
    f->n_new_events = f->n_touched = f->n_acknowledged = 0;
    f->n_suspects = 0;
    f->wake.n = f->wake_at = f->to_rank.n = f->to_rank_at = f->to_race.n = f->to_race_at = f->cancelled.n =
        f->cancel.n = f->cancel_at = 0;
    f->wake_slot = SIZE_MAX;
    mf_submissions_restart(f);
    f->ranking = false;
    f->wake_waiting = f->misses_new = true;
}

int mf_farm_reload(struct mf_farm *f)
{
    f->store = mf_store_free(f->store);
    int r = mf_store_open(f->path, &f->store);
    return r < 0 ? r : load(f);
}

int mf_farm_new(void *zmq, const struct mf_farm_options *options, struct mf_farm **ret, char *why,
                size_t why_cap)
{
    struct mf_farm *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->options = *options;
    f->lease_ms = 3 * options->beat_ms;
    f->path = strdup(options->path);
    int r = f->path ? mf_store_open(options->path, &f->store) : -ENOMEM;
    if (r < 0 || (r = load(f)) == -EBADMSG) {
        mf_store_open_error(options->path, r, why, why_cap);
    } else if (r < 0) {
        mf_format(why, why_cap, "read the database %s: %s", options->path, mf_store_error(f->store));
    } else if (options->first_token && (r = mf_access_first_token(f, options->first_token)) < 0) {
        mf_format(why, why_cap, "write the first token to %s: %s", options->first_token, strerror(-r));
    } else if (options->keys && (r = mf_auth_new(zmq, &f->zap)) < 0) {
        mf_format(why, why_cap, "open the ZAP socket: %s", zmq_strerror(-r));
    } else if ((r = mf_hub_new(zmq, options->endpoint, options->keys, &f->hub)) < 0) {
        mf_format(why, why_cap, "listen for workers at %s: %s", options->endpoint, zmq_strerror(-r));
    } else if ((r = open_bus(f, zmq)) < 0) {
        mf_format(why, why_cap, "open the sockets between the threads: %s", zmq_strerror(-r));
    }
    if (r < 0) {
        mf_farm_free(f);
        return r;
    }
    f->stats.ready = true;
    *ret = f;
    return 0;
}

struct mf_farm *mf_farm_free(struct mf_farm *f)
{
    if (!f)
        return NULL;
    void *sockets[] = {f->requests, f->replies, f->events};
    for (size_t i = 0; i < MF_ARRAY_LEN(sockets); i++) {
        if (sockets[i])
            (void)zmq_close(sockets[i]);
    }
    mf_farm_reset_state(f);
    mf_hub_free(f->hub);
    mf_auth_free(f->zap); /* must come after the hub: see server/link/authenticate.h */
    mf_store_free(f->store);
    free(f->path);
    free(f->new_events);
    free(f->unsent_event.body);
    free(f->answers);
    free(f->touched);
    free(f->suspects);
    mf_submissions_free(f);
    mf_ids_release(&f->wake);
    mf_ids_release(&f->to_rank);
    mf_ids_release(&f->to_race);
    mf_ids_release(&f->cancelled);
    mf_ids_release(&f->cancel);
    free(f);
    return NULL;
}

const char *mf_farm_endpoint(const struct mf_farm *f)
{
    return mf_hub_endpoint(f->hub);
}

void mf_farm_get_stats(const struct mf_farm *f, struct mf_farm_stats *ret)
{
    *ret = f->stats;
}

/* ---- one iteration ---- */

/* Refuses a message of another protocol version. Limits the rate of the log line, because the peer repeats
 * its message for ever. */
static int refuse_version(struct mf_farm *f, const struct mf_mail *mail)
{
    if (mf_log_limit(&f->log_limits.version, 1, f->now_ms))
        log_warn("refused a worker that speaks protocol version %d: this coordinator speaks version %d;"
                 " install the same release on both",
                 mail->version, MF_WIRE_VERSION);
    return mf_peer_refuse(
        f, &mail->peer, "version", 0,
        "this coordinator speaks protocol version %d only; install the same release on both",
        MF_WIRE_VERSION);
}

/* Returns 1 if a message was handled, 0 if no message is waiting. */
static int handle_message(struct mf_farm *f)
{
    const struct mf_mail *mail;
    int r = mf_hub_recv(f->hub, &mail);
    if (r <= 0)
        return r;
    f->stats.messages++;
    if (mail->error == -EPROTONOSUPPORT)
        r = refuse_version(f, mail);
    else if (mail->error && mail->error != -ENOBUFS && mail->error != -E2BIG)
        r = mf_peer_refuse(f, &mail->peer, "malformed", 0,
                           "expected a message of two frames, the first a header of %d bytes",
                           MF_WIRE_HEADER_SIZE);
    else
        r = mf_message_apply(f, mail);
    return r < 0 ? r : 1;
}

int mf_farm_reserve_answer(struct mf_farm *f)
{
    return mf_array_grow(&f->answers, f->n_answers, &f->cap_answers, sizeof(*f->answers));
}

void mf_farm_answer(struct mf_farm *f, struct mf_request *request)
{
    f->answers[f->n_answers++] = request;
}

/* Handles one request. If its handler fails, only the handler's own changes are rolled back. */
static int handle_request(struct mf_farm *f)
{
    struct mf_request *request;
    int r = mf_bus_recv_pointer(f->requests, &request);
    if (r <= 0)
        return r;
    r = mf_farm_reserve_answer(f);
    if (r == 0)
        r = mf_store_savepoint(f->store, MF_SAVEPOINT_MESSAGE);
    if (r < 0) {
        mf_request_free(request);
        return r;
    }
    int handled = mf_request_run(request, f);
    if (!request->deferred)
        mf_farm_answer(f, request);
    if (handled < 0)
        r = mf_store_savepoint_rollback(f->store, MF_SAVEPOINT_MESSAGE);
    else
        r = mf_store_savepoint_release(f->store, MF_SAVEPOINT_MESSAGE);
    return r < 0 ? r : 1;
}

/* Returns true if another message arrived in time. Workers that wait for their ACKs send their next messages
 * at the same time. If the first of these messages were committed alone, the other workers would wait for the
 * next commit. So an iteration that has handled fewer messages than the number of workers acknowledged by the
 * previous iteration waits up to WAIT_FOR_MORE_NS for more. */
static bool wait_for_more(const struct mf_farm *f, size_t n_taken, uint64_t start_ns)
{
    if (n_taken == 0 || n_taken >= f->n_acknowledged)
        return false;
    uint64_t spent_ns = mf_now_ns() - start_ns;
    return spent_ns < WAIT_FOR_MORE_NS && mf_hub_wait(f->hub, WAIT_FOR_MORE_NS - spent_ns);
}

/* Handles requests first, so that users do not wait behind a flood of results. */
static int handle_all(struct mf_farm *f, uint64_t start_ns)
{
    int r = 1;
    for (int n = 0; r > 0 && n < ITERATION_REQUESTS; n++)
        r = handle_request(f);
    if (r < 0)
        return r;
    size_t n = 0;
    do {
        r = handle_message(f);
        n += r > 0;
    } while (r >= 0 && !f->needs_reload && (r > 0 || wait_for_more(f, n, start_ns)) &&
             n < ITERATION_MESSAGES && mf_now_ns() - start_ns < ITERATION_NS);
    return r < 0 ? r : 0;
}

/* Deletes old samples, at most SAMPLES_PER_SLICE results per iteration, so that no iteration takes long. */
static int drop_samples(struct mf_farm *f)
{
    int64_t before_ms = f->wall_ms - (int64_t)(fmin(f->options.samples_days, 1e6) * 86400e3);
    if (!(f->options.samples_days > 0) || f->now_ms < f->samples_due_ms)
        return 0;
    int n = mf_store_samples_drop(f->store, before_ms, f->wall_ms, SAMPLES_PER_SLICE);
    if (n == 0)
        f->samples_due_ms = f->now_ms + SAMPLES_INTERVAL_MS;
    return n < 0 ? n : 0;
}

static int housekeep(struct mf_farm *f)
{
    if (f->now_ms - f->housekept_ms < HOUSEKEEP_MS)
        return 0;
    f->housekept_ms = f->now_ms;
    int r = mf_units_expire(f);
    if (r == 0)
        r = mf_suspects_expire(f);
    if (f->reconnect_deadline_ms && f->now_ms >= f->reconnect_deadline_ms) {
        f->reconnect_deadline_ms = 0;
        for (size_t i = 0; i < f->slots.n; i++)
            f->slots.all[i]->starved = false;
    }
    if (r == 0)
        r = drop_samples(f);
    if (r == 0)
        r = mf_misses_tune(f);
    return r < 0 ? r : mf_peers_flush(f);
}

static void send_answers(struct mf_farm *f)
{
    mf_hub_flush(f->hub);
    for (size_t i = 0; i < f->n_answers; i++) {
        /* Fails if the HTTP thread has stopped */
        if (mf_bus_send_pointer(f->replies, f->answers[i]) < 0)
            mf_request_free(f->answers[i]);
    }
    f->n_answers = 0;
    mf_events_publish(f);
}

static void count_iteration(struct mf_farm *f, uint64_t ns)
{
    double s = (double)ns * 1e-9;
    f->stats.iterations++;
    f->stats.iteration_s += s;
    f->stats.iteration_max_s = fmax(f->stats.iteration_max_s, s);
    for (int i = 0; i < MF_ITERATION_BUCKETS; i++) {
        if (s <= mf_iteration_bucket_s[i]) {
            f->stats.iteration_buckets[i]++;
            break;
        }
    }
}

static bool has_slices(const struct mf_farm *f)
{
    return f->submitting || f->to_rank_at < f->to_rank.n || f->to_race_at < f->to_race.n ||
           f->cancelled.n > 0 || mf_tasks_are_waking(f);
}

static int do_due_work(struct mf_farm *f)
{
    int r = mf_submissions_continue(f);
    if (r >= 0)
        r = mf_batches_cancel(f);
    if (r >= 0)
        r = mf_tasks_wake(f);
    if (r >= 0)
        r = mf_rank_continue(f);
    if (r >= 0)
        r = mf_ladder_continue(f);
    if (r >= 0)
        r = housekeep(f);
    if (r >= 0)
        r = mf_units_dispatch(f);
    return r < 0 ? r : mf_tasks_flush(f);
}

/* Loads the state from the store again after a message was undone. */
static int reload_if_needed(struct mf_farm *f)
{
    if (!f->needs_reload)
        return 0;
    f->needs_reload = false;
    mf_farm_reset_state(f);
    return load(f);
}

static int run_iteration(struct mf_farm *f)
{
    uint64_t start_ns = mf_now_ns();
    read_clocks(f);
    int r = mf_store_begin(f->store);
    if (r >= 0)
        r = mf_access_answer_handshakes(f);
    if (r >= 0)
        r = handle_all(f, start_ns);
    if (r >= 0 && !f->needs_reload)
        r = do_due_work(f);
    if (r >= 0)
        r = mf_peers_acknowledge(f);
    /* Fault points count only iterations that send something, because the number of idle iterations varies */
    bool has_recipients = f->n_acknowledged > 0 || f->n_answers > 0;
    if (has_recipients)
        mf_fault_at(MF_FAULT_TRANSACTION_WRITTEN);
    if (r >= 0)
        r = mf_store_commit(f->store);
    if (r < 0) {
        /* The state in memory and in the store may differ now. The next start loads the state from the store,
         * and workers resend unacknowledged results. */
        const char *error = mf_store_error(f->store);
        log_err(r, "event loop iteration failed%s%s", *error ? ": " : "", error);
        mf_store_rollback(f->store);
        return r;
    }
    if (has_recipients)
        mf_fault_at(MF_FAULT_TRANSACTION_COMMITTED);
    send_answers(f);
    if (has_recipients)
        mf_fault_at(MF_FAULT_REPLIES_SENT);
    r = reload_if_needed(f);
    count_iteration(f, mf_now_ns() - start_ns);
    return r;
}

int mf_farm_run(struct mf_farm *f, int stop_fd, struct mf_notify *notify)
{
    zmq_pollitem_t items[] = {
        {.socket = mf_hub_socket(f->hub), .events = ZMQ_POLLIN},
        {.socket = f->requests, .events = ZMQ_POLLIN},
        {.fd = stop_fd, .events = ZMQ_POLLIN},
        {.socket = f->zap ? mf_auth_socket(f->zap) : NULL, .events = ZMQ_POLLIN},
    };
    int n_items = (int)MF_ARRAY_LEN(items) - !f->zap;
    for (;;) {
        /* In read-only mode, no iteration answers ZAP requests, so leave their socket out */
        int n_now = f->read_only_reason[0] ? 3 : n_items;
        bool busy = !f->read_only_reason[0] && has_slices(f);
        if (zmq_poll(items, n_now, busy ? 0 : HOUSEKEEP_MS) < 0 && errno != EINTR)
            return log_err(-errno, "wait for messages");
        if (items[2].revents)
            return 0;
        int r = f->read_only_reason[0] ? mf_read_only_iteration(f) : run_iteration(f);
        if (r < 0 && !mf_read_only_enter(f, r))
            return r;
        mf_notify_watchdog(notify, mf_now_ms());
    }
}
