/* Chooses the weight layout of a layer model. Pure functions.
 *
 * Production stores a layer's weights once, so a layout is judged by its total time over the ladder: all
 * token counts of the layer model. Forecasts are sums of step times and can be wrong, so they only select the
 * layouts to race; the races decide. */
#pragma once

#include "common/moe/pipeline_search.h"
#include "common/moe/status.h"

#include <stddef.h>

/* Maximum number of layouts that race, in order of their forecasts. They share the finalists of a race
 * equally. */
#define MF_LAYOUTS_RACED_MAX 3

struct mf_layout_sum {
    char text[MF_PATH_LAYOUT_MAX];
    int n_tasks;              /* tasks with a pipeline in this layout */
    double us;                /* sum of the tasks' best forecasts */
    double least_us, most_us; /* range of that sum, from the known forecast errors */
    bool raced;               /* its pipelines raced */
    int n_raced;              /* tasks with a winner in this layout */
    double raced_us;          /* sum of the winners' times */
};

/* Comparison for qsort: most tasks first (a task without a pipeline in the layout gets no config), then
 * lowest forecast, then name. */
int mf_layout_compare(const void *a, const void *b);
/* Moves layouts whose total may be less than the first one's, given both forecast errors, behind the first.
 * Expects the order of mf_layout_compare and keeps it. Returns the number of layouts to race, including the
 * first; at most MF_LAYOUTS_RACED_MAX. */
size_t mf_layouts_to_race(struct mf_layout_sum *layouts, size_t n);
/* Index of the fastest raced layout: most tasks, then lowest sum; within 0.05% by name. -1: none raced. */
int mf_layouts_fastest(const struct mf_layout_sum *layouts, size_t n);
/* Explains why layout i was chosen or lost, as a predicate: "lost the races: 1,234.0 us in total, 1,200.0 us
 * with w1=row w2=row". Expects the order of mf_layouts_to_race. */
void mf_layout_explain(const struct mf_layout_sum *layouts, size_t n, size_t i, size_t chosen,
                       char ret[MF_REASON_MAX]);
