/* Family lib: the contract of every step on every case, and what it refuses. */
#include <string.h>

#include "family_cases.h"

START_TEST(test_contract)
{
    family_check_loop("lib", _i);
}
END_TEST

START_TEST(test_refused)
{
    family_refused_loop("lib", _i);
}
END_TEST

/* oneDNN has bf16 only: said in a sentence. */
START_TEST(test_quantised)
{
    static const struct contract_case c = {4, 256, 96, 8, 2, MF_ACT_SILU, false};
    struct mf_shape s = contract_shape(&c, &contract_formats[1 + _i]);
    struct contract_answer a;

    contract_ask("lib", &s, 2, &a);
    ck_assert_int_eq(a.rejections, 1);
    ck_assert_int_eq(a.steps[MF_STAGE_STAGE1] + a.steps[MF_STAGE_STAGE2], 0);
    ck_assert_str_eq(a.rule, "q_type");
    ck_assert_ptr_nonnull(strstr(a.reason, mf_dtype_name(s.q_dtype_w)));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("family lib");
    TCase *contract = tcase_create("contract"), *refused = tcase_create("refused");

    tcase_set_timeout(contract, 120);
    tcase_add_loop_test(contract, test_contract, 0, FAMILY_LOOPS);
    tcase_add_loop_test(refused, test_refused, 0, (int)MF_ARRAY_LEN(family_refused));
    tcase_add_loop_test(refused, test_quantised, 0, CONTRACT_N_FORMATS - 1);
    suite_add_tcase(suite, contract);
    suite_add_tcase(suite, refused);
    return mf_check_main(suite);
}
