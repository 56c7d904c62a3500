/* Families two_stage, two_stage_mx and two_stage_int4: tests the contract of every step on every case, and
 * the families' rejections. */
#include <stdarg.h>

#include "kernels/cpu/ops.h"
#include "support/kernels/family_cases.h"

MF_TEST(test_contract, .rows = FAMILY_LOOPS)
{
    family_check_loop(contract_formats[(size_t)_i / 2 % CONTRACT_N_FORMATS].family, _i);
}

MF_TEST(test_refused, .rows = MF_ARRAY_LEN(family_refused))
{
    family_refused_loop("two_stage", _i);
}

/* The shapes of the demo: Qwen3-30B-A3B and Qwen3-235B-A22B, TP8 and TP4. */
static const struct {
    int32_t model_dim, inter_dim;
    int widths_refused; /* rejected tile widths: 64 and 128 do not divide 96, 128 does not divide 192 */
} demo[] = {{2048, 96, 2}, {2048, 192, 1}, {4096, 192, 1}, {4096, 384, 0}};

/* Returns true if stage 1 has at least ten steps per block_m. This holds without quantisation, and if stage 1
 * can quantise h itself, which doubles the steps. Stage 1 cannot quantise h if activations are bf16 or one
 * scale covers all rows. */
static bool has_fused_quant(const struct contract_format *f)
{
    return f->q_type == MF_QTYPE_NO || (f->q_type != MF_QTYPE_PER_TENSOR && f->a != MF_DTYPE_BF16);
}

/* Formats of the demo: bf16, and both fp8 encodings with scales per token and per 128 of K. */
static bool is_demo_format(const struct contract_format *f)
{
    return f->a == f->w && f->a != MF_DTYPE_INT8 &&
           (f->q_type == MF_QTYPE_NO || f->q_type == MF_QTYPE_PER_TOKEN || f->q_type == MF_QTYPE_PER_1X128);
}

/* There are enough steps to choose from, and few enough to measure all. */
MF_TEST(test_step_counts, .rows = MF_ARRAY_LEN(demo) * CONTRACT_N_FORMATS)
{
    /* blocks: number of block_m values (of 8, 16, 32, 64) worth trying if an expert gets 1/16 of the tokens
     */
    static const struct {
        int64_t token;
        int blocks, most1, most2;
    } ladder[] = {{1, 1, 74, 52},  {2, 1, 74, 52},  {4, 1, 74, 52},   {8, 1, 74, 52},
                  {16, 1, 74, 52}, {32, 2, 94, 65}, {64, 3, 108, 78}, {128, 4, 126, 91}};
    const struct contract_format *f = &contract_formats[(size_t)_i % CONTRACT_N_FORMATS];
    /* true: steps also differ by prefetch distance; false: they do not */
    bool fetches = mf_cpu_ops(mf_isa_best())->fetches;
    int least = fetches && is_demo_format(f) ? 40 : 15, of_block = has_fused_quant(f) ? 10 : 6;
    struct contract_case c = {1,
                              demo[_i / CONTRACT_N_FORMATS].model_dim,
                              demo[_i / CONTRACT_N_FORMATS].inter_dim,
                              128,
                              8,
                              MF_ACT_SILU,
                              false};

    for (size_t t = 0; t < MF_ARRAY_LEN(ladder); t++) {
        int blocks = ladder[t].blocks;
        struct contract_answer a;
        c.token = ladder[t].token;
        struct mf_shape s = contract_shape(&c, f);
        contract_enumerate(f->family, &s, 2, &a);
        ck_assert_int_ge(a.steps[MF_STAGE_STAGE1], MF_MAX(least, blocks * of_block));
        ck_assert_int_ge(a.steps[MF_STAGE_STAGE2], MF_MAX(least, blocks * 10));
        ck_assert_int_le(a.steps[MF_STAGE_STAGE1], ladder[t].most1);
        ck_assert_int_le(a.steps[MF_STAGE_STAGE2], ladder[t].most2);
        /* Also rejected: stage 1 steps that quantise x or h with one scale for all rows, or x for too many
         * tokens. */
        bool whole = f->q_type == MF_QTYPE_PER_TENSOR, many = c.token > 32;
        int forms = f->a == MF_DTYPE_BF16 ? 0 : whole ? 3 : many ? 2 : 0, splits = 1;
        /* Also rejected: the three layouts with alternating gate and up rows, which 128-row scales do not
         * support. */
        int alternating = f->q_type == MF_QTYPE_PER_1X128 ? 3 : 0;
        ck_assert_int_eq(a.rejections, demo[_i / CONTRACT_N_FORMATS].widths_refused + forms + splits +
                                           alternating + 2 * (4 - blocks));
    }
}

/* ---- block_m values that only add padding ---- */

struct blocks {
    struct mf_offer offer;
    char names[256][MF_STEP_NAME_MAX];
    size_t n;
    char why[256]; /* reason why s1_m64 is rejected */
};

