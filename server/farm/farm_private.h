/* What the writing thread holds in memory, shared by farm.c and the files that it is split into. All of it can be
 * rebuilt from the store: a restart loses none of it. Nothing here is touched by another thread. */
#pragma once

#include "common/moe/pipeline_search.h"
#include "server/choose/race.h"
#include "server/farm/farm.h"
#include "server/farm/forecast.h"
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
    int64_t created_ms; /* ratios and quarantines of this moment hold for the whole batch */
    struct mf_batch_options options;
    char *options_text;   /* JSON as stored */
    char *unit_options;   /* JSON as units carry it */
    int64_t open_tasks;   /* that have not ended; 0: none, or nobody counted yet */
    int64_t n_loaded;     /* tasks of it in memory */
    bool ended;           /* none of them will be loaded again, but to be looked at */
    int64_t pinned_class; /* of which the revision below is known; 0: none */
    char pinned_revision[80];
};

/* The best times so far, by covered ops. */
#define MF_BEST_MAX 32
struct mf_bests {
    int n;
    struct {
        mf_ops covers;
        double us;
    } of[MF_BEST_MAX];
};
void mf_bests_add(struct mf_bests *b, mf_ops covers, double us);

struct mf_win;

struct mf_task {
    int64_t id;
    struct mf_batch *batch;
    int64_t shape_id, class_id, enumeration, model;
    enum mf_task_state state;
    struct mf_shape shape;
    char row[MF_SHAPE_TEXT_MAX];
    char layer_model[MF_SHAPE_TEXT_MAX];
    int64_t n_steps, n_measured;
    int64_t open_units;           /* ready or leased */
    struct mf_bests best;         /* of its ok results */
    struct mf_forecast *forecast; /* from its ranking until its layer model's layout is chosen */
    bool dirty;                   /* counters are to be written */
    bool changed;                 /* people should hear of it */
    bool touched;                 /* in the farm's list of tasks to look at when the turn ends */
    int64_t told_ms;
};

struct mf_lease_item {
    int64_t id;     /* step or pipeline */
    int group;      /* of a pipeline: its layout's place among those that are raced over */
    int64_t kernel; /* of a step */
    mf_ops covers;
    double flops, bytes;
    int64_t seq; /* of the result that came; 0: none yet */
    enum mf_status status;
    double us, mad;
    int verified;
};

/* A unit that a worker has. */
struct mf_lease {
    int64_t unit, attempt, epoch;
    enum mf_unit_kind kind;
    struct mf_task *task;
    int64_t worker;
    struct mf_slot *slot; /* NULL: after a start, until its worker says HELLO */
    int64_t deadline_ms;  /* monotonic */
    bool second_try;      /* of a race or a comparison */
    int64_t first_worker; /* of a comparison on a second device: whose the first was; 0: it is the first */
    char *routing;        /* of a race for regret (regret.h); NULL otherwise */
    int n_groups; /* layouts that it is raced over (ladder.c); 0: its pipelines are all of one group */
    size_t n, n_left;
    struct mf_lease_item *items;
    struct mf_bests best; /* of this unit's steps only, in the order that they are measured */
};

struct mf_event {
    int64_t id, batch;
    const char *kind;
    char *body;
};

struct mf_farm {
    struct mf_farm_options options;
    struct mf_store *store; /* NULL: it could not be opened anew */
    char *path;
    struct mf_auth *zap; /* NULL: the hub has no keys */
    struct mf_hub *hub;
    void *requests, *replies, *events;
    int64_t epoch;
    int64_t lease_ms;
    int64_t now_ms, wall_ms; /* of this turn */
    struct mf_slots slots;
    struct mf_map batches, tasks, leases; /* by id */
    struct mf_map start_tags;             /* by batch and class: unit.c */
    struct mf_task **touched;
    size_t n_touched, cap_touched;
    bool wake_waiting; /* tasks that wait may go on: somebody came, or something was asked for */
    bool ranking;      /* a layer model is being ranked, or its layout chosen */
    int64_t
        alone_from_ms; /* after a start, workers have until then to come back before one counts as alone; 0: it has passed */
    int64_t housekept_ms;
    int64_t samples_due_ms; /* when old samples are looked for next */
    bool misses_new; /* something was missed that is not tuned; true at a start, when that is not known */
    int64_t misses_due_ms;   /* when a batch may be made of it */
    int64_t misses_trim_ms;  /* when a full list may be looked through again */
    size_t n_acknowledged;   /* workers, by the turn before: they may wait for that to send more */
    int64_t version_told_ms; /* when the log last said that a peer's version is refused; 0: never */
    int64_t failures_ms;     /* the second in which n_failures were told of */
    int n_failures;
    struct mf_event *told; /* of this turn, published after COMMIT */
    size_t n_told, cap_told;
    struct mf_event no_completion_signal; /* of events that found no room, the latest; no body: none */
    struct mf_request **answers;          /* of this turn, sent after COMMIT */
    size_t n_answers, cap_answers;
    struct mf_farm_stats stats;
    char halted[320]; /* why the store takes nothing; "": it does. See read_only.h */
    int64_t halted_ms, retry_ms;
};

