/* Family move: the contract of every step on every case, and its rejections. */
#include "support/kernels/family_cases.h"

START_TEST(test_contract)
{
    family_check_loop("move", _i);
}
END_TEST

/* Enough routes for multi-threaded sorts and enough rows for streaming stores; 1024 routes, the maximum of
 * the single-threaded sort, and 1025. */
static const struct contract_case many_rows[] = {
    {270, 2048, 192, 9, 8, MF_ACT_SILU, false},
    {1024, 64, 256, 8, 1, MF_ACT_SILU, false},
    {1025, 64, 256, 8, 1, MF_ACT_SILU, true},
};

START_TEST(test_many_rows)
{
    if (!mf_draw(_i, 3))
        return;
    size_t format = (size_t)_i % CONTRACT_N_FORMATS;
    struct mf_shape s =
        contract_shape(&many_rows[(size_t)_i / CONTRACT_N_FORMATS], &contract_formats[format]);
    struct mf_device *d = contract_device(NULL);

    ck_assert_int_gt(contract_check(d, "move", &s), 0);
    (void)mf_device_close(d);
}
END_TEST

START_TEST(test_refused)
{
    family_refused_loop("move", _i);
}
END_TEST

int main(void)
{
    mf_draw_start();
    Suite *suite = suite_create("family move");
    TCase *contract = tcase_create("contract"), *refused = tcase_create("refused");

    tcase_set_timeout(contract, 120);
    tcase_add_loop_test(contract, test_contract, 0, FAMILY_LOOPS);
    tcase_add_loop_test(contract, test_many_rows, 0, (int)MF_ARRAY_LEN(many_rows) * CONTRACT_N_FORMATS);
    tcase_add_loop_test(refused, test_refused, 0, (int)MF_ARRAY_LEN(family_refused));
    suite_add_tcase(suite, contract);
    suite_add_tcase(suite, refused);
    return mf_check_main(suite);
}