static int note_block(struct mf_offer *o, const struct mf_step *step)
{
    struct blocks *b = (struct blocks *)o;

    ck_assert_uint_lt(b->n, MF_ARRAY_LEN(b->names));
    (void)snprintf(b->names[b->n++], MF_STEP_NAME_MAX, "%s", step->name);
    return 0;
}

__attribute__((format(printf, 5, 6))) static int note_padding(struct mf_offer *o, const char *family,
                                                              const char *kernel, const char *rule,
                                                              const char *format, ...)
{
    struct blocks *b = (struct blocks *)o;
    va_list args;

    (void)family, (void)rule;
    va_start(args, format);
    if (strcmp(kernel, "s1_m64") == 0)
        (void)vsnprintf(b->why, sizeof(b->why), format, args);
    va_end(args);
    return 0;
}

static const struct {
    int64_t token;
    const char *why; /* "": offered */
} paddings[] = {
    {1, "an expert has at most one row per token, 1 in all; blocks of 32 rows already hold them"},
    {64, "an expert has 4 rows on average; blocks of 32 already hold 8 times that, so blocks of 64 only add "
         "padding"},
    {65, ""},
};

/* Steps that are offered only for many tokens can still be opened for few tokens, because an older table may
 * name these steps. */
MF_TEST(test_padding, .rows = MF_ARRAY_LEN(paddings))
{
    static struct blocks many, few;
    struct contract_case c = {128, 2048, 96, 128, 8, MF_ACT_SILU, false};
    struct mf_device *d = contract_device(NULL);
    const struct mf_family *f = mf_family_find("cpu", "two_stage");
    struct mf_shape s = contract_shape(&c, &contract_formats[0]);
    size_t n_larger = 0, n_few = 0;

    many = (struct blocks){.offer = {note_block, note_padding}};
    few = many;
    ck_assert_int_eq(mf_enumerate(&d->info, &s, "two_stage", &many.offer), 0);
    s.token = paddings[_i].token;
    ck_assert_int_eq(mf_enumerate(&d->info, &s, "two_stage", &few.offer), 0);
    ck_assert_str_eq(few.why, paddings[_i].why);
    for (size_t i = 0; i < few.n; i++)
        n_few += strstr(few.names[i], "_m64_") != NULL;
    ck_assert(*paddings[_i].why ? n_few == 0 : n_few > 0);
    for (size_t i = 0; i < many.n; i++) {
        struct mf_kernel *k = NULL;
        if (!strstr(many.names[i], "_m64_"))
            continue;
        ck_assert_msg(f->open(f, d, &s, many.names[i], &k) == 0, "%s", many.names[i]);
        (void)f->close(k);
        n_larger++;
    }
    ck_assert_uint_gt(n_larger, 0);
    (void)mf_device_close(d);
}

#define LARGE_BLOCKS (2 * 3) /* two stages, each with three block_m values too large for 4 tokens */

/* A layout that does not divide the width is rejected, and the reason names the remainder. */
MF_TEST(test_layouts)
{
    static const struct contract_case c = {4, 256, 48, 8, 2, MF_ACT_SILU, false};
    struct mf_shape s = contract_shape(&c, &contract_formats[0]);
    struct contract_answer a;

    contract_enumerate("two_stage", &s, 2, &a);
    /* One rejection each for the layout, for alternating gate and up rows, for the four widths that do not
     * divide 48, and for split-K of 256 into 3, 4, 5, 6, 7 and 8 parts. */
    ck_assert_int_eq(a.rejections, 1 + 1 + 4 + 6 + LARGE_BLOCKS);
    ck_assert_str_eq(a.rule, "divisibility");
    ck_assert_ptr_nonnull(strstr(a.reason, "48"));
    ck_assert_ptr_nonnull(strstr(a.reason, "remainder 16"));
}

/* A tile width that does not divide inter_dim is rejected, and the reason names both numbers. */
MF_TEST(test_widths)
{
    static const struct contract_case c = {4, 256, 96, 8, 2, MF_ACT_SILU, false};
    struct mf_shape s = contract_shape(&c, &contract_formats[0]);
    struct contract_answer a;

    contract_enumerate("two_stage", &s, 2, &a);
    ck_assert_int_eq(a.rejections, 2 + 1 + LARGE_BLOCKS);
    ck_assert_str_eq(a.rule, "divisibility");
    ck_assert_str_eq(a.reason, "inter_dim 96 is not a multiple of block_n 64 (remainder 32)");
}

/* ---- split-K ---- */

struct splits {
    struct mf_offer offer;
    unsigned offered, refused; /* bit n: n parts */
    char rule[32];             /* rule that rejects split-K altogether */
};

static unsigned parts_in(const char *name)
{
    const char *at = strstr(name, "_sk");
    return at && at[3] >= '0' && at[3] <= '9' ? 1u << (at[3] - '0') : 0;
}

static int note_step(struct mf_offer *o, const struct mf_step *step)
{
    ((struct splits *)o)->offered |= parts_in(step->name);
    return 0;
}

