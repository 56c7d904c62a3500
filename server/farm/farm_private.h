/* State of the writing thread, shared by farm.c and the other files of this folder. All of it can be rebuilt
 * from the store, so that a restart loses nothing. No other thread accesses it. */
#pragma once

#include "common/base/log.h"
#include "common/moe/pipeline_search.h"
#include "server/choose/best_times.h"
#include "server/choose/forecast.h"
#include "server/choose/least_time.h"
#include "server/choose/race.h"
#include "server/farm/farm.h"
#include "server/farm/slot.h"
#include "server/link/authenticate.h"
#include "server/link/hub.h"
#include "server/link/map.h"
#include "server/store/store.h"
#include "server/store/store_access.h"
#include "server/store/store_batch.h"
#include "server/store/store_rank.h"
#include "server/store/store_unit.h"
#include "server/store/store_worker.h"

struct mf_batch {
    int64_t id;
    int priority;
    int64_t created_ms; /* the batch uses the structure ratios and quarantines of this time */
    struct mf_batch_options options;
    char *options_text;     /* JSON text as stored in the database */
    char *unit_options;     /* JSON text as sent in units */
    int64_t open_tasks;     /* unfinished tasks; 0: none, or not counted yet */
    int64_t n_loaded;       /* number of its tasks in memory */
    bool ended;             /* the batch has ended; its tasks are loaded only to be read or cancelled */
    int64_t families_class; /* device class to which `families` applies; 0: none */
    struct mf_ids families; /* see mf_families_of_batch */
};

struct mf_win;
struct mf_reported;
struct mf_ranking;
struct mf_submitting;

struct mf_task {
    int64_t id;
    struct mf_batch *batch;
    int64_t shape_id, class_id, model;
    int64_t enumeration; /* its first one; rejections that concern no single family belong to it */
    enum mf_task_state state;
    struct mf_shape shape;
    char row[MF_SHAPE_TEXT_MAX];
    char layer_model[MF_SHAPE_TEXT_MAX];
    struct mf_task_counts counts;
    mf_consumers consumers;    /* consumers that the task serves */
    mf_consumers lost;         /* those of them that get no config */
    int64_t open_units;        /* number of units that are ready or leased */
    struct mf_best_times best; /* best times of results with status ok */
    /* per consumer; kept from the ranking of the task until the layout of its layer model is chosen */
    struct mf_forecast *forecasts[MF_CONSUMER_N_];
    struct mf_ranking *ranking; /* the search for pipelines in progress (rank.c) */
    bool to_rank;               /* true: listed in mf_farm.to_rank */
    bool to_race;               /* true: listed in mf_farm.to_race */
    bool dirty;                 /* true: counters must be written */
    bool changed;               /* true: an event must be published */
    bool touched;               /* true: listed in mf_farm.touched, for mf_tasks_flush */
    int64_t published_ms;
};

struct mf_lease_item {
    int64_t id;     /* id of the step or pipeline */
    int group;      /* pipelines only: index of the pipeline's layout among the raced layouts */
    int64_t kernel; /* steps only */
    mf_ops covers;
    bool foreign; /* steps only, as in struct mf_step */
    struct mf_work work;
    double forecast_us; /* pipelines only */
    int64_t seq;        /* sequence number of the item's result; 0: no result yet */
    enum mf_status status;
    double us, mad;
    size_t n, n_fresh; /* number of samples from rounds (or of a step), and from the rerun */
    int verified;
};

/* The ops whose best time a step's time may be. 0 for foreign steps, because libfmoe does not dispatch them:
 * their times must not make a worker drop our steps as slow. */
static inline mf_ops mf_lease_item_rivals(const struct mf_lease_item *item)
{
    return item->foreign ? 0 : item->covers;
}

/* A leased unit. */
struct mf_lease {
    int64_t unit, attempt, epoch;
    enum mf_unit_kind kind;
    struct mf_task *task;
    int64_t enumeration;       /* unit of kind enumerate: the enumeration to complete */
    int64_t families;          /* set of families that the unit needs */
    enum mf_consumer consumer; /* of a race, rerun or comparison */
    int64_t worker;
    struct mf_slot *slot; /* NULL after a restart, until its worker sends HELLO */
    int64_t deadline_ms;  /* monotonic */
    int64_t end_ms;       /* monotonic; no heartbeat extends the lease beyond this time */
    bool second_try;      /* this unit repeats a race or comparison in which a pipeline killed its runner */
    /* worker that ran the comparison on the first device; 0: this unit is the first comparison */
    int64_t first_worker;
    char *routing;       /* routing profile of a regret race (regret.h); NULL for other units */
    bool rerun;          /* this unit measures the config's pipeline again (order.c) */
    int n_groups;        /* raced layouts (ladder.c); 0: all pipelines are in group 0 */
    int64_t held_kernel; /* the unit holds a step of this suspect kernel and has no worker; 0: normal lease */
    size_t n, n_left;
    struct mf_lease_item *items;
    struct mf_best_times best; /* times of this unit's steps only, in measuring order */
};

