/* The families ask the fusion rules for every step that covers more than one op, and do as they are told. This program
 * is linked so that their questions pass through here (--wrap), where an answer can be written down, or forced. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/family.h"
#include "kernels/families/family_asm.h"
#include "kernels/fusion/fusion.h"
#include "support/mf_check.h"

#define CORES     4
#define ASKED_MAX 256

/* ---- between the families and the rules ---- */

static mf_ops allowed[ASKED_MAX];
static size_t n_allowed;
static const struct mf_fusion_forced *forced;

bool __real_mf_fusion_allows(const struct mf_shape *shape, const struct mf_fusion_question *q,
                             struct mf_fusion_verdict *ret);
bool __wrap_mf_fusion_allows(const struct mf_shape *shape, const struct mf_fusion_question *q,
                             struct mf_fusion_verdict *ret);
bool __wrap_mf_fusion_allows(const struct mf_shape *shape, const struct mf_fusion_question *q,
                             struct mf_fusion_verdict *ret)
{
    struct mf_fusion_question question = *q;

    question.forced = forced;
    if (!__real_mf_fusion_allows(shape, &question, ret))
        return false;
    ck_assert_uint_lt(n_allowed, ASKED_MAX);
    allowed[n_allowed++] = q->ops;
    return true;
}

/* ---- families and shapes ---- */

enum form {
    BF16,
    BF16_EARLY,
    BF16_MANY,
    TOKEN,
    TOKEN_MANY,
    TENSOR,
    BLOCK,
    MX,
    MX_MANY,
    NVFP4,
    INT4,
    N_FORMS
};

/* clang-format off */
static const char *const shapes[N_FORMS] = {
    [BF16]       = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
    [BF16_EARLY] = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,1",
    [BF16_MANY]  = "17,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
    [TOKEN]      = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_Token,1,0",
    [TOKEN_MANY] = "33,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_Token,1,0",
    [TENSOR]     = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.int8,torch.int8,QuantType.per_Tensor,1,0",
    [BLOCK]      = "4,256,128,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_1x128,1,0",
    [MX]         = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0",
    [MX_MANY]    = "64,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0",
    [NVFP4]      = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,QuantType.per_1x16,1,0",
    [INT4]       = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.int4,QuantType.per_1x32,1,0",
};

static const struct {
    const char *family;
    enum form form;
} asked[] = {
    {"tile", BF16}, {"tile", BF16_EARLY}, {"tile", TOKEN}, {"tile", TENSOR}, {"tile", BLOCK},
    {"mx", MX}, {"mx", NVFP4}, {"wint4", INT4},
    {"one", BF16}, {"one", TOKEN}, {"one", MX},
    {"lib", BF16}, {"lib", BF16_EARLY}, {"lib", MX_MANY},
    {"move", MX_MANY}, {"move", BF16}, {"move", BF16_EARLY}, {"move", TOKEN}, {"move", TENSOR}, {"move", BLOCK}, {"move", NVFP4},
    {"asm", TOKEN}, {"asm", BLOCK},
};
#define N_ASKED ((int)MF_ARRAY_LEN(asked))

/* One of each kind: both stages, sorted and flat, with x quantised before and inside. */
static const struct { const char *file, *text; } manifests[] = {
    {"fmoe/silu/fmoe_bf16_pertokenFp8_g1u1_silu.csv",
     "knl_name,co_name,atm,vskip,smf,tg_num_perCU,ps,subGU_m,subGU_n,flat\none,a.so,0,1,0,1,0,32,32,0\n"},
    {"fmoe/silu/fmoe_bf16_blockscaleBf16_g1u1_silu.csv",
     "knl_name,co_name,atm,vskip,smf,tg_num_perCU,ps,subGU_m,subGU_n,flat\na16,a.so,0,1,0,1,0,32,128,0\nflat,a.so,0,1,0,1,0,1,128,1\n"},
    {"fmoe_2stages/fmoe_stage1_bf16_pertokenFp8_g1u1.csv", "knl_name,co_name,tile_m,tile_n\nstage1,a.so,32,32\n"},
};
/* clang-format on */

static void make_manifests(void)
{
    static const char *const folders[] = {"", "/cpu", "/cpu/fmoe", "/cpu/fmoe/silu", "/cpu/fmoe_2stages"};
    char root[] = "/tmp/check_fusion_families.XXXXXX", path[512];

    ck_assert_ptr_nonnull(mkdtemp(root));
    for (size_t i = 1; i < MF_ARRAY_LEN(folders); i++) {
        mf_format(path, sizeof(path), "%s%s", root, folders[i]);
        ck_assert_int_eq(mkdir(path, 0700), 0);
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(manifests); i++) {
        mf_format(path, sizeof(path), "%s/cpu/%s", root, manifests[i].file);
        FILE *f = fopen(path, "we");
        ck_assert_ptr_nonnull(f);
        ck_assert_int_ge(fputs(manifests[i].text, f), 0);
        ck_assert_int_eq(fclose(f), 0);
    }
    ck_assert_int_eq(setenv(MF_ASM_FOLDER_ENV, root, 1), 0);
}

