/* The test loop that the check_family_*.c share. It checks every case in every format twice: with the
 * machine's best instruction set on all cores, and with a lesser instruction set ("c" and "avx2" in turn) on
 * one core. */
#pragma once

#include "support/kernels/family_contract.h"
#include "support/mf_check.h"
#include "support/mf_draw.h"

#include "common/base/cleanup.h"

/* The cases contain widths that are not multiples of a panel, of a vector or of 128, experts without tokens,
 * and one expert that gets all tokens. */
/* clang-format off */
static const struct contract_case family_cases[] = {
    /* T    H     I    E  k  */
    {  1,  256,  96,   8, 2, MF_ACT_SILU,   false},
    {  3,  704, 192,   8, 8, MF_ACT_GELU,   false},
    { 17,  256, 352,  33, 8, MF_ACT_SWIGLU, false},
    { 64,  256,  96,   1, 1, MF_ACT_SILU,   true},
    { 65,  256,  96,   8, 2, MF_ACT_SWIGLU, true},
    {  3, 2048,  96,   8, 2, MF_ACT_SILU_STEP, false},
    { 16,  704,  96,  33, 1, MF_ACT_GELU_TANH, true},
    {  1,  200, 136,   8, 8, MF_ACT_SILU,   true},      /* only the row layout is possible */
    { 65,  128,  32,  33, 8, MF_ACT_SITUV2, false},
    {  2, 1536,  64,   8, 1, MF_ACT_GELU,   true},      /* few tiles, so split-K makes 2, 3, 4 and 6 parts */
};
/* clang-format on */

#define DRAWN_EVERY  10 /* mf_draw.h */
#define FAMILY_LOOPS ((int)(MF_ARRAY_LEN(family_cases) * CONTRACT_N_FORMATS * 2))

static inline void family_check_loop(const char *family, int i)
{
    size_t rest = (size_t)i / 2, lesser = (rest / CONTRACT_N_FORMATS + rest % CONTRACT_N_FORMATS) % 2;
    const char *isa = i % 2 == 0 ? NULL : lesser == 0 ? "c" : "avx2";
    const struct contract_format *f = &contract_formats[rest % CONTRACT_N_FORMATS];
    struct mf_shape s = contract_shape(&family_cases[rest / CONTRACT_N_FORMATS], f);
    bool two_stage = strcmp(family, "two_stage") == 0 || strcmp(family, "two_stage_mx") == 0 ||
                     strcmp(family, "two_stage_int4") == 0;
    /* the first five formats run in every case, the other formats in every second case */
    bool often =
        rest % CONTRACT_N_FORMATS < 5 || (rest / CONTRACT_N_FORMATS + rest % CONTRACT_N_FORMATS) % 2 == 0;
    if (!often || (two_stage && strcmp(family, f->family) != 0) || !mf_draw(i, DRAWN_EVERY))
        return;
    if (isa)
        contract_pin_core((int)rest);
    struct mf_device *d = contract_device(isa);

    if (!d)
        return;
    (void)contract_check(d, family, &s);
    (void)mf_device_close(d);
}

struct refused {
    struct mf_shape shape;
    const char *rule, *word; /* word: substring of the reason */
};

#define REFUSED(rule, word, ...)     \
    {                                \
        {.token = 4,                 \
         .model_dim = 256,           \
         .inter_dim = 96,            \
         .expert = 8,                \
         .topk = 2,                  \
         .act_type = MF_ACT_SILU,    \
         .dtype = MF_DTYPE_BF16,     \
         .q_dtype_a = MF_DTYPE_BF16, \
         .q_dtype_w = MF_DTYPE_BF16, \
         .q_type = MF_QTYPE_NO,      \
         .use_g1u1 = true,           \
         __VA_ARGS__},               \
            rule, word               \
    }

/* clang-format off */
_Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Woverride-init\"")
static const struct refused family_refused[] = {
    REFUSED("dtype", "torch.float16", .dtype = MF_DTYPE_FP16),
    REFUSED("q_dtype", "per_1x32 takes", .q_type = MF_QTYPE_PER_1X32,
            .q_dtype_a = MF_DTYPE_INT8, .q_dtype_w = MF_DTYPE_FP4X2),
    REFUSED("q_dtype", "per_Tensor takes", .q_type = MF_QTYPE_PER_TENSOR,
            .q_dtype_a = MF_DTYPE_FP8_E4M3FN, .q_dtype_w = MF_DTYPE_FP8_E4M3FNUZ),
    REFUSED("q_dtype", "torch.int8", .q_type = MF_QTYPE_PER_TOKEN,
            .q_dtype_a = MF_DTYPE_INT8, .q_dtype_w = MF_DTYPE_FP8_E4M3FN),
    REFUSED("q_dtype", "torch.int4", .q_type = MF_QTYPE_PER_TOKEN,
            .q_dtype_a = MF_DTYPE_INT4, .q_dtype_w = MF_DTYPE_INT4),
    REFUSED("q_dtype", "torch.float8_e4m3fn",
            .q_dtype_a = MF_DTYPE_FP8_E4M3FN, .q_dtype_w = MF_DTYPE_FP8_E4M3FN),
    REFUSED("use_g1u1", "96", .use_g1u1 = false),
    REFUSED("packed_id", "16777215", .token = 1 << 24),
};
_Pragma("GCC diagnostic pop")
    /* clang-format on */

    static inline void family_refused_loop(const char *family, int i)
{
    const struct refused *c = &family_refused[i];
    struct contract_answer a;

    contract_enumerate(family, &c->shape, 2, &a);
    for (int stage = 0; stage < MF_STAGE_N_; stage++)
        ck_assert_int_eq(a.steps[stage], 0);
    ck_assert_int_eq(a.rejections, 1);
    ck_assert_str_eq(a.rule, c->rule);
    ck_assert_msg(strstr(a.reason, c->word) != NULL, "\"%s\" does not contain %s", a.reason, c->word);
}
