/* Families ask the fusion rules about every step that covers more than one op, and obey the answer. The
 * linker option --wrap routes their calls through this file, which records or forces answers. */
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
#include "support/text_file.h"

#define CORES       4
#define ALLOWED_MAX 256

/* ---- wrapper around the rules ---- */

static mf_ops allowed[ALLOWED_MAX];
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
    ck_assert_uint_lt(n_allowed, ALLOWED_MAX);
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
    [BF16]       = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
        "QuantType.No,1,0",
    [BF16_EARLY] = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
        "QuantType.No,1,1",
    [BF16_MANY]  = "17,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
        "QuantType.No,1,0",
    [TOKEN]      = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,"
        "QuantType.per_Token,1,0",
    [TOKEN_MANY] = "33,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,"
        "torch.float8_e4m3fn,QuantType.per_Token,1,0",
    [TENSOR]     = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.int8,torch.int8,"
        "QuantType.per_Tensor,1,0",
    [BLOCK]      = "4,256,128,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,"
        "torch.float8_e4m3fn,QuantType.per_1x128,1,0",
    [MX]         = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,"
        "torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0",
    [MX_MANY]    = "64,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,"
        "torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0",
    [NVFP4]      = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,"
        "torch.float4_e2m1fn_x2,QuantType.per_1x16,1,0",
    [INT4]       = "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.int4,"
        "QuantType.per_1x32,1,0",
};

static const struct {
    const char *family;
    enum form form;
} cases[] = {
    {"two_stage", BF16}, {"two_stage", BF16_EARLY}, {"two_stage", TOKEN}, {"two_stage", TENSOR},
    {"two_stage", BLOCK},
    {"two_stage_mx", MX}, {"two_stage_mx", NVFP4}, {"two_stage_int4", INT4},
    {"one_stage", BF16}, {"one_stage", TOKEN}, {"one_stage", MX},
    {"onednn", BF16}, {"onednn", BF16_EARLY}, {"onednn", MX_MANY},
    {"move", MX_MANY}, {"move", BF16}, {"move", BF16_EARLY}, {"move", TOKEN}, {"move", TENSOR},
    {"move", BLOCK}, {"move", NVFP4},
    {"asm", TOKEN}, {"asm", BLOCK},
};
#define N_CASES ((int)MF_ARRAY_LEN(cases))

/* One manifest per kind of kernel: kernels of both stages with x quantised before the kernel, kernels of both
 * stages (sorted and flat) with x quantised in the kernel, and kernels of stage 1. */
