/* Database queries of the REST API. Each function returns JSON and runs in the caller's snapshot. No function
 * writes to the database.
 *
 * Lists end with a cursor if there are more rows (server/api/cursor.h). */
#pragma once

#include <cjson/cJSON.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "server/store/store.h"
#include "server/store/store_list.h"

#define MF_READ_CONSUMER_MAX 16

/* All functions below return -ENOENT for an id that does not exist. */
int mf_read_batches(struct mf_store *s, const struct mf_page *page, struct mf_list *ret);
int mf_read_batch(struct mf_store *s, int64_t id, cJSON **ret);
/* Counts results per time bucket, from the submission of the batch to its end, or to now while it is open. */
int mf_read_timeline(struct mf_store *s, int64_t batch, cJSON **ret);
int mf_read_batch_exists(struct mf_store *s, int64_t id);
/* Copies `given`, or else the consumer that lists show for the task; "" if the task serves none. -ENOENT: no
 * such task. */
int mf_read_shown_consumer(struct mf_store *s, int64_t task, const char *given,
                           char ret[MF_READ_CONSUMER_MAX]);
/* Lists the tasks of a batch. state may be NULL. */
int mf_read_tasks(struct mf_store *s, int64_t batch, const char *state, const struct mf_page *page,
                  struct mf_list *ret);
/* Lists shapes. layer_model and class ("gfx942/304") may be NULL. Each shape contains its latest tasks, at
 * most 256 over all classes. */
int mf_read_shapes(struct mf_store *s, const char *layer_model, const char *class, const struct mf_page *page,
                   struct mf_list *ret);
/* The three functions below read what a consumer has; NULL: the consumer that lists show (MF_SHOWN_CONSUMER).
 */
int mf_read_task(struct mf_store *s, int64_t id, const char *consumer, cJSON **ret);
int mf_read_pipelines(struct mf_store *s, int64_t task, const char *consumer, bool finalists,
                      const struct mf_page *page, struct mf_list *ret);
int mf_read_race(struct mf_store *s, int64_t task, const char *consumer, cJSON **ret);
int mf_read_pipeline(struct mf_store *s, int64_t id, cJSON **ret);

struct mf_step_filter {
    const char *family, *status, *covers; /* each may be NULL */
};
int mf_read_steps(struct mf_store *s, int64_t task, const struct mf_step_filter *filter,
                  const struct mf_page *page, struct mf_list *ret);
int mf_read_step(struct mf_store *s, int64_t id, cJSON **ret);
/* Lists the rejections of a task. kernel: glob pattern, may be NULL. */
int mf_read_rejections(struct mf_store *s, int64_t task, const char *kernel, const struct mf_page *page,
                       struct mf_list *ret);
/* Lists the results of a step. task 0: results of all tasks. */
int mf_read_step_results(struct mf_store *s, int64_t step, int64_t task, const struct mf_page *page,
                         struct mf_list *ret);
int mf_read_pipeline_results(struct mf_store *s, int64_t pipeline, const struct mf_page *page,
                             struct mf_list *ret);
int mf_read_workers(struct mf_store *s, const struct mf_page *page, struct mf_list *ret);
int mf_read_quarantine(struct mf_store *s, const struct mf_page *page, struct mf_list *ret);

int mf_read_last_event(struct mf_store *s, int64_t *ret_id);
/* Appends the events after *cursor, about `max` bytes, and advances *cursor. batch: only events of this
 * batch; 0: all events. */
int mf_read_events(struct mf_store *s, int64_t batch, int64_t *cursor, struct mf_buf *out, size_t max);
/* Appends the metrics of /metrics that come from the database. */
int mf_read_metrics(struct mf_store *s, struct mf_buf *out);
