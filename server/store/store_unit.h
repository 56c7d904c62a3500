/* Work units and leases, steps, results, strikes and quarantine in the database. */
#pragma once

#include "common/base/names.h"
#include "common/moe/status.h"
#include "common/moe/step.h"
#include "common/moe/unit_kind.h"
#include "server/farm/slot.h"
#include "server/store/store.h"
#include "server/store/store_batch.h"

struct mf_unit_row {
    int64_t id, task, class;
    enum mf_unit_kind kind;
    int priority;
    int64_t families;     /* set of families that it needs; mf_store_unit_add finds it */
    char *body;           /* heap after a read; the caller frees it */
    int64_t avoid_worker; /* 0: none */
    int64_t attempt, epoch, worker, deadline_ms;
    /* start-time fair queueing: the unit with the lowest tag is first among the units of one priority */
    int64_t start_tag;
    bool leased;
};
/* Adds a unit. The families that it needs are those of the enumeration, steps or pipelines in its body. */
int mf_store_unit_add(struct mf_store *s, const struct mf_unit_row *row, int64_t now_ms, int64_t *ret);

/* Finds the largest start tag among the batch's units on the class; 0 if the batch has no units there. */
int mf_store_last_start_tag(struct mf_store *s, int64_t batch, int64_t class, int64_t *ret);
/* Finds the smallest start tag among the class's ready units of that priority. Returns 1, or 0 if there are
 * no such units. */
int mf_store_least_start_tag(struct mf_store *s, int64_t class, int priority, int64_t *ret);

/* Sets of units that a slot considers, most specific first. */
enum mf_affinity {
    MF_AFFINITY_LAST_TASK, /* units of the task that the worker worked on last */
    MF_AFFINITY_IDLE_TASK, /* units of tasks that no worker works on */
    MF_AFFINITY_ANY,
    MF_AFFINITY_N_
};
/* Leases the best ready unit that the slot may take, in one statement. Returns 1 and *ret, or 0 if there is
 * no such unit. The slot's worker offers all families that the unit needs. Order: priority, start tag, age. A
 * unit preferred by affinity never goes before a unit of higher priority. may_be_only: the slot may take
 * units that should avoid its worker if no other connected worker can run them. */
int mf_store_unit_lease(struct mf_store *s, const struct mf_slot *slot, enum mf_affinity affinity,
                        bool may_be_only, int64_t epoch, int64_t deadline_ms, struct mf_unit_row *ret);
/* Called for the shapes (row texts) that workers of the class will enumerate and then measure next: at most
 * `limit`, in order of priority. Reads at most 32 * limit units. */
typedef int (*mf_row_fn)(void *context, const char *row);
int mf_store_next_shapes(struct mf_store *s, int64_t class, int64_t limit, mf_row_fn fn, void *context);
/* Leases a ready unit to no worker. */
int mf_store_unit_hold(struct mf_store *s, int64_t unit, int64_t epoch, int64_t deadline_ms);
/* Returns 1 if the unit is ready, otherwise 0. */
int mf_store_unit_is_ready(struct mf_store *s, int64_t unit);
/* Removes a step from the list of a probe unit. */
int mf_store_unit_drop_step(struct mf_store *s, int64_t unit, int64_t step);
int mf_store_unit_extend(struct mf_store *s, int64_t unit, int64_t deadline_ms);
/* Sets the unit's state back to ready. avoid_worker: worker that runs the unit only if no other worker can;
 * 0: as before. */
int mf_store_unit_release(struct mf_store *s, int64_t unit, int64_t avoid_worker);
/* Records that the worker of the row got the attempt of the row. */
int mf_store_grant_add(struct mf_store *s, const struct mf_unit_row *row);
/* Returns 1, or 0 if the attempt was never granted. */
int mf_store_grant_get(struct mf_store *s, int64_t unit, int64_t attempt, int64_t *ret_epoch,
                       int64_t *ret_worker);
