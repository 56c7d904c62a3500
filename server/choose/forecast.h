/* Forecasts of the times of a task's pipelines, before they race. A forecast is the sum of a pipeline's step
 * times, corrected by the ratios of measured time to forecast in earlier batches. Forecasts are grouped by
 * weight layout. No I/O. */
#pragma once

#include "common/moe/pipeline_search.h"
#include "server/choose/foreign_layers.h"

#include <stddef.h>
#include <stdint.h>

/* Assumed standard deviation of a forecast's logarithm, if earlier batches give no data. */
#define MF_FORECAST_LOG_SPREAD 0.05

struct mf_forecast_layout {
    char text[MF_PATH_LAYOUT_MAX];
    size_t first_path;        /* index of its first path */
    double us;                /* least forecast of its paths */
    double least_us, most_us; /* range of `us`, given log_spread */
};

struct mf_forecast {
    struct mf_path *paths;
    size_t n_paths;
    int64_t *step_ids;              /* step ids that the paths' indices refer to */
    double *corrected_us;           /* per path */
    double *log_spread;             /* per path: standard deviation of the forecast's logarithm; 0: unknown */
    size_t *layout_of;              /* per path: index into layouts */
    enum mf_foreign_layer *foreign; /* per path */
    struct mf_forecast_layout *layouts;
    size_t n_layouts;
};

/* Takes ownership of paths and step_ids, even on error. The caller fills in corrected_us, log_spread
 * and foreign. */
int mf_forecast_new(struct mf_path *paths, size_t n_paths, int64_t *step_ids, struct mf_forecast **ret);
struct mf_forecast *mf_forecast_free(struct mf_forecast *fc);
/* Fills in layouts and layout_of. Call it once, after corrected_us and log_spread are set. To find the paths
 * of a layout, compare the indices in layout_of and not the layout texts, because there are thousands of
 * paths. */
int mf_forecast_group_layouts(struct mf_forecast *fc);
/* Returns NULL if no path uses the layout. */
const struct mf_forecast_layout *mf_forecast_find(const struct mf_forecast *fc, const char *layout);
/* Returns the least forecast over all layouts. */
double mf_forecast_best_us(const struct mf_forecast *fc);
