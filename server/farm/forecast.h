/* A task's pipelines before they are raced: what each takes by the sum of its steps, corrected by what earlier batches have
 * told, and the layouts of weights that they are in. Pure. */
#pragma once

#include "common/moe/pipeline_search.h"

#include <stddef.h>
#include <stdint.h>

/* How far a forecast may be off, as a logarithm, where no batch has told. */
#define MF_FORECAST_LOG_SPREAD 0.05

struct mf_forecast_layout {
    char text[MF_PATH_LAYOUT_MAX];
    size_t first_path;        /* that is in it */
    double us;                /* of its paths, the least */
    double least_us, most_us; /* what that may be, by what is known of the errors */
};

struct mf_forecast {
    struct mf_path *paths;
    size_t n_paths;
    int64_t *step_ids;    /* what the paths' indices mean */
    double *corrected_us; /* of each path */
    double *log_spread;   /* of each path; 0: nothing is known */
    size_t *layout_of;    /* of each path, into layouts */
    struct mf_forecast_layout *layouts;
    size_t n_layouts;
};

/* Takes paths and step_ids in any case. Their corrected times and errors are the caller's to fill in. */
int mf_forecast_new(struct mf_path *paths, size_t n_paths, int64_t *step_ids, struct mf_forecast **ret);
struct mf_forecast *mf_forecast_free(struct mf_forecast *fc);
/* Sums up the layouts: once, when times and errors stand. They are a handful, the paths thousands: who asks for a layout's
 * paths compares layout_of, not texts. */
int mf_forecast_sum_up(struct mf_forecast *fc);
/* NULL: no path is in it. */
const struct mf_forecast_layout *mf_forecast_find(const struct mf_forecast *fc, const char *layout);
/* In the layout that serves the task best. */
double mf_forecast_best_us(const struct mf_forecast *fc);