/* A kernel that has killed one runner of a class and is retried (suspect.c). */
struct mf_suspect {
    int64_t kernel, class;
    int64_t retry;    /* the unit that retries it */
    int64_t until_ms; /* monotonic: end of the time in which a worker must take the retry */
};

struct mf_event {
    int64_t id, batch;
    const char *kind;
    char *body;
};

struct mf_farm {
    struct mf_farm_options options;
    struct mf_store *store; /* NULL after a failed attempt to reopen the store */
    char *path;
    struct mf_auth *zap; /* ZeroMQ authentication (ZAP); NULL: the hub has no keys */
    struct mf_hub *hub;
    void *requests, *replies, *events;
    int64_t epoch;
    int64_t lease_ms;
    int64_t now_ms, wall_ms; /* monotonic and wall-clock time at the start of this iteration */
    struct mf_slots slots;
    struct mf_map batches, tasks, leases; /* keyed by id */
    struct mf_suspect *suspects;
    size_t n_suspects, cap_suspects;
    struct mf_map start_tags; /* keyed by batch and class, see unit.c */
    struct mf_task **touched;
    size_t n_touched, cap_touched;
    bool wake_waiting; /* waiting tasks may start, because a worker connected or a batch was submitted */
    /* Long work that is done in slices of MF_SLICE_NS, one per iteration. */
    struct mf_ids wake;        /* waiting tasks of one class that start */
    size_t wake_at, wake_slot; /* next of these; next slot whose class is looked at */
    struct mf_ids to_rank;     /* tasks whose pipelines are searched, from to_rank_at */
    size_t to_rank_at;
    struct mf_ids to_race; /* ranked tasks whose races start, from to_race_at */
    size_t to_race_at;
    struct mf_submitting *submitting; /* long submissions, the oldest first */
    struct mf_ids cancelled;          /* cancelled batches with unfinished tasks */
    struct mf_ids cancel;             /* unfinished tasks of the last of these batches, from cancel_at */
    size_t cancel_at;
    bool ranking; /* a layer model is being ranked, or its layout is being chosen */
    /* after a restart: end of the period in which workers may reconnect. During this period no worker is
     * treated as the only worker of its class. 0: the period has ended */
    int64_t reconnect_deadline_ms;
    int64_t housekept_ms;
    int64_t samples_due_ms; /* time of the next search for old samples */
    /* true: there are new misses of untuned shapes, or moefarmd has just started and there may be some */
    bool misses_new;
    int64_t misses_due_ms;  /* earliest time of the next batch of missed shapes */
    int64_t misses_trim_ms; /* earliest time at which a full list of misses is trimmed again */
    /* number of workers that got an ACK from the last iteration; they may be about to send more results */
    size_t n_acknowledged;
    /* a message was undone, so the state in memory may be wrong; it is loaded again after the iteration */
    bool needs_reload;
    struct {
        struct mf_log_limit version, refused, undone, link;
    } log_limits;
    /* start of the one-second period in which n_failures failure events were counted */
    int64_t failures_ms;
    int n_failures;
    struct mf_event *new_events; /* events of this iteration, published after COMMIT */
    size_t n_new_events, cap_new_events;
    /* latest event, if the subscriber's queue was full; body NULL: there is no unsent event */
    struct mf_event unsent_event;
    struct mf_request **answers; /* responses of this iteration, sent after COMMIT */
    size_t n_answers, cap_answers;
    struct mf_farm_stats stats;
    /* reason why the database is not writable; "": it is writable. See read_only.c */
    char read_only_reason[320];
    int64_t read_only_since_ms, read_only_retry_ms;
};

#define MF_SLICE_NS 10000000u /* duration of a slice of long work */

/* ---- farm.c ---- */
/* Frees everything that can be rebuilt from the store. */
void mf_farm_reset_state(struct mf_farm *f);
/* Reopens the store and loads the state from it, as at a start. */
int mf_farm_reload(struct mf_farm *f);