int mf_store_unit_end(struct mf_store *s, int64_t unit, const char *state);
/* Reads a unit. -ENOENT: no such unit. */
int mf_store_unit_get(struct mf_store *s, int64_t unit, struct mf_unit_row *ret);
int mf_store_units_leased(struct mf_store *s, struct mf_ids *ret);
/* Extends every lease to at least deadline_ms, because workers need time to send HELLO after a restart of the
 * coordinator. */
int mf_store_units_prolong(struct mf_store *s, int64_t deadline_ms);
/* Counts the ready and leased units of a task. */
int mf_store_open_units_count(struct mf_store *s, int64_t task, int64_t *ret);
int mf_store_units_cancel(struct mf_store *s, int64_t task);
/* Returns 1 if an enumerate unit of the enumeration is ready or leased, otherwise 0. */
int mf_store_has_enumerate_unit(struct mf_store *s, int64_t enumeration);

/* ---- steps ---- */
struct mf_step_row {
    int64_t id, kernel;
    /* id of the family that enumerates it, while `family` may name AITER's generator; set by
     * mf_store_steps_each */
    int64_t offered_by;
    int64_t group; /* the same for steps whose families the same workers offer; set by the farm */
    char name[MF_STEP_NAME_MAX];
    char family[MF_FAMILY_NAME_MAX];
    mf_ops covers;
    int32_t block_m;
    double flops, bytes;
    bool aiter, foreign; /* as in struct mf_step */
};
/* Adds a step, and its kernel if the kernel is new at the revision of the enumeration's family. Returns 1, or
 * 0 if the enumeration already contains the step. */
int mf_store_step_add(struct mf_store *s, int64_t enumeration, const struct mf_step *step, const char *body);
/* Adds a rejection. batch: the batch that excludes the kernel; 0: the rejection holds for all batches of the
 * enumeration. */
int mf_store_rejection_add(struct mf_store *s, int64_t enumeration, int64_t batch, const char *family,
                           const char *kernel, const char *rule, const char *reason);
/* Adds a rejection for each family that an available worker of the class could not load. */
int mf_store_rejections_add_refused(struct mf_store *s, int64_t enumeration, int64_t batch, int64_t class);
int mf_store_enumeration_complete(struct mf_store *s, int64_t enumeration);
/* Counts the steps of an enumeration, and its rejections that hold for all batches. */
int mf_store_enumeration_counts(struct mf_store *s, int64_t enumeration, int64_t *ret_steps,
                                int64_t *ret_rejections);
/* Called for each step of the task's enumerations, ordered by family and name. quarantined: the reason if the
 * kernel was in quarantine on the class at before_ms; otherwise NULL. */
typedef int (*mf_step_fn)(void *context, const struct mf_step_row *row, const char *quarantined);
int mf_store_steps_each(struct mf_store *s, int64_t task, int64_t class, int64_t before_ms, mf_step_fn fn,
                        void *context);
/* A step of a task's enumerations, for the search for its fastest steps. interface: text of its tensor specs,
 * valid during the call. */
struct mf_search_row {
    int64_t step;
    const char *interface;
    bool decided;
    double us; /* of its deciding result, if it has a time */
};
typedef int (*mf_search_fn)(void *context, const struct mf_search_row *row);
int mf_store_search_each(struct mf_store *s, int64_t task, mf_search_fn fn, void *context);
/* Called with other tasks of the class that have results, and their shapes: the newest 256 of the layer
 * model, and those of other layer models among the newest 256 tasks. */
typedef int (*mf_neighbour_fn)(void *context, int64_t task, const char *row);
int mf_store_neighbours_each(struct mf_store *s, int64_t task, int64_t class, const char *layer_model,
                             mf_neighbour_fn fn, void *context);
