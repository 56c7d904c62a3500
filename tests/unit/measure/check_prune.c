/* Tests which steps a probe stops early (measure/session/prune.h): groups, limits and the hang time. */
#include "measure/session/prune.h"

#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <math.h>
#include <string.h>

#define GEMM1 MF_OP_BIT(MF_OP_GEMM1)
#define SORT  MF_OP_BIT(MF_OP_SORT)

static struct mf_step make_step(mf_ops covers, enum mf_format format, const char *order, int block)
{
    struct mf_step step = {.covers = covers, .n_needs = 2, .n_gives = 1};
    step.needs[0] = (struct mf_tensor_spec){.tensor = MF_TENSOR_X, .format = format};
    step.needs[1] = (struct mf_tensor_spec){.tensor = MF_TENSOR_W1, .format = MF_FORMAT_BF16};
    step.gives[0] = (struct mf_tensor_spec){.tensor = MF_TENSOR_H, .format = MF_FORMAT_BF16, .block = block};
    ck_assert_int_ge(mf_copy(step.needs[0].order, sizeof(step.needs[0].order), "token"), 0);
    ck_assert_int_ge(mf_copy(step.needs[1].order, sizeof(step.needs[1].order), order), 0);
    ck_assert_int_ge(mf_copy(step.gives[0].order, sizeof(step.gives[0].order), "sorted"), 0);
    return step;
}

/* clang-format off */
static const struct {
    const char *what;
    mf_ops covers;
    enum mf_format format;
    const char *order;
    int block;
    bool kind, interface, layout; /* same group as a bf16 GEMM with "row" weights and blocks of 16 */
} groups[] = {
    {"the same",             GEMM1,        MF_FORMAT_BF16, "row",     16, true,  true,  true},
    {"another block",        GEMM1,        MF_FORMAT_BF16, "row",     32, true,  false, true},
    {"another weight layout",GEMM1,        MF_FORMAT_BF16, "panel16", 16, true,  false, false},
    {"another input format", GEMM1,        MF_FORMAT_FP8FN,  "row",     16, false, false, false},
    {"more ops",             GEMM1 | SORT, MF_FORMAT_BF16, "row",     16, false, false, false},
};
/* clang-format on */

MF_TEST(groups_steps, .rows = MF_ARRAY_LEN(groups))
{
    struct mf_step a = make_step(GEMM1, MF_FORMAT_BF16, "row", 16);
    struct mf_step b = make_step(groups[_i].covers, groups[_i].format, groups[_i].order, groups[_i].block);
    struct mf_prune_keys ka = mf_prune_keys(&a), kb = mf_prune_keys(&b);
    ck_assert_msg((ka.kind == kb.kind) == groups[_i].kind, "%s: kind", groups[_i].what);
    ck_assert_msg((ka.interface == kb.interface) == groups[_i].interface, "%s: interface", groups[_i].what);
    ck_assert_msg((ka.layout == kb.layout) == groups[_i].layout, "%s: layout", groups[_i].what);
}

/* clang-format off */
static const struct {
    const char *what;
    const char *family, *other_family;
    bool foreign, other_foreign, aiter, other_aiter;
    bool rivals;
} families[] = {
    {"our families",                     "one_stage",   "two_stage", false, false, false, false, true},
    {"a foreign family and ours",        "vllm",        "one_stage", true,  false, false, false, false},
    {"a foreign family and itself",      "vllm",        "vllm",      true,  true,  false, false, true},
    {"two foreign families",             "vllm",        "sglang",    true,  true,  false, false, false},
    {"AITER's generators",               "ck",          "flydsl",    true,  true,  true,  true,  true},
    {"AITER's generator and another",    "ck",          "vllm",      true,  true,  true,  false, false},
};
/* clang-format on */

