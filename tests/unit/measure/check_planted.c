/* Every planted fault is rejected with its own reason; the correct kernels pass. */
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "support/kernels/planted_session.h"

#include "support/mf_check.h"
#include "support/mf_draw.h"

static void start(const struct mf_shape *s, const char *routing)
{
    struct mf_unit_options o = {.err_ratio = 0.1, .seed = 1, .time_cap_ms = 60000, .exhaustive = true};
    ck_assert_int_eq(mf_routing_parse(routing, &o.routing), 0);
    planted_session_start(s, &o, NULL);
}

/* ---- the correct kernels ---- */

static const struct {
    int64_t token;
    const char *routing;
} loads[] = {
    {1, "uniform"}, {3, "uniform"}, {63, "uniform"}, {64, "uniform"},  {65, "uniform"},
    {65, "hot:1"},  {64, "zipf:3"}, {3, "hot:1"},    {63, "balanced"},
};

MF_TEST(correct_kernels_pass, .rows = MF_ARRAY_LEN(loads) * PLANTED_N_FORMATS)
{
    if (!mf_draw(_i, 4))
        return;
    static const char *const all[] = {"sort", "quant1", "stage1", "stage2", "combine"};
    int format = _i % PLANTED_N_FORMATS;
    struct mf_shape s = planted_shape(format, loads[_i / PLANTED_N_FORMATS].token);
    s.doweight_stage1 = _i % 2;
    s.act_type = (enum mf_act)(_i % 3);
    s.has_b1 = s.has_b2 = _i % 4 == 3;
    start(&s, loads[_i / PLANTED_N_FORMATS].routing);
    for (size_t i = 0; i < MF_ARRAY_LEN(all); i++) {
        if (i == 1 && s.q_type == MF_QTYPE_NO)
            continue;
        struct mf_step step = planted_step(&s, all[i], _i % 2 ? 4 : 16, PLANTED_NONE);
        struct mf_unit_result r = planted_probe(&step);
        ck_assert_msg(r.status == MF_STATUS_OK, "%s: %s: %s", step.name, mf_status_name(r.status), r.reason);
        ck_assert_int_eq(r.verified, 2);
        ck_assert_uint_ge(r.n_samples, 3);
        ck_assert(r.us > 0 && r.mad >= 0);
        ck_assert(strcmp(r.mode, "cold") == 0 || strcmp(r.mode, "warm") == 0);
        /* headroom: a correct kernel's error is below half its limit */
        ck_assert_msg(!(r.row_err > 0.5 * r.row_limit), "%s: %g of %g", step.name, r.row_err, r.row_limit);
    }
}

/* ---- the faults ---- */

static const struct {
    const char *kind;
    enum planted_fault fault;
    const char *reason;
} faults[] = {
    {"stage1", PLANTED_NAN, "not finite: row "},
    {"stage2", PLANTED_NAN, "not finite: row "},
    {"combine", PLANTED_NAN, "not finite: row 0 of y has 1 NaN or infinity, first in column 80"},
    {"stage1", PLANTED_DESTROYED, "row: row "},
    {"stage2", PLANTED_DESTROYED, "row: row "},
    {"combine", PLANTED_DESTROYED, "row: row 0 of y"},
    {"stage1", PLANTED_TAIL, "unwritten: row "},
    {"stage2", PLANTED_TAIL, "still holds the poison from column 152 on"},
    {"combine", PLANTED_TAIL, "unwritten: row 0 of y still holds the poison from column 152 on"},
    {"stage1", PLANTED_ROWS, "still holds the poison from column 0 on"},
    {"stage2", PLANTED_ROWS, "unwritten: row 127 (token 63, slot 1, expert "},
    {"combine", PLANTED_ROWS, "unwritten: row 63 of y"},
    {"stage1", PLANTED_PAST, "guard: 3 bytes changed 0 bytes past the end of h"},
    {"stage2", PLANTED_PAST, "guard: 3 bytes changed 0 bytes past the end of z"},
    {"combine", PLANTED_PAST, "guard: 3 bytes changed 0 bytes past the end of y"},
    {"sort", PLANTED_PAST, "guard: 3 bytes changed 0 bytes past the end of ids"},
    {"stage2", PLANTED_BEFORE, "guard: 1 byte changed 0 bytes before the start of z"},
    {"stage2", PLANTED_RACE, "unstable: a second run differs in 1 rows, first in row "},
    {"combine", PLANTED_RACE, "unstable: "},
    {"stage1", PLANTED_EXPERT, "expert "},
    {"stage2", PLANTED_EXPERT, "expert "},
    {"stage1", PLANTED_SWAPPED, "mismatch: "},
    {"stage1", PLANTED_ALTERNATING, "mismatch: "},
    {"stage1", PLANTED_BIAS_LATE, ""},
    {"stage2", PLANTED_BIAS_LATE, "mismatch: "},
    {"stage1", PLANTED_BIAS_NEXT, "mismatch: "},
    {"stage2", PLANTED_BIAS_NEXT, "mismatch: "},
    {"stage2", PLANTED_INPUT_PADDING, "not finite: "},
    {"sort", PLANTED_ORDER, "sorted: block 0 has expert "},
    {"sort", PLANTED_WEIGHT, "sorted: row 0 (token "},
    {"sort", PLANTED_COUNT, "sorted: num_valid is {"},
    {"sort", PLANTED_DESTROYED, "sorted: "},
};

