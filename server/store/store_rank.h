/* The store of planning and choosing: what a task has to measure, what it measured, pipelines, layouts, configs. */
#pragma once

#include "server/store/store.h"
#include "server/store/store_unit.h"

/* The deciding result of each step of a task. body: JSON of the step, valid during the call. */
struct mf_measured_row {
    int64_t step;
    enum mf_status status;
    double us, mad, err;
    int verified;
    const char *body;
};
typedef int (*mf_measured_fn)(void *context, const struct mf_measured_row *row);
int mf_store_measured_each(struct mf_store *s, int64_t task, mf_measured_fn fn, void *context);
/* One of them. -ENOENT. *ret_step from its body. */
int mf_store_measured_get(struct mf_store *s, int64_t task, int64_t step, struct mf_measured_row *ret,
                          struct mf_step *ret_step);

/* The place of a pipeline that no ranking gave one: a known row. */
#define MF_KNOWN_PLACE 0
struct mf_pipeline_row {
    int64_t id, task;
    int place;
    const char *steps; /* JSON array of ids */
    const char *structure;
    int block_m;
    const char *layout;
    double sum_us, forecast_us;
    bool finalist;
};
int mf_store_pipeline_add(struct mf_store *s, const struct mf_pipeline_row *row, int64_t *ret);
/* Its texts are the caller's (free steps, structure and layout). -ENOENT. */
struct mf_pipeline {
    int64_t id;
    int place, block_m;
    double sum_us, forecast_us;
    char *steps, *structure, *layout;
};
void mf_pipeline_release(struct mf_pipeline *p);
int mf_store_pipeline_get(struct mf_store *s, int64_t pipeline, struct mf_pipeline *ret);

struct mf_layout_row {
    int64_t batch, class;
    const char *layer_model, *layout, *body;
    double us;
};
/* Or in the place of what was chosen before. */
int mf_store_layout_add(struct mf_store *s, const struct mf_layout_row *row);
/* The body of the choice that the task is of, on the heap. 1; 0: none was made. */
int mf_store_layout_body(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                         char **ret);

/* Who won a task's race in one layout. Texts are borrowed in a row that is added; of one that is read they live during the call. */
struct mf_raced_row {
    int64_t task, pipeline;
    const char *layout, *ties, *provenance;
    double us, mad;
};
int mf_store_raced_add(struct mf_store *s, const struct mf_raced_row *row);
typedef int (*mf_raced_row_fn)(void *context, const struct mf_raced_row *row);
int mf_store_raced_rows_each(struct mf_store *s, int64_t task, mf_raced_row_fn fn, void *context);

struct mf_config_row {
    int64_t task, shape, class, model, pipeline;
    double us, us1, us2, err1, err2;
    const char *ties, *provenance;
};
int mf_store_config_add(struct mf_store *s, const struct mf_config_row *row, int64_t now_ms);
/* Another pipeline takes its place. */
int mf_store_config_replace(struct mf_store *s, const struct mf_config_row *row);
/* -ENOENT. */
int mf_store_config_get(struct mf_store *s, int64_t task, int64_t *ret_pipeline, double *ret_us);
/* Appends a profile's object to the regret of the task's config. */
int mf_store_config_regret(struct mf_store *s, int64_t task, const char *json);

/* The pipelines of a layout (NULL: of all) that were right to the end of the task's race, or to where they were dropped. */
typedef int (*mf_survivor_fn)(void *context, int64_t pipeline, double us, int block_m);
int mf_store_survivors_each(struct mf_store *s, int64_t task, const char *layout, mf_survivor_fn fn,
                            void *context);

/* Measured end to end over forecast, as a logarithm, for the raced pipelines of a batch, by class and structure. */
typedef int (*mf_raced_fn)(void *context, int64_t class, const char *structure, double log_ratio);
int mf_store_raced_each(struct mf_store *s, int64_t batch, mf_raced_fn fn, void *context);
int mf_store_ratio_add(struct mf_store *s, int64_t class, const char *structure, int64_t batch, int64_t n,
                       double log_ratio, double log_spread);
/* What batches that had ended by then say of a structure. 1, or 0 when they say nothing. */
int mf_store_ratio_get(struct mf_store *s, int64_t class, const char *structure, int64_t before_ms,
                       double *ret_log_ratio, double *ret_log_spread);
