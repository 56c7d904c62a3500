/* Steps that move, quantise, sort or activate rows, on the emulator for both vendors. Every activation format
 * is compared bit by bit with its definition, on widths that end within a group, with all tokens routed to
 * the same experts, and for ranks with almost no experts. */
#include "support/kernels/emulator_contract.h"

#define FORMAT(dtype, q_type, family)                                 \
    {                                                                 \
        MF_DTYPE_##dtype, MF_DTYPE_##dtype, MF_QTYPE_##q_type, family \
    }

/* clang-format off */
static const struct moved {
    const char *gfx;
    struct contract_case layer;
    struct contract_format format;
    const char *form;
    bool gate_only; /* use_g1u1 = 0 */
} moved[] = {
    /*             T     H    I   E  k */
    {"sm_89",  {   9,   464, 464,  7, 3, MF_ACT_SILU, false},
     FORMAT(FP8_E4M3FN, PER_1X128, "move"), "", false},
    {"sm_89",  {   9,   464, 464,  7, 3, MF_ACT_SILU, false},
     FORMAT(FP8_E4M3FN, PER_TENSOR, "move"), "ep:15/22", false},
    {"sm_89",  {   9,   464, 464,  7, 3, MF_ACT_SILU, false},
     FORMAT(FP8_E4M3FN, PER_1X32, "move"), "", false},
    {"sm_89",  {   9,   464, 464,  7, 3, MF_ACT_SILU, false}, FORMAT(FP4X2, PER_1X32, "move"), "", false},
    {"sm_89",  {   9,   464, 464,  7, 3, MF_ACT_SILU, false}, FORMAT(FP4X2, PER_1X16, "move"), "", false},
    {"sm_89",  {   9,   464, 464,  7, 3, MF_ACT_SILU, false}, FORMAT(INT8, PER_TOKEN, "move"), "", false},
    {"sm_89",  {   2,  9232,  16,  3, 1, MF_ACT_SILU, false},
     FORMAT(FP8_E4M3FN, PER_TOKEN, "move"), "", false},
    {"sm_89",  {   1, 20496,  16,  2, 1, MF_ACT_SILU, false},
     FORMAT(FP8_E4M3FN, PER_TOKEN, "move"), "", false},
    {"gfx90a", {   9,   464, 464,  7, 3, MF_ACT_SILU, false}, FORMAT(INT8, PER_1X128, "move"), "", false},
    {"gfx90a", {   9,   464, 464,  7, 3, MF_ACT_SILU, false}, FORMAT(INT8, PER_TENSOR, "move"), "", false},
    {"gfx942", {   9,   464, 464,  7, 3, MF_ACT_SILU, false},
     FORMAT(FP8_E4M3FNUZ, PER_TENSOR, "move"), "", false},
    {"gfx942", {   9,   464, 464,  7, 3, MF_ACT_SILU, false}, FORMAT(FP4X2, PER_1X32, "move"), "", false},
    {"gfx942", {   9,   464, 464,  7, 3, MF_ACT_SILU, false}, FORMAT(FP4X2, PER_1X16, "move"), "", false},
    /* every sort variant: one block ranks all ids, blocks read other blocks' counts, blocks synchronise at a
     * grid barrier */
    {"gfx90a", { 130,    64,  32, 33, 8, MF_ACT_SILU, true}, FORMAT(BF16, NO, "move"), "ep:199/232", false},
    {"sm_89",  { 300,    64,  32, 33, 8, MF_ACT_SILU, false}, FORMAT(BF16, NO, "move"), "", false},
    {"gfx90a", { 300,    64,  32, 33, 8, MF_ACT_SILU, true}, FORMAT(BF16, NO, "move"), "ep:199/232", false},
    {"sm_89",  {1030,    16,  32, 33, 8, MF_ACT_SILU, false}, FORMAT(BF16, NO, "move"), "", false},
    /* every fourth token's row ends within a 16-byte access; threads process several elements; data after
     * num_valid is never read */
    {"sm_89",  { 130,   272,  32,  5, 4, MF_ACT_SILU, false}, FORMAT(BF16, NO, "permute"), "", false},
    {"sm_89",  { 130,   544,  32,  5, 4, MF_ACT_SILU, true},
     FORMAT(FP8_E4M3FN, PER_1X128, "permute"), "ep:1/11+b1", false},
    {"sm_89",  {  37,   272,  32,  5, 4, MF_ACT_SILU, false}, FORMAT(FP4X2, PER_1X16, "permute"), "", false},
    {"gfx942", {  37,   272,  32,  5, 4, MF_ACT_SILU, false},
     FORMAT(FP4X2, PER_1X32, "permute"), "ep:6/11", false},
    {"gfx90a", {   3,   400,  32,  9, 9, MF_ACT_SILU, false}, FORMAT(INT8, PER_TENSOR, "permute"), "", true},
    /* rows too long for a lane to keep in registers */
    {"sm_89",  {   3,  1296,  32,  9, 9, MF_ACT_SWIGLU, false},
     FORMAT(INT8, PER_TOKEN, "permute"), "ep:2/14", false},
    {"gfx942", {   3,  1296,  32,  9, 3, MF_ACT_GELU_TANH, true},
     FORMAT(FP8_E4M3FNUZ, PER_TOKEN, "permute"), "b1", true},
};
/* clang-format on */

MF_TEST(test_contract, .rows = MF_ARRAY_LEN(moved))
{
    if (!mf_draw(_i, 4))
        return;
    const struct moved *m = &moved[_i];
    struct mf_shape s = contract_shape(&m->layer, &m->format);
    bool permutes = strcmp(m->format.family, "permute") == 0, sorts = m->format.q_type == MF_QTYPE_NO;
    struct contract_run run = {.families = &m->format.family,
                               .n_families = 1,
                               .shape = &s,
                               /* limit among steps with the same ops and output */
                               .most = permutes || sorts ? 4 : 1,
                               .first = _i,
                               .of_each = true,
                               .guard = &guard};

    ck_assert_int_eq(mf_shape_form_parse(m->form, &s), 0);
    s.use_g1u1 = !m->gate_only;
    ck_assert_int_eq(mf_device_emulated_open(m->gfx, permutes ? 1 : CORES, emulated_seed, &run.device), 0);
    ck_assert_int_ge(contract_check_some(&run), 2);
    (void)mf_device_close(run.device);
}

int main(void)
{
    return emulated_main();
}