MF_TEST(fault_is_refused, .rows = MF_ARRAY_LEN(faults) * PLANTED_N_FORMATS)
{
    if (!mf_draw(_i, 2))
        return;
    int format = _i % PLANTED_N_FORMATS, at = _i / PLANTED_N_FORMATS;
    struct mf_shape s = planted_shape(format, 64);
    s.has_b1 = s.has_b2 = faults[at].fault == PLANTED_BIAS_LATE || faults[at].fault == PLANTED_BIAS_NEXT;
    start(&s, "balanced");
    struct mf_step step = planted_step(&s, faults[at].kind, 16, faults[at].fault);
    struct mf_unit_result r = planted_probe(&step);
    ck_assert_msg(r.status == MF_STATUS_WRONG, "%s passed: %s", step.name, mf_status_name(r.status));
    /* In FP8 the only NaN code is also the poison value, so another gate may report a NaN first. */
    const char *want = faults[at].reason;
    bool only_nan = s.q_dtype_a == MF_DTYPE_FP8_E4M3FNUZ || s.q_dtype_a == MF_DTYPE_FP8_E4M3FN;
    if (only_nan && faults[at].fault == PLANTED_NAN && strcmp(faults[at].kind, "stage1") == 0)
        want = "";
    ck_assert_msg(strstr(r.reason, want) != NULL, "%s: \"%s\", expected \"%s\"", step.name, r.reason, want);
}

/* A fault is rejected on every load; which gate reports it first may differ. */
MF_TEST(fault_is_refused_on_any_load, .rows = MF_ARRAY_LEN(loads) * PLANTED_N_FORMATS)
{
    if (!mf_draw(_i, 4))
        return;
    static const enum planted_fault any[] = {PLANTED_NAN,  PLANTED_DESTROYED, PLANTED_TAIL,   PLANTED_ROWS,
                                             PLANTED_PAST, PLANTED_EXPERT,    PLANTED_SWAPPED};
    int format = _i % PLANTED_N_FORMATS;
    struct mf_shape s = planted_shape(format, loads[_i / PLANTED_N_FORMATS].token);
    start(&s, loads[_i / PLANTED_N_FORMATS].routing);
    for (size_t i = 0; i < MF_ARRAY_LEN(any); i++) {
        struct mf_step step = planted_step(&s, "stage1", 4, any[i]);
        struct mf_unit_result r = planted_probe(&step);
        ck_assert_msg(r.status == MF_STATUS_WRONG && r.reason[0], "%s passed", step.name);
    }
}

/* One of 4,096 rows is destroyed: 0.02 % of the elements, which the mismatch ratio and the cosine distance
 * miss. */
MF_TEST(one_row_of_4096, .rows = PLANTED_N_FORMATS)
{
    struct mf_shape s = planted_shape(_i, 512);
    s.topk = 8;
    s.model_dim = 32;
    s.inter_dim = s.q_type == MF_QTYPE_PER_1X128 ? 128 : 32;
    start(&s, "uniform");
    struct mf_step step = planted_step(&s, "stage2", 16, PLANTED_DESTROYED);
    struct mf_unit_result r = planted_probe(&step);
    ck_assert_int_eq(r.status, MF_STATUS_WRONG);
    ck_assert_msg(strncmp(r.reason, "row: row ", 9) == 0, "%s", r.reason);
    ck_assert(r.err < 0.001 && r.row_err > r.row_limit);
    step = planted_step(&s, "stage2", 16, PLANTED_NONE);
    r = planted_probe(&step);
    ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
}

