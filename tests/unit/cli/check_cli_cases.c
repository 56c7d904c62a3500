/* moefarm on the tables of public bug reports (tests/data/cases). */
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"

#include <stdlib.h>
#include <string.h>

#define CASE(file) MF_TEST_DATA "/cases/" file
#define A8W4       CASE("a8w4_tuned_fmoe_dsv41_flash_tp4_gfx950.csv")
#define TREE       MF_TEST_DATA "/aiter_tree"

#define A8W4_LAYER                                                                                           \
    "--model=deepseek-v3", "--class=gfx950/256", "--consumer=aiter", "--q-type=per_1x32", "--q-dtype-a=fp8", \
        "--q-dtype-w=fp4x2", "--set=model_dim=5120,inter_dim=640,expert=384,topk=6"

/* clang-format off */
static const struct {
    const char *words[12];
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

    {{"csv", "check", CASE("gate_mode_tuned.csv")}, 1,
     {":1: warning: unknown_column: column 'gate_mode' is newer than AITER e4048607",
      ":3: error: duplicate: same key as line 2", "error: kernel: kernelName1 'no_such_kernel'",
      "error: err_limit: err1 is 90.0%"}},

    /* Rows without times were written on purpose: one finding for each. */
    {{"csv", "check", "--silence", "unreachable", A8W4}, 0,
     {":2: warning: no_time: us is empty", ":5: warning: no_time: us is empty",
      "1 file, 4 rows: 0 errors, 4 warnings\n"}},
    {{"csv", "check", "--aiter-bf16-fp8-moe-bound", "0", A8W4}, 0,
     {"1 file, 4 rows: 0 errors, 4 warnings\n"}},
    {{"csv", "check", "--only", "unreachable", A8W4}, 0,
     {"below 256 tokens (AITER_BF16_FP8_MOE_BOUND). With AITER_BF16_FP8_MOE_BOUND=0 calls do"}},
    {{"csv", "check", "--aiter-situv2-a8w4", "x", CASE("asm47.csv")}, 2, {""}},
    {{"csv", "coverage", A8W4_LAYER, "--aiter-bf16-fp8-moe-bound=0",
      A8W4}, 1, {"flydsl_moe1_afp8_wfp4_bf16_t16x128x256_w4_gui"}},
};
/* clang-format on */

MF_TEST(cases, .rows = MF_ARRAY_LEN(cases))
{
    const char *const *w = cases[_i].words;
    struct ran r =
        moefarm("", w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], NULL);
    for (size_t i = 0; i < MF_ARRAY_LEN(cases[_i].says) && cases[_i].says[i]; i++)
        assert_says(r.out, cases[_i].says[i]);
    assert_code(r, cases[_i].code);
}

/* A row without time is merged if its key is new, and replaced by any row with a time. */
MF_TEST(merge_without_times)
{
    char into[160]; /* a copy, because in_folder keeps only its last four results */
    mf_format(into, sizeof(into), "%s", in_folder("table.csv"));
    struct ran r = moefarm("", "csv", "merge", into, A8W4, NULL);
    assert_code(r, 0);
    assert_says(r.out, "4 added, 0 replaced, 0 kept, 0 foreign");
    assert_says(read_file(into), "1,0,16,-1,,flydsl_moe1_afp8_wfp4_bf16_t16x128x256_w4_gui,,,"
                                 "flydsl_moe2_afp8_wfp4_bf16_t16x256x128_atomic_bnt2,,,0,0,0,,\n");
    r = moefarm("", "csv", "merge", into, A8W4, NULL);
    assert_says(r.out, "0 added, 0 replaced, 4 kept, 0 foreign");
}

/* Without an option, AITER's environment variables of this process apply. */
MF_TEST(environment)
{
    ck_assert_int_eq(setenv("AITER_BF16_FP8_MOE_BOUND", "0", 1), 0);
    struct ran r = moefarm("", "csv", "check", A8W4, NULL);
    assert_says(r.out, "1 file, 4 rows: 0 errors, 4 warnings\n");
    ck_assert_int_eq(setenv("AITER_BF16_FP8_MOE_BOUND", "many", 1), 0);
    r = moefarm("", "csv", "check", CASE("asm47.csv"), NULL);
    assert_code(r, 2);
    assert_says(r.err, "environment variable AITER_BF16_FP8_MOE_BOUND 'many': expected an integer");
}

/* The value of an unknown column belongs to its row: it does not stay when another row replaces that row. */
MF_TEST(merge_unknown_column)
{
    char into[160];
    mf_format(into, sizeof(into), "%s", in_folder("table.csv"));
    text_file_write(into, read_file(CASE("nt_old.csv")));
    struct ran r = moefarm("", "csv", "merge", into, CASE("nt_new.csv"), NULL);
    assert_code(r, 0);
    assert_says(r.out, "0 added, 1 replaced");
    assert_says(read_file(into), ",21.9433,1,1,1,6.15,78783.27,\n");
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 60, .setup = make_folder, .teardown = remove_folder});
}