/* ---- read_only.c: describes read-only mode ---- */
/* True if the error of a write may be temporary: the disk is full, read-only or failing. */
bool mf_read_only_is_temporary(int r);
/* Enters read-only mode and returns true if r, the error of an iteration, may be temporary. Returns false if
 * the store is damaged or the error has another cause. */
bool mf_read_only_enter(struct mf_farm *f, int r);
/* Replaces an iteration while the database is not writable, and retries a write from time to time. Returns 0,
 * or an error that is not temporary. */
int mf_read_only_iteration(struct mf_farm *f);

/* ---- batch.c ---- */
int mf_batch_get(struct mf_farm *f, int64_t id, struct mf_batch **ret);
/* Returns unit options with another routing profile, which the caller frees; NULL if out of memory. */
char *mf_batch_unit_options(const struct mf_batch *b, const char *routing);
struct mf_batch *mf_batch_free(struct mf_batch *b);
int mf_batch_event(struct mf_farm *f, int64_t batch, const char *state);
/* Ends the batch if its last task has ended. */
int mf_batch_check(struct mf_farm *f, struct mf_batch *b);
/* Cancels a slice of the tasks of cancelled batches. */
int mf_batches_cancel(struct mf_farm *f);
/* Frees an ended batch without tasks in memory, so that memory grows with open batches only. */
void mf_batch_unload(struct mf_farm *f, struct mf_batch *b);

/* ---- submit.c ---- */
/* Stores a slice of the first long submission. */
int mf_submissions_continue(struct mf_farm *f);
/* Starts the long submissions again, after the state was loaded from the store. */
void mf_submissions_restart(struct mf_farm *f);
void mf_submissions_free(struct mf_farm *f);

/* ---- farm.c ---- */
/* Sends the request's response after COMMIT. Call mf_farm_reserve_answer before. */
int mf_farm_reserve_answer(struct mf_farm *f);
void mf_farm_answer(struct mf_farm *f, struct mf_request *request);

/* ---- task.c (has the state diagram of tasks) ---- */
int mf_task_get(struct mf_farm *f, int64_t id, struct mf_task **ret);
struct mf_task *mf_task_free(struct mf_task *g);
void mf_task_drop_forecast(struct mf_task *g, enum mf_consumer c);
/* The consumers that have a config or may get one. */
mf_consumers mf_task_live_consumers(const struct mf_task *g);
/* Starts a slice of the waiting tasks. */
int mf_tasks_wake(struct mf_farm *f);
bool mf_tasks_are_waking(const struct mf_farm *f);
/* Call when an enumeration has ended. failure: reason why the enumeration failed; NULL: it is complete. */
int mf_tasks_enumerated(struct mf_farm *f, int64_t enumeration, const char *failure);
int mf_task_probed(struct mf_farm *f, struct mf_task *g);
int mf_task_race(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, const char *unit_body);
int mf_task_raced(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, const cJSON *race);
/* Call when a pipeline has won a race of the task. */
int mf_task_won(struct mf_farm *f, struct mf_task *g, const struct mf_win *w);
/* Adds a unit that compares two pipelines of the task. The worker avoid_worker (0: none) runs the unit only
 * if no other worker can. */
int mf_task_compare(struct mf_farm *f, struct mf_task *g, const char *unit_body, int64_t avoid_worker);
int mf_task_compared(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease);
/* Call when the final config of a consumer is known. */
int mf_task_decided(struct mf_farm *f, struct mf_task *g, enum mf_consumer c);
/* Call when a regret race has ended. race NULL: the race has no outcome, and `reason` says why. */
int mf_task_regret_done(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, const cJSON *race,
                        const char *reason);
/* Adds a unit that measures a config's pipeline again. */
int mf_task_rerun(struct mf_farm *f, struct mf_task *g, const char *unit_body);
/* Call when such a unit has ended. race NULL: it has no outcome, and `reason` says why. */
int mf_task_rerun_done(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, const cJSON *race,
                       const char *reason);
/* Ends a task that has its final configs. */
int mf_task_end(struct mf_farm *f, struct mf_task *g);
/* Call when a consumer gets no config. The task fails if it is the last one. */
int mf_task_lose(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, const char *reason);
int mf_task_fail(struct mf_farm *f, struct mf_task *g, const char *reason);
int mf_task_cancel(struct mf_farm *f, struct mf_task *g);
/* Call when a step has its deciding result. covers: mf_lease_item_rivals. */
int mf_task_measured(struct mf_farm *f, struct mf_task *g, mf_ops covers, int64_t worker,
                     enum mf_status status, double us);
