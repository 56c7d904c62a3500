/* Kernels of GPUs on the CPU: the contract of every family on the emulator, a few steps of each for a small grid of shapes.
 * Lanes run in three orders; what comes out is held against the reference, and a second run has to give the same bits. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "common/cleanup.h"
#include "emulator/device_emulated.h"
#include "family_contract.h"
#include "mf_check.h"

#define CORES 3

static uint64_t seed = 20261121;

struct row {
    struct contract_case layer;
    const char *families[3];
};

/* The least widths, and those that are no multiple of a tile; experts without tokens, and few with all; so many ids that a
 * wave of the sort has several rounds of them. */
/* clang-format off */
static const struct row rows[] = {
    /* T    H     I    E  k */
    {{  1, 256,  128,  8, 2, MF_ACT_SILU,       false}, {"one", "tile"}},
    {{  3, 384,   64,  8, 8, MF_ACT_SWIGLU,     true},  {"one", "move"}},
    {{ 17, 256,  384, 33, 4, MF_ACT_SILU,       false}, {"tile", "move"}},
    {{ 65, 272,  256,  4, 2, MF_ACT_GELU_TANH,  false}, {"tile"}},
    {{300,  64,   32, 33, 8, MF_ACT_SILU,       false}, {"move"}},
};
static const struct contract_format formats[] = {
    {MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, "tile"},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TOKEN, "tile"},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128, "tile"},
};
/* clang-format on */

static const struct contract_guard guard = {mf_device_emulated_know, mf_device_emulated_why};

START_TEST(test_contract)
{
    const struct row *row = &rows[(size_t)_i / MF_ARRAY_LEN(formats)];
    struct mf_shape s = contract_shape(&row->layer, &formats[(size_t)_i % MF_ARRAY_LEN(formats)]);
    struct contract_run run = {
        .families = row->families, .shape = &s, .most = 1, .first = _i, .of_each = true, .guard = &guard};

    s.has_b1 = s.has_b2 = false; /* the GPU kernels add none */
    while (run.n_families < MF_ARRAY_LEN(row->families) && row->families[run.n_families])
        run.n_families++;
    ck_assert_int_eq(mf_device_emulated_open(32, CORES, seed, &run.device), 0);
    ck_assert_int_ge(contract_check_some(&run), (int)run.n_families);
    (void)mf_device_close(run.device);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("emulator");
    TCase *contract = tcase_create("contract");
    const char *asked = getenv("MOEFARM_TEST_SEED");

    seed = asked ? strtoull(asked, NULL, 10) : seed;
    printf("seed %" PRIu64 " (MOEFARM_TEST_SEED)\n", seed);
    (void)fflush(stdout);
    tcase_set_timeout(contract, 120);
    tcase_add_loop_test(contract, test_contract, 0, (int)(MF_ARRAY_LEN(rows) * MF_ARRAY_LEN(formats)));
    suite_add_tcase(suite, contract);
    return mf_check_main(suite);
}