static void remove_manifests(void)
{
    const char *root = getenv(MF_ASM_FOLDER_ENV);
    static const char *const folders[] = {"/cpu/fmoe/silu", "/cpu/fmoe", "/cpu/fmoe_2stages", "/cpu", ""};
    char path[512];

    for (size_t i = 0; i < MF_ARRAY_LEN(manifests); i++) {
        mf_format(path, sizeof(path), "%s/cpu/%s", root, manifests[i].file);
        (void)remove(path);
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(folders); i++) {
        mf_format(path, sizeof(path), "%s%s", root, folders[i]);
        (void)remove(path);
    }
}

/* ---- what a family says ---- */

#define STEPS_MAX 512
#define NOES_MAX  64

struct answer {
    struct mf_offer offer;
    size_t n, n_fused, n_noes;
    mf_ops covers[STEPS_MAX];
    char names[STEPS_MAX][MF_STEP_NAME_MAX];
    struct {
        char kernel[64], rule[32], reason[MF_REASON_MAX];
    } noes[NOES_MAX];
};

static int take_step(struct mf_offer *o, const struct mf_step *step)
{
    struct answer *a = (struct answer *)o;

    ck_assert_uint_lt(a->n, STEPS_MAX);
    (void)mf_copy(a->names[a->n], sizeof(a->names[0]), step->name);
    a->covers[a->n++] = step->covers;
    a->n_fused += __builtin_popcount(step->covers) > 1;
    return 0;
}

__attribute__((format(printf, 5, 6))) static int
take_no(struct mf_offer *o, const char *family, const char *kernel, const char *rule, const char *format, ...)
{
    struct answer *a = (struct answer *)o;
    va_list args;

    (void)family;
    ck_assert_uint_lt(a->n_noes, NOES_MAX);
    (void)mf_copy(a->noes[a->n_noes].kernel, sizeof(a->noes[0].kernel), kernel);
    (void)mf_copy(a->noes[a->n_noes].rule, sizeof(a->noes[0].rule), rule);
    va_start(args, format);
    (void)vsnprintf(a->noes[a->n_noes].reason, sizeof(a->noes[0].reason), format, args);
    va_end(args);
    a->n_noes++;
    return 0;
}

/* -> whether the family has kernels for this machine at all. */
static bool ask(const char *family, enum form form, struct answer *ret)
{
    struct mf_device_info info = {.class = {.gfx = "cpu-x86_64_v4", .cu_num = CORES}, .cores = CORES};
    struct mf_shape s;

    memset(ret, 0, sizeof(*ret));
    ret->offer = (struct mf_offer){take_step, take_no};
    n_allowed = 0;
    ck_assert_int_eq(mf_shape_parse(shapes[form], &s), 0);
    ck_assert_int_eq(mf_enumerate(&info, &s, family, &ret->offer), 0);
    for (size_t i = 0; i < ret->n_noes; i++) {
        if (strcmp(ret->noes[i].rule, "isa") == 0) {
            (void)printf("%s is not asked: %s\n", family, ret->noes[i].reason);
            return false;
        }
    }
    return true;
}

static bool was_allowed(mf_ops ops)
{
    for (size_t i = 0; i < n_allowed; i++) {
        if (allowed[i] == ops)
            return true;
    }
    return false;
}

static const char *rule_of(const struct answer *a, const char *kernel)
{
    for (size_t i = 0; i < a->n_noes; i++) {
        if (strcmp(a->noes[i].kernel, kernel) == 0)
            return a->noes[i].rule;
    }
    return "";
}

static bool offers(const struct answer *a, const char *name)
{
    for (size_t i = 0; i < a->n; i++) {
        if (strcmp(a->names[i], name) == 0)
            return true;
    }
    return false;
}

/* ---- tests ---- */

/* No step covers more than one op but those that the rules were asked about, exactly as they are. */
START_TEST(steps_are_asked_for)
{
    static struct answer a;

    forced = NULL;
    if (!ask(asked[_i].family, asked[_i].form, &a))
        return;
    ck_assert_uint_gt(a.n_fused, 0);
    for (size_t i = 0; i < a.n; i++) {
        char ops[MF_OPS_TEXT_MAX];
        mf_ops_print(a.covers[i], ops);
        ck_assert_msg(__builtin_popcount(a.covers[i]) < 2 || was_allowed(a.covers[i]), "%s covers %s unasked",
                      a.names[i], ops);
    }
}
END_TEST

/* Any rule that always objects leaves none of them, and all that cover one op; the noes are told. (What covers none only
 * prepares for others, and may go with them.) */
