/* Promotion in the database: the known (deployed) row of a key, its comparison with the winner of a race, and
 * the decision (schema.sql: baseline_row, promotion, comparison). */
#pragma once

#include "common/base/names.h"
#include "common/base/paired.h"
#include "common/moe/consumer.h"
#include "common/moe/status.h"
#include "server/store/store_batch.h"

/* clang-format off */
#define MF_DECISION_MAP(X, P)      \
    X(P, PENDING, "pending")       \
    X(P, PROMOTED, "promoted")     \
    X(P, KEPT, "kept")             \
    X(P, UNDECIDED, "undecided")
/* clang-format on */
MF_NAMES_DECLARE(mf_decision, MF_DECISION_, MF_DECISION_MAP);

/* ---- known rows ---- */

/* Adds a row of the batch's baseline. If several rows have the same key, the first row is used, as in
 * production. */
int mf_store_baseline_row_add(struct mf_store *s, int64_t batch, int64_t shape, int64_t class,
                              const char *pipeline, double us, int64_t line);

struct mf_known {
    char *pipeline;  /* "family:step|family:step", heap; "": the row names no pipeline */
    double us;       /* time in the deployed row */
    char source[64]; /* "line 7 of the baseline" or "batch 3" */
};
/* Finds the batch's baseline row of the key. Returns 1, or 0 if there is no such row. */
int mf_store_known_from_baseline(struct mf_store *s, int64_t batch, int64_t shape, int64_t class,
                                 struct mf_known *ret);
/* Finds the consumer's latest decided config of the key from an earlier batch. Returns 1, or 0 if there is no
 * such config. */
struct mf_known_key {
    int64_t batch, shape, class, model;
    enum mf_consumer consumer;
};
int mf_store_known_from_config(struct mf_store *s, const struct mf_known_key *key, struct mf_known *ret);

/* Ends the batch's waiting tasks whose baseline row names no pipeline: the state becomes done, and the
 * promotion undecided with the given reason. Adds the ids of these tasks to ret, once per consumer. Does
 * nothing for a batch that only enumerates. */
int mf_store_skip_unnamed(struct mf_store *s, int64_t batch, const char *reason, int64_t now_ms,
                          struct mf_ids *ret);
/* Lists the batches in which mf_store_skip_unnamed may end tasks of the class. */
int mf_store_batches_unnamed(struct mf_store *s, int64_t class, struct mf_ids *ret);

/* ---- the known row as a pipeline of a task ---- */

/* Finds the id of a step in the task's enumeration. A family may have an old and a current name; both names
 * find the step. Of several revisions, returns the newest one's. Returns 1, or 0 if there is no such step. */
int mf_store_step_find(struct mf_store *s, int64_t task, const char *family, const char *name, int64_t *ret);
/* Finds the reason of the task's first rejection that matches the step. Returns 1, or 0 if no rejection
 * matches. */
int mf_store_step_rejection(struct mf_store *s, int64_t task, const char *family, const char *name,
                            char ret[MF_REASON_MAX]);
/* Finds the consumer's pipeline with these steps, in any order. steps: JSON array of step ids. Returns 1, or
 * 0 if there is no such pipeline. */
int mf_store_pipeline_find(struct mf_store *s, int64_t task, enum mf_consumer consumer, const char *steps,
                           int64_t *ret);

/* ---- comparisons and decisions ---- */

struct mf_promotion {
    /* old, new: ids of pipelines; 0: no pipeline. new is 0 only if nothing was measured */
    int64_t task, old, new;
    enum mf_consumer consumer;
    const char *known, *source;
    double known_us, new_us; /* NAN: none */
    double least;
    enum mf_decision decision;
    const char *reason;
};
int mf_store_promotion_add(struct mf_store *s, const struct mf_promotion *p, int64_t now_ms);
/* Reads all members except the texts, which are NULL. Returns 1, or 0 if the consumer has no promotion. */
int mf_store_promotion_get(struct mf_store *s, int64_t task, enum mf_consumer consumer,
                           struct mf_promotion *ret);
int mf_store_promotion_decide(struct mf_store *s, int64_t task, enum mf_consumer consumer,
                              enum mf_decision decision, const char *reason, int64_t now_ms);

/* Result of one pipeline in one attempt of a race or comparison. */
struct mf_race_result {
    enum mf_status status;
    char reason[MF_REASON_MAX];
    double us, mad;
    double *samples; /* one sample per round, heap */
    size_t n;
};
void mf_race_result_release(struct mf_race_result *r);
/* Reads a result. -ENOENT: the pipeline has no result in that attempt. */
int mf_store_race_result_get(struct mf_store *s, int64_t unit, int64_t attempt, int64_t pipeline,
                             struct mf_race_result *ret);

struct mf_comparison {
    int64_t unit, task, worker;
    enum mf_consumer consumer;
    bool judged; /* both pipelines were timed, so p is valid */
    struct mf_paired p;
    size_t n;
    double old_us, new_us;
    enum mf_status old_status, new_status;
    const char *old_reason, *new_reason;
    const char *worker_name; /* set only in comparisons that are read from the database */
};
int mf_store_comparison_add(struct mf_store *s, const struct mf_comparison *c, int64_t now_ms);
/* Called for each comparison, ordered by unit. The texts are valid during the callback. */
typedef int (*mf_comparison_fn)(void *context, const struct mf_comparison *c);
int mf_store_comparisons_each(struct mf_store *s, int64_t task, enum mf_consumer consumer,
                              mf_comparison_fn fn, void *context);