/* Called with the fastest correct step of a task for each family, set of covered ops and block_m. */
typedef int (*mf_fastest_fn)(void *context, const char *family, const char *name);
int mf_store_fastest_each(struct mf_store *s, int64_t task, mf_fastest_fn fn, void *context);
/* Reads a step. -ENOENT: no such step. *ret_body: JSON text that the caller frees; ret_body may be NULL. */
int mf_store_step_get(struct mf_store *s, int64_t step, struct mf_step_row *ret, char **ret_body);
/* Returns 1 if the unit must not measure the step, because a result decides the step for the task, or because
 * the step killed a runner in an earlier attempt and is retried in another unit. Returns 0 otherwise. */
int mf_store_step_decided(struct mf_store *s, int64_t task, int64_t unit, int64_t step, enum mf_status *ret,
                          double *ret_us);
/* Returns 1 if the attempt has a result of the step or pipeline, otherwise 0. step or pipeline is 0. */
int mf_store_has_result(struct mf_store *s, int64_t unit, int64_t attempt, int64_t step, int64_t pipeline);

/* ---- results ---- */
struct mf_result_row {
    int64_t unit, attempt, seq, step, pipeline, task, worker; /* step, pipeline: 0 if none */
    enum mf_status status;
    const char *reason;
    double us, mad, err, row_err; /* NAN if none */
    int verified;
    bool late, final;
    const float *samples;
    size_t n_samples, n_fresh; /* n_fresh: number of rerun samples, which are in `extra` */
    const char *extra;         /* NULL if none */
    int64_t at_ms;
};
/* Adds a result. Returns 1, or 0 if the result was stored already. */
int mf_store_result_add(struct mf_store *s, const struct mf_result_row *row);
/* Deletes the samples of results with at_ms below before_ms, oldest first, at most `limit` results per call.
 * Keeps medians, spreads and the samples of released tasks. Results dated after now_ms (wrong clock) count as
 * old. Returns the number of results processed; 0 if no result is old enough. */
int mf_store_samples_drop(struct mf_store *s, int64_t before_ms, int64_t now_ms, int64_t limit);
/* Called for each result of one attempt of a unit, to restore its lease after a coordinator restart. */
typedef int (*mf_result_fn)(void *context, const struct mf_result_row *row);
int mf_store_results_of_unit(struct mf_store *s, int64_t unit, int64_t attempt, mf_result_fn fn,
                             void *context);
/* Reads the status and the reason of a pipeline's result in one attempt of a race. -ENOENT: no result. */
int mf_store_pipeline_result(struct mf_store *s, int64_t unit, int64_t attempt, int64_t pipeline,
                             enum mf_status *ret, char reason[MF_REASON_MAX]);
/* Makes the unit's results non-deciding, because its race runs again. The results stay in the database. */
int mf_store_results_clear_final(struct mf_store *s, int64_t unit);
/* Called with the best time of a task for each set of covered ops. */
typedef void (*mf_best_fn)(void *context, mf_ops covers, int64_t worker, double us);
int mf_store_best_times(struct mf_store *s, int64_t task, mf_best_fn fn, void *context);

/* ---- crashed and hung steps ---- */
/* Records that the kernel crashed or hung a runner. *ret_n: number of strikes within the task, including this
 * one. */
int mf_store_strike(struct mf_store *s, int64_t kernel, int64_t class, int64_t worker, int64_t task,
                    enum mf_status status, const char *reason, int64_t now_ms, int64_t *ret_n);
int mf_store_quarantine(struct mf_store *s, int64_t kernel, int64_t class, const char *reason,
                        int64_t now_ms);
/* Returns 1 and the reason, which the caller frees, if the kernel is in quarantine on the class; otherwise 0.
 */
int mf_store_quarantine_reason(struct mf_store *s, int64_t kernel, int64_t class, char **ret);
/* Removes a kernel from quarantine. Returns 1, or 0 if it was not in quarantine. */
int mf_store_quarantine_lift(struct mf_store *s, int64_t kernel, int64_t class);
