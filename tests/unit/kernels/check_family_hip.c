/* Tests the GPU families without a GPU: which steps they enumerate, that a step's name determines its code,
 * and which shapes they reject. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/layer.h"
#include "kernels/core/family.h"
#include "support/farm/offer_recorder.h"
#include "support/mf_check.h"

#define BLOCK_FP8 \
    "ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_1x128,1,0"
#define TOKEN_FP8 \
    "ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_Token,1,0"
/* names of families */
#define STAGED "two_stage"
#define SINGLE "two_stage_single_launch"
#define WHOLE  "whole_layer_persistent"
#define PLAIN  "ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"

/* clang-format off */
static const char *const shapes[] = {
    "1,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
    "64,4096,3584,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,1",
    "64,7168,256,256,8," BLOCK_FP8,
    "4096,2048,384,128,8,ActivationType.Gelu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,"
        "QuantType.per_Token,1,0",
    "1,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0,ep:8/64",
    "4,256,96,8,2,ActivationType.Swiglu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0,"
        "limit:7+b1+b2+gate_up:interleaved",
    "4,256,96,8,2," TOKEN_FP8 ",gate_up:tiled",
    "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,"
        "QuantType.per_Tensor,1,0",
    "4,256,96,8,2,ActivationType.Silu,torch.bfloat16,torch.int8,torch.int8,QuantType.per_Token,1,0",
    "4,256,128,8,2,ActivationType.Silu,torch.bfloat16,torch.int8,torch.int8,QuantType.per_1x128,1,0",
    "4,256,96,8,2,ActivationType.Gelu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,0,1",
    "16,3072,3072,128,4,ActivationType.Swiglu,torch.bfloat16,torch.bfloat16,torch.float4_e2m1fn_x2,"
        "QuantType.per_1x32,1,0,b1+b2",
    "16,2880,2880,128,4,ActivationType.Swiglu,torch.bfloat16,torch.bfloat16,torch.float4_e2m1fn_x2,"
        "QuantType.per_1x16,1,0",
    "1,7168,256,384,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.int4,QuantType.per_1x32,1,0",
    "1,7168,256,384,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.int4,QuantType.per_Token,1,1",
    "64,7168,512,384,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float4_e2m1fn_x2,"
        "QuantType.per_1x32,1,0",
    "64,3584,384,128,16,ActivationType.Situv2,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,"
        "QuantType.per_1x32,1,0",
    "64,4096,512,512,10,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,"
        "QuantType.per_1x16,1,0",
    "64,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,"
        "QuantType.per_1x32,1,0",
    "64,7168,512,384,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.int4,QuantType.per_1x32,"
        "1,0",
    "64,7168,512,384,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.int4,"
        "QuantType.per_Token,1,0",
};

static const char fnuz_shape[] =
    "64,7168,256,256,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fnuz,torch.float8_e4m3fnuz,"
        "QuantType.per_1x128,1,0";

static const struct {
    const char *shape, *rule, *says;
    /* true: only the GEMM families reject the shape, so family move offers steps; false: no family offers a
     * step */
    bool moves;
} refused[] = {
    {"1,256,96,8,2,ActivationType.Silu,torch.float16,torch.float16,torch.float16,QuantType.No,1,0", "dtype",
     "torch.float16", false},
    {"1,256,100,8,2," PLAIN, "divisibility", "inter_dim 100", false},
    {"1,256,128,8,2," BLOCK_FP8 ",gate_up:tiled", "gate_up", "a scale of fp8fn_128 covers 128", true},
};
/* clang-format on */

static const struct mf_device_info hopper = {.class = {.gfx = "sm_90", .cu_num = 132}, .cores = 132};
static const struct mf_device_info cdna3 = {.class = {.gfx = "gfx942", .cu_num = 304}, .cores = 304};
static const struct mf_device_info rdna3 = {.class = {.gfx = "gfx1100", .cu_num = 96}, .cores = 96};
static const struct mf_device_info turing = {.class = {.gfx = "sm_75", .cu_num = 40}, .cores = 40};
static const struct mf_device_info ampere = {.class = {.gfx = "sm_80", .cu_num = 108}, .cores = 108};

/* Enumerates all families except asm, whose prebuilt code is tested in check_asm_hip. */
static struct mf_shape ask(const struct mf_device_info *device, const char *text, struct offer_recorder *h)
{
    struct mf_shape shape;

    ck_assert_msg(mf_shape_parse(text, &shape) == 0, "%s", text);
    *h = (struct offer_recorder){.offer = RECORDING_OFFER, .ignored_family = "asm"};
    ck_assert_int_eq(mf_enumerate(device, &shape, NULL, &h->offer), 0);
    return shape;
}

static int family_code(const char *family, const struct mf_device_info *device, const struct mf_shape *shape,
                       const char *name, struct mf_code *ret)
{
    const struct mf_family *f = mf_family_find("hip", family);
    ck_assert_ptr_nonnull(f);
    return f->code(f, device, shape, name, ret);
}