/* Writes counters, publishes events (rate-limited per task) and frees ended tasks. */
int mf_tasks_flush(struct mf_farm *f);

/* ---- family.c ---- */
/* True if an available worker of the class offers all these families. model 0: of any model. */
bool mf_families_are_offered(const struct mf_farm *f, int64_t class_id, int64_t model,
                             const int64_t *families, size_t n);
/* Finds the families that the batch tunes on the class. If no task of the batch has begun on the class, these
 * are from now on the families that available workers offer. *ret is valid until the next call; it has no
 * ids if no worker offers a family. */
int mf_families_of_batch(struct mf_farm *f, struct mf_batch *b, int64_t class_id, const struct mf_ids **ret);
/* Pins the task to a device model if the models of its class offer different families: to one with the most
 * families, because a task runs on one model. Otherwise the first probe pins it. */
int mf_families_choose_model(struct mf_farm *f, struct mf_task *g);
/* Returns a number that is the same for families of the batch that the same available workers of the class
 * and model offer. */
int64_t mf_families_group(const struct mf_farm *f, int64_t class_id, int64_t model,
                          const struct mf_ids *families, int64_t family);
/* Families of a batch that a worker offers together. */
struct mf_family_offer {
    int64_t families[MF_SLOT_FAMILIES_MAX];
    size_t n;
};
bool mf_family_offer_contains(const struct mf_family_offer *o, int64_t family);
/* Lists the offers of available workers of the class and model, without those that another offer contains.
 * Returns their number; 0: no worker is connected. */
#define MF_FAMILY_SETS_MAX 8
size_t mf_families_offers(const struct mf_farm *f, int64_t class_id, int64_t model,
                          const struct mf_ids *families, struct mf_family_offer ret[MF_FAMILY_SETS_MAX]);
/* Adds a rejection for each family of the batch that the offer lacks, because the task's pipelines use only
 * the families of this offer. */
int mf_families_reject_others(struct mf_farm *f, const struct mf_task *g,
                              const struct mf_family_offer *offer);
/* Prints the families that no available worker of the class offers: "family two_stage at revision R". */
int mf_families_print_missing(struct mf_farm *f, int64_t class_id, const struct mf_ids *families, char *buf,
                              size_t cap);

/* ---- rank.c ---- */
/* Lists the task, which has state `ranking`, for mf_rank_continue. */
int mf_rank_task(struct mf_farm *f, struct mf_task *g);
/* Searches the pipelines of the listed tasks, for one slice. A consumer without a pipeline loses the task. */
int mf_rank_continue(struct mf_farm *f);
/* True if the pipelines of each consumer that may get a config are ranked. */
bool mf_rank_is_complete(const struct mf_task *g);
struct mf_ranking *mf_ranking_free(struct mf_ranking *k);
/* Stores the consumer's pipelines and starts a race of the finalists of these layouts. n 0: the finalists are
 * selected over all layouts together. */
int mf_rank_race(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, const char *const *layouts,
                 size_t n);

/* ---- ladder.c ---- */
/* Finds the layouts that a layer model may use for each consumer, and lists its tasks for
 * mf_ladder_continue, once all its tasks are ranked. */
int mf_ladder_rank(struct mf_farm *f, struct mf_batch *b, int64_t class_id, const char *layer_model);
/* Starts the races of some listed tasks. */
int mf_ladder_continue(struct mf_farm *f);
/* Call when a task's race over several layouts has ended. Returns 1, or 0 if no pipeline survived. */
int mf_ladder_raced(struct mf_farm *f, struct mf_task *g, const struct mf_lease *l, const cJSON *race);
/* Chooses one of the layouts that a layer model's tasks raced over, for each consumer whose races have all
 * ended. */
int mf_ladder_choose_layout(struct mf_farm *f, struct mf_batch *b, int64_t class_id, const char *layer_model);

/* ---- order.c ---- */
/* Ends the tasks of a layer model that have their final config, those with the most tokens first, if their
 * times are in order. Call when a task of the layer model may end or has ended; then call mf_batch_check. */
int mf_order_end_tasks(struct mf_farm *f, struct mf_batch *b, int64_t class_id, const char *layer_model);
/* Applies the outcome of a rerun unit to its config. As mf_task_rerun_done. */
int mf_order_rerun_done(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, const cJSON *race,
                        const char *reason);

