/* Family one_stage: tests the contract of every step on every case, and the family's rejections. */
#include "support/kernels/family_cases.h"

MF_TEST(test_contract, .rows = FAMILY_LOOPS)
{
    family_check_loop("one_stage", _i);
}

MF_TEST(test_refused, .rows = MF_ARRAY_LEN(family_refused))
{
    family_refused_loop("one_stage", _i);
}

/* One launch without sorted order is limited to few tokens. */
MF_TEST(test_many_tokens)
{
    static const struct contract_case c = {17, 256, 96, 8, 2, MF_ACT_SILU, false};
    struct mf_shape s = contract_shape(&c, &contract_formats[0]);
    struct contract_answer a;

    contract_enumerate("one_stage", &s, 2, &a);
    ck_assert_int_eq(a.steps[MF_STAGE_ONE], 0);
    ck_assert_str_eq(a.rule, "tokens");
    ck_assert_ptr_nonnull(strstr(a.reason, "17"));
}

int main(void)
{
    mf_draw_start();
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