/* Every op of the layer is covered, step names are unique, and each step's code can be derived without a
 * device: the code's source exists, and no definition is truncated. */
static void check_offers(const struct mf_device_info *device, const char *text)
{
    static struct offer_recorder h;
    const struct mf_shape shape = ask(device, text, &h);
    mf_ops covered = 0;

    for (size_t i = 0; i < h.n; i++) {
        const struct mf_family *f = mf_family_find("hip", h.steps[i].family);
        struct mf_code code;

        covered |= h.steps[i].covers;
        ck_assert_ptr_nonnull(f);
        ck_assert_str_eq(f->device_kind, "hip");
        ck_assert_msg(f->code(f, device, &shape, h.steps[i].name, &code) == 0, "%s", h.steps[i].name);
        ck_assert_ptr_nonnull(mf_code_source(code.source));
        ck_assert_ptr_nonnull(strstr(mf_code_source(code.source), code.function));
        ck_assert_uint_lt(code.n_defines, MF_CODE_DEFINES_MAX);
        for (size_t d = 0; d < code.n_defines; d++)
            ck_assert_uint_lt(strlen(code.defines[d]), sizeof(code.defines[0]) - 1);
        for (size_t j = 0; j < i; j++)
            ck_assert(strcmp(h.steps[i].name, h.steps[j].name) != 0 ||
                      strcmp(h.steps[i].family, h.steps[j].family) != 0);
    }
    ck_assert_uint_eq(covered, mf_layer_ops(&shape));
}
MF_TEST(test_offers, .rows = MF_ARRAY_LEN(shapes))
{
    check_offers(&hopper, shapes[_i]);
    check_offers(&cdna3, shapes[_i]);
}

static bool defines(const struct mf_code *c, const char *define)
{
    for (size_t i = 0; i < c->n_defines; i++) {
        if (strncmp(c->defines[i], define, strlen(define)) == 0)
            return true;
    }
    return false;
}

/* FNUZ e4m3 (CDNA 3): AMD's kernels support it and define MF_FNUZ; NVIDIA's do not. */
MF_TEST(test_fnuz)
{
    static const char *const without_format[] = {"sort.hip", "align.hip", "from_aligned.hip", "combine.hip",
                                                 "zero.hip"};
    static struct offer_recorder h;
    struct mf_shape shape;
    struct mf_code code;

    check_offers(&cdna3, fnuz_shape);
    shape = ask(&cdna3, fnuz_shape, &h);
    for (size_t i = 0; i < h.n; i++) {
        ck_assert_int_eq(family_code(h.steps[i].family, &cdna3, &shape, h.steps[i].name, &code), 0);
        bool is_without_format = false;
        for (size_t j = 0; j < MF_ARRAY_LEN(without_format); j++)
            is_without_format |= strcmp(code.source, without_format[j]) == 0;
        ck_assert_msg(defines(&code, "MF_FNUZ") != is_without_format, "%s", h.steps[i].name);
    }
    (void)ask(&hopper, fnuz_shape, &h);
    ck_assert_uint_eq(h.n, 0);
    ck_assert_str_eq(h.rule, "q_dtype");
}

/* Two steps of one family with the same code cover the same ops; family move is exempt. */
MF_TEST(test_same_code_same_ops, .rows = MF_ARRAY_LEN(shapes))
{
    static struct offer_recorder h;
    const struct mf_shape shape = ask(&hopper, shapes[_i], &h);

    for (size_t i = 0; i < h.n; i++) {
        for (size_t j = 0; j < i; j++) {
            struct mf_code a, b;

            if (strcmp(h.steps[i].family, h.steps[j].family) != 0)
                continue;
            const struct mf_family *f = mf_family_find("hip", h.steps[i].family);
            ck_assert_int_eq(f->code(f, &hopper, &shape, h.steps[i].name, &a), 0);
            ck_assert_int_eq(f->code(f, &hopper, &shape, h.steps[j].name, &b), 0);
            ck_assert_msg(!mf_code_equal(&a, &b) || h.steps[i].covers == h.steps[j].covers ||
                              strcmp(f->name, "move") == 0,
                          "%s and %s have the same code", h.steps[i].name, h.steps[j].name);
        }
    }
}

/* Family permute is enumerated on request only. Its steps have code, except the steps for few routes if the
 * shape has many routes, and except Hopper steps on another architecture. */
