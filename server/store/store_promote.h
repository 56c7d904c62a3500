/* The store of promotion: what is known of a key, how it fared beside the race's winner, what was decided. server/store/migrations/10_promotion.sql says
 * what the tables hold. */
#pragma once

#include "common/base/names.h"
#include "common/base/paired.h"
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

/* ---- what is known ---- */

/* A row of the batch's baseline. The first one of a key stands, as in production. */
int mf_store_known_add(struct mf_store *s, int64_t batch, int64_t shape, int64_t class, const char *pipeline,
                       double us, int64_t line);

struct mf_known {
    char *pipeline;  /* "family:step|family:step", on the heap; "": the row names none */
    double us;       /* as it was known */
    char source[64]; /* "line 7 of the baseline" */
};
/* Of a batch with a baseline, its row. 1 or 0. */
int mf_store_known_given(struct mf_store *s, int64_t batch, int64_t shape, int64_t class,
                         struct mf_known *ret);
/* The farm's own: the last config of the key that stands, of a batch before that one. 1 or 0. */
int mf_store_known_own(struct mf_store *s, int64_t batch, int64_t shape, int64_t class, int64_t model,
                       struct mf_known *ret);

/* Ends the batch's tasks that wait and whose row of its baseline names no pipeline: they are done, undecided for that reason. ret
 * gets them. Those of a batch that measures nothing stay. */
int mf_store_known_spare(struct mf_store *s, int64_t batch, const char *reason, int64_t now_ms,
                         struct mf_ids *ret);
/* Batches that may have such tasks on that class. */
int mf_store_known_foreign(struct mf_store *s, int64_t class, struct mf_ids *ret);

/* ---- as a pipeline of a task ---- */

/* The id of that step in the task's enumeration: 1; 0: it is not in there. */
int mf_store_step_named(struct mf_store *s, int64_t task, const char *family, const char *name, int64_t *ret);
/* Why a step that is not measured is not, by the task's rejections: 1, or 0. */
int mf_store_step_rejected(struct mf_store *s, int64_t task, const char *family, const char *name,
                           char ret[MF_REASON_MAX]);
/* The task's pipeline of the same steps, in whatever order they run (JSON arrays of ids): 1, or 0. */
int mf_store_pipeline_same(struct mf_store *s, int64_t task, const char *steps, int64_t *ret);

/* ---- what was decided ---- */

struct mf_promotion {
    int64_t task, old, new; /* pipelines; 0: none, of new only where nothing was measured */
    const char *known, *source;
    double known_us, new_us; /* NAN: none */
    double least;
    enum mf_decision decision;
    const char *reason;
};
int mf_store_promotion_add(struct mf_store *s, const struct mf_promotion *p, int64_t now_ms);
/* 1: with its numbers and its decision, texts NULL; 0: the task has none. */
int mf_store_promotion_get(struct mf_store *s, int64_t task, struct mf_promotion *ret);
/* mad, n: of what a config that was kept has its time from; NAN and 0 otherwise. */
int mf_store_promotion_decide(struct mf_store *s, int64_t task, enum mf_decision decision, const char *reason,
                              double mad, int64_t n, int64_t now_ms);

/* What one run of a race or a comparison gave for a pipeline. */
struct mf_raced {
    enum mf_status status;
    char reason[MF_REASON_MAX];
    double us, mad;
    double *samples; /* by round, on the heap */
    size_t n;
};
void mf_raced_release(struct mf_raced *r);
/* -ENOENT. */
int mf_store_raced_get(struct mf_store *s, int64_t unit, int64_t attempt, int64_t pipeline,
                       struct mf_raced *ret);

struct mf_comparison {
    int64_t unit, task, worker;
    bool judged; /* both gave times, and p says how they compare */
    struct mf_paired p;
    size_t n;
    double old_us, new_us;
    enum mf_status old_status, new_status;
    const char *old_reason, *new_reason;
    const char *worker_name; /* when read */
};
int mf_store_comparison_add(struct mf_store *s, const struct mf_comparison *c, int64_t now_ms);
/* In the order in which they were made; texts live during the call. */
typedef int (*mf_comparison_fn)(void *context, const struct mf_comparison *c);
int mf_store_comparisons_each(struct mf_store *s, int64_t task, mf_comparison_fn fn, void *context);
