#include "common/moe/routing.h"

#include <float.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

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
    {"router:softmax",               MF_ROUTING_ROUTER, 0, "router:softmax"},
    {"router:sigmoid_groups+shared", MF_ROUTING_ROUTER, 0, "router:sigmoid_groups+shared"},
};

static const char *const rejected[] = {
    "", ":", "zipf", "zipf:", "zipf:0", "zipf:-1", "zipf:4.0001", "zipf:nan", "zipf:inf", "zipf:1.2x",
    "zipf: 1",
    "zipf:1:2", "hot", "hot:1.01", "hot:-0.1", "uniform:1", "uniform:", "balanced:0", "Uniform", "recorded",
    "recorded:", "recorded:1.", "recorded:.1", "recorded:1..2", "recorded:-1.2", "recorded:0.0",
    "recorded:1,2", "recorded:99999999999999999999999.1", "router", "router:",
    "router:softma", "router:softmax+", "router:softmax+shared+shared",
    "router:softmax_that_is_longer_than_any_rule_there_is",
};
/* clang-format on */

MF_TEST(profile_round_trips, .rows = MF_ARRAY_LEN(profiles))
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

MF_TEST(rejects_invalid_profiles, .rows = MF_ARRAY_LEN(rejected))
{
    struct mf_routing r = {.kind = MF_ROUTING_HOT, .parameter = 0.25};
    ck_assert_int_eq(mf_routing_parse(rejected[_i], &r), -EINVAL);
    ck_assert_int_eq(mf_routing_parse(NULL, &r), -EINVAL);
    ck_assert_double_eq(r.parameter, 0.25);
}

/* These numbers need all 17 significant digits. */
MF_TEST(parameter_is_printed_exactly)
{
    static const double values[] = {1.0 / 3, 0.1 + 0.2, DBL_EPSILON, DBL_MIN, 1 - DBL_EPSILON / 2};
    for (size_t i = 0; i < MF_ARRAY_LEN(values); i++) {
        struct mf_routing r = {.kind = MF_ROUTING_ZIPF, .parameter = values[i]}, again;
        char text[MF_ROUTING_TEXT_MAX];
        mf_routing_print(&r, text);
        ck_assert_int_eq(mf_routing_parse(text, &again), 0);
        ck_assert_double_eq(again.parameter, values[i]);
    }
}

/* Counts of any magnitude keep their proportions, and non-zero counts stay at least 1. */
MF_TEST(recorded_counts)
{
    static const struct {
        const char *text, *printed;
    } rows[] = {
        {"recorded:3.0.12", "recorded:3.0.12"},
        {"recorded:007.1", "recorded:7.1"},
        {"recorded:131070.65535.1.0", "recorded:65535.32767.1.0"},
        {"recorded:18446744073709551615.1", "recorded:65535.1"},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++) {
        struct mf_routing r, again;
        char text[MF_ROUTING_TEXT_MAX];
        ck_assert_int_eq(mf_routing_parse(rows[i].text, &r), 0);
        mf_routing_print(&r, text);
        ck_assert_str_eq(text, rows[i].printed);
        ck_assert_int_eq(mf_routing_parse(text, &again), 0);
        ck_assert(mf_routing_equal(&r, &again));
        again.counts[0]++;
        ck_assert(!mf_routing_equal(&r, &again));
    }
}

MF_TEST(longest_profile_prints)
{
    uint64_t counts[MF_ROUTING_COUNTS_MAX + 1];
    struct mf_routing r, again;
    char text[MF_ROUTING_TEXT_MAX];
    for (size_t i = 0; i < MF_ARRAY_LEN(counts); i++)
        counts[i] = 65535;
    ck_assert_int_eq(mf_routing_recorded(counts, MF_ARRAY_LEN(counts), &r), -EINVAL);
    ck_assert_int_eq(mf_routing_recorded(counts, 0, &r), -EINVAL);
    ck_assert_int_eq(mf_routing_recorded(counts, MF_ROUTING_COUNTS_MAX, &r), 0);
    mf_routing_print(&r, text);
    ck_assert_int_eq(mf_routing_parse(text, &again), 0);
    ck_assert(mf_routing_equal(&r, &again));
}

MF_TEST(profile_fits_shape)
{
    static const struct {
        const char *text;
        int32_t expert, topk;
        const char *why; /* NULL: the profile fits */
    } rows[] = {
        {"uniform", 8, 2, NULL},
        {"recorded:1.2.3.4", 4, 2, NULL},
        {"recorded:1.2.3.4", 8, 2, "the recorded profile has 4 experts, the shape has 8"},
        {"router:softmax", 8, 8, NULL},
        {"router:softmax+shared", 9, 9, NULL},
        {"router:softmax+shared", 8, 1,
         "topk 1 of 8 experts leaves topk 0 of 7 experts for the router without the shared expert"},
        {"router:sigmoid_groups", 256, 8, NULL},
        {"router:sigmoid_groups+shared", 257, 9, NULL},
        {"router:sigmoid_groups", 257, 8, "257 experts in 8 groups"},
        {"router:sigmoid_groups", 16, 9, "the selected groups must have at least topk 9 experts"},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++) {
        struct mf_routing r;
        struct mf_shape s = {.expert = rows[i].expert, .topk = rows[i].topk};
        char why[192] = "";
        ck_assert_int_eq(mf_routing_parse(rows[i].text, &r), 0);
        ck_assert_int_eq(mf_routing_fits(&r, &s, why, sizeof(why)), rows[i].why ? -EINVAL : 0);
        ck_assert_msg(!rows[i].why || strstr(why, rows[i].why), "%s: %s", rows[i].text, why);
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