static const struct { const char *file, *text; } manifests[] = {
    {"fmoe/silu/fmoe_bf16_pertokenFp8_g1u1_silu.csv",
     "knl_name,co_name,atm,vskip,smf,tg_num_perCU,ps,subGU_m,subGU_n,flat\none,a.so,0,1,0,1,0,32,32,0\n"},
    {"fmoe/silu/fmoe_bf16_blockscaleBf16_g1u1_silu.csv",
     "knl_name,co_name,atm,vskip,smf,tg_num_perCU,ps,subGU_m,subGU_n,flat\na16,a.so,0,1,0,1,0,32,128,0\n"
     "flat,a.so,0,1,0,1,0,1,128,1\n"},
    {"fmoe_2stages/fmoe_stage1_bf16_pertokenFp8_g1u1.csv",
     "knl_name,co_name,tile_m,tile_n\nstage1,a.so,32,32\n"},
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
        text_file_write(path, manifests[i].text);
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

/* ---- answers of a family ---- */

#define STEPS_MAX      512
#define REJECTIONS_MAX 64

struct answer {
    struct mf_offer offer;
    size_t n, n_fused, n_rejections;
    mf_ops covers[STEPS_MAX];
    char names[STEPS_MAX][MF_STEP_NAME_MAX];
    struct {
        char kernel[64], rule[32], reason[MF_REASON_MAX];
    } rejection_list[REJECTIONS_MAX];
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
    ck_assert_uint_lt(a->n_rejections, REJECTIONS_MAX);
    (void)mf_copy(a->rejection_list[a->n_rejections].kernel, sizeof(a->rejection_list[0].kernel), kernel);
    (void)mf_copy(a->rejection_list[a->n_rejections].rule, sizeof(a->rejection_list[0].rule), rule);
    va_start(args, format);
    (void)vsnprintf(a->rejection_list[a->n_rejections].reason, sizeof(a->rejection_list[0].reason), format,
                    args);
    va_end(args);
    a->n_rejections++;
    return 0;
}

/* Enumerates the family for a shape. Returns false if the family has no kernels for this machine. */
static bool ask(const char *family, enum form form, struct answer *ret)
{
    struct mf_device_info info = {.class = {.gfx = "cpu-x86_64_v4", .cu_num = CORES}, .cores = CORES};
    struct mf_shape s;

    memset(ret, 0, sizeof(*ret));
    ret->offer = (struct mf_offer){take_step, take_no};
    n_allowed = 0;
    ck_assert_int_eq(mf_shape_parse(shapes[form], &s), 0);
    ck_assert_int_eq(mf_enumerate(&info, &s, family, &ret->offer), 0);
    for (size_t i = 0; i < ret->n_rejections; i++) {
        if (strcmp(ret->rejection_list[i].rule, "isa") == 0) {
            (void)printf("%s is skipped: %s\n", family, ret->rejection_list[i].reason);
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
    for (size_t i = 0; i < a->n_rejections; i++) {
        if (strcmp(a->rejection_list[i].kernel, kernel) == 0)
            return a->rejection_list[i].rule;
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

/* Every step that covers more than one op was allowed by the rules for exactly these ops. */
MF_TEST(fused_steps_allowed_by_rules, .rows = N_CASES)
{
    static struct answer a;

    forced = NULL;
    if (!ask(cases[_i].family, cases[_i].form, &a))
        return;
    ck_assert_uint_gt(a.n_fused, 0);
    for (size_t i = 0; i < a.n; i++) {
        char ops[MF_OPS_TEXT_MAX];
        mf_ops_print(a.covers[i], ops);
        ck_assert_msg(__builtin_popcount(a.covers[i]) < 2 || was_allowed(a.covers[i]),
                      "%s covers %s without asking the rules", a.names[i], ops);
    }
}

/* If a rule rejects everything, no fused step is offered, all single-op steps are still offered, and the
 * rejections are reported. Steps that cover no op only prepare for other steps and may disappear with them.
 */
MF_TEST(rejection_obeyed, .rows = N_CASES)
{
    static struct answer plain, a;
    const struct mf_fusion_rule *rules;
    size_t n_rules = mf_fusion_rules(&rules);

    forced = NULL;
    if (!ask(cases[_i].family, cases[_i].form, &plain))
        return;
    for (size_t rule = 0; rule < n_rules; rule++) {
        size_t n_reported = 0;
        forced = &(struct mf_fusion_forced){.rule = rule, .rejects = true};
        ck_assert(ask(cases[_i].family, cases[_i].form, &a));
        ck_assert_msg(a.n_fused == 0, "%s: %s is offered", rules[rule].name, a.names[0]);
        for (size_t i = 0; i < plain.n; i++)
            ck_assert_msg(__builtin_popcount(plain.covers[i]) != 1 || offers(&a, plain.names[i]),
                          "rule %s removes %s", rules[rule].name, plain.names[i]);
        for (size_t i = 0; i < a.n_rejections; i++)
            n_reported += strcmp(a.rejection_list[i].rule, rules[rule].name) == 0;
        ck_assert_msg(n_reported > 0, "no rejection of %s names %s", cases[_i].family, rules[rule].name);
    }
}

/* A step that dequantises both weights in one launch covers no op, but the family must ask the rules about it
 * too. */
MF_TEST(list_steps_ask_rules)
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
    forced = &(struct mf_fusion_forced){.rule = rule, .rejects = true};
    ck_assert(ask("move", MX_MANY, &a));
    ck_assert(!offers(&a, "dequant_w12_p32_t4") && offers(&a, "dequant_w1_p32_t4"));
    ck_assert_str_eq(rule_of(&a, "dequant_w12"), "foreach");
}

/* Rejections of a rule. If the rule is disabled, the illegal step is offered (`appears`), or another rule
 * rejects it (`next`), or the family neither offers nor rejects it. */
/* clang-format off */
static const struct {
    const char *family;
    enum form form;
    const char *kernel, *rule;
    const char *appears; /* step that is offered if the rule is disabled */
    const char *next;    /* rule that rejects if `rule` is disabled */
} refusals[] = {
    {"two_stage", TENSOR,     "s1_q",      "mixed_order", "s1_int8_tensor_silu_m8_n32_k256_t4_p16_q", NULL},
    {"two_stage", TENSOR,     "s1_a16",    "mixed_order", "s1_int8_tensor_silu_m8_n32_k256_t4_p32_a16", NULL},
    {"two_stage", TOKEN_MANY, "s1_a16",    "tokens",      "s1_fp8fn_token_silu_m8_n32_k256_t4_p32_a16", NULL},
    {"one_stage", TENSOR,     "one_stage", "mixed_order", "one_int8_tensor_silu_n32_c64_t4_p16", NULL},
    {"one_stage", BF16_MANY,  "one_stage", "tokens",      "one_bf16_silu_n32_c64_t4_p16", NULL},
    {"onednn",    BF16,       "dnnl_s2_zw", "external",   NULL, "epilogue"},
    {"onednn",    BF16,       "dnnl_s2_y", "external",    NULL, "epilogue"},
    {"onednn",    BF16_EARLY, "dnnl_s2_y", "external",    NULL, "epilogue"},
    {"onednn",    MX_MANY,    "dnnl_s1_codes", "prologue", NULL, NULL},
    {"onednn",    MX_MANY,    "dnnl_s2_codes", "prologue", NULL, NULL},
};
/* clang-format on */

MF_TEST(disabled_rule_has_effect, .rows = MF_ARRAY_LEN(refusals))
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
    forced = &(struct mf_fusion_forced){.rule = rule, .rejects = false};
    ck_assert(ask(refusals[_i].family, refusals[_i].form, &a));
    ck_assert_str_eq(rule_of(&a, refusals[_i].kernel), refusals[_i].next ? refusals[_i].next : "");
    ck_assert_msg(!refusals[_i].appears || offers(&a, refusals[_i].appears), "%s is not offered",
                  refusals[_i].appears);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = make_manifests, .teardown = remove_manifests});
}
