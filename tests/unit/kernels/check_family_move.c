/* Family move: tests the contract of every step on every case, and the family's rejections. */
#include "support/kernels/family_cases.h"

MF_TEST(test_contract, .rows = FAMILY_LOOPS)
{
    family_check_loop("move", _i);
}

/* Cases with enough routes for multi-threaded sorts, and with enough rows for streaming stores. Also cases
 * with 1024 routes, which is the maximum of the single-threaded sort, and with 1025 routes. */
static const struct contract_case many_rows[] = {
    {270, 2048, 192, 9, 8, MF_ACT_SILU, false},
    {1024, 64, 256, 8, 1, MF_ACT_SILU, false},
    {1025, 64, 256, 8, 1, MF_ACT_SILU, true},
};

MF_TEST(test_many_rows, .rows = MF_ARRAY_LEN(many_rows) * CONTRACT_N_FORMATS)
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

MF_TEST(test_refused, .rows = MF_ARRAY_LEN(family_refused))
{
    family_refused_loop("move", _i);
}

int main(void)
{
    mf_draw_start();
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
