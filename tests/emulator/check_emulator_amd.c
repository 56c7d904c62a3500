/* Checks the family contract of AMD kernels on the emulator: waves of 64, MFMA, OCP e4m3 converted to f16,
 * and FNUZ e4m3 used directly (CDNA 3). */
#include "support/kernels/emulator_contract.h"

/* clang-format off */
static const struct emulated flavours[] = {
    {"gfx90a", {MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, "two_stage"}, 2, 0},
    {"gfx90a", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128, "two_stage"}, 2, 1},
    {"gfx942", {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_TOKEN, "two_stage"}, 2, 0},
    {"gfx942", {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_1X128, "two_stage"}, 2, 1},
    {"gfx90a", {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, "two_stage_mx"}, 5, 3},
    {"gfx942", {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16, "two_stage_mx"}, 5, 0},
    {"gfx90a", {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_1X32, "two_stage_int4"}, 5, 2},
    {"gfx942", {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, "two_stage_int4"}, 5, 3},
    {"gfx942", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X32, "two_stage_mx"}, 5, 2},
    {"gfx90a", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, "two_stage_mx"}, 5, 0},
    {"gfx942", {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, "two_stage_mx"}, 5, 3},
    {"gfx90a", {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16, "two_stage_mx"}, 5, 2},
    {"gfx942", {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_INT4, MF_QTYPE_PER_1X32, "two_stage_int4"}, 5, 3},
    {"gfx942", {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, "two_stage_int4"}, 5, 0},
    {"gfx90a", {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TOKEN, "two_stage"}, 2, 1},
    {"gfx942", {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TENSOR, "two_stage"}, 3, 2},
};
/* clang-format on */

MF_TEST(test_contract, .rows = MF_ARRAY_LEN(rows) * MF_ARRAY_LEN(flavours))
{
    emulate(flavours, MF_ARRAY_LEN(flavours), _i);
}

int main(void)
{
    return emulated_main();
}
