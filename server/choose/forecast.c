#include "server/choose/forecast.h"

#include "common/base/array.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int mf_forecast_new(struct mf_path *paths, size_t n_paths, int64_t *step_ids, struct mf_forecast **ret)
{
    struct mf_forecast *fc = calloc(1, sizeof(*fc));
    if (!fc) {
        free(paths);
        free(step_ids);
        return -ENOMEM;
    }
    *fc = (struct mf_forecast){.paths = paths,
                               .n_paths = n_paths,
                               .step_ids = step_ids,
                               .corrected_us = calloc(n_paths, sizeof(double)),
                               .log_spread = calloc(n_paths, sizeof(double)),
                               .layout_of = calloc(n_paths, sizeof(size_t)),
                               .foreign = calloc(n_paths, sizeof(*fc->foreign))};
    if (!fc->corrected_us || !fc->log_spread || !fc->layout_of || !fc->foreign) {
        mf_forecast_free(fc);
        return -ENOMEM;
    }
    *ret = fc;
    return 0;
}

struct mf_forecast *mf_forecast_free(struct mf_forecast *fc)
{
    if (fc) {
        free(fc->paths);
        free(fc->step_ids);
        free(fc->corrected_us);
        free(fc->log_spread);
        free(fc->layout_of);
        free(fc->foreign);
        free(fc->layouts);
    }
    free(fc);
    return NULL;
}

static bool same_layout(const struct mf_path *a, const struct mf_path *b)
{
    return strcmp(a->w1, b->w1) == 0 && strcmp(a->w2, b->w2) == 0;
}

int mf_forecast_group_layouts(struct mf_forecast *fc)
{
    size_t cap = 0;
    for (size_t i = 0; i < fc->n_paths; i++) {
        double spread = fc->log_spread[i] > 0 ? fc->log_spread[i] : MF_FORECAST_LOG_SPREAD;
        double us = fc->corrected_us[i];
        size_t k = 0;
        while (k < fc->n_layouts && !same_layout(&fc->paths[fc->layouts[k].first_path], &fc->paths[i]))
            k++;
        if (k == fc->n_layouts) {
            int r = mf_array_grow(&fc->layouts, k, &cap, sizeof(*fc->layouts));
            if (r < 0)
                return r;
            fc->layouts[k] = (struct mf_forecast_layout){
                .first_path = i, .us = INFINITY, .least_us = INFINITY, .most_us = INFINITY};
            mf_path_layout(&fc->paths[i], fc->layouts[k].text);
            fc->n_layouts++;
        }
        struct mf_forecast_layout *layout = &fc->layouts[k];
        fc->layout_of[i] = k;
        layout->us = fmin(layout->us, us);
        layout->least_us = fmin(layout->least_us, us * exp(-spread));
        layout->most_us = fmin(layout->most_us, us * exp(spread));
    }
    return 0;
}

const struct mf_forecast_layout *mf_forecast_find(const struct mf_forecast *fc, const char *layout)
{
    for (size_t k = 0; k < fc->n_layouts; k++) {
        if (strcmp(fc->layouts[k].text, layout) == 0)
            return &fc->layouts[k];
    }
    return NULL;
}

double mf_forecast_best_us(const struct mf_forecast *fc)
{
    double best = INFINITY;
    for (size_t k = 0; k < fc->n_layouts; k++)
        best = fmin(best, fc->layouts[k].us);
    return best;
}