/* ---- config.c ---- */
/* The winner of a race, from which a config is made. */
struct mf_win {
    int64_t pipeline;
    enum mf_consumer consumer;
    struct mf_reported reported;
    char *unstable;          /* holds reported.unstable; NULL: "" */
    char *ties, *provenance; /* JSON texts for the columns of table config */
};
void mf_win_release(struct mf_win *w);
/* Finds the winner of a group of the lease's race. Returns 1, or 0 if no pipeline of the group survived. */
int mf_config_win(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, int group,
                  const cJSON *race, struct mf_win *ret);
/* Stores the times of the lease's pipelines in the race (server/choose/race_times.h). */
int mf_config_race_times(struct mf_farm *f, const struct mf_lease *lease, const cJSON *race);
int mf_config_write(struct mf_farm *f, struct mf_task *g, const struct mf_win *w);
/* Replaces the config of the lease's consumer by the known row: one of its pipelines, with the time from the
 * lease's comparison. tie: pipeline that is statistically tied with the known row; 0: none. */
int mf_config_set_known_row(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease,
                            int64_t pipeline, const struct mf_reported *time, int64_t tie);
/* Replaces the time of the consumer's config, which must be of pipeline w->pipeline, by that of w. Ties and
 * the rest of the config stay. */
int mf_config_set_time(struct mf_farm *f, struct mf_task *g, const struct mf_win *w);

/* ---- unit.c (has the state diagram of units) ---- */
int mf_unit_add(struct mf_farm *f, struct mf_task *g, enum mf_unit_kind kind, const char *body,
                int64_t avoid_worker);
/* Adds a probe unit. best: copied to the unit. */
struct mf_unit_steps {
    const int64_t *ids;
    size_t n;
    int64_t avoid_worker; /* 0: none */
};
int mf_unit_add_steps(struct mf_farm *f, struct mf_task *g, const struct mf_best_times *best,
                      const struct mf_unit_steps *steps, int64_t *ret_unit);
/* Leases the ready unit to no worker, without an end. */
int mf_lease_hold(struct mf_farm *f, int64_t unit, struct mf_lease **ret);
/* Makes such a unit ready and frees its lease. */
int mf_lease_unhold(struct mf_farm *f, struct mf_lease *l);
int mf_units_load(struct mf_farm *f);
int mf_units_dispatch(struct mf_farm *f);
int mf_units_expire(struct mf_farm *f);
/* Assigns the unit to the slot. */
void mf_lease_assign(struct mf_farm *f, struct mf_lease *l, struct mf_slot *slot);
void mf_lease_extend(struct mf_farm *f, struct mf_lease *l);
/* Marks the unit as done and removes the lease from the map. The caller frees the lease. */
int mf_lease_done(struct mf_farm *f, struct mf_lease *l);
/* Makes the unit ready again, or fails it after too many attempts. `why` completes "ended because …". */
int mf_lease_release(struct mf_farm *f, struct mf_lease *l, const char *why);
/* Same as mf_lease_release, but for a unit that its worker cannot run. Such a unit fails after fewer
 * attempts. */
int mf_lease_fail(struct mf_farm *f, struct mf_lease *l, const char *why);
/* Same as mf_lease_fail, but for a unit that its worker is still running. Also sends CANCEL to the worker. */
int mf_lease_fail_and_cancel(struct mf_farm *f, struct mf_lease *l, const char *why);
/* Releases leases of the worker. include_kept: true: all its leases; false: only the leases that its HELLO
 * did not list. */
int mf_leases_release_worker(struct mf_farm *f, struct mf_slot *slot, bool include_kept, const char *why);
/* Frees the lease of a cancelled unit and sends CANCEL to its worker. */
int mf_lease_cancel(struct mf_farm *f, struct mf_lease *l);
struct mf_lease *mf_lease_free(struct mf_lease *l);

/* ---- deliver.c ---- */
/* Handles a RESULT. Returns 0 if it was accepted (the ACK follows COMMIT), or 1 and *ret_why if it was
 * refused. */
int mf_deliver(struct mf_farm *f, struct mf_slot *slot, const cJSON *json, const char **ret_why);
/* Call after a RESULT was refused. The worker drops it, so its unit cannot be completed any more if the
 * RESULT was the last one or a part of an enumeration. Such a unit fails now, and the farm retries it. */