/* ---- farm.c ---- */
/* What can be rebuilt from the store. */
void mf_farm_forget(struct mf_farm *f);
/* Opens the store anew and reads it, like at a start. */
int mf_farm_load_again(struct mf_farm *f);

/* ---- batch.c ---- */
/* How it says where weights lie: "common", "free" or "w1=… w2=…". */
const char *mf_batch_layout(const struct mf_batch_options *o);
int mf_batch_get(struct mf_farm *f, int64_t id, struct mf_batch **ret);
/* Options as units carry them, with another routing; NULL: no memory. */
char *mf_batch_unit_options(const struct mf_batch *b, const char *routing);
struct mf_batch *mf_batch_free(struct mf_batch *b);
/* Closes it when its last task has ended. */
int mf_batch_check(struct mf_farm *f, struct mf_batch *b);
/* Frees a batch that has ended and has no task in memory: a farm that lives for long has few open ones. */
void mf_batch_let_go(struct mf_farm *f, struct mf_batch *b);

/* ---- task.c: see there for the states ---- */
int mf_task_get(struct mf_farm *f, int64_t id, struct mf_task **ret);
struct mf_task *mf_task_free(struct mf_task *g);
void mf_task_drop_forecast(struct mf_task *g);
int mf_tasks_wake(struct mf_farm *f);
/* failure: why there is no enumeration; NULL: it is complete. */
int mf_tasks_enumerated(struct mf_farm *f, int64_t enumeration, const char *failure);
int mf_task_probed(struct mf_farm *f, struct mf_task *g);
int mf_task_race(struct mf_farm *f, struct mf_task *g, const char *unit_body);
int mf_task_raced(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, const cJSON *race);
/* It is known which of its pipelines won. */
int mf_task_won(struct mf_farm *f, struct mf_task *g, const struct mf_win *w);
/* The two of a comparison, which avoid_worker (0: none) is to leave to others. */
int mf_task_compare(struct mf_farm *f, struct mf_task *g, const char *unit_body, int64_t avoid_worker);
int mf_task_compared(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease);
/* It is known which row stands. */
int mf_task_decided(struct mf_farm *f, struct mf_task *g);
/* A race for regret has ended; race NULL: without an outcome, for that reason. */
int mf_task_regretted(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, const cJSON *race,
                      const char *reason);
int mf_task_fail(struct mf_farm *f, struct mf_task *g, const char *reason);
int mf_task_cancel(struct mf_farm *f, struct mf_task *g);
/* A step got the result that decides it. */
int mf_task_measured(struct mf_farm *f, struct mf_task *g, mf_ops covers, enum mf_status status, double us);
/* Writes counters and tells people, at most a few times a second each; frees the ended ones. */
int mf_tasks_flush(struct mf_farm *f);

/* ---- rank.c ---- */
/* Finds the task's pipelines. 1: there are some; 0: it failed, and says why. */
int mf_rank_task(struct mf_farm *f, struct mf_task *g);
/* Stores its pipelines and races the finalists of those layouts; n 0: of all of them together. */
int mf_rank_race(struct mf_farm *f, struct mf_task *g, const char *const *layouts, size_t n);

/* ---- ladder.c ---- */
/* Finds the layouts that a layer model may take and starts its races, once no task of it is behind. */
int mf_ladder_rank(struct mf_farm *f, struct mf_batch *b, int64_t class_id, const char *layer_model);
/* A task's race over several layouts has ended. 1; 0: no pipeline survived it. */
int mf_ladder_raced(struct mf_farm *f, struct mf_task *g, const struct mf_lease *l, const cJSON *race);
/* Chooses among the layouts that a layer model's tasks have raced over, once no task of it is behind. */
int mf_ladder_settle(struct mf_farm *f, struct mf_batch *b, int64_t class_id, const char *layer_model);

/* ---- config.c ---- */
/* Who won a race: what becomes of it is a config. */
struct mf_win {
    int64_t pipeline;
    double us, mad;
    char *ties, *provenance; /* as in table config */
};
void mf_win_release(struct mf_win *w);
/* The winner of a group of the lease's race. 1; 0: nobody of it survived. */
int mf_config_win(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, int group,
                  const cJSON *race, struct mf_win *ret);