MF_TEST(test_on_request, .rows = MF_ARRAY_LEN(shapes))
{
    static const struct {
        const char *name;
        bool few, hopper;
    } rows[] = {
        {"gather_m16", false, false},         {"gather_once_m128", false, false},
        {"gather_bulk_m32", false, true},     {"unpermute_z_m64", false, false},
        {"sort_gather_m16", true, false},     {"act_m128", false, false},
        {"unpermute_few_z_m16", true, false},
    };
    static struct offer_recorder h;
    struct mf_shape shape;
    const struct mf_family *f = mf_family_find("hip", "permute");
    struct mf_code code;

    ck_assert(mf_family_on_request(f));
    ck_assert_int_eq(mf_shape_parse(shapes[_i], &shape), 0);
    bool few = shape.token * shape.topk <= 1024;
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++) {
        int r = f->code(f, &hopper, &shape, rows[i].name, &code);
        ck_assert_msg(r == (few || !rows[i].few ? 0 : -EINVAL), "%s: %d", rows[i].name, r);
        ck_assert(r < 0 || strstr(mf_code_source(code.source), code.function));
        ck_assert(!rows[i].hopper || f->code(f, &ampere, &shape, rows[i].name, &code) < 0);
    }
    h = (struct offer_recorder){.offer = RECORDING_OFFER, .ignored_family = "asm"};
    ck_assert_int_eq(mf_enumerate(&hopper, &shape, "permute", &h.offer), 0);
    ck_assert_uint_gt(h.n, 0);
    ck_assert_int_eq(mf_enumerate(&rdna3, &shape, "permute", &h.offer), 0);
    ck_assert_str_eq(h.rule, "arch");
}

/* clang-format off */
static const struct {
    const struct mf_device_info *device;
    const char *family, *shape, *kernel, *rule, *says;
} refused_kernels[] = {
    {&hopper, "permute", "4096,2048,384,128,8," PLAIN, "sort_gather", "routes", "are 32768 routes"},
    {&hopper, "permute", "64,2048,384,384,8," PLAIN, "unpermute_few_z", "rows", "24704 rows"},
    {&hopper, "permute", "64,2048,384,128,8," PLAIN, "quant1_gather", "format", "activations are"},
    {&hopper, "permute",
     "64,2048,384,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,1",
     "unpermute_zw", "doweight_stage1", "there is no zw"},
    {&ampere, "permute", "64,2048,384,128,8," PLAIN, "gather_bulk", "arch", "the device is sm_80"},
    {&hopper, "permute",
     "64,2832,384,128,8,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,"
     "QuantType.per_1x16,1,0", "gather_bulk", "divisibility", "rows have 1416 bytes"},
    {&hopper, STAGED, "4096,4096,640,128,8," BLOCK_FP8, "s2_fp8fn_128_m128_n256_bsk_y", "lds",
     "inter_dim is 640"},
    {&hopper, STAGED, "4096,4096,512,128,8," BLOCK_FP8, "s2_fp8fn_128_m128_n256_bsk_zw", "lds",
     "2 stages of 0 weight rows and 128 token rows"},
    {&hopper, STAGED, "64,4096,192,128,8," PLAIN, "s1_bf16_silu_m64_n256_b_p128", "layout",
     "inter_dim is 192"},
    {&hopper, WHOLE, "64,4128,256,128,8," PLAIN, "layer_bf16_silu_m64_n256_b_p128", "layout",
     "model_dim 4128"},
    {&hopper, STAGED, "64,4096,256,128,8," PLAIN ",gate_up:tiled", "s1_bf16_silu_m64_n256_b_p128", "layout",
     "gate and up are interleaved"},
    {&hopper, STAGED, "64,4160,256,128,8," PLAIN, "s2_bf16_m64_n256_b_p128_y", "layout", "panel128 of w2"},
    {&hopper, WHOLE, "64,4160,256,128,8," PLAIN, "layer_bf16_silu_m64_n256_b_p128", "layout",
     "panel128 of w2"},
    {&hopper, STAGED, "4096,4096,384,128,8," TOKEN_FP8, "s2_fp8fn_token_m128_n256_bsk_y", "format",
     "1x128 scales"},
};
/* clang-format on */

/* Each rule rejects its case with its own message. */
MF_TEST(test_kernel_rejections, .rows = MF_ARRAY_LEN(refused_kernels))
{
    static struct offer_recorder h;
    struct mf_shape shape;

    ck_assert_int_eq(mf_shape_parse(refused_kernels[_i].shape, &shape), 0);
    h = (struct offer_recorder){.offer = RECORDING_OFFER, .kernel = refused_kernels[_i].kernel};
    ck_assert_int_eq(mf_enumerate(refused_kernels[_i].device, &shape, refused_kernels[_i].family, &h.offer),
                     0);
    ck_assert_uint_gt(h.n_rejections, 0);
    ck_assert_str_eq(h.rule, refused_kernels[_i].rule);
    ck_assert_msg(strstr(h.reason, refused_kernels[_i].says) != NULL, "%s", h.reason);
}

/* Weights in layout panel128: Hopper kernels and the whole-layer families offer them in addition to row-major
 * weights; other devices do not. Only the code of one_stage depends on the layout: WGMMA kernels compile to
 * the same code for both. */
