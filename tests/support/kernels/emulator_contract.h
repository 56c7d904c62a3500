/* The test loop that the check_emulator_*.c share. It checks the contract of every family on the emulator,
 * with a small grid of shapes: one step for each set of covered ops and output tensor. The emulator runs the
 * lanes in three orders. Outputs are compared with the reference, and a second run in another order must give
 * the same bits. */
#pragma once

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "common/base/cleanup.h"
#include "common/moe/shape_internal.h"
#include "emulator/device_emulated.h"
#include "support/kernels/family_contract.h"
#include "support/mf_check.h"
#include "support/mf_draw.h"

#define CORES       3
#define DRAWN_EVERY 10 /* mf_draw.h */

/* A kernel flavour. It runs the rows whose index modulo `every` is `first`. */
struct emulated {
    const char *gfx;
    struct contract_format format;
    size_t every, first;
};

struct row {
    struct contract_case layer;
    const char *families[3];
    const char *form; /* form of the shape */
    bool gate_only;   /* use_g1u1 = 0 */
};

/* The rows cover
 *   - minimum widths, and widths that are not multiples of a tile,
 *   - experts without tokens, and few experts that get all tokens,
 *   - enough ids that each wave of the sort runs several iterations,
 *   - expert-parallel ranks with some or almost none of the experts,
 *   - biases together with a routing weight in each stage,
 *   - all layouts of gate and up. */
/* clang-format off */
static const struct row rows[] = {
    /* T    H     I    E  k */
    {{  1, 256,  128,  8, 2, MF_ACT_SILU,       false}, {"one_stage", "two_stage"},
     "b1+b2+gate_up:interleaved", false},
    {{  3, 384,   64,  8, 8, MF_ACT_SWIGLU,     true},  {"one_stage", "move"}, "b1+b2+ep:1/9", false},
    {{ 17, 256,  384, 33, 4, MF_ACT_SILU,       false}, {"two_stage", "move"}, "", false},
    {{ 65, 272,  256,  4, 2, MF_ACT_GELU_TANH,  false}, {"two_stage"}, "b2+gate_up:tiled", false},
    {{300,  64,   32, 33, 8, MF_ACT_SILU,       false}, {"move"}, "", false},
    {{  5, 256,  128,  4, 3, MF_ACT_SILU,       false}, {"one_stage", "two_stage", "move"},
     "limit:0.75+gate_up:tiled+ep:1/9", false},
    {{300,  64,   32, 33, 8, MF_ACT_SILU,       true},  {"move"}, "ep:199/232", false},
    {{ 18, 272,  128,  4, 2, MF_ACT_SITUV2,     true},  {"two_stage"}, "b1", false},
    {{ 18, 272,  384,  4, 2, MF_ACT_GELU,       true},  {"two_stage"}, "b1", true},
    {{  2, 256,   64,  4, 2, MF_ACT_SILU_STEP,  true},  {"one_stage"}, "limit:0.75+b1", true},
    {{ 17, 256,  128,  8, 3, MF_ACT_RELU2,      false}, {"two_stage", "one_stage"}, "", true},
};
/* clang-format on */

static const struct contract_guard guard = {mf_device_emulated_allow, mf_device_emulated_why};

/* Selects the families that the flavour runs on a row; the flavour's own two-stage family takes the place of
 * two_stage. Only bf16 and the 8-bit formats run one_stage. Returns the number of families: 0 if the row
 * would repeat a check of another flavour. */
static inline size_t emulated_families(const struct row *row, const struct emulated *flavour,
                                       const char *ret[MF_ARRAY_LEN(row->families)])
{
    bool narrow = strcmp(flavour->format.family, "two_stage") != 0 || flavour->format.a == MF_DTYPE_INT8,
         staged = false;
    size_t n = 0;

    for (size_t i = 0; i < MF_ARRAY_LEN(row->families) && row->families[i]; i++) {
        bool is_tile = strcmp(row->families[i], "two_stage") == 0;
        staged |= is_tile;
        if (!narrow || strcmp(row->families[i], "one_stage") != 0)
            ret[n++] = is_tile ? flavour->format.family : row->families[i];
    }
    return narrow && !staged ? 0 : n;
}

/* True if the first tokens of the row get extreme values. They do so only in rows with few tokens, and only
 * in formats that do not derive one scale from all rows. */
static inline bool is_wild(const struct row *row, const struct emulated *flavour)
{
    return row->layer.token >= CONTRACT_WILD_TOKENS && row->layer.token < 64 &&
           flavour->format.q_type != MF_QTYPE_PER_TENSOR && flavour->format.q_type != MF_QTYPE_PER_1X16;
}

/* Seed of the data and of the lane order. */
static uint64_t emulated_seed;

static inline void emulate(const struct emulated *flavours, size_t n, int i)
{
    const struct row *row = &rows[(size_t)i / n];
    const struct emulated *flavour = &flavours[(size_t)i % n];
    struct mf_shape s = contract_shape(&row->layer, &flavour->format);
    const char *families[MF_ARRAY_LEN(row->families)];
    struct contract_run run = {.families = families,
                               .n_families = emulated_families(row, flavour, families),
                               .shape = &s,
                               .most = 1,
                               .first = i,
                               .of_each = true,
                               .guard = &guard,
                               .wild = is_wild(row, flavour)};

    if ((size_t)i / n % flavour->every != flavour->first || run.n_families == 0 || !mf_draw(i, DRAWN_EVERY))
        return;
    ck_assert_int_eq(mf_shape_form_parse(row->form, &s), 0);
    s.use_g1u1 = !row->gate_only;
    if (strcmp(flavour->format.family, "two_stage") != 0)
        s.model_dim += s.model_dim % 32; /* weights are copied in units of 32 columns */
    if (flavour->format.q_type == MF_QTYPE_PER_1X128)
        s.gate_up = MF_GATE_UP_ANY; /* each scale applies to several rows of gate, or to several rows of up */
    ck_assert_int_eq(mf_device_emulated_open(flavour->gfx, CORES, emulated_seed, &run.device), 0);
    ck_assert_int_ge(contract_check_some(&run), (int)run.n_families);
    (void)mf_device_close(run.device);
}

/* The main function of a check_emulator_*.c. */
static inline int emulated_main(void)
{
    mf_draw_start();
    emulated_seed = mf_draw_state.seed;
    return mf_check_main(&(struct mf_test_group){.timeout_s = 300});
}