/* A row error of 1.5 times the limit is rejected; a row error of 0.75 times the limit passes. */
MF_TEST(row_limit_is_enforced, .rows = PLANTED_N_FORMATS)
{
    static const char *const any[] = {"stage2", "combine", "stage1"};
    struct mf_shape s = planted_shape(_i, 64);
    start(&s, "balanced");
    for (size_t i = 0; i < (_i == 0 ? 3 : 2); i++) {
        struct mf_step step = planted_step(&s, any[i], 16, PLANTED_NONE);
        double limit = planted_probe(&step).row_limit;
        ck_assert(limit >= 0.005 && limit < 0.02);
        step = planted_step(&s, any[i], 16, PLANTED_OFF);
        planted_off = 1.5 * limit;
        struct mf_unit_result r = planted_probe(&step);
        ck_assert_int_eq(r.status, MF_STATUS_WRONG);
        ck_assert_msg(strstr(r.reason, "has relative error") && strncmp(r.reason, "row: ", 5) == 0, "%s",
                      r.reason);
        planted_off = 0.75 * limit;
        r = planted_probe(&step);
        ck_assert_msg(r.status == MF_STATUS_OK, "%s", r.reason);
    }
}

/* Every row of one expert has an error of 0.8 of the row limit. So each row passes, but the expert's median
 * does not. */
MF_TEST(biased_expert, .rows = PLANTED_N_FORMATS)
{
    struct mf_shape s = planted_shape(_i, 64);
    start(&s, "balanced");
    struct mf_step step = planted_step(&s, "stage2", 16, PLANTED_BIASED);
    planted_off = 0.8 * 0.005;
    struct mf_unit_result r = planted_probe(&step);
    ck_assert_int_eq(r.status, MF_STATUS_WRONG);
    ck_assert_msg(strncmp(r.reason, "expert 3: median relative error 0.004 over its 8 rows", 52) == 0, "%s",
                  r.reason);
}

static const struct {
    enum planted_clock clock;
    const char *reason;
} clocks[] = {
    {CLOCK_ZERO, "implausible: its time is 0 "},
    {CLOCK_NEGATIVE, "implausible: its time is -3 "},
    {CLOCK_TOO_FAST, "times the device's peak of 2000"},
};

MF_TEST(lying_clock, .rows = MF_ARRAY_LEN(clocks))
{
    planted_device_set(test_device, clocks[_i].clock);
    struct mf_shape s = planted_shape(0, 3);
    start(&s, "uniform");
    struct mf_step step = planted_step(&s, "stage1", 4, PLANTED_NONE);
    step.flops = 1e6;
    struct mf_unit_result r = planted_probe(&step);
    ck_assert_msg(r.status == MF_STATUS_IMPLAUSIBLE, "%s", mf_status_name(r.status));
    ck_assert_msg(strstr(r.reason, clocks[_i].reason) != NULL, "%s", r.reason);
}

static const struct {
    const char *gfx;
    int format; /* of planted_shape: 0 bf16, 1 fp8 */
    double gflops;
    enum mf_status status;
} rates[] = {
    {"gfx942", 0, 2050, MF_STATUS_OK},
    {"gfx942", 0, 2200, MF_STATUS_IMPLAUSIBLE},
    /* the device has measured its peak with bf16 only; a GPU computes twice as fast with fp8 */
    {"gfx942", 1, 4100, MF_STATUS_OK},
    {"gfx942", 1, 4400, MF_STATUS_IMPLAUSIBLE},
    {"cpu-planted", 1, 2200, MF_STATUS_IMPLAUSIBLE},
};

MF_TEST(peak_depends_on_type, .rows = MF_ARRAY_LEN(rates))
{
    static const double us[] = {1000};
    struct mf_shape s = planted_shape(rates[_i].format, 3);
    ck_assert_int_eq(mf_copy(test_device->info.class.gfx, sizeof(test_device->info.class.gfx), rates[_i].gfx),
                     0);
    test_device->info.simulated = true; /* the ceilings are not measured again */
    planted_device_set_times(test_device, us, 1);
    start(&s, "uniform");
    struct mf_step step = planted_step(&s, "stage1", 4, PLANTED_NONE);
    step.flops = rates[_i].gflops * us[0] * 1e3;
    struct mf_unit_result r = planted_probe(&step);
    ck_assert_msg(r.status == rates[_i].status, "%s: %s", mf_status_name(r.status), r.reason);
}

/* A step that would read weights faster than the memory bandwidth allows is implausible, because the
 * rotations together exceed four times the L2 cache. */
MF_TEST(beyond_bandwidth)
{
    planted_device_set(test_device, CLOCK_TOO_FAST);
    struct mf_shape s = planted_shape(0, 64);
    test_device->info.llc_bytes = 1 << 16;
    start(&s, "uniform");
    struct mf_step step = planted_step(&s, "stage1", 4, PLANTED_NONE);
    step.flops = 1;
    struct mf_unit_result r = planted_probe(&step);
    ck_assert_int_eq(r.status, MF_STATUS_IMPLAUSIBLE);
    ck_assert_str_eq(r.mode, "cold");
    ck_assert_msg(strstr(r.reason, "would read weights at") != NULL, "%s", r.reason);
}

int main(void)
{
    mf_draw_start();
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 120, .setup = planted_setup, .teardown = planted_teardown});
}
