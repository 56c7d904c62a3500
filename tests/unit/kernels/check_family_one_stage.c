/* Family one: the contract of every step on every case, and its rejections. */
#include "support/kernels/family_cases.h"

START_TEST(test_contract)
{
    family_check_loop("one_stage", _i);
}
END_TEST

START_TEST(test_refused)
{
    family_refused_loop("one_stage", _i);
}
END_TEST

/* One launch without sorted order is limited to few tokens. */
START_TEST(test_many_tokens)
{
    static const struct contract_case c = {17, 256, 96, 8, 2, MF_ACT_SILU, false};
    struct mf_shape s = contract_shape(&c, &contract_formats[0]);
    struct contract_answer a;

    contract_enumerate("one_stage", &s, 2, &a);
    ck_assert_int_eq(a.steps[MF_STAGE_ONE], 0);
    ck_assert_str_eq(a.rule, "tokens");
    ck_assert_ptr_nonnull(strstr(a.reason, "17"));
}
END_TEST

int main(void)
{
    mf_draw_start();
    Suite *suite = suite_create("family one_stage");
    TCase *contract = tcase_create("contract"), *refused = tcase_create("refused");

    tcase_set_timeout(contract, 120);
    tcase_add_loop_test(contract, test_contract, 0, FAMILY_LOOPS);
    tcase_add_loop_test(refused, test_refused, 0, (int)MF_ARRAY_LEN(family_refused));
    tcase_add_test(refused, test_many_tokens);
    suite_add_tcase(suite, contract);
    suite_add_tcase(suite, refused);
    return mf_check_main(suite);
}
