/* Checks the family contract of NVIDIA kernels on the emulator: warps of 32, mma.sync. */
#include "support/kernels/emulator_contract.h"

/* clang-format off */
static const struct emulated flavours[] = {
    {"sm_89", {MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, "two_stage"}, 1, 0},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TOKEN, "two_stage"}, 1, 0},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128, "two_stage"}, 1, 0},
    {"sm_89", {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, "two_stage_mx"}, 5, 3},
    {"sm_89", {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16, "two_stage_mx"}, 5, 2},
    {"sm_89", {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_1X32, "two_stage_int4"}, 5, 2},
    {"sm_89", {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, "two_stage_int4"}, 5, 0},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X32, "two_stage_mx"}, 5, 0},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, "two_stage_mx"}, 5, 3},
    {"sm_89", {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, "two_stage_mx"}, 5, 2},
    {"sm_89", {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16, "two_stage_mx"}, 5, 3},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_INT4, MF_QTYPE_PER_1X32, "two_stage_int4"}, 5, 3},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, "two_stage_int4"}, 5, 0},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TENSOR, "two_stage"}, 3, 0},
    {"sm_89", {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TOKEN, "two_stage"}, 2, 0},
    {"sm_89", {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_1X128, "two_stage"}, 2, 1},
};
/* clang-format on */

MF_TEST(test_contract, .rows = MF_ARRAY_LEN(rows) * MF_ARRAY_LEN(flavours))
{
    emulate(flavours, MF_ARRAY_LEN(flavours), _i);
}

/* Family one_stage with weights in layout panel128, which only sm_90 reads. Each case runs a step on
 * row-major weights and the same step on panels. */
static const struct {
    struct contract_format format;
    struct contract_case layer;
    const char *form;
    int step; /* index among the steps for row-major weights */
} panel_cases[] = {
    {{MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, "two_stage"},
     {3, 256, 128, 4, 2, MF_ACT_SILU, false},
     "b1+ep:1/9",
     0},
    {{MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, "two_stage"},
     {2, 384, 256, 4, 3, MF_ACT_SILU, false},
     "b2",
     7}, /* four columns per warp */
    {{MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128, "two_stage"},
     {2, 384, 128, 4, 2, MF_ACT_SILU, false},
     "",
     5}, /* two columns per warp */
    {{MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TOKEN, "two_stage"},
     {1, 1152, 128, 4, 2, MF_ACT_GELU, true},
     "",
     0},
};

MF_TEST(test_panel128, .rows = MF_ARRAY_LEN(panel_cases))
{
    const char *const one[] = {"one_stage"};
    struct mf_shape s = contract_shape(&panel_cases[_i].layer, &panel_cases[_i].format);
    struct contract_run run = {.families = one,
                               .n_families = 1,
                               .shape = &s,
                               .most = 2,
                               .first = panel_cases[_i].step,
                               .guard = &guard};
    ck_assert_int_eq(mf_shape_form_parse(panel_cases[_i].form, &s), 0);
    ck_assert_int_eq(mf_device_emulated_open("sm_90", CORES, emulated_seed, &run.device), 0);
    ck_assert_int_eq(contract_check_some(&run), 2);
    (void)mf_device_close(run.device);
}

int main(void)
{
    return emulated_main();
}
