/* Batches, shapes, tasks, enumerations and events in the database. */
#pragma once

#include <cjson/cJSON.h>

#include "common/moe/consumer.h"
#include "common/moe/shape.h"
#include "server/store/store.h"

/* Ids that a query returned. */
struct mf_ids {
    int64_t *all;
    size_t n, cap;
};
void mf_ids_release(struct mf_ids *ids);
int mf_ids_add(struct mf_ids *ids, int64_t id);
bool mf_ids_contain(const struct mf_ids *ids, int64_t id);

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
/* Looks up the response stored for an idempotency key. literal: "SELECT body_hash, receipt … = ?". Returns 1
 * with *ret_receipt (the caller frees it), 0 if the key is unknown; -EEXIST: the key was used with another
 * body. */
int mf_store_find_receipt(struct mf_store *s, const char *literal, const char *key, const char *body_hash,
                          cJSON **ret_receipt);
int mf_store_batch_find_receipt(struct mf_store *s, const char *key, const char *body_hash,
                                cJSON **ret_receipt);
int mf_store_batch_add(struct mf_store *s, const struct mf_batch_row *row, int64_t *ret);
int mf_store_batch_set_receipt(struct mf_store *s, int64_t batch, const char *receipt);
/* *ret_options: JSON text that the caller frees. -ENOENT: no such batch. */
int mf_store_batch_get(struct mf_store *s, int64_t batch, int *ret_priority, int64_t *ret_created_ms,
                       char **ret_options, bool *ret_open);
int mf_store_batch_end(struct mf_store *s, int64_t batch, const char *state, int64_t now_ms);

/* Returns the id of the shape's row; creates the row if missing. */
int mf_store_shape(struct mf_store *s, const struct mf_shape *shape, int64_t *ret);

/* Adds a task. class 0: the class of the first worker to join. */
int mf_store_task_add(struct mf_store *s, int64_t batch, int64_t shape, int64_t class, mf_consumers consumers,
                      const char *reason);
/* Reads the consumers that the task serves, and those of them that get no config. */
int mf_store_task_consumers(struct mf_store *s, int64_t task, mf_consumers *ret_all, mf_consumers *ret_lost);
/* Stores why a consumer gets no config. */
int mf_store_task_lose(struct mf_store *s, int64_t task, enum mf_consumer consumer, const char *reason);
/* Formats the reasons of all consumers: one reason if they are equal, else "aiter: …; vllm: …". */
int mf_store_task_reasons(struct mf_store *s, int64_t task, char *ret, size_t cap);
struct mf_task_counts {
    int64_t candidates; /* steps that may be measured */
    int64_t steps;      /* those of them in units; with a time budget it grows by rounds */
    int64_t measured;   /* those of them with a deciding result */
    int64_t probe_ms;   /* time that workers spent on its probes */
};
struct mf_task_row {
    int64_t batch, shape, class, model;
    enum mf_task_state state;
    struct mf_task_counts counts;
    char row[MF_SHAPE_TEXT_MAX];
    char layer_model[MF_SHAPE_TEXT_MAX];
};
/* -ENOENT: no such task. */
int mf_store_task_get(struct mf_store *s, int64_t task, struct mf_task_row *ret);
int mf_store_task_set_state(struct mf_store *s, int64_t task, enum mf_task_state state, const char *reason,
                            int64_t now_ms);
/* Stores the reason why a waiting task waits. Returns 1 if the text changed, otherwise 0. */
int mf_store_task_set_reason(struct mf_store *s, int64_t task, const char *reason);
/* Adds an enumeration to the steps of the task. */
int mf_store_task_add_enumeration(struct mf_store *s, int64_t task, int64_t enumeration);
int mf_store_task_remove_enumeration(struct mf_store *s, int64_t task, int64_t enumeration);
/* Lists the enumerations of the task that are incomplete. */
int mf_store_task_enumerations_open(struct mf_store *s, int64_t task, struct mf_ids *ret);
/* Finds the first enumeration of the task. Rejections that concern no single family belong to it. *ret 0: the
 * task has none. */
