/* GPU kernels on the CPU, NVIDIA's flavour: waves of 32, mma.sync. */
#include "support/kernels/emulator_contract.h"

/* clang-format off */
static const struct emulated flavours[] = {
    {"sm_89", {MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, "tile"}, 1, 0},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TOKEN, "tile"}, 1, 0},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128, "tile"}, 1, 0},
    {"sm_89", {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, "mx"}, 5, 3},
    {"sm_89", {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16, "mx"}, 5, 2},
    {"sm_89", {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_1X32, "wint4"}, 5, 2},
    {"sm_89", {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, "wint4"}, 5, 0},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X32, "mx"}, 5, 0},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, "mx"}, 5, 3},
    {"sm_89", {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, "mx"}, 5, 2},
    {"sm_89", {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16, "mx"}, 5, 3},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_INT4, MF_QTYPE_PER_1X32, "wint4"}, 5, 3},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, "wint4"}, 5, 0},
    {"sm_89", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TENSOR, "tile"}, 3, 0},
    {"sm_89", {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TOKEN, "tile"}, 2, 0},
    {"sm_89", {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_1X128, "tile"}, 2, 1},
};
/* clang-format on */

START_TEST(test_contract)
{
    emulate(flavours, MF_ARRAY_LEN(flavours), _i);
}
END_TEST

/* `one` on weights in slices, which only sm_90 has: a step that reads rows, and the same that reads slices. */
static const struct {
    struct contract_format format;
    struct contract_case layer;
    const char *form;
    int step; /* of those that read rows */
} sliced[] = {
    {{MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, "tile"},
     {3, 256, 128, 4, 2, MF_ACT_SILU, false},
     "b1+ep:1/9",
     0},
    {{MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, "tile"},
     {2, 384, 256, 4, 3, MF_ACT_SILU, false},
     "b2",
     7}, /* four columns of a wave */
    {{MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128, "tile"},
     {2, 384, 128, 4, 2, MF_ACT_SILU, false},
     "",
     5}, /* two */
    {{MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TOKEN, "tile"},
     {1, 1152, 128, 4, 2, MF_ACT_GELU, true},
     "",
     0},
};

START_TEST(test_sliced)
{
    const char *const one[] = {"one"};
    struct mf_shape s = contract_shape(&sliced[_i].layer, &sliced[_i].format);
    struct contract_run run = {
        .families = one, .n_families = 1, .shape = &s, .most = 2, .first = sliced[_i].step, .guard = &guard};
    ck_assert_int_eq(mf_shape_form_parse(sliced[_i].form, &s), 0);
    ck_assert_int_eq(mf_device_emulated_open("sm_90", CORES, emulated_seed, &run.device), 0);
    ck_assert_int_eq(contract_check_some(&run), 2);
    (void)mf_device_close(run.device);
}
END_TEST

int main(void)
{
    return emulated_main("emulator nvidia", test_contract, MF_ARRAY_LEN(rows) * MF_ARRAY_LEN(flavours),
                         test_sliced, MF_ARRAY_LEN(sliced));
}
