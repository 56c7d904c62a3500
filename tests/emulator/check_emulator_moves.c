/* What moves and quantises rows, sorts them and activates them alone, on the emulator in both flavours: every format of activations against its definition, bit
 * by bit, on widths that end within a group; all tokens to the same experts, ranks that have next to no expert. */
#include "support/kernels/emulator_contract.h"

/* clang-format off */
static const struct moved {
    const char *gfx;
    struct contract_case layer;
    struct contract_format format;
    const char *form;
    bool gate_only; /* use_g1u1 = 0 */
} moved[] = {
    /*            T    H    I    E  k */
    {"sm_89",  {  9, 464, 464,  7, 3, MF_ACT_SILU, false}, {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP8_E4M3FN,   MF_QTYPE_PER_1X128,  "move"}, "", false},
    {"sm_89",  {  9, 464, 464,  7, 3, MF_ACT_SILU, false}, {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP8_E4M3FN,   MF_QTYPE_PER_TENSOR, "move"}, "ep:15/22", false},
    {"sm_89",  {  9, 464, 464,  7, 3, MF_ACT_SILU, false}, {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP8_E4M3FN,   MF_QTYPE_PER_1X32,   "move"}, "", false},
    {"sm_89",  {  9, 464, 464,  7, 3, MF_ACT_SILU, false}, {MF_DTYPE_FP4X2,        MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X32,   "move"}, "", false},
    {"sm_89",  {  9, 464, 464,  7, 3, MF_ACT_SILU, false}, {MF_DTYPE_FP4X2,        MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X16,   "move"}, "", false},
    {"sm_89",  {  9, 464, 464,  7, 3, MF_ACT_SILU, false}, {MF_DTYPE_INT8,         MF_DTYPE_INT8,         MF_QTYPE_PER_TOKEN,  "move"}, "", false},
    {"sm_89",  {  2, 9232, 16,  3, 1, MF_ACT_SILU, false}, {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP8_E4M3FN,   MF_QTYPE_PER_TOKEN,  "move"}, "", false},
    {"sm_89",  {  1, 20496, 16, 2, 1, MF_ACT_SILU, false}, {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP8_E4M3FN,   MF_QTYPE_PER_TOKEN,  "move"}, "", false},
    {"gfx90a", {  9, 464, 464,  7, 3, MF_ACT_SILU, false}, {MF_DTYPE_INT8,         MF_DTYPE_INT8,         MF_QTYPE_PER_1X128,  "move"}, "", false},
    {"gfx90a", {  9, 464, 464,  7, 3, MF_ACT_SILU, false}, {MF_DTYPE_INT8,         MF_DTYPE_INT8,         MF_QTYPE_PER_TENSOR, "move"}, "", false},
    {"gfx942", {  9, 464, 464,  7, 3, MF_ACT_SILU, false}, {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_TENSOR, "move"}, "", false},
    {"gfx942", {  9, 464, 464,  7, 3, MF_ACT_SILU, false}, {MF_DTYPE_FP4X2,        MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X32,   "move"}, "", false},
    {"gfx942", {  9, 464, 464,  7, 3, MF_ACT_SILU, false}, {MF_DTYPE_FP4X2,        MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X16,   "move"}, "", false},
    /* every way to sort, of ids that every block ranks, of which it counts others', and for which blocks meet */
    {"gfx90a", {130, 64,  32, 33, 8, MF_ACT_SILU, true},  {MF_DTYPE_BF16,         MF_DTYPE_BF16,         MF_QTYPE_NO,         "move"}, "ep:199/232", false},
    {"sm_89",  {300, 64,  32, 33, 8, MF_ACT_SILU, false}, {MF_DTYPE_BF16,         MF_DTYPE_BF16,         MF_QTYPE_NO,         "move"}, "", false},
    {"gfx90a", {300, 64,  32, 33, 8, MF_ACT_SILU, true},  {MF_DTYPE_BF16,         MF_DTYPE_BF16,         MF_QTYPE_NO,         "move"}, "ep:199/232", false},
    {"sm_89",  {1030, 16, 32, 33, 8, MF_ACT_SILU, false}, {MF_DTYPE_BF16,         MF_DTYPE_BF16,         MF_QTYPE_NO,         "move"}, "", false},
    /* every fourth token's row ends within 16 bytes; threads have several turns; what lies behind num_valid is never used */
    {"sm_89",  {130, 272,  32,  5, 4, MF_ACT_SILU, false}, {MF_DTYPE_BF16,         MF_DTYPE_BF16,         MF_QTYPE_NO,         "permute"}, "", false},
    {"sm_89",  {130, 544,  32,  5, 4, MF_ACT_SILU, true},  {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP8_E4M3FN,   MF_QTYPE_PER_1X128,  "permute"}, "ep:1/11+b1", false},
    {"sm_89",  { 37, 272,  32,  5, 4, MF_ACT_SILU, false}, {MF_DTYPE_FP4X2,        MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X16,   "permute"}, "", false},
    {"gfx942", { 37, 272,  32,  5, 4, MF_ACT_SILU, false}, {MF_DTYPE_FP4X2,        MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X32,   "permute"}, "ep:6/11", false},
    {"gfx90a", {  3, 400,  32,  9, 9, MF_ACT_SILU, false}, {MF_DTYPE_INT8,         MF_DTYPE_INT8,         MF_QTYPE_PER_TENSOR, "permute"}, "", true},
    /* rows of which a lane keeps nothing */
    {"sm_89",  {  3, 1296, 32,  9, 9, MF_ACT_SWIGLU, false}, {MF_DTYPE_INT8,       MF_DTYPE_INT8,         MF_QTYPE_PER_TOKEN,  "permute"}, "ep:2/14", false},
    {"gfx942", {  3, 1296, 32,  9, 3, MF_ACT_GELU_TANH, true}, {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_TOKEN, "permute"}, "b1", true},
};
/* clang-format on */

START_TEST(test_contract)
{
    const struct moved *m = &moved[_i];
    struct mf_shape s = contract_shape(&m->layer, &m->format);
    bool permutes = strcmp(m->format.family, "permute") == 0, sorts = m->format.q_type == MF_QTYPE_NO;
    struct contract_run run = {.families = &m->format.family,
                               .n_families = 1,
                               .shape = &s,
                               .most = permutes || sorts ? 4 : 1, /* of those that cover and give the same */
                               .first = _i,
                               .of_each = true,
                               .guard = &guard};

    ck_assert_int_eq(mf_shape_form_parse(m->form, &s), 0);
    s.use_g1u1 = !m->gate_only;
    ck_assert_int_eq(mf_device_emulated_open(m->gfx, permutes ? 1 : CORES, emulated_seed, &run.device), 0);
    ck_assert_int_ge(contract_check_some(&run), 2);
    (void)mf_device_close(run.device);
}
END_TEST

int main(void)
{
    return emulated_main("emulator moves", test_contract, MF_ARRAY_LEN(moved), NULL, 0);
}