int mf_store_task_first_enumeration(struct mf_store *s, int64_t task, int64_t *ret);
int mf_store_task_set_counts(struct mf_store *s, int64_t task, const struct mf_task_counts *c);
/* Sets the device model unless the task has one. */
int mf_store_task_set_model(struct mf_store *s, int64_t task, int64_t model);
/* Pins the task to the worker unless it is pinned already. */
int mf_store_task_set_worker(struct mf_store *s, int64_t task, int64_t worker);
/* Unpins all tasks of the worker. */
int mf_store_tasks_unpin(struct mf_store *s, int64_t worker);
/* Unpins the tasks of the worker whose batch tunes a family that the worker does not offer. */
int mf_store_tasks_unpin_lacking(struct mf_store *s, int64_t worker);
/* Sets the class of waiting tasks without a class. Returns the number of these tasks. */
int mf_store_tasks_assign_class(struct mf_store *s, int64_t class);

/* Adds a batch that is submitted in slices: `submitting` until mf_store_batch_open. */
int mf_store_batch_add_partial(struct mf_store *s, const struct mf_batch_row *row, int64_t *ret);
int mf_store_batch_open(struct mf_store *s, int64_t batch);
/* Removes the batches that are still `submitting`, with their tasks. */
int mf_store_batches_remove_partial(struct mf_store *s);
/* Lists the cancelled batches that have unfinished tasks. */
int mf_store_batches_cancelling(struct mf_store *s, struct mf_ids *ret);
/* Lists the waiting tasks of the class in the order in which they start: by batch and layer model. Within a
 * layer model the largest token count comes first, because it takes longest. */
int mf_store_tasks_waiting(struct mf_store *s, int64_t class, struct mf_ids *ret);
int mf_store_tasks_in_state(struct mf_store *s, enum mf_task_state state, struct mf_ids *ret);
int mf_store_tasks_of_enumeration(struct mf_store *s, int64_t enumeration,
                                  struct mf_ids *ret); /* tasks in state enumerating */
int mf_store_tasks_of_batch(struct mf_store *s, int64_t batch,
                            struct mf_ids *ret); /* tasks that have not ended */
/* Lists the tasks of a layer model in state ranking. *ret_n_pending: number of the layer model's tasks in an
 * earlier state. */
int mf_store_tasks_of_layer(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                            struct mf_ids *ret, int64_t *ret_n_pending);
/* Lists the tasks of a layer model that raced over several layouts for a consumer and have no config for it
 * yet, ordered by token count. *ret_n_pending: number of the layer model's unfinished tasks that have not
 * raced for the consumer yet. */
int mf_store_tasks_raced(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                         enum mf_consumer consumer, struct mf_ids *ret, int64_t *ret_n_pending);
/* Counts the tasks of the batch that have not ended. */
int mf_store_open_tasks_count(struct mf_store *s, int64_t batch, int64_t *ret);
/* Returns the id of an enumeration and whether it is complete; creates it if missing or dropped. */
int mf_store_enumeration(struct mf_store *s, int64_t class, int64_t shape, int64_t family, int64_t *ret,
                         bool *ret_complete);
/* Call before storing a worker's list of an enumeration. If another worker has listed a part of it, deletes
 * that part, because the worker lists everything again. Does nothing if the enumeration is complete. */
int mf_store_enumeration_begin(struct mf_store *s, int64_t enumeration, int64_t worker);
/* Finds the family of an enumeration. -ENOENT: no such enumeration. */
int mf_store_enumeration_family(struct mf_store *s, int64_t enumeration, int64_t *ret);
/* Deletes the steps of an incomplete enumeration. */
int mf_store_enumeration_clear(struct mf_store *s, int64_t enumeration);
/* Drops the complete enumerations of a step, or of the steps of a pipeline, that a worker other than their
 * own contradicts. step or pipeline is 0. */
int mf_store_enumeration_dispute(struct mf_store *s, int64_t step, int64_t pipeline, int64_t worker);
/* Drops all enumerations of a worker that is no longer trusted. Tasks that have begun keep their enumeration;
 * later tasks enumerate again. */
int mf_store_enumerations_drop(struct mf_store *s, int64_t worker);

/* Adds an event. batch 0: the event concerns the whole farm. */
int mf_store_event_add(struct mf_store *s, int64_t batch, const char *kind, const char *body, int64_t now_ms,
                       int64_t *ret);
/* Deletes all but the newest n events. */
int mf_store_events_trim(struct mf_store *s, int64_t n);
