#include "server/choose/forecast.h"

#include "common/base/cleanup.h"
#include "support/mf_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Paths with their layouts (w1, w2). The cheapest path of a layout is not its first path. */
static const struct {
    const char *w1, *w2;
    double us, log_spread;
} given[] = {
    {"row", "row", 120, 0.2},    {"row", "", 90, 0},     {"row", "row", 100, 0},
    {"panel16", "row", 80, 0.1}, {"row", "row", 110, 0},
};

static struct mf_forecast *forecast(size_t n)
{
    struct mf_path *paths = calloc(n + 1, sizeof(*paths));
    struct mf_forecast *fc = NULL;
    ck_assert_int_eq(mf_forecast_new(paths, n, NULL, &fc), 0);
    for (size_t i = 0; i < n; i++) {
        strcpy(paths[i].w1, given[i].w1);
        strcpy(paths[i].w2, given[i].w2);
        fc->corrected_us[i] = given[i].us;
        fc->log_spread[i] = given[i].log_spread;
    }
    ck_assert_int_eq(mf_forecast_group_layouts(fc), 0);
    return fc;
}

MF_TEST(layouts)
{
    struct mf_forecast *fc = forecast(MF_ARRAY_LEN(given));
    const struct mf_forecast_layout *row = mf_forecast_find(fc, "w1=row w2=row");
    ck_assert_uint_eq(fc->n_layouts, 3);
    ck_assert_ptr_nonnull(row);
    ck_assert_double_eq(row->us, 100);
    /* 120 us with a spread of 20 % have a lower bound than 100 us with the minimum spread */
    ck_assert_double_eq_tol(row->least_us, fmin(120 * exp(-0.2), 100 * exp(-MF_FORECAST_LOG_SPREAD)), 1e-9);
    ck_assert_double_eq_tol(row->most_us, 100 * exp(MF_FORECAST_LOG_SPREAD), 1e-9);
    ck_assert_ptr_nonnull(mf_forecast_find(fc, "w1=row w2=-"));
    ck_assert_ptr_null(mf_forecast_find(fc, "w1=panel16 w2=panel16"));
    ck_assert_double_eq(mf_forecast_best_us(fc), 80);
    for (size_t i = 0; i < fc->n_paths; i++) {
        char text[MF_PATH_LAYOUT_MAX];
        mf_path_layout(&fc->paths[i], text);
        ck_assert_str_eq(fc->layouts[fc->layout_of[i]].text, text);
    }
    mf_forecast_free(fc);
}

MF_TEST(no_path)
{
    struct mf_forecast *fc = forecast(0);
    ck_assert_uint_eq(fc->n_layouts, 0);
    ck_assert(isinf(mf_forecast_best_us(fc)));
    mf_forecast_free(fc);
}

/* The number of layouts exceeds the initial capacity. */
MF_TEST(many_layouts)
{
    enum { N = 100 };
    struct mf_path *paths = calloc(2 * N, sizeof(*paths));
    struct mf_forecast *fc = NULL;
    ck_assert_int_eq(mf_forecast_new(paths, 2 * N, NULL, &fc), 0);
    for (int i = 0; i < 2 * N; i++) {
        (void)snprintf(paths[i].w1, sizeof(paths[i].w1), "layout%d", i % N);
        fc->corrected_us[i] = 1000 - i;
    }
    ck_assert_int_eq(mf_forecast_group_layouts(fc), 0);
    ck_assert_uint_eq(fc->n_layouts, N);
    for (int i = 0; i < 2 * N; i++) {
        ck_assert_uint_eq(fc->layout_of[i], (size_t)(i % N));
        ck_assert_double_eq(fc->layouts[i % N].us, 1000 - N - i % N);
    }
    mf_forecast_free(fc);
}

int main(void)
{
    return mf_check_main(NULL);
}