int mf_config_write(struct mf_farm *f, struct mf_task *g, const struct mf_win *w);
/* The known row takes the place of the race's winner in the task's config: a pipeline of its, as a comparison on the worker
 * measured it. tie: a pipeline that the samples cannot tell from it; 0: none. */
int mf_config_keep(struct mf_farm *f, struct mf_task *g, int64_t worker, int64_t pipeline, double us,
                   int64_t tie);

/* ---- unit.c: see there for the states ---- */
int mf_unit_add(struct mf_farm *f, struct mf_task *g, enum mf_unit_kind kind, const char *body,
                int64_t avoid_worker);
int mf_units_load(struct mf_farm *f);
int mf_units_dispatch(struct mf_farm *f);
int mf_units_expire(struct mf_farm *f);
/* The slot has the unit from here on. */
void mf_lease_hold(struct mf_lease *l, struct mf_slot *slot);
void mf_lease_extend(struct mf_farm *f, struct mf_lease *l);
/* Its unit is done; the lease is out of the books, and the caller's to free. */
int mf_lease_done(struct mf_farm *f, struct mf_lease *l);
/* Back to ready, or given up after too many attempts; why is for people. */
int mf_lease_release(struct mf_farm *f, struct mf_lease *l, const char *why);
/* The worker says that it cannot be run: fewer attempts. */
int mf_lease_fail(struct mf_farm *f, struct mf_lease *l, const char *why);
/* The same of a unit that its worker goes on with, and is told to leave. */
int mf_lease_refuse(struct mf_farm *f, struct mf_lease *l, const char *why);
/* All of the worker, or those that it did not keep at HELLO. */
int mf_leases_release_of(struct mf_farm *f, struct mf_slot *slot, bool kept_too, const char *why);
/* Forgets the lease of a unit that was cancelled, and tells its worker. */
int mf_lease_cancel(struct mf_farm *f, struct mf_lease *l);
struct mf_lease *mf_lease_free(struct mf_lease *l);

/* ---- deliver.c ---- */
/* Takes a RESULT. 0: taken (and acknowledged after COMMIT); 1: refused with the sentence in *ret_why. */
int mf_deliver(struct mf_farm *f, struct mf_slot *slot, const cJSON *json, const char **ret_why);
/* Results that nobody sent: the steps of a unit that was given up. */
int mf_deliver_given_up(struct mf_farm *f, struct mf_lease *l, const char *reason);

/* ---- peer.c ---- */
int mf_peer_take(struct mf_farm *f, const struct mf_mail *mail);
int mf_peer_refuse(struct mf_farm *f, const struct mf_peer *peer, const char *code, int64_t sequence,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));
int mf_peer_leave(struct mf_farm *f, struct mf_slot *slot, const char *state, const char *why);
/* Workers that were silent for a lease are lost; rows of changed ones are written. */
int mf_peers_flush(struct mf_farm *f);
/* One ACK a worker for all of the turn. */
int mf_peers_acknowledge(struct mf_farm *f);

/* ---- access.c: see there for who may speak ---- */
/* Answers those who knock at the hub. */
int mf_access_knocks(struct mf_farm *f);
/* It was let in by a token: it may say ENROL and nothing else. */
bool mf_access_is_token(const struct mf_peer *peer);
/* 1: its key stands, and is this worker's; 0: not any more. */
int mf_access_worker(struct mf_farm *f, const struct mf_peer *peer, char ret_worker[MF_KEY_WORKER_MAX]);
int mf_access_enrol(struct mf_farm *f, struct mf_slot *slot, const struct mf_mail *mail);
/* Makes the first admin's token unless the file is there. */
int mf_access_first_token(struct mf_farm *f, const char *path);

/* ---- miss.c ---- */
/* With --tune-misses: a batch of what production missed, at most one each so many seconds. */
int mf_misses_tune(struct mf_farm *f);

/* ---- event.c ---- */
/* Into the table now, to subscribers after COMMIT. body is printed and freed. */
int mf_event_tell(struct mf_farm *f, int64_t batch, const char *kind, cJSON *body);
void mf_events_publish(struct mf_farm *f);
int mf_event_task(struct mf_farm *f, struct mf_task *g, const char *reason);
/* Of a task that ended before anything of it was begun. */
int mf_event_task_ended(struct mf_farm *f, int64_t batch, int64_t task, enum mf_task_state state);
int mf_event_worker(struct mf_farm *f, struct mf_slot *slot, const char *state);