static const struct {
    const struct mf_device_info *device;
    const char *family, *name;
    bool offered;
} panel128_steps[] = {
    {&hopper, STAGED, "s1_bf16_silu_m32_n128_bt_p128", true},
    {&hopper, STAGED, "s1_bf16_silu_m32_n128_bt", true},
    {&hopper, STAGED, "s1_bf16_silu_m32_n128_s5_g2_p128", false},
    {&hopper, STAGED, "s2_bf16_m32_n128_bt_p128_y", true},
    {&hopper, STAGED, "s2_bf16_m32_n128_bt_y", true},
    {&hopper, STAGED, "s2_bf16_m32_n128_s5_g2_p128_z", false},
    {&hopper, WHOLE, "layer_bf16_silu_m32_n256_b_p128", true},
    {&hopper, SINGLE, "pair_bf16_silu_m32_n256_b_p128", true},
    {&hopper, SINGLE, "pair_bf16_silu_m32_n256_b", true},
    {&hopper, "one_stage", "one_bf16_silu_t1024_b3_c1_y6_p128", true},
    {&ampere, "one_stage", "one_bf16_silu_t1024_b3_c1_y6_p128", false},
    {&ampere, "one_stage", "one_bf16_silu_t1024_b3_c1_y6", true},
    {&cdna3, "one_stage", "one_bf16_silu_t512_b4_c1_y4_p128", false},
};

MF_TEST(test_panel128, .rows = MF_ARRAY_LEN(panel128_steps))
{
    static struct offer_recorder h;
    struct mf_shape shape;
    struct mf_code code, straight;
    const char *name = panel128_steps[_i].name, *family = panel128_steps[_i].family,
               *word = strstr(name, "_p128");
    char other[MF_STEP_NAME_MAX];

    ck_assert_int_eq(mf_shape_parse("8,2048,768,128,8," PLAIN, &shape), 0);
    h = (struct offer_recorder){.offer = RECORDING_OFFER, .ignored_family = "asm"};
    ck_assert_int_eq(mf_enumerate(panel128_steps[_i].device, &shape, family, &h.offer), 0);
    ck_assert_msg((find_recorded(&h, name) != NULL) == panel128_steps[_i].offered, "%s", name);
    if (!panel128_steps[_i].offered || word == NULL)
        return;
    const struct mf_family *f = mf_family_find("hip", family);
    (void)snprintf(other, sizeof(other), "%.*s%s", (int)(word - name), name, word + strlen("_p128"));
    ck_assert_int_eq(f->code(f, panel128_steps[_i].device, &shape, name, &code), 0);
    ck_assert_int_eq(f->code(f, panel128_steps[_i].device, &shape, other, &straight), 0);
    ck_assert_int_eq(mf_code_equal(&code, &straight), strcmp(family, "one_stage") != 0);
}

/* clang-format off */
static const struct {
    const char *shape;
    int stages;
} kept[] = {
    {"4096,7168,256,256,8," BLOCK_FP8, 8},
    {"4096,4096,384,128,8," BLOCK_FP8, 6},
    {"4096,4096,256,128,8," BLOCK_FP8, 8},
    {"4096,4096,512,128,8," BLOCK_FP8, 4},
};
/* clang-format on */

/* Checks that the step's code has a ring buffer of `stages` stages. */
static void check_ring(const char *family, const struct mf_shape *shape, const char *step, int stages,
                       struct mf_code *ret)
{
    char text[40];
    ck_assert_int_eq(family_code(family, &hopper, shape, step, ret), 0);
    (void)snprintf(text, sizeof(text), "MF_STAGES=%d", stages);
    ck_assert(defines(ret, text));
}

/* Weights kept in shared memory reduce the ring buffer; only stage 2 keeps weights. */
MF_TEST(test_kept_weights, .rows = MF_ARRAY_LEN(kept))
{
    static struct offer_recorder h;
    struct mf_code code;

    const struct mf_shape shape = ask(&hopper, kept[_i].shape, &h);
    ck_assert_ptr_nonnull(find_recorded(&h, "s2_fp8fn_128_m128_n256_bsk_y"));
    for (size_t i = 0; i < h.n; i++)
        ck_assert(strncmp(h.steps[i].name, "s1_", 3) != 0 || strstr(h.steps[i].name, "_bsk") == NULL);
    check_ring(STAGED, &shape, "s2_fp8fn_128_m128_n256_bsk_y", kept[_i].stages, &code);
    ck_assert(defines(&code, "MF_WEIGHT_REUSE=4"));
}