__attribute__((format(printf, 5, 6))) static int
note_no(struct mf_offer *o, const char *family, const char *kernel, const char *rule, const char *format, ...)
{
    struct splits *s = (struct splits *)o;

    (void)family;
    (void)format;
    s->refused |= parts_in(kernel);
    if (strcmp(kernel, "s1_sk") == 0)
        (void)snprintf(s->rule, sizeof(s->rule), "%s", rule);
    return 0;
}

/* As in AITER, split-K makes 2 to 8 equal parts, each of whole blocks of 128. The device has two threads, and
 * with one route only one expert is active. */
/* clang-format off */
static const struct {
    int64_t token;
    int32_t model_dim, inter_dim, expert, topk;
    unsigned legal; /* bit n: n parts */
    const char *rule; /* the rule that rejects split-K; NULL: none */
} split_cases[] = {
    {1,  128, 32, 8, 1, 0, NULL},
    {1,  256, 32, 8, 1, 1 << 2, NULL},
    {1,  384, 32, 8, 1, 1 << 3, NULL},
    {1,  640, 32, 8, 1, 1 << 5, NULL},
    {1,  768, 32, 8, 1, 1 << 2 | 1 << 3 | 1 << 6, NULL},
    {1, 1024, 32, 8, 1, 1 << 2 | 1 << 4 | 1 << 8, NULL},
    {1, 2880, 32, 8, 1, 0, NULL},                       /* 22.5 blocks of 128 */
    {1, 7168, 32, 8, 1, 1 << 2 | 1 << 4 | 1 << 7 | 1 << 8, NULL},
    {1, 1024, 224, 8, 1, 1 << 2 | 1 << 4 | 1 << 8, NULL}, /* 7 tiles of 32: 3.5 per thread */
    {1, 1024, 256, 8, 1, 0, "ksplit"},                  /* 8 tiles: 4 per thread */
    {1, 1024, 32, 8, 8, 0, "ksplit"},                   /* 8 experts with 1 tile each */
    {8, 1024, 32, 8, 1, 1 << 2 | 1 << 4 | 1 << 8, NULL},
    {9, 1024, 32, 8, 1, 0, "ksplit"},                   /* more routes than experts */
};
/* clang-format on */

MF_TEST(test_splits, .rows = MF_ARRAY_LEN(split_cases))
{
    struct contract_case c = {.token = split_cases[_i].token,
                              .model_dim = split_cases[_i].model_dim,
                              .inter_dim = split_cases[_i].inter_dim,
                              .expert = split_cases[_i].expert,
                              .topk = split_cases[_i].topk,
                              .act = MF_ACT_SILU};
    struct mf_device_info info = {.class = {.gfx = "cpu-x86_64_v3", .cu_num = 2}, .cores = 2};

    for (size_t i = 0; i < CONTRACT_N_FORMATS; i++) {
        struct mf_shape s = contract_shape(&c, &contract_formats[i]);
        struct splits splits = {.offer = {note_step, note_no}};
        unsigned all = split_cases[_i].rule ? 0 : 0x1fc;
        ck_assert_int_eq(mf_enumerate(&info, &s, contract_formats[i].family, &splits.offer), 0);
        ck_assert_uint_eq(splits.offered, split_cases[_i].legal);
        ck_assert_uint_eq(splits.refused, all & ~split_cases[_i].legal);
        ck_assert_str_eq(splits.rule, split_cases[_i].rule ? split_cases[_i].rule : "");
    }
}

/* Older tables contain names of steps that are now offered under another name. The old names are not offered,
 * but can be opened. */
MF_TEST(test_older_names)
{
    static const char *const names[] = {
        "s1_bf16_silu_m8_n32_k2048_t2_p16", "s1_bf16_silu_m8_n96_k2048_t2_p32",
        "s1_bf16_silu_m8_n32_k2048_t1_p32", "s1_bf16_silu_m8_n32_k2048_t2_p32_x"};
    struct contract_case c = {16, 2048, 96, 128, 8, MF_ACT_SILU, false};
    struct mf_device *d = contract_device(NULL);
    const struct mf_family *f = mf_family_find("cpu", "two_stage");
    struct mf_shape s = contract_shape(&c, &contract_formats[0]);
    static struct blocks offered;

    d->info.cores = 2;
    offered = (struct blocks){.offer = {note_block, note_padding}};
    ck_assert_int_eq(mf_enumerate(&d->info, &s, "two_stage", &offered.offer), 0);
    for (size_t i = 0; i < MF_ARRAY_LEN(names); i++) {
        struct mf_kernel *k = NULL;
        for (size_t j = 0; j < offered.n; j++)
            ck_assert_str_ne(offered.names[j], names[i]);
        ck_assert_msg(f->open(f, d, &s, names[i], &k) == 0, "%s", names[i]);
        (void)f->close(k);
    }
    (void)mf_device_close(d);
}

int main(void)
{
    mf_draw_start();
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
