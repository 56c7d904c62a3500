/* Chooses the weight layout of a layer model. Pure functions.
 *
 * Production stores a layer's weights once, so a layout is judged by its total time over the ladder (all
 * token counts of the layer model). Forecasts are sums of step times and can be wrong. So the forecasts only
 * select the layouts to race, and the races decide. */
#pragma once

#include "common/moe/pipeline_search.h"
#include "common/moe/status.h"

#include <stddef.h>

/* Maximum number of layouts that race. The layouts with the lowest forecasts race, and each gets an equal
 * share of a race's finalists. */
#define MF_LAYOUTS_RACED_MAX 3

struct mf_layout_sum {
    char text[MF_PATH_LAYOUT_MAX];
    int n_tasks;              /* tasks with a pipeline in this layout */
    double us;                /* sum of the tasks' best forecasts */
    double least_us, most_us; /* range of `us`, given the forecast errors */
    bool raced;               /* pipelines of this layout raced */
    int n_raced;              /* tasks with a winner in this layout */
    double raced_us;          /* sum of the winners' times */
};

/* Comparison for qsort. Order: most tasks (a task without a pipeline in the layout would get no config), then
 * lowest forecast, then name. */
int mf_layout_compare(const void *a, const void *b);
/* Expects the layouts in the order of mf_layout_compare. Moves the layouts that may be faster than the first
 * layout, given the forecast errors of both, directly behind the first layout; the order is otherwise the
 * same. Returns the number of layouts to race, including the first; at most MF_LAYOUTS_RACED_MAX. */
size_t mf_layouts_to_race(struct mf_layout_sum *layouts, size_t n);
/* Returns the index of the best raced layout: the one with winners for the most tasks, and among these the
 * one with the lowest sum of times. If sums differ by less than 0.05%, the first layout by name is best. -1:
 * no layout raced. */
int mf_layouts_fastest(const struct mf_layout_sum *layouts, size_t n);
/* Explains why layout i was chosen or lost, as a verb phrase: "lost the races: 1,234.0 us in total, 1,200.0
 * us with w1=row w2=row". Expects the order of mf_layouts_to_race. */
void mf_layout_explain(const struct mf_layout_sum *layouts, size_t n, size_t i, size_t chosen,
                       char ret[MF_REASON_MAX]);
