/* Family move: the contract of every step on every case, and what it refuses. */
#include "family_cases.h"

START_TEST(test_contract)
{
    family_check_loop("move", _i);
}
END_TEST

START_TEST(test_refused)
{
    family_refused_loop("move", _i);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("family move");
    TCase *contract = tcase_create("contract"), *refused = tcase_create("refused");

    tcase_set_timeout(contract, 120);
    tcase_add_loop_test(contract, test_contract, 0, FAMILY_LOOPS);
    tcase_add_loop_test(refused, test_refused, 0, (int)MF_ARRAY_LEN(family_refused));
    suite_add_tcase(suite, contract);
    suite_add_tcase(suite, refused);
    return mf_check_main(suite);
}
