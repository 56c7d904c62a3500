/* Which weight layout a layer model takes. Pure.
 *
 * Production stores a layer's weights once, so a layout is judged by its time summed over the ladder. Forecasts are sums of
 * steps and may be off; so what they choose is only who is in question, and races choose among those. */
#pragma once

#include "common/moe/pipeline_search.h"
#include "common/moe/status.h"

#include <stddef.h>

/* Layouts that are raced at most: each has its share of a race's places. The others were behind them by forecast. */
#define MF_LAYOUTS_RACED_MAX 3

struct mf_layout_sum {
    char text[MF_PATH_LAYOUT_MAX];
    int n_tasks;              /* that have a pipeline in it */
    double us;                /* sum of their best forecasts */
    double least_us, most_us; /* what that may be, by what is known of their errors */
    bool raced;               /* its pipelines were in the races */
    int n_raced;              /* tasks that have a winner in it */
    double raced_us;          /* sum of the winners' times */
};

/* For qsort. Most tasks first: one that the layout leaves out has no config. Then the least forecast, then by name. */
int mf_layout_compare(const void *a, const void *b);
/* Of layouts that are sorted so: those whose sum may be less than the first's, by the errors of both, go behind it, in their
 * order. Returns how many they are with the first, at most MF_LAYOUTS_RACED_MAX. */
size_t mf_layouts_in_question(struct mf_layout_sum *layouts, size_t n);
/* Of those that were raced: most tasks, then the least sum; within a two-thousandth of it, by name. -1: none was raced. */
int mf_layouts_fastest(const struct mf_layout_sum *layouts, size_t n);
/* Why layout i was chosen, or lost to the chosen one, as a sentence without its subject: "lost over the ladder: 1,234 us against
 * 1,200 us of w1=row w2=row, raced". The layouts stand in the order of mf_layouts_in_question(). */
void mf_layout_say(const struct mf_layout_sum *layouts, size_t n, size_t i, size_t chosen,
                   char ret[MF_REASON_MAX]);
