/* The store of work: units and their leases, steps as units carry them, results, deaths. */
#pragma once

#include "common/base/names.h"
#include "common/moe/status.h"
#include "common/moe/step.h"
#include "server/farm/slot.h"
#include "server/store/store.h"
#include "server/store/store_batch.h"

/* clang-format off */
#define MF_UNIT_KIND_MAP(X, P)   \
    X(P, ENUMERATE, "enumerate") \
    X(P, PROBE, "probe")         \
    X(P, RACE, "race")           \
    X(P, COMPARE, "compare")
/* clang-format on */
MF_NAMES_DECLARE(mf_unit_kind, MF_UNIT_, MF_UNIT_KIND_MAP);

struct mf_unit_row {
    int64_t id, task, class;
    enum mf_unit_kind kind;
    int priority;
    char *body;           /* heap when read; owned by whoever read it */
    int64_t avoid_worker; /* 0: none */
    int64_t attempt, epoch, worker, deadline_ms;
    int64_t start_tag; /* start-time fair queueing: among units of one priority the lowest goes first */
    bool leased;
};
int mf_store_unit_add(struct mf_store *s, const struct mf_unit_row *row, int64_t now_ms, int64_t *ret);

/* The largest start tag of the batch's units on that class, 0 for none. */
int mf_store_last_start_tag(struct mf_store *s, int64_t batch, int64_t class, int64_t *ret);
/* 1: the smallest start tag of the class's ready units of that priority; 0: there are none. */
int mf_store_least_start_tag(struct mf_store *s, int64_t class, int priority, int64_t *ret);

/* How narrowly a slot looks for work, nearest first. */
enum mf_nearness {
    MF_NEAR_TASK, /* of the task that it worked on last */
    MF_NEAR_FREE, /* of a task that nobody works on */
    MF_NEAR_ANY,
    MF_NEAR_N_
};
/* Leases the best ready unit that the slot may take: 1, and *ret; 0: there is none. One statement. Among units of the same
 * nearness the more urgent, then the one with the lower start tag, then the older comes first; a near unit never goes before a more urgent one. */
int mf_store_unit_lease(struct mf_store *s, const struct mf_slot *slot, enum mf_nearness nearness, bool alone,
                        int64_t epoch, int64_t deadline_ms, struct mf_unit_row *ret);
/* The shapes (rows as text) that are to be enumerated on the class next and then measured, at most `most`, the most urgent first; of
 * four times as many that are looked at, whatever waits. */
typedef int (*mf_row_fn)(void *context, const char *row);
int mf_store_next_shapes(struct mf_store *s, int64_t class, int64_t most, mf_row_fn fn, void *context);
int mf_store_unit_extend(struct mf_store *s, int64_t unit, int64_t deadline_ms);
/* Back to ready. */
int mf_store_unit_release(struct mf_store *s, int64_t unit);
int mf_store_unit_end(struct mf_store *s, int64_t unit, const char *state);
/* -ENOENT. */
int mf_store_unit_get(struct mf_store *s, int64_t unit, struct mf_unit_row *ret);
int mf_store_units_leased(struct mf_store *s, struct mf_ids *ret);
/* Every lease lasts at least until then: after a start, workers need the time to say HELLO. */
int mf_store_units_prolong(struct mf_store *s, int64_t deadline_ms);
/* Ready and leased units of a task. */
int mf_store_units_open(struct mf_store *s, int64_t task, int64_t *ret);
int mf_store_units_cancel(struct mf_store *s, int64_t task);
/* 1 when a unit of the enumeration is open. */
int mf_store_enumerating_unit(struct mf_store *s, int64_t enumeration);

/* ---- steps ---- */
struct mf_step_row {
    int64_t id, kernel;
    char name[MF_STEP_NAME_MAX];
    char family[MF_FAMILY_NAME_MAX];
    mf_ops covers;
    int32_t block_m;
    double flops, bytes;
};
/* A kernel is interned once a revision. 1: it was added; 0: the enumeration had it. */
int mf_store_step_add(struct mf_store *s, int64_t enumeration, const char *revision,
                      const struct mf_step *step, const char *body);
