/* moefarm on the tables of public bug reports (tests/data/cases). */
#include "common/base/cleanup.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"

#include <string.h>

#define CASE(file) MF_TEST_DATA "/cases/" file
#define TREE       MF_TEST_DATA "/aiter_tree"

/* clang-format off */
static const struct {
    const char *words[6];
    int code;
    const char *says[4]; /* texts of the output */
} cases[] = {
    /* The length in the mangled name is wrong, as in AITER's manifest. */
    {{"csv", "check", CASE("asm47.csv")}, 0, {"1 file, 1 row: no errors, no warnings\n"}},
    {{"csv", "check", "--aiter-dir", TREE, CASE("asm47.csv")}, 1,
     {"error: kernel: kernelName1 '_ZN5aiter47fmoe_bf16_blockscaleFp8_g1u1_vs_ps_silu_32x128E': not a kernel "
      "of the AITER in " TREE}},
    {{"csv", "check", "--aiter-dir", MF_TEST_DATA "/cases", CASE("asm47.csv")}, 2, {""}},

    {{"csv", "check", "--only", "kernel", CASE("ck224_tuned.csv")}, 1,
     {"error: kernel: kernelName1 'moe_ck2stages_gemm1_256x64x128x64_1x4_TypeCast",
      "composable kernel needs inter_dim % NPerBlock = 0 in stage 1: 224 is not a multiple of 128"}},

    {{"csv", "check", CASE("gelutanh_tuned.csv")}, 0,
     {"warning: unlisted: kernelName1 'moe_ck2stages_gemm1_256x64x128x128_1x4_MulABScale",
      "not known to this build (AITER e4048607)", "1 file, 1 row: 0 errors, 1 warning\n"}},
};
/* clang-format on */

MF_TEST(cases, .rows = MF_ARRAY_LEN(cases))
{
    const char *const *w = cases[_i].words;
    struct ran r = moefarm("", w[0], w[1], w[2], w[3], w[4], w[5], NULL);
    for (size_t i = 0; i < MF_ARRAY_LEN(cases[_i].says) && cases[_i].says[i]; i++)
        assert_says(r.out, cases[_i].says[i]);
    assert_code(r, cases[_i].code);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 60, .setup = make_folder, .teardown = remove_folder});
}