/* clang-format off */
static const struct {
    const char *family, *shape, *step;
    int stages;
} rings[] = {
    {STAGED, "1024,4096,384,128,8," BLOCK_FP8, "s1_fp8fn_128_silu_m128_n256_bs_p128_q", 4},
    {STAGED, "1024,4096,384,128,8," BLOCK_FP8, "s1_fp8fn_128_silu_m128_n256_bs_p128",   3},
    {STAGED, "1024,4096,384,128,8," BLOCK_FP8, "s1_fp8fn_128_silu_m128_n256_b_p128_q",  3},
    {STAGED, "1024,4096,384,128,8," BLOCK_FP8, "s1_fp8fn_128_silu_m64_n256_bts_p128_q", 5},
    {STAGED, "1024,4096,384,128,8," BLOCK_FP8, "s2_fp8fn_128_m128_n256_bs_p128_zw",     3},
    {STAGED, "1024,4096,384,128,8," BLOCK_FP8, "s2_fp8fn_128_m128_n256_bs_p128_y",      4},
    {STAGED, "1024,4096,640,128,8," BLOCK_FP8, "s2_fp8fn_128_m128_n256_bs_p128_y",      3},
    {SINGLE, "1024,4096,384,128,8," BLOCK_FP8, "pair_fp8fn_128_silu_m128_n256_bs_p128",  4},
    {SINGLE, "1024,4096,640,128,8," BLOCK_FP8, "pair_fp8fn_128_silu_m128_n256_bs_p128",  3},
    {SINGLE, "4096,4096,384,128,8," BLOCK_FP8, "pair_fp8fn_128_silu_m128_n256_bs_p128_zero", 4},
    {WHOLE,  "1024,4096,384,128,8," BLOCK_FP8, "layer_fp8fn_128_silu_m128_n256_bs_p128", 4},
};
/* clang-format on */

/* If the epilogue writes quantised tiles instead of bf16, the ring buffer has one more stage, provided that a
 * scale group covers whole tokens. The ring buffer also has one more stage if each warp accumulates its own
 * rows in y and K has few stages. */
MF_TEST(test_ring_stages, .rows = MF_ARRAY_LEN(rings))
{
    struct mf_shape shape;
    struct mf_code code;
    ck_assert_int_eq(mf_shape_parse(rings[_i].shape, &shape), 0);
    check_ring(rings[_i].family, &shape, rings[_i].step, rings[_i].stages, &code);
}

/* clang-format off */
static const struct {
    const struct mf_device_info *device;
    const char *family, *shape, *name; /* name of a step that is offered, or NULL */
    const char *rule, *says;  /* rule and reason of the rejection, or NULL */
} both_stages[] = {
    {&hopper, WHOLE, "64,7168,256,256,8," BLOCK_FP8, "layer_fp8fn_128_silu_m32_n256_b", NULL, NULL},
    {&hopper, WHOLE, "64,7168,256,256,8," BLOCK_FP8, "layer_fp8fn_128_silu_m64_n256_bts", NULL, NULL},
    {&hopper, WHOLE,
     "64,4096,3584,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,1",
     "layer_bf16_silu_m96_n128_bt_w", NULL, NULL},
    {&hopper, WHOLE,
     "64,2048,768,16,8,ActivationType.Gelu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,0,0,"
     "b1+b2+ep:16/64", "layer_bf16_gelu_m32_n256_b", NULL, NULL},
    {&hopper, WHOLE, "64,7168,256,256,8," TOKEN_FP8, NULL, "q_type", "h is quantised within one tile"},
    {&hopper, WHOLE, "2048,2048,768,128,8," PLAIN, NULL, "tokens_max", "token is 2048 with topk 8"},
    {&hopper, WHOLE, "64,2048,768,512,8," PLAIN, NULL, "experts", "expert is 512"},
    {&hopper, WHOLE, "64,2112,256,128,8," BLOCK_FP8, NULL, "divisibility", "model_dim 2112"},
    {&ampere, WHOLE, "64,2048,768,128,8," PLAIN, NULL, "arch", "the device is sm_80"},
    {&cdna3, WHOLE, "64,2048,768,128,8," PLAIN, NULL, "arch", "the device is gfx942"},
    {&hopper, SINGLE, "1024,4096,384,128,8," BLOCK_FP8, "pair_fp8fn_128_silu_m128_n256_bs_p128", NULL, NULL},
    {&hopper, SINGLE, "1024,7168,256,256,8," BLOCK_FP8, "pair_fp8fn_128_silu_m64_n256_bts", NULL, NULL},
    {&hopper, SINGLE,
     "16384,4096,3584,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,1",
     "pair_bf16_silu_m96_n256_b_w", NULL, NULL},
    {&hopper, SINGLE,
     "64,2048,768,16,8,ActivationType.Gelu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,0,0,"
     "b1+b2+ep:16/64", "pair_bf16_gelu_m32_n256_b", NULL, NULL},
    {&hopper, SINGLE, "64,2048,768,512,8," PLAIN, "pair_bf16_silu_m32_n256_b_p128", NULL, NULL},
    {&hopper, SINGLE, "1024,4096,384,128,8," TOKEN_FP8, NULL, "q_type", "h is quantised within one tile"},
    {&ampere, SINGLE, "64,2048,768,128,8," PLAIN, NULL, "arch",
     "family two_stage_single_launch needs WGMMA and TMA loads (sm_90); the device is sm_80"},
};
/* clang-format on */

