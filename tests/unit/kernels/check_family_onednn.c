/* Family onednn: tests the contract of every step on every case, and the family's rejections. */
#include <string.h>

#include "support/kernels/family_cases.h"

MF_TEST(test_contract, .rows = FAMILY_LOOPS)
{
    family_check_loop("onednn", _i);
}

MF_TEST(test_refused, .rows = MF_ARRAY_LEN(family_refused))
{
    family_refused_loop("onednn", _i);
}

/* oneDNN multiplies bf16 only. Its steps for quantised weights are offered only if dequantising the weights
 * in a separate step is worthwhile. Family move applies the same limit. */
/* clang-format off */
static const struct {
    struct contract_case c;
    const char *rule, *word; /* NULL: steps are offered */
} quantised_cases[] = {
    {{ 65,  256,   96,   8, 2, MF_ACT_SILU, false}, NULL,     NULL},
    {{ 62,  256,   96,   8, 2, MF_ACT_SILU, false}, "rows",   "15.5 rows"},
    {{  4,  256,   96,   8, 2, MF_ACT_SILU, false}, "rows",   "bf16"},
    {{4096, 7168, 2048, 64, 8, MF_ACT_SILU, false}, "memory", "64 experts"},
};
/* clang-format on */

MF_TEST(test_quantised_weights, .rows = MF_ARRAY_LEN(quantised_cases) * (CONTRACT_N_FORMATS - 1))
{
    size_t row = (size_t)_i / (CONTRACT_N_FORMATS - 1);
    struct mf_shape s =
        contract_shape(&quantised_cases[row].c, &contract_formats[1 + (size_t)_i % (CONTRACT_N_FORMATS - 1)]);
    struct contract_answer lib;

    if (mf_isa_best() != MF_ISA_AVX512)
        return;
    contract_enumerate("onednn", &s, 2, &lib);
    if (!quantised_cases[row].rule) {
        ck_assert_int_gt(lib.steps[MF_STAGE_STAGE1], 0);
        ck_assert_int_gt(lib.steps[MF_STAGE_STAGE2], 0);
        return;
    }
    ck_assert_int_eq(lib.steps[MF_STAGE_STAGE1] + lib.steps[MF_STAGE_STAGE2], 0);
    ck_assert_str_eq(lib.rule, quantised_cases[row].rule);
    ck_assert_msg(strstr(lib.reason, quantised_cases[row].word) != NULL, "\"%s\" does not contain %s",
                  lib.reason, quantised_cases[row].word);
}

int main(void)
{
    mf_draw_start();
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