/* Steps compete only if one consumer dispatches both. */
MF_TEST(groups_the_steps_of_one_consumer, .rows = MF_ARRAY_LEN(families))
{
    struct mf_step a = make_step(GEMM1, MF_FORMAT_BF16, "row", 16), b = a;
    ck_assert_int_ge(mf_copy(a.family, sizeof(a.family), families[_i].family), 0);
    ck_assert_int_ge(mf_copy(b.family, sizeof(b.family), families[_i].other_family), 0);
    a.foreign = families[_i].foreign;
    b.foreign = families[_i].other_foreign;
    a.aiter = families[_i].aiter;
    b.aiter = families[_i].other_aiter;
    struct mf_prune_keys ka = mf_prune_keys(&a), kb = mf_prune_keys(&b);
    ck_assert_msg((ka.kind == kb.kind) == families[_i].rivals, "%s: kind", families[_i].what);
    ck_assert_msg((ka.interface == kb.interface) == families[_i].rivals, "%s: interface", families[_i].what);
    ck_assert_msg((ka.layout == kb.layout) == families[_i].rivals, "%s: layout", families[_i].what);
}

/* The caller's best times are those of our steps. */
MF_TEST(callers_times_do_not_stop_foreign_steps)
{
    static struct mf_prune_bests bests;
    struct mf_step step = make_step(GEMM1, MF_FORMAT_BF16, "row", 16);
    step.foreign = true;
    struct mf_prune_keys keys = mf_prune_keys(&step);
    struct mf_prune p = mf_prune_start(&bests, &keys, &step, 50, false);
    ck_assert(isinf(mf_prune_limit(&p).us));
    mf_prune_note(&bests, &keys, 100);
    p = mf_prune_start(&bests, &keys, &step, 50, false);
    ck_assert_double_eq(mf_prune_limit(&p).best_us, 100);
}

/* A consumer's table must beat the step that the consumer runs without it. */
MF_TEST(default_steps_are_never_stopped)
{
    static const struct {
        const char *family, *name;
        bool applies;
    } cases[] = {{"vllm", "triton_m16", true},
                 {"vllm", "default", false},
                 {"sglang", "default", false},
                 {"mine", "default", true}};
    for (size_t i = 0; i < MF_ARRAY_LEN(cases); i++) {
        static struct mf_prune_bests bests;
        struct mf_step step = make_step(GEMM1, MF_FORMAT_BF16, "row", 16);
        step.foreign = true;
        ck_assert_int_ge(mf_copy(step.family, sizeof(step.family), cases[i].family), 0);
        ck_assert_int_ge(mf_copy(step.name, sizeof(step.name), cases[i].name), 0);
        struct mf_prune_keys keys = mf_prune_keys(&step);
        mf_prune_note(&bests, &keys, 100);
        struct mf_prune p = mf_prune_start(&bests, &keys, &step, 0, false);
        ck_assert_msg(p.applies == cases[i].applies, "%s:%s", cases[i].family, cases[i].name);
    }
}

MF_TEST(remembers_the_best_time_of_each_group)
{
    static struct mf_prune_bests bests; /* static, so initialised to zero */
    struct mf_step step = make_step(GEMM1, MF_FORMAT_BF16, "row", 16);
    struct mf_step other = make_step(GEMM1, MF_FORMAT_BF16, "panel16", 16);
    struct mf_prune_keys keys = mf_prune_keys(&step), other_keys = mf_prune_keys(&other);
    ck_assert_double_eq(mf_prune_best(&bests, keys.kind), 0);
    mf_prune_note(&bests, &keys, 100);
    mf_prune_note(&bests, &keys, 120);
    mf_prune_note(&bests, &other_keys, 90);
    ck_assert_double_eq(mf_prune_best(&bests, keys.kind), 90);
    ck_assert_double_eq(mf_prune_best(&bests, keys.interface), 100);
    ck_assert_double_eq(mf_prune_best(&bests, keys.layout), 100);
    /* A full table keeps its entries. */
    for (uint64_t i = 0; i < MF_PRUNE_BESTS_MAX; i++)
        mf_prune_note(&bests, &(struct mf_prune_keys){i * 3 + 1, i * 3 + 2, i * 3 + 3}, 1);
    ck_assert_uint_eq(bests.n, MF_PRUNE_BESTS_MAX);
    mf_prune_note(&bests, &keys, 80);
    ck_assert_double_eq(mf_prune_best(&bests, keys.kind), 80);
}