/* The whole layer in one launch covers all ops. A pair of stages covers all ops after sort and quantise. If
 * no such step is offered, there is one rejection. */
MF_TEST(test_both_stages, .rows = MF_ARRAY_LEN(both_stages))
{
    static struct offer_recorder h;
    struct mf_shape shape;
    struct mf_code code;
    const char *rule = both_stages[_i].rule, *name = both_stages[_i].name;
    const char *family = both_stages[_i].family;
    bool is_pair = strcmp(family, SINGLE) == 0;
    mf_ops before = is_pair ? MF_OP_BIT(MF_OP_SORT) | MF_OP_BIT(MF_OP_QUANT1) : 0;

    ck_assert_int_eq(mf_shape_parse(both_stages[_i].shape, &shape), 0);
    h = (struct offer_recorder){.offer = RECORDING_OFFER, .ignored_family = "asm"};
    ck_assert_int_eq(mf_enumerate(both_stages[_i].device, &shape, family, &h.offer), 0);
    ck_assert_msg(!rule || (h.n == 0 && h.n_rejections == 1 && strcmp(h.rule, rule) == 0), "%s: %s", h.rule,
                  h.reason);
    ck_assert_msg(!rule || strstr(h.reason, both_stages[_i].says), "%s", h.reason);
    for (size_t i = 0; i < h.n; i++)
        ck_assert_uint_eq(h.steps[i].covers, mf_layer_ops(&shape) & ~before);
    if (!name)
        return;
    ck_assert_msg(find_recorded(&h, name) != NULL, "%s", name);
    ck_assert_int_eq(family_code(family, both_stages[_i].device, &shape, name, &code), 0);
    ck_assert_str_eq(code.source, is_pair ? "pair.hip" : "layer.hip");
}

/* Steps that save a launch before stage 1 are offered from a minimum token count on. A table's row can also
 * open such a step for fewer tokens. */
/* clang-format off */
static const struct {
    const struct mf_device_info *device;
    const char *shape, *family, *name;
    bool offered, opens;
} before_stage1[] = {
    {&hopper, "64,4096,384,128,8," BLOCK_FP8,   "move", "sort_zero_quant1_fp8fn_128_m128",       true,  true},
    {&hopper, "64,4096,384,128,8," BLOCK_FP8,   "move", "sort_quant1_fp8fn_128_m128",            true,  true},
    {&cdna3,  "64,2048,768,128,8," PLAIN,       "move", "sort_zero_m64",                         true,  true},
    {&hopper, "64,2048,768,128,8," PLAIN,       "move", "sort_quant1_m64",                       false,
     false},
    {&hopper, "64,4096,384,128,8," TOKEN_FP8,   "move", "sort_zero_m64",                         true,  true},
    {&hopper, "1024,4096,384,128,8," BLOCK_FP8, STAGED, "s1_fp8fn_128_silu_m128_n256_bs_zero",   true,  true},
    {&hopper, "1024,4096,384,128,8," BLOCK_FP8, STAGED, "s1_fp8fn_128_silu_m128_n256_bs_q_zero", true,  true},
    {&hopper, "512,4096,384,128,8," BLOCK_FP8,  STAGED, "s1_fp8fn_128_silu_m128_n256_bs_zero",   false, true},
    {&hopper, "1024,4096,384,128,8," BLOCK_FP8, STAGED, "s2_fp8fn_128_m128_n256_bs_y_zero",      false,
     false},
    {&cdna3,  "1024,2048,768,128,8," PLAIN,     STAGED, "s1_bf16_silu_m128_n128_w2x2_zero",      false,
     false},
    {&hopper, "2048,4096,384,128,8," BLOCK_FP8, SINGLE, "pair_fp8fn_128_silu_m128_n256_bs_p128_zero", true,
     true},
    {&hopper, "1024,4096,384,128,8," BLOCK_FP8, SINGLE, "pair_fp8fn_128_silu_m128_n256_bs_p128_zero", false,
     true},
    {&hopper, "1024,4096,384,128,8," BLOCK_FP8, SINGLE, "pair_fp8fn_128_silu_m128_n256_bs_p128",  true, true},
    {&hopper, "2048,4096,384,128,8," BLOCK_FP8, SINGLE, "pair_fp8fn_128_silu_m64_n256_bs_p128_zero", false,
     false},
    {&hopper, "2048,2048,768,128,8," PLAIN,     SINGLE, "pair_bf16_silu_m96_n256_b_zero",          true,
     true},
    /* all steps of a pipeline with block_m 80, for 64 tokens per expert */
    {&hopper, "1024,4096,384,128,8," BLOCK_FP8, "move", "sort_zero_quant1_fp8fn_128_m80",        true,  true},
    {&hopper, "1024,4096,384,128,8," BLOCK_FP8, STAGED, "s1_fp8fn_128_silu_m80_n256_b_q",        true,  true},
    {&hopper, "1024,4096,384,128,8," BLOCK_FP8, STAGED, "s2_fp8fn_128_m80_n256_b_y",             true,  true},
    {&hopper, "1024,2048,768,128,8," PLAIN,     STAGED, "s1_bf16_silu_m80_n256_b_zero",          true,  true},
};
/* clang-format on */