START_TEST(a_no_is_obeyed)
{
    static struct answer plain, a;
    const struct mf_fusion_rule *rules;
    size_t n_rules = mf_fusion_rules(&rules);

    forced = NULL;
    if (!ask(asked[_i].family, asked[_i].form, &plain))
        return;
    for (size_t rule = 0; rule < n_rules; rule++) {
        size_t told = 0;
        forced = &(struct mf_fusion_forced){.rule = rule, .objects = true};
        ck_assert(ask(asked[_i].family, asked[_i].form, &a));
        ck_assert_msg(a.n_fused == 0, "%s: %s is offered", rules[rule].name, a.names[0]);
        for (size_t i = 0; i < plain.n; i++)
            ck_assert_msg(__builtin_popcount(plain.covers[i]) != 1 || offers(&a, plain.names[i]),
                          "%s takes %s along", rules[rule].name, plain.names[i]);
        for (size_t i = 0; i < a.n_noes; i++)
            told += strcmp(a.noes[i].rule, rules[rule].name) == 0;
        ck_assert_msg(told > 0, "no rejection of %s names %s", asked[_i].family, rules[rule].name);
    }
}
END_TEST

/* Decoding both weights in one launch covers no op, and is asked for all the same. */
START_TEST(lists_are_asked_for)
{
    static struct answer a;
    const struct mf_fusion_rule *rules;
    size_t rule = 0, n_rules = mf_fusion_rules(&rules);
    mf_ops both = MF_OP_BIT(MF_NODE_DEQUANT_W1) | MF_OP_BIT(MF_NODE_DEQUANT_W2);

    forced = NULL;
    if (!ask("move", MX_MANY, &a))
        return;
    ck_assert(was_allowed(both) && offers(&a, "dequant_w12_p32_t4"));
    while (rule < n_rules && strcmp(rules[rule].name, "foreach") != 0)
        rule++;
    ck_assert_uint_lt(rule, n_rules);
    forced = &(struct mf_fusion_forced){.rule = rule, .objects = true};
    ck_assert(ask("move", MX_MANY, &a));
    ck_assert(!offers(&a, "dequant_w12_p32_t4") && offers(&a, "dequant_w1_p32_t4"));
    ck_assert_str_eq(rule_of(&a, "dequant_w12"), "foreach");
}
END_TEST

/* Where a rule refuses a family something: with the rule gone it is offered, illegal as it is, or the next rule has to
 * say no in its place. */
/* clang-format off */
static const struct {
    const char *family;
    enum form form;
    const char *kernel, *rule;
    const char *appears; /* a step */
    const char *next;    /* or a rule */
} refusals[] = {
    {"tile", TENSOR,     "s1_q",       "mixed_order", "s1_int8_tensor_silu_m8_n32_k256_t4_p16_q", NULL},
    {"tile", TENSOR,     "s1_a16",     "mixed_order", "s1_int8_tensor_silu_m8_n32_k256_t4_p32_a16", NULL},
    {"tile", TOKEN_MANY, "s1_a16",     "tokens",      "s1_fp8fn_token_silu_m8_n32_k256_t4_p32_a16", NULL},
    {"one",  TENSOR,     "one",        "mixed_order", "one_int8_tensor_silu_n32_c64_t4_p16", NULL},
    {"one",  BF16_MANY,  "one",        "tokens",      "one_bf16_silu_n32_c64_t4_p16", NULL},
    {"lib",  BF16,       "dnnl_s2_zw", "external",    NULL, "epilogue"},
    {"lib",  BF16,       "dnnl_s2_y",  "external",    NULL, "epilogue"},
    {"lib",  BF16_EARLY, "dnnl_s2_y",  "external",    NULL, "epilogue"},
    {"lib",  MX_MANY,    "dnnl_s1_codes", "prologue", NULL, NULL},
    {"lib",  MX_MANY,    "dnnl_s2_codes", "prologue", NULL, NULL},
};
/* clang-format on */

START_TEST(a_rule_gone_is_seen)
{
    static struct answer a;
    const struct mf_fusion_rule *rules;
    size_t rule = 0, n_rules = mf_fusion_rules(&rules);

    while (rule < n_rules && strcmp(rules[rule].name, refusals[_i].rule) != 0)
        rule++;
    ck_assert_uint_lt(rule, n_rules);
    forced = NULL;
    if (!ask(refusals[_i].family, refusals[_i].form, &a))
        return;
    ck_assert_str_eq(rule_of(&a, refusals[_i].kernel), refusals[_i].rule);
    ck_assert(!refusals[_i].appears || !offers(&a, refusals[_i].appears));
    forced = &(struct mf_fusion_forced){.rule = rule, .objects = false};
    ck_assert(ask(refusals[_i].family, refusals[_i].form, &a));
    ck_assert_str_eq(rule_of(&a, refusals[_i].kernel), refusals[_i].next ? refusals[_i].next : "");
    ck_assert_msg(!refusals[_i].appears || offers(&a, refusals[_i].appears), "%s is not offered",
                  refusals[_i].appears);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fusion families");
    TCase *tc = tcase_create("fusion families");

    tcase_add_checked_fixture(tc, make_manifests, remove_manifests);
    tcase_add_loop_test(tc, steps_are_asked_for, 0, N_ASKED);
    tcase_add_loop_test(tc, a_no_is_obeyed, 0, N_ASKED);
    tcase_add_test(tc, lists_are_asked_for);
    tcase_add_loop_test(tc, a_rule_gone_is_seen, 0, (int)MF_ARRAY_LEN(refusals));
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
