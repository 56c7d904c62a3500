#include "server/choose/layout_choice.h"

#include "support/mf_check.h"

#include "common/base/cleanup.h"

#include <string.h>

/* a is the forecasts' first: 1,000 us, 5% off at most. */
#define A                                                                       \
    {                                                                           \
        .text = "a", .n_tasks = 7, .us = 1000, .least_us = 952, .most_us = 1050 \
    }

static const struct {
    struct mf_layout_sum layouts[5];
    size_t n, n_in;
    const char *order; /* of all, when those in question have gone in front */
} questions[] = {
    {{A}, 1, 1, "a"},
    {{A, {.text = "b", .n_tasks = 7, .us = 1080, .least_us = 1028}}, 2, 2, "ab"},
    {{A, {.text = "b", .n_tasks = 7, .us = 1200, .least_us = 1143}}, 2, 1, "ab"},
    /* One whose error is known to be large is in question from further off */
    {{A,
      {.text = "b", .n_tasks = 7, .us = 1120, .least_us = 1066},
      {.text = "c", .n_tasks = 7, .us = 1200, .least_us = 1000}},
     3,
     2,
     "acb"},
    /* One that leaves a task out is not, however fast */
    {{A, {.text = "b", .n_tasks = 6, .us = 500, .least_us = 480}}, 2, 1, "ab"},
    /* No more than have places */
    {{A,
      {.text = "b", .n_tasks = 7, .us = 1001, .least_us = 953},
      {.text = "c", .n_tasks = 7, .us = 1002, .least_us = 954},
      {.text = "d", .n_tasks = 7, .us = 1003, .least_us = 955}},
     4,
     MF_LAYOUTS_RACED_MAX,
     "abcd"},
};

START_TEST(in_question)
{
    struct mf_layout_sum layouts[5];
    char order[6] = "";
    memcpy(layouts, questions[_i].layouts, sizeof(layouts));
    ck_assert_uint_eq(mf_layouts_in_question(layouts, questions[_i].n), questions[_i].n_in);
    for (size_t i = 0; i < questions[_i].n; i++)
        strcat(order, layouts[i].text);
    ck_assert_str_eq(order, questions[_i].order);
}
END_TEST

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
    /* The forecast was wrong, and the race right */
    {{RACED("a", 1000, 7, 1234.04), RACED("b", 1080, 7, 1200), {.text = "c", .n_tasks = 7, .us = 1500}},
     3,
     1,
     {"lost over the ladder: 1,234.0 us against 1,200.0 us of b, raced",
      "won over the ladder: 1,200.0 us in sum at 7 token counts, raced",
      "was not raced: 1,500.0 us against 1,000.0 us of a over the ladder, by forecast"}},
    {{RACED("a", 1000, 7, 990), RACED("b", 1001, 7, 1000000.5), {.text = "c", .n_tasks = 6, .us = 5}},
     3,
     0,
     {"won over the ladder: 990.0 us in sum at 7 token counts, raced",
      "lost over the ladder: 1,000,000.5 us against 990.0 us of a, raced",
      "has a pipeline at 6 token counts of the ladder, a at 7"}},
    /* Nothing of it survived somewhere */
    {{RACED("a", 1000, 6, 500), RACED("b", 1001, 7, 999)},
     2,
     1,
     {"gave a time at 6 token counts of the ladder against 7 of b, raced",
      "won over the ladder: 999.0 us in sum at 7 token counts, raced"}},
    /* As good: by name, whatever the forecasts or a thousandth says */
    {{RACED("b", 1000, 7, 1000), RACED("a", 1001, 7, 1000.4)},
     2,
     1,
     {"ties over the ladder: 1,000.0 us against 1,000.4 us of a, raced",
      "won over the ladder: 1,000.4 us in sum at 7 token counts, raced"}},
    {{{.text = "a", .n_tasks = 7, .us = 80}, {.text = "b", .n_tasks = 7, .us = 100}},
     2,
     -1,
     {"is the best over the ladder by forecast: 80.0 us in sum at 7 token counts",
      "lost over the ladder: 100.0 us against 80.0 us of a, by forecast"}},
    {{{.text = "a", .n_tasks = 7, .us = 80}}, 1, -1, {"is the only one"}},
};

START_TEST(fastest)
{
    const struct mf_layout_sum *layouts = races[_i].layouts;
    size_t n = races[_i].n;
    int chosen = mf_layouts_fastest(layouts, n);
    ck_assert_int_eq(chosen, races[_i].chosen);
    for (size_t i = 0; i < n; i++) {
        char why[MF_REASON_MAX];
        mf_layout_say(layouts, n, i, (size_t)MF_MAX(chosen, 0), why);
        ck_assert_str_eq(why, races[_i].why[i]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layout_choice");
    TCase *c = tcase_create("layout_choice");
    tcase_add_loop_test(c, in_question, 0, (int)MF_ARRAY_LEN(questions));
    tcase_add_loop_test(c, fastest, 0, (int)MF_ARRAY_LEN(races));
    suite_add_tcase(suite, c);
    return mf_check_main(suite);
}
