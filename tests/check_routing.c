#include "common/routing.h"

#include <float.h>
#include <string.h>

#include "common/cleanup.h"
#include "mf_check.h"

/* clang-format off */
static const struct {
    const char *text;
    enum mf_routing_kind kind;
    double parameter;
    const char *printed;
} profiles[] = {
    {"uniform",   MF_ROUTING_UNIFORM,  0,    "uniform"},
    {"balanced",  MF_ROUTING_BALANCED, 0,    "balanced"},
    {"zipf:1.2",  MF_ROUTING_ZIPF,     1.2,  "zipf:1.2"},
    {"zipf:4",    MF_ROUTING_ZIPF,     4,    "zipf:4"},
    {"zipf:1e-3", MF_ROUTING_ZIPF,     1e-3, "zipf:0.001"},
    {"zipf:01.50",MF_ROUTING_ZIPF,     1.5,  "zipf:1.5"},
    {"hot:0",     MF_ROUTING_HOT,      0,    "hot:0"},
    {"hot:-0",    MF_ROUTING_HOT,      0,    "hot:0"},
    {"hot:0.5",   MF_ROUTING_HOT,      0.5,  "hot:0.5"},
    {"hot:1.0",   MF_ROUTING_HOT,      1,    "hot:1"},
    {"hot:0.1",   MF_ROUTING_HOT,      0.1,  "hot:0.1"},
};

static const char *const refused[] = {
    "", ":", "zipf", "zipf:", "zipf:0", "zipf:-1", "zipf:4.0001", "zipf:nan", "zipf:inf", "zipf:1.2x",
    "zipf: 1",
    "zipf:1:2", "hot", "hot:1.01", "hot:-0.1", "uniform:1", "uniform:", "balanced:0", "Uniform", "recorded",
    "zipf:1.0000000000000000000000000000000000000000000000000000",
};
/* clang-format on */

START_TEST(profile_round_trips)
{
    struct mf_routing r, again;
    char text[MF_ROUTING_TEXT_MAX];
    ck_assert_int_eq(mf_routing_parse(profiles[_i].text, &r), 0);
    ck_assert_int_eq(r.kind, profiles[_i].kind);
    ck_assert_double_eq(r.parameter, profiles[_i].parameter);
    mf_routing_print(&r, text);
    ck_assert_str_eq(text, profiles[_i].printed);
    ck_assert_int_eq(mf_routing_parse(text, &again), 0);
    ck_assert_double_eq(again.parameter, r.parameter);
}
END_TEST

START_TEST(rubbish_is_refused)
{
    struct mf_routing r = {MF_ROUTING_HOT, 0.25};
    ck_assert_int_eq(mf_routing_parse(refused[_i], &r), -EINVAL);
    ck_assert_int_eq(mf_routing_parse(NULL, &r), -EINVAL);
    ck_assert_double_eq(r.parameter, 0.25);
}
END_TEST

/* Numbers that need all their digits. */
START_TEST(parameter_is_printed_exactly)
{
    static const double values[] = {1.0 / 3, 0.1 + 0.2, DBL_EPSILON, DBL_MIN, 1 - DBL_EPSILON / 2};
    for (size_t i = 0; i < MF_ARRAY_LEN(values); i++) {
        struct mf_routing r = {MF_ROUTING_ZIPF, values[i]}, again;
        char text[MF_ROUTING_TEXT_MAX];
        mf_routing_print(&r, text);
        ck_assert_int_eq(mf_routing_parse(text, &again), 0);
        ck_assert_double_eq(again.parameter, values[i]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("routing");
    TCase *tc = tcase_create("routing");
    tcase_add_loop_test(tc, profile_round_trips, 0, MF_ARRAY_LEN(profiles));
    tcase_add_loop_test(tc, rubbish_is_refused, 0, MF_ARRAY_LEN(refused));
    tcase_add_test(tc, parameter_is_printed_exactly);
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