/* clang-format off */
static const struct {
    const char *what;
    mf_ops covers;
    bool exhaustive;
    double caller_us, kind_us, interface_us; /* best times before this step; 0: unknown */
    double limit_us;                         /* 0: no limit */
    double rerun_us;
} limits[] = {
    {"nothing known",                        GEMM1, false, 0,   0,    0,    0,      0},
    {"twice the best of its kind",           GEMM1, false, 0,   100,  0,    200,    300},
    {"long runs vary less",                  GEMM1, false, 0,   1000, 0,    1500,   3000},
    {"just below",                           GEMM1, false, 0,   999,  0,    1998,   2997},
    {"an equal interface is stricter",       GEMM1, false, 0,   100,  110,  137.5,  330},
    {"a slow interface is not",              GEMM1, false, 0,   100,  180,  200,    300},
    {"the caller knows a better time",       GEMM1, false, 50,  100,  0,    100,    150},
    {"the caller knows the only time",       GEMM1, false, 50,  0,    0,    100,    150},
    {"exhaustive search stops no step",      GEMM1, true,  50,  100,  110,  0,      0},
    {"a sort is never stopped",              SORT,  false, 50,  100,  110,  0,      0},
    {"nor a conversion",                     0,     false, 50,  100,  110,  0,      0},
};
/* clang-format on */

MF_TEST(limits_the_first_run, .rows = MF_ARRAY_LEN(limits))
{
    static struct mf_prune_bests bests;
    bests = (struct mf_prune_bests){.n = 0};
    struct mf_step step = make_step(limits[_i].covers, MF_FORMAT_BF16, "row", 16);
    struct mf_step other = make_step(limits[_i].covers, MF_FORMAT_BF16, "panel16", 16);
    struct mf_prune_keys keys = mf_prune_keys(&step), other_keys = mf_prune_keys(&other);
    if (limits[_i].kind_us > 0)
        mf_prune_note(&bests, &other_keys, limits[_i].kind_us);
    if (limits[_i].interface_us > 0)
        mf_prune_note(&bests, &keys, limits[_i].interface_us);
    struct mf_prune p = mf_prune_start(&bests, &keys, &step, limits[_i].caller_us, limits[_i].exhaustive);
    struct mf_prune_limit limit = mf_prune_limit(&p);
    if (limits[_i].limit_us > 0) {
        ck_assert_msg(fabs(limit.us - limits[_i].limit_us) < 1e-9, "%s: %g", limits[_i].what, limit.us);
        ck_assert_msg(fabs(limit.rerun_us - limits[_i].rerun_us) < 1e-9, "%s: %g", limits[_i].what,
                      limit.rerun_us);
        ck_assert_double_eq_tol(limit.factor * limit.best_us, limit.us, 1e-9);
        ck_assert_uint_gt(strlen(limit.rivals), 0);
    } else {
        ck_assert_msg(isinf(limit.us), "%s: %g", limits[_i].what, limit.us);
    }
}

MF_TEST(stops_sampling_once_the_median_is_decided)
{
    const struct mf_prune p = {.kind_us = 100, .layout_us = 100, .applies = true};
    const struct mf_prune unknown = {.kind_us = 100, .applies = true},
                          never = {.kind_us = 100, .layout_us = 100};
    const double us[] = {106, 104, 106, 106, 110, 120};
    /* after three of six runs, the median may still be below the limit */
    ck_assert(!mf_prune_is_decided(&p, us, 4, 6));
    ck_assert(mf_prune_is_decided(&p, us, 5, 6));
    ck_assert(!mf_prune_is_decided(&p, us, 6, 20));
    ck_assert(!mf_prune_is_decided(&unknown, us, 6, 6));
    ck_assert(!mf_prune_is_decided(&never, us, 6, 6));
}

/* clang-format off */
static const struct {
    double best_us;
    bool exhaustive;
    int64_t cap_ms, expected_ms;
} hangs[] = {
    {0,      false, 30000, 30000},
    {100,    false, 30000, 2000},
    {200000, false, 30000, 4000},
    {9e6,    false, 30000, 30000},
    {100,    true,  30000, 30000},
};
/* clang-format on */

MF_TEST(derives_the_hang_time, .rows = MF_ARRAY_LEN(hangs))
{
    ck_assert_int_eq(mf_prune_hang_ms(hangs[_i].best_us, hangs[_i].exhaustive, hangs[_i].cap_ms),
                     hangs[_i].expected_ms);
}

int main(void)
{
    return mf_check_main(NULL);
}
