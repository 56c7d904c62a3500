/* Results, pipelines, layout choices, races and configs in the database, for ranking and choosing. */
#pragma once

#include "common/moe/consumer.h"
#include "server/store/store.h"
#include "server/store/store_unit.h"

/* The deciding result of a step in a task. body: JSON of the step, valid during the call. */
struct mf_measured_row {
    int64_t step, family; /* family: the one that enumerates the step */
    enum mf_status status;
    double us, mad, err;
    int verified;
    bool is_eager; /* timed launch by launch (mode `eager`); not comparable with times of graphs */
    const char *body;
};
typedef int (*mf_measured_fn)(void *context, const struct mf_measured_row *row);
int mf_store_measured_each(struct mf_store *s, int64_t task, mf_measured_fn fn, void *context);
/* Reads the deciding result of one step and parses the step; ret->body is NULL. -ENOENT: the step has no
 * deciding result. */
int mf_store_measured_get(struct mf_store *s, int64_t task, int64_t step, struct mf_measured_row *ret,
                          struct mf_step *ret_step);

/* Value of `place` for a known row that was not among the ranked pipelines. */
#define MF_KNOWN_PLACE 0
struct mf_pipeline_row {
    int64_t id, task;
    enum mf_consumer consumer;
    int place;
    const char *steps; /* JSON array of step ids */
    const char *structure;
    int block_m;
    const char *layout;
    double sum_us, forecast_us;
    bool finalist;
};
int mf_store_pipeline_add(struct mf_store *s, const struct mf_pipeline_row *row, int64_t *ret);
/* A pipeline, as read by mf_store_pipeline_get, which returns -ENOENT for an unknown id. Free the pipeline
 * with mf_pipeline_release. */
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
    enum mf_consumer consumer;
    const char *layer_model, *layout, *body;
    double us;
};
/* Adds or replaces the layout choice of a layer model for a consumer. */
int mf_store_layout_set(struct mf_store *s, const struct mf_layout_row *row);
/* Returns 1 and the body of the stored layout choice (JSON text that the caller frees), or 0 without one. */
int mf_store_layout_body(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                         enum mf_consumer consumer, char **ret);

/* A reported time: median, median absolute deviation (NAN: unknown) and number of the same samples. */
struct mf_reported {
    double us, mad;
    int64_t n;
    int64_t tries;        /* number of reruns, at least 1 */
    const char *unstable; /* why no rerun was accepted, a sentence; "": the time is accepted */
};

/* Winner of a consumer's race within one layout. The texts of a row that was read are valid in the callback.
 * */
struct mf_layout_race_row {
    int64_t task, pipeline;
    enum mf_consumer consumer;
    const char *layout, *ties, *provenance;
    struct mf_reported reported;
};
int mf_store_layout_race_add(struct mf_store *s, const struct mf_layout_race_row *row);
typedef int (*mf_layout_race_fn)(void *context, const struct mf_layout_race_row *row);
int mf_store_layout_races_each(struct mf_store *s, int64_t task, enum mf_consumer consumer,
                               mf_layout_race_fn fn, void *context);

struct mf_config_row {
    int64_t task, shape, class, model, pipeline;
    enum mf_consumer consumer;
    struct mf_reported reported;
    double us1, us2, err1, err2;
    const char *ties, *provenance;
};
int mf_store_config_add(struct mf_store *s, const struct mf_config_row *row, int64_t now_ms);
/* Replaces the pipeline, times, ties and provenance of the consumer's config. */
int mf_store_config_replace(struct mf_store *s, const struct mf_config_row *row);
/* Replaces only the reported time, us1 and us2 of the consumer's config. *ret_n_ties: number of its ties. */
int mf_store_config_set_time(struct mf_store *s, const struct mf_config_row *row, int64_t *ret_n_ties);
/* Reads pipeline and time of a consumer's config. -ENOENT: the consumer has no config. */
int mf_store_config_get(struct mf_store *s, int64_t task, enum mf_consumer consumer, int64_t *ret_pipeline,
                        double *ret_us);

/* Stores the time of a pipeline in the race of its task, in microseconds (server/choose/race_times.h). */
int mf_store_pipeline_set_race(struct mf_store *s, int64_t pipeline, double us, double mad);

/* ---- order of a token ladder ---- */

/* A config of a layer model. The text is valid in the callback. */
struct mf_rung_row {
    int64_t task, token;
    struct mf_reported reported;
};
typedef int (*mf_rung_fn)(void *context, const struct mf_rung_row *row);
/* Calls fn for each exportable config of the layer model and consumer in the batch, by token count. */
int mf_store_rungs_each(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                        enum mf_consumer consumer, mf_rung_fn fn, void *context);
/* Finds the task of the layer model with the most tokens that has not ended. Returns 1, or 0 if all have
 * ended. */
int mf_store_task_of_most_tokens(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                                 int64_t *ret);
/* Returns 1 if each consumer that may get a config has one and no pending promotion, otherwise 0. */
int mf_store_configs_decided(struct mf_store *s, int64_t task);
/* Appends the result of one routing profile (JSON object) to the regret of the consumer's config. */
int mf_store_config_regret(struct mf_store *s, int64_t task, enum mf_consumer consumer, const char *json);

/* Called for each pipeline of a layout (NULL: all layouts) with status ok in the consumer's race, including
 * pipelines that the race dropped early. */
typedef int (*mf_survivor_fn)(void *context, int64_t pipeline, double us, int block_m);
int mf_store_survivors_each(struct mf_store *s, int64_t task, enum mf_consumer consumer, const char *layout,
                            mf_survivor_fn fn, void *context);

/* The pipelines whose ratios are counted together. */
struct mf_ratio_key {
    int64_t model, worker;
    const char *structure;
};
/* Called for each raced pipeline of a batch, ordered by key. log_ratio: ln(measured time / sum of step
 * times).
 * */
typedef int (*mf_forecast_ratio_fn)(void *context, const struct mf_ratio_key *key, double log_ratio);
int mf_store_forecast_ratios_each(struct mf_store *s, int64_t batch, mf_forecast_ratio_fn fn, void *context);
int mf_store_ratio_add(struct mf_store *s, const struct mf_ratio_key *key, int64_t batch, int64_t n,
                       double log_ratio, double log_spread);
/* Called with the mean ratio and spread of each trusted worker, over the batches that had ended by
 * before_ms. */
typedef int (*mf_ratio_fn)(void *context, int64_t worker, double log_ratio, double log_spread);
int mf_store_ratios_each(struct mf_store *s, int64_t model, const char *structure, int64_t before_ms,
                         mf_ratio_fn fn, void *context);