int mf_deliver_refused(struct mf_farm *f, struct mf_slot *slot, const cJSON *json, const char *why);
/* Stores a crash result for each unmeasured step of a failed unit. */
int mf_deliver_unit_failed(struct mf_farm *f, struct mf_lease *l, const char *reason);

/* ---- suspect.c ---- */
bool mf_suspect_is(const struct mf_farm *f, int64_t kernel, int64_t class);
/* True if the kernel is suspect and the unit is not its retry. */
bool mf_suspect_bars(const struct mf_farm *f, int64_t kernel, int64_t class, int64_t unit);
/* Call after the first death, with the unit that retries the step. */
int mf_suspect_add(struct mf_farm *f, int64_t kernel, int64_t class, int64_t retry);
/* Holds a step of a suspect kernel back in a unit of its own. */
int mf_suspect_hold(struct mf_farm *f, struct mf_task *g, const struct mf_best_times *best, int64_t step,
                    int64_t kernel);
/* Call when a step of the kernel has a result other than a death. */
int mf_suspect_survived(struct mf_farm *f, int64_t kernel, int64_t class, int64_t unit);
/* Makes the held steps ready. */
int mf_suspect_clear(struct mf_farm *f, int64_t kernel, int64_t class);
/* Decides the held steps. worker: the worker of the second death. */
int mf_suspect_quarantine(struct mf_farm *f, int64_t kernel, int64_t class, int64_t worker,
                          const char *reason);
/* Decides a step of a quarantined kernel without running it. */
struct mf_suspect_step {
    int64_t unit, attempt, step, worker;
    mf_ops covers;
    const char *reason;
};
int mf_suspect_decide(struct mf_farm *f, struct mf_task *g, const struct mf_suspect_step *s);
int mf_suspects_expire(struct mf_farm *f);

/* ---- undo.c ---- */
/* Applies a message. If that fails, undoes and refuses the message and sets needs_reload. Returns an error
 * only if the database file cannot be used. */
int mf_message_apply(struct mf_farm *f, const struct mf_mail *mail);

/* ---- peer.c ---- */
int mf_peer_handle(struct mf_farm *f, const struct mf_mail *mail);
int mf_peer_refuse(struct mf_farm *f, const struct mf_peer *peer, const char *code, int64_t sequence,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Call when a worker starts or stops being available (mf_slot_is_available). Waiting tasks without a class
 * get the class of the available worker. Unpins the tasks that the worker can no longer complete. */
int mf_peer_set_available(struct mf_farm *f, const struct mf_slot *slot, bool available);
int mf_peer_remove(struct mf_farm *f, struct mf_slot *slot, const char *state, const char *why);
/* Removes workers that were silent for the duration of a lease, and writes the rows of changed workers. */
int mf_peers_flush(struct mf_farm *f);
/* Sends each worker one ACK for all its results of the iteration. */
int mf_peers_acknowledge(struct mf_farm *f);

/* ---- access.c: describes who may connect ---- */
/* Answers pending authentication requests of the hub (ZAP). */
int mf_access_answer_handshakes(struct mf_farm *f);
/* Returns true if the peer connected with an enrolment token. Such a peer may send ENROL only. */
bool mf_access_is_token(const struct mf_peer *peer);
/* Returns 1 and the worker's name if the peer's key is enrolled, 0 if not. */
int mf_access_worker(struct mf_farm *f, const struct mf_peer *peer, char ret_worker[MF_KEY_WORKER_MAX]);
int mf_access_enrol(struct mf_farm *f, struct mf_slot *slot, const struct mf_mail *mail);
/* Creates the first admin token unless the file exists. */
int mf_access_first_token(struct mf_farm *f, const char *path);

/* ---- miss.c ---- */
/* With --tune-misses: submits a batch of missed shapes, at most one per interval. */
int mf_misses_tune(struct mf_farm *f);

/* ---- event.c ---- */
/* Stores an event now; subscribers get it after COMMIT. Prints and frees `body`. */
int mf_event_add(struct mf_farm *f, int64_t batch, const char *kind, cJSON *body);
void mf_events_publish(struct mf_farm *f);
int mf_event_task(struct mf_farm *f, struct mf_task *g, const char *reason);
/* Adds the event for the end of a task that was never loaded into memory. */
int mf_event_task_ended(struct mf_farm *f, int64_t batch, int64_t task, enum mf_task_state state);
int mf_event_worker(struct mf_farm *f, struct mf_slot *slot, const char *state);