/* batch: whose options or moment leave it out; 0: of all batches, which share the enumeration. */
int mf_store_rejection_add(struct mf_store *s, int64_t enumeration, int64_t batch, const char *family,
                           const char *kernel, const char *rule, const char *reason);
int mf_store_enumeration_complete(struct mf_store *s, int64_t enumeration);
/* Its steps, and its rejections that are of no batch. */
int mf_store_enumeration_counts(struct mf_store *s, int64_t enumeration, int64_t *ret_steps,
                                int64_t *ret_rejections);
/* Steps of an enumeration, in the order of (family, name). quarantined: the reason when the kernel was in quarantine
 * on the class before the moment given, else NULL. */
typedef int (*mf_step_fn)(void *context, const struct mf_step_row *row, const char *quarantined);
int mf_store_steps_each(struct mf_store *s, int64_t enumeration, int64_t class, int64_t before_ms,
                        mf_step_fn fn, void *context);
/* -ENOENT. *ret_body: JSON text, the caller's; NULL when not wanted. */
int mf_store_step_get(struct mf_store *s, int64_t step, struct mf_step_row *ret, char **ret_body);
/* Is the step of the unit no longer its business? 1: a result decides it for the task, or it died in an earlier attempt of the
 * unit and is in a unit of its own since; 0: it is to be measured. */
int mf_store_step_decided(struct mf_store *s, int64_t task, int64_t unit, int64_t step, enum mf_status *ret,
                          double *ret_us);
/* Does the step belong to what the task enumerated, the pipeline to the task? 1 or 0. */
int mf_store_step_of_task(struct mf_store *s, int64_t task, int64_t step);
int mf_store_pipeline_of_task(struct mf_store *s, int64_t task, int64_t pipeline);

/* ---- results ---- */
struct mf_result_row {
    int64_t unit, attempt, seq, step, pipeline, task, worker; /* step, pipeline: 0 for none */
    enum mf_status status;
    const char *reason;
    double us, mad, err, row_err; /* NAN: none */
    int verified;
    bool late, final;
    const float *samples;
    size_t n_samples;
    const char *extra; /* NULL: none */
    int64_t at_ms;
};
/* 1: committed with the turn; 0: it was known. */
int mf_store_result_add(struct mf_store *s, const struct mf_result_row *row);
/* Drops the samples of results before that moment, at most so many a call, oldest first; medians and spreads stay. A result from
 * the future, of a clock that is wrong, goes with its neighbours. How many results were gone through; 0: none is so old. */
int mf_store_samples_drop(struct mf_store *s, int64_t before_ms, int64_t now_ms, int64_t most);
/* What a unit's attempt has given so far, for a coordinator that starts. */
typedef int (*mf_result_fn)(void *context, const struct mf_result_row *row);
int mf_store_results_of_unit(struct mf_store *s, int64_t unit, int64_t attempt, mf_result_fn fn,
                             void *context);
/* They stay as samples and decide nothing: a race that is run again. */
int mf_store_results_unmake(struct mf_store *s, int64_t unit);
/* The best times of a task by covered ops. */
typedef void (*mf_best_fn)(void *context, mf_ops covers, double us);
int mf_store_best(struct mf_store *s, int64_t task, mf_best_fn fn, void *context);

/* ---- deaths ---- */
/* Counts the death of a step's kernel: *ret_n within the task, this one included. */
int mf_store_strike(struct mf_store *s, int64_t kernel, int64_t class, int64_t worker, int64_t task,
                    enum mf_status status, const char *reason, int64_t now_ms, int64_t *ret_n);
int mf_store_quarantine(struct mf_store *s, int64_t kernel, int64_t class, const char *reason,
                        int64_t now_ms);
/* 1: it was there. */
int mf_store_revive(struct mf_store *s, int64_t kernel, int64_t class);