MF_TEST(test_before_stage1, .rows = MF_ARRAY_LEN(before_stage1))
{
    static struct offer_recorder h;
    const char *name = before_stage1[_i].name;
    const struct mf_shape shape = ask(before_stage1[_i].device, before_stage1[_i].shape, &h);
    struct mf_code code;

    ck_assert_msg((find_recorded(&h, name) != NULL) == before_stage1[_i].offered, "%s", name);
    int r = family_code(before_stage1[_i].family, before_stage1[_i].device, &shape, name, &code);
    ck_assert_int_eq(r == 0, before_stage1[_i].opens);
}

/* A sort has a workspace for counts only if its blocks synchronise, that is, for more than 8,192 ids. */
static const struct {
    const char *shape;
    bool synchronises;
} sort_cases[] = {{"64,2048,768,128,8," PLAIN, false},
                  {"1024,2048,768,128,8," PLAIN, false},
                  {"1025,2048,768,128,8," PLAIN, true}};

MF_TEST(test_sort_counts, .rows = MF_ARRAY_LEN(sort_cases))
{
    static struct offer_recorder h;
    size_t sorts = 0;

    (void)ask(&hopper, sort_cases[_i].shape, &h);
    for (size_t i = 0; i < h.n; i++) {
        if (strncmp(h.steps[i].name, "sort_m", 6) != 0 && strncmp(h.steps[i].name, "sort_zero_", 10) != 0)
            continue;
        sorts++;
        ck_assert_msg((h.steps[i].workspace > 0) == sort_cases[_i].synchronises, "%s", h.steps[i].name);
    }
    ck_assert_uint_gt(sorts, 0);
}

/* Blocks that synchronise must be resident at the same time, so there is at most one per SM. Each block has
 * one count per expert. */
MF_TEST(test_sort_workspace_few_sms, .rows = 2)
{
    static const int cores[] = {8, 40};
    static struct offer_recorder h;
    struct mf_device_info few = hopper;
    size_t sorts = 0;

    few.cores = cores[_i];
    const struct mf_shape shape = ask(&few, "16384,2048,768,128,8," PLAIN, &h);
    for (size_t i = 0; i < h.n; i++) {
        if (strncmp(h.steps[i].name, "sort_", 5) != 0 || h.steps[i].workspace == 0)
            continue;
        sorts++;
        ck_assert_msg(h.steps[i].workspace <= (uint64_t)few.cores * (uint64_t)shape.expert * 4, "%s",
                      h.steps[i].name);
    }
    ck_assert_uint_gt(sorts, 0);
}

MF_TEST(test_invalid_names)
{
    static const char *const names[] = {"", "s1_", "s1_bf16_silu_m16_n64_s6_w2x1x", "s3_bf16_m16_n64_s6_w2x1",
                                        "sort"};
    static const char *const families[] = {"move",           STAGED, "one_stage", "two_stage_mx",
                                           "two_stage_int4", WHOLE,  SINGLE};
    struct mf_shape shape;
    struct mf_code code;

    ck_assert_int_eq(mf_shape_parse(shapes[0], &shape), 0);
    for (size_t f = 0; f < MF_ARRAY_LEN(families); f++) {
        for (size_t i = 0; i < MF_ARRAY_LEN(names); i++)
            ck_assert_int_lt(family_code(families[f], &hopper, &shape, names[i], &code), 0);
    }
}

MF_TEST(test_rejections, .rows = MF_ARRAY_LEN(refused))
{
    static struct offer_recorder h;

    (void)ask(&hopper, refused[_i].shape, &h);
    for (size_t i = 0; i < h.n; i++) /* steps that move and quantise rows are still offered */
        ck_assert_msg(refused[_i].moves && strcmp(h.steps[i].family, "move") == 0, "%s", h.steps[i].name);
    ck_assert(h.n > 0 || !refused[_i].moves);
    ck_assert_str_eq(h.rule, refused[_i].rule);
    ck_assert_msg(strstr(h.reason, refused[_i].says), "%s", h.reason);
}

/* Checks that the step uses neither the Hopper mainloop nor WGMMA. */
static void check_plain(const struct mf_device_info *device, const struct mf_shape *shape, const char *family,
                        const char *name)
{
    struct mf_code code;

    ck_assert_int_eq(family_code(family, device, shape, name, &code), 0);
    ck_assert_msg(strstr(code.source, "hopper") == NULL && !defines(&code, "MF_WGMMA"), "%s", name);
}

/* WGMMA is offered on Hopper only; other devices report a rejection. A format without any kernel gets no
 * step. */
