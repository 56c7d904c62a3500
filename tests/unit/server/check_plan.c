#include "server/choose/plan.h"

#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 400

static struct mf_step_row steps[STEPS_MAX];
static size_t ends[STEPS_MAX];

static void add(size_t *n, int32_t block_m, mf_ops covers, double flops, int count)
{
    for (int i = 0; i < count; i++) {
        struct mf_step_row *s = &steps[*n];
        *s =
            (struct mf_step_row){.id = (int64_t)*n + 1, .block_m = block_m, .covers = covers, .flops = flops};
        mf_format(s->name, sizeof(s->name), "k%zu", (*n)++);
        mf_format(s->family, sizeof(s->family), "two_stage");
    }
}

static const struct mf_plan_options fast = {.target_s = 2,
                                            .ceilings = {.peak_gflops = 1000, .mem_read_gbs = 100}};

MF_TEST(units_keep_block_m_apart)
{
    size_t n = 0;
    add(&n, 64, MF_OP_BIT(MF_OP_GEMM1), 1e6, 3);
    add(&n, 0, MF_OP_BIT(MF_OP_QUANT1), 1e6, 2);
    add(&n, 32, MF_OP_BIT(MF_OP_GEMM2), 1e6, 3);
    add(&n, 32, MF_OP_BIT(MF_OP_GEMM1), 1e6, 3);
    ck_assert_uint_eq(mf_plan_cut(steps, n, &fast, ends), 3);
    ck_assert_uint_eq(ends[0], 2); /* steps without block_m have a unit of their own */
    ck_assert_uint_eq(ends[1], 8);
    ck_assert_uint_eq(ends[2], n);
    for (size_t i = 2; i < 8; i++)
        ck_assert_int_eq(steps[i].block_m, 32);
}

/* Workers offer family 1 and 2, or 3: a unit that mixed 2 and 3 could run on neither. */
MF_TEST(units_keep_groups_apart)
{
    static const int64_t groups[] = {1, 3, 1, 3, 1};
    size_t n = 0;
    add(&n, 16, MF_OP_BIT(MF_OP_GEMM1), 1e6, 5);
    for (size_t i = 0; i < n; i++)
        steps[i].group = steps[i].offered_by = groups[i];
    steps[4].offered_by = 2;
    ck_assert_uint_eq(mf_plan_cut(steps, n, &fast, ends), 2);
    ck_assert_uint_eq(ends[0], 3);
    ck_assert_int_eq(steps[0].offered_by, 1);
    ck_assert_int_eq(steps[2].offered_by, 2);
    ck_assert_int_eq(steps[3].group, 3);
}

MF_TEST(units_meet_the_target)
{
    size_t n = 0, first = 0;
    /* each step takes 1 ms at the device's peak */
    add(&n, 16, MF_OP_BIT(MF_OP_GEMM1), 1e9, 300);
    size_t n_units = mf_plan_cut(steps, n, &fast, ends);
    for (size_t i = 0; i < n_units; first = ends[i++]) {
        double s = 0;
        for (size_t k = first; k < ends[i]; k++)
            s += mf_plan_step_s(&steps[k], &fast.ceilings);
        ck_assert_msg(s <= 2, "unit %zu takes %g s", i, s);
        ck_assert_msg(i + 1 == n_units || s > 1.5, "unit %zu takes only %g s", i, s);
    }
    ck_assert_uint_eq(first, n);
}

/* A step that takes longer than the target has a unit of its own. The number of steps per unit is limited,
 * even if all steps are cheap. */
MF_TEST(unit_limits)
{
    size_t n = 0;
    add(&n, 16, MF_OP_BIT(MF_OP_GEMM1), 1e13, 2);
    ck_assert_uint_eq(mf_plan_cut(steps, n, &fast, ends), 2);
    n = 0;
    struct mf_plan_options huge_target = fast;
    huge_target.target_s = 1e9;
    add(&n, 16, MF_OP_BIT(MF_OP_GEMM1), 1, MF_PLAN_UNIT_STEPS_MAX + 1);
    ck_assert_uint_eq(mf_plan_cut(steps, n, &huge_target, ends), 2);
    ck_assert_uint_eq(mf_plan_cut(steps, 0, &fast, ends), 0);
}

MF_TEST(units_are_independent_of_order)
{
    size_t n = 0, other_ends[STEPS_MAX];
    add(&n, 16, MF_OP_BIT(MF_OP_GEMM1), 1e9, 60);
    add(&n, 32, MF_OP_BIT(MF_OP_GEMM2), 2e9, 60);
    static struct mf_step_row other[STEPS_MAX];
    for (size_t i = 0; i < n; i++)
        other[i] = steps[(i * 77 + 5) % n];
    size_t n_units = mf_plan_cut(steps, n, &fast, ends);
    ck_assert_uint_eq(mf_plan_cut(other, n, &fast, other_ends), n_units);
    ck_assert_mem_eq(ends, other_ends, n_units * sizeof(ends[0]));
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(steps[i].id, other[i].id);
}

int main(void)
{
    return mf_check_main(NULL);
}
