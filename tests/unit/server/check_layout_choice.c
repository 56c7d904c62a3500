#include "server/choose/layout_choice.h"

#include "support/mf_check.h"

#include "common/base/cleanup.h"

#include <string.h>

/* Layout a has the lowest forecast: 1,000 us, with an error of at most 5 %. */
#define A                                                                       \
    {                                                                           \
        .text = "a", .n_tasks = 7, .us = 1000, .least_us = 952, .most_us = 1050 \
    }

static const struct {
    struct mf_layout_sum layouts[5];
    size_t n, n_to_race;
    const char *order; /* order of all layouts, after the layouts to race have moved to the front */
} cases[] = {
    {{A}, 1, 1, "a"},
    {{A, {.text = "b", .n_tasks = 7, .us = 1080, .least_us = 1028}}, 2, 2, "ab"},
    {{A, {.text = "b", .n_tasks = 7, .us = 1200, .least_us = 1143}}, 2, 1, "ab"},
    /* A layout whose forecast has a larger known error races, even if its forecast is slower. */
    {{A,
      {.text = "b", .n_tasks = 7, .us = 1120, .least_us = 1066},
      {.text = "c", .n_tasks = 7, .us = 1200, .least_us = 1000}},
     3,
     2,
     "acb"},
    /* A layout without a pipeline for one of the tasks does not race, even if its forecast is the fastest. */
    {{A, {.text = "b", .n_tasks = 6, .us = 500, .least_us = 480}}, 2, 1, "ab"},
    /* At most MF_LAYOUTS_RACED_MAX layouts race. */
    {{A,
      {.text = "b", .n_tasks = 7, .us = 1001, .least_us = 953},
      {.text = "c", .n_tasks = 7, .us = 1002, .least_us = 954},
      {.text = "d", .n_tasks = 7, .us = 1003, .least_us = 955}},
     4,
     MF_LAYOUTS_RACED_MAX,
     "abcd"},
};

MF_TEST(layouts_to_race, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_layout_sum layouts[5];
    char order[6] = "";
    memcpy(layouts, cases[_i].layouts, sizeof(layouts));
    ck_assert_uint_eq(mf_layouts_to_race(layouts, cases[_i].n), cases[_i].n_to_race);
    for (size_t i = 0; i < cases[_i].n; i++)
        strcat(order, layouts[i].text);
    ck_assert_str_eq(order, cases[_i].order);
}

#define RACED(name, forecast, n, time)                                                            \
    {                                                                                             \
        .text = name, .n_tasks = 7, .us = forecast, .raced = true, .n_raced = n, .raced_us = time \
    }

static const struct {
    struct mf_layout_sum layouts[3];
    size_t n;
    int chosen;
    const char *why[3];
} races[] = {
    /* The times of the race decide, not the forecasts. */
    {{RACED("a", 1000, 7, 1234.04), RACED("b", 1080, 7, 1200), {.text = "c", .n_tasks = 7, .us = 1500}},
     3,
     1,
     {"lost the races: 1,234.0 us in total, 1,200.0 us with b",
      "won the races: 1,200.0 us in total over 7 token counts",
      "was not raced: 1,500.0 us in total, 1,000.0 us with a (forecasts)"}},
    {{RACED("a", 1000, 7, 990), RACED("b", 1001, 7, 1000000.5), {.text = "c", .n_tasks = 6, .us = 5}},
     3,
     0,
     {"won the races: 990.0 us in total over 7 token counts",
      "lost the races: 1,000,000.5 us in total, 990.0 us with a",
      "has a pipeline at 6 token counts; a has one at 7"}},
    /* At one token count, no pipeline of layout a passed. */
    {{RACED("a", 1000, 6, 500), RACED("b", 1001, 7, 999)},
     2,
     1,
     {"has a race time at 6 token counts; 7 have one with b",
      "won the races: 999.0 us in total over 7 token counts"}},
    /* The layouts are tied, so the name decides, not the forecast or the difference of 0.04 %. */
    {{RACED("b", 1000, 7, 1000), RACED("a", 1001, 7, 1000.4)},
     2,
     1,
     {"tied in the races: 1,000.0 us in total, 1,000.4 us with a",
      "won the races: 1,000.4 us in total over 7 token counts"}},
    {{{.text = "a", .n_tasks = 7, .us = 80}, {.text = "b", .n_tasks = 7, .us = 100}},
     2,
     -1,
     {"has the lowest forecast: 80.0 us in total over 7 token counts",
      "has a higher forecast: 100.0 us in total, 80.0 us with a"}},
    {{{.text = "a", .n_tasks = 7, .us = 80}}, 1, -1, {"is the only layout"}},
    /* The longest sums. */
    {{RACED("a", 1000, 7, 999999999999999), RACED("b", 1001, 7, 1e15)},
     2,
     0,
     {"won the races: 999,999,999,999,999.0 us in total over 7 token counts",
      "tied in the races: 1e+15 us in total, 999,999,999,999,999.0 us with a"}},
    {{RACED("a", 1e26, 7, 1e26), RACED("b", 1e300, 7, 1e300)},
     2,
     0,
     {"won the races: 1e+26 us in total over 7 token counts",
      "lost the races: 1e+300 us in total, 1e+26 us with a"}},
};

MF_TEST(race_decides, .rows = MF_ARRAY_LEN(races))
{
    const struct mf_layout_sum *layouts = races[_i].layouts;
    size_t n = races[_i].n;
    int chosen = mf_layouts_fastest(layouts, n);
    ck_assert_int_eq(chosen, races[_i].chosen);
    for (size_t i = 0; i < n; i++) {
        char why[MF_REASON_MAX];
        mf_layout_explain(layouts, n, i, (size_t)MF_MAX(chosen, 0), why);
        ck_assert_str_eq(why, races[_i].why[i]);
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
