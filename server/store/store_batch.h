/* The store of what people asked for: batches, shapes, tasks, and the events they follow. */
#pragma once

#include <cjson/cJSON.h>

#include "common/moe/shape.h"
#include "server/store/store.h"

/* A list of ids that a query gave. */
struct mf_ids {
    int64_t *all;
    size_t n, cap;
};
void mf_ids_release(struct mf_ids *ids);
int mf_ids_add(struct mf_ids *ids, int64_t id);

/* clang-format off */
#define MF_TASK_MAP(X, P)            \
    X(P, WAITING, "waiting")         \
    X(P, ENUMERATING, "enumerating") \
    X(P, PROBING, "probing")         \
    X(P, RANKING, "ranking")         \
    X(P, RACING, "racing")           \
    X(P, COMPARING, "comparing")     \
    X(P, DONE, "done")               \
    X(P, FAILED, "failed")           \
    X(P, CANCELLED, "cancelled")
/* clang-format on */
MF_NAMES_DECLARE(mf_task_state, MF_TASK_, MF_TASK_MAP);

struct mf_batch_row {
    const char *name, *options, *idempotency_key, *body_hash;
    int priority;
    int64_t created_ms;
};
/* What was answered under a key; literal: SELECT body_hash, receipt … = ?. 1: the key is known; *ret_receipt is the caller's. 0: it
 * is not. -EEXIST: known, of another body. */
int mf_store_receipt(struct mf_store *s, const char *literal, const char *key, const char *body_hash,
                     cJSON **ret_receipt);
int mf_store_batch_known(struct mf_store *s, const char *key, const char *body_hash, cJSON **ret_receipt);
int mf_store_batch_add(struct mf_store *s, const struct mf_batch_row *row, int64_t *ret);
int mf_store_batch_receipt(struct mf_store *s, int64_t batch, const char *receipt);
/* Priority, creation and options (JSON text, the caller's), and whether it is open. -ENOENT. */
int mf_store_batch_get(struct mf_store *s, int64_t batch, int *ret_priority, int64_t *ret_created_ms,
                       char **ret_options, bool *ret_open);
int mf_store_batch_end(struct mf_store *s, int64_t batch, const char *state, int64_t now_ms);

/* The id of the shape's row, made if need be. */
int mf_store_shape(struct mf_store *s, const struct mf_shape *shape, int64_t *ret);

/* class 0: the first one to come. */
int mf_store_task_add(struct mf_store *s, int64_t batch, int64_t shape, int64_t class, const char *reason);
struct mf_task_row {
    int64_t batch, shape, class, enumeration, model;
    enum mf_task_state state;
    int64_t n_steps, n_measured;
    char row[MF_SHAPE_TEXT_MAX];
    char layer_model[MF_SHAPE_TEXT_MAX];
};
/* -ENOENT. */
int mf_store_task_get(struct mf_store *s, int64_t task, struct mf_task_row *ret);
int mf_store_task_state(struct mf_store *s, int64_t task, enum mf_task_state state, const char *reason,
                        int64_t now_ms);
/* What a waiting task waits for. 1: the text is new. */
int mf_store_task_reason(struct mf_store *s, int64_t task, const char *reason);
int mf_store_task_enumerating(struct mf_store *s, int64_t task, int64_t enumeration);
int mf_store_task_steps(struct mf_store *s, int64_t task, int64_t n_steps, int64_t n_measured);
/* Only when it has none yet. */
int mf_store_task_model(struct mf_store *s, int64_t task, int64_t model);
/* From now on only that worker measures the task, until it leaves. */
int mf_store_task_worker(struct mf_store *s, int64_t task, int64_t worker);
int mf_store_tasks_unpin(struct mf_store *s, int64_t worker);
/* Tasks without a class get this one. */
int mf_store_tasks_adopt(struct mf_store *s, int64_t class);

/* Batch by batch and layer by layer, of a layer the most tokens first: they take longest. */
int mf_store_tasks_waiting(struct mf_store *s, int64_t class, struct mf_ids *ret);
int mf_store_tasks_in(struct mf_store *s, enum mf_task_state state, struct mf_ids *ret);
int mf_store_tasks_of_enumeration(struct mf_store *s, int64_t enumeration,
                                  struct mf_ids *ret);                              /* enumerating ones */
int mf_store_tasks_of_batch(struct mf_store *s, int64_t batch, struct mf_ids *ret); /* that have not ended */
/* Tasks of a layer model: ranking ones into ret; *ret_behind counts those that have not come so far. */
int mf_store_tasks_of_layer(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                            struct mf_ids *ret, int64_t *ret_behind);
/* Those of a layer model that have raced over several layouts and have no config yet, by tokens, and how many others are on their way
 * there. */
int mf_store_tasks_raced(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                         struct mf_ids *ret, int64_t *ret_behind);
/* Tasks of the batch that have not ended. */
int mf_store_tasks_open(struct mf_store *s, int64_t batch, int64_t *ret);
/* The id of an enumeration, made if need be, and whether it is complete. */
int mf_store_enumeration(struct mf_store *s, int64_t class, int64_t shape, const char *revision, int64_t *ret,
                         bool *ret_complete);
/* The revision that other tasks of the batch and class work with. 1: *ret is the caller's; 0: none yet. */
int mf_store_pinned_revision(struct mf_store *s, int64_t batch, int64_t class, char **ret);

/* batch 0: of the farm. */
int mf_store_event_add(struct mf_store *s, int64_t batch, const char *kind, const char *body, int64_t now_ms,
                       int64_t *ret);
/* Keeps the newest n. */
int mf_store_events_trim(struct mf_store *s, int64_t n);