MF_TEST(test_architecture)
{
    static struct offer_recorder h;

    const struct mf_shape shape = ask(&ampere, shapes[0], &h);
    ck_assert_uint_gt(h.n, 0);
    ck_assert_uint_gt(h.n_rejections, 0);
    for (size_t i = 0; i < h.n; i++)
        check_plain(&ampere, &shape, h.steps[i].family, h.steps[i].name);
    (void)ask(&ampere, shapes[2], &h); /* sm_80 cannot convert 8-bit floats */
    ck_assert_uint_eq(h.n, 0);
    ck_assert_str_eq(h.rule, "q_dtype");
    ck_assert_msg(strstr(h.reason, "with bf16 or int4, and int8 with scales per token"), "%s", h.reason);
}

/* 4-bit weights also use the Hopper mainloop. For 4-bit weights, only this mainloop accumulates rows in y. */
MF_TEST(test_4bit_weights_on_hopper)
{
    static struct offer_recorder h;
    size_t cores = 0;
    struct mf_shape shape = ask(&hopper, shapes[11], &h);

    for (size_t i = 0; i < h.n; i++) {
        struct mf_code code;
        bool adds =
            (h.steps[i].covers & MF_OP_BIT(MF_OP_GEMM2)) && (h.steps[i].covers & MF_OP_BIT(MF_OP_COMBINE));

        ck_assert_int_eq(family_code(h.steps[i].family, &hopper, &shape, h.steps[i].name, &code), 0);
        bool core = strcmp(code.source, "mx_hopper.hip") == 0;
        ck_assert_msg(!core || defines(&code, "MF_W=FP4"), "%s", h.steps[i].name);
        ck_assert_msg(!adds || core, "%s", h.steps[i].name);
        cores += core;
    }
    ck_assert_uint_gt(cores, 0);
    shape = ask(&ampere, shapes[13], &h);
    ck_assert_uint_gt(h.n, 0);
    for (size_t i = 0; i < h.n; i++)
        check_plain(&ampere, &shape, h.steps[i].family, h.steps[i].name);
}

MF_TEST(test_unsupported_architectures, .rows = 2)
{
    static const struct mf_device_info *const devices[] = {&rdna3, &turing};
    static struct offer_recorder h;

    (void)ask(devices[_i], shapes[0], &h);
    ck_assert_uint_eq(h.n, 0);
    ck_assert_str_eq(h.rule, "arch");
    ck_assert_msg(strstr(h.reason, devices[_i]->class.gfx), "%s", h.reason);
}

/* For x above 64 GiB, stage 1 steps with 32-bit row offsets are not offered, but other variants are. */
MF_TEST(test_32bit_row_offsets, .rows = 2)
{
    static const char *const tokens[] = {"4194303", "4194304"};
    static struct offer_recorder h;
    char text[MF_SHAPE_TEXT_MAX];
    size_t gather = 0;

    mf_format(
        text, sizeof(text),
        "%s,8192,256,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
        tokens[_i]);
    const struct mf_shape shape = ask(&hopper, text, &h);
    for (size_t i = 0; i < h.n; i++) {
        struct mf_code code;

        ck_assert_int_eq(family_code(h.steps[i].family, &hopper, &shape, h.steps[i].name, &code), 0);
        gather += (strcmp(code.source, "tile_hopper.hip") == 0 || strcmp(code.source, "pair.hip") == 0) &&
                  (h.steps[i].covers & MF_OP_BIT(MF_OP_GATHER)) != 0;
    }
    ck_assert_uint_gt(h.n, 0);
    ck_assert(_i == 0 ? gather > 0 : gather == 0);
}

/* A table's row serves every token count that pads to the row's bucket. So a step that is offered for the
 * bucket must open for each of these token counts. */
MF_TEST(test_buckets, .rows = 2 * MF_ARRAY_LEN(shapes))
{
    static const struct mf_device_info *const devices[] = {&hopper, &cdna3};
    static struct offer_recorder h;
    const char *rest = strchr(shapes[_i / 2], ',');
    char text[MF_SHAPE_TEXT_MAX];

    for (int bucket = 2; bucket <= 32768; bucket *= 2) {
        mf_format(text, sizeof(text), "%d%s", bucket, rest);
        struct mf_shape shape = ask(devices[_i % 2], text, &h);
        for (size_t i = 0; i < 2 * h.n; i++) {
            const struct mf_family *f = mf_family_find("hip", h.steps[i / 2].family);
            struct mf_code code;
            shape.token = i % 2 ? bucket / 2 + 1 : bucket - 1;
            ck_assert_int_le(mf_token_bucket(shape.token), bucket);
            ck_assert_msg(f->code(f, devices[_i % 2], &shape, h.steps[i / 2].name, &code) == 0,
                          "%s of %d tokens cannot be opened for %d", h.steps[i / 2].name, bucket,
                          (int)shape.token);
        }
    }
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
