/* kernels/aiter*.c: kernel names in AITER's tables, the number of candidates per kind of shape, and pipelines
 * of AITER's kernels. */
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/pipeline_search.h"
#include "common/table/table_file.h"
#include "kernels/aiter/aiter.h"
#include "kernels/aiter/aiter_lists.h"
#include "kernels/sim/sim.h"
#include "support/mf_check.h"
#include "support/shipped.h"

/* --- names ---------------------------------------------------------------------------------------------- */

/* Every kernel name in the tables that AITER ships is recognised. */
MF_TEST(shipped_names, .rows = MF_ARRAY_LEN(shipped))
{
    const struct shipped *file = &shipped[_i];
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(file->file);
    if (file->op != MF_TABLE_FMOE)
        return;
    for (size_t i = 0; i < t->n_rows; i++) {
        const char *kernels[] = {t->rows[i].kernel1, t->rows[i].kernel2};
        for (int k = 0; k < 2; k++)
            if (!mf_table_no_kernel(kernels[k]) && mf_aiter_name_known(NULL, kernels[k]) != MF_AITER_KNOWN)
                ck_abort_msg("%s:%lld: %s", file->file, (long long)t->rows[i].line, kernels[k]);
    }
}

/* clang-format off */
static const struct {
    const char *name;
    enum mf_aiter_known known;
} names[] = {
    {"_ZN5aiter48fmoe_bf16_blockscaleBf16_g1u1_flat_vs_silu_1x128E", MF_AITER_KNOWN},
    /* listed with the length 47 for 46 characters */
    {"_ZN5aiter47fmoe_bf16_blockscaleFp8_g1u1_vs_ps_silu_32x128E", MF_AITER_KNOWN},
    {"_ZN5aiter46fmoe_bf16_blockscaleFp8_g1u1_vs_ps_silu_32x128E", MF_AITER_NEWER},
    {"_ZN5aiter49fmoe_bf16_blockscaleBf16_g1u1_flat_vs_silu_1x128E", MF_AITER_NO_KERNEL}, /* wrong length */
    {"_ZN5aiter46fmoe_bf16_blockscaleFp8_g1u1_vs_ps_silu_32x256E", MF_AITER_NEWER},       /* no such tile */
    {"_ZN5aiter99999999999999999999fmoe_bf16E", MF_AITER_NO_KERNEL},
    {"fmoe_bf16_blockscaleBf16_g1u1_flat_vs_silu_1x128", MF_AITER_NO_KERNEL},             /* not mangled */
    {"_ZN5aiter62fmoe_bf16_a16_blockscaleFp8_g1u1_vs_silu_1tg_emsort_16x128_pf3E", MF_AITER_KNOWN},
    {"moe_ck2stages_gemm1_256x32x128x128_1x4_MulABScaleExpertWeightA8W8blkscaleSplitk_v1_Nswizzle0_Quant4_"
     "MulRoutedWeight0_"
     "silu_F8_F8_B16", MF_AITER_KNOWN},
    {"moe_ck2stages_gemm1_256x32x128x128_1x4_MulABScaleExpertWeightA8W8blkscaleSplitk_v1_Nswizzle0_Quant4_"
     "MulRoutedWeight0_"
     "silu_F8_F8_B16_sk4", MF_AITER_NEWER}, /* tables have a column ksplit */
    {"moe_ck2stages_gemm2_256x32x64x128_1x4_MulABScaleExpertWeight_v1_Nswizzle0_Quant2_MulRoutedWeight0_F8_"
     "F8_B16", MF_AITER_KNOWN},
    {"moe_ck2stages_gemm2_256x32x64x128_1x4_MulABScaleExpertWeight_v3_Nswizzle0_Quant2_MulRoutedWeight0_F8_"
     "F8_B16", MF_AITER_NEWER},                                               /* the instance has version 1 */
    {"moe_ck2stages_gemm1_256x64x128x128_1x4_MulABScale_v3_Nswizzle0_Quant2_MulRoutedWeight0_gelutanh_F8_"
     "F8_B16",
     MF_AITER_NEWER},
    {"flydsl_moe1_afp4_wfp4_bf16_t32x128x256_w2_fp4", MF_AITER_KNOWN},
    /* the order of the suffixes is significant */
    {"flydsl_moe1_afp4_wfp4_bf16_t32x128x256_fp4_w2", MF_AITER_NEWER},
    {"flydsl_moe1_afp8_wfp4_bf16_t32x64x256_w4_gui_kw4_fp8", MF_AITER_KNOWN},
    {"flydsl_moe2_afp8_wfp4_bf16_t16x128x256_atomic_bnt2_sbm32", MF_AITER_KNOWN},
    {"flydsl_moe2_layout_afp8_wfp4_bf16_t32x256x128_reduce_sbm32", MF_AITER_KNOWN},
    {"flydsl_mxmoe_g1_a8w4_32x256x256_nt_il_fp8out_xcd4", MF_AITER_KNOWN},
    {"opus_moe1_afp8_wfp4_bf16_t64x384_gs_qgb3_stream_k8_fp8", MF_AITER_KNOWN},
    {"opus_moe2_layout_afp8_wfp4_atomic_t32x128x256_sbm32_occ1_cache_b2_ws2", MF_AITER_KNOWN},
    {"opus_moe2_layout_afp8_wfp4_atomic_t32x128x256_sbm32_occ1_cache_b9_ws2", MF_AITER_NEWER},
    {"swiglu_mxfp4_bf16_cktile", MF_AITER_KNOWN},
    {"cktile_a8w4_bm32", MF_AITER_KNOWN},
    {"cktile_a8w4_bm", MF_AITER_NEWER},
    {"no_such_kernel", MF_AITER_NO_KERNEL},
    {"tile_s1_m32n64k128", MF_AITER_NO_KERNEL},
    {"one_t16", MF_AITER_NO_KERNEL},
    {"aiter_quant_x", MF_AITER_NO_KERNEL}, /* a host step has no table row */
    {"", MF_AITER_NO_KERNEL},
};
/* clang-format on */

MF_TEST(known_names, .rows = MF_ARRAY_LEN(names))
{
    ck_assert_msg(mf_aiter_name_known(NULL, names[_i].name) == names[_i].known, "%s", names[_i].name);
}

/* clang-format off */
static const struct {
    const char *start; /* of the name */
    size_t fill;       /* number of zeros after the start */
    const char *end;
    bool is_step;
} steps[] = {
    {"aiter_quant_x",          0,   "",       true},
    {"aiter_moe_sorting_m32",  0,   "",       true},
    {"aiter_moe_sorting_m32",  0,   "_sk4",   false}, /* host steps have no split-K */
    {"cktile_a8w4_bm32",       0,   "_sk4",   true},
    {"cktile_a8w4_bm32",       0,   "<b>",    false},
    {"cktile_a8w4_bm32",       0,   "<b>_sk4", false},
    {"no_such_kernel",         0,   "_sk4",   false},
    {"",                       0,   "",       false},
    {"",                       0,   "_sk4",   false},
    /* 159 characters are the longest name of a step */
    {"cktile_a8w4_bm",         145, "",       true},
    {"cktile_a8w4_bm",         146, "",       false},
    {"cktile_a8w4_bm",         146, "<b>",    false},
    {"opus_moe1_",             200, "\n,=cmd", false},
    {"aiter_moe_sorting_m",    140, "",       true},
    {"aiter_moe_sorting_m",    141, "",       false},
};
/* clang-format on */

/* Names of steps are stored and shown, so the whole name counts, and not its first characters. */
MF_TEST(step_names, .rows = MF_ARRAY_LEN(steps))
{
    char name[512], zeros[256] = "";
    memset(zeros, '0', steps[_i].fill);
    mf_format(name, sizeof(name), "%s%s%s", steps[_i].start, zeros, steps[_i].end);
    ck_assert_msg(mf_aiter_is_step(name) == steps[_i].is_step, "%s", name);
}

/* --- the space ------------------------------------------------------------------------------------------ */

#define SPACE_MAX 2048

struct space {
    struct mf_offer offer; /* must be first */
    struct mf_step steps[SPACE_MAX];
    struct mf_path_step timed[SPACE_MAX];
    size_t n;
    int n_kernels, n_host, n_rejections;
    int n_tried; /* number of kernels that AITER's tuner tries */
    int n_stage[4];
    char rejected[16384]; /* the names of rejected kernels */
};

struct tried {
    struct mf_aiter_sink sink; /* must be first */
    int n;
};

static int count_tried(struct mf_aiter_sink *s, const struct mf_aiter_kernel *k)
{
    ((struct tried *)s)->n += (k->flags & MF_AITER_UNTRIED) == 0;
    return 0;
}

__attribute__((format(printf, 5, 6))) static int ignore(struct mf_aiter_sink *s, const char *family,
                                                        const char *kernel, const char *rule,
                                                        const char *format, ...)
{
    (void)s;
    (void)family;
    (void)kernel;
    (void)rule;
    (void)format;
    return 0;
}

static int take_step(struct mf_offer *o, const struct mf_step *step)
{
    struct space *g = (struct space *)o;
    ck_assert_uint_lt(g->n, SPACE_MAX);
    if (!step->aiter || !mf_aiter_is_step(step->name))
        ck_abort_msg("%s is not a valid AITER kernel name", step->name);
    g->steps[g->n++] = *step;
    g->n_host += strcmp(step->family, "host") == 0;
    g->n_kernels += strcmp(step->family, "host") != 0;
    g->n_stage[step->stage]++;
    return 0;
}

static int record_rejection(struct mf_offer *o, const char *family, const char *kernel, const char *rule,
                            const char *format, ...)
{
    char reason[MF_REASON_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    ck_assert(family[0] && kernel[0] && rule[0]);
    ck_assert_msg(strlen(reason) > 20, "'%s' is too short for a reason", reason);
    size_t len = strlen(((struct space *)o)->rejected);
    (void)snprintf(((struct space *)o)->rejected + len, sizeof(((struct space *)o)->rejected) - len, "%s ",
                   kernel);
    ((struct space *)o)->n_rejections++;
    return 0;
}

/* Returns the candidates of a shape on a device class and counts the rejections. There are no candidates if
 * AITER does not support the shape. */
static const struct space *enumerate(const char *device, const struct mf_shape *shape)
{
    static struct space g;
    struct mf_device *d = NULL;
    char why[MF_REASON_MAX] = "";
    g.n = 0;
    g.n_kernels = g.n_host = g.n_rejections = 0;
    g.rejected[0] = '\0';
    memset(g.n_stage, 0, sizeof(g.n_stage));
    g.offer = (struct mf_offer){.step = take_step, .reject = record_rejection};
    ck_assert_msg(mf_sim_open(device, why, sizeof(why), &d) == 0, "%s", why);
    ck_assert_int_eq(mf_enumerate(&d->info, shape, "aiter", &g.offer), 0);
    struct tried tried = {.sink = {.kernel = count_tried, .no = ignore}};
    const struct mf_aiter_layer layer = {.gfx = d->info.class.gfx, .shape = shape};
    ck_assert_int_eq(mf_aiter_enumerate(&layer, &tried.sink), 0);
    g.n_tried = tried.n;
    for (size_t i = 0; i < g.n; i++)
        g.timed[i] = (struct mf_path_step){&g.steps[i], mf_sim_step_us(&d->info, shape, &g.steps[i])};
    mf_device_close(d);
    return &g;
}

#define BF16 "torch.bfloat16"
#define FN   "torch.float8_e4m3fn"
#define FNUZ "torch.float8_e4m3fnuz"
#define FP4  "torch.float4_e2m1fn_x2"
#define G942 "sim:gfx942/304:0"
#define G950 "sim:gfx950/256:0"
#define ROW(sizes, act, a, w, q, dw) \
    "64," sizes ",ActivationType." act "," BF16 "," a "," w ",QuantType." q ",1," dw

/* Minimum and maximum number of candidates that AITER's own generators create per kind of shape. The test
 * permits 2 % below the minimum and 2 % above the maximum. */
/* clang-format off */
static const struct {
    const char *kind, *device, *row;
    int least, most;
} kinds[] = {
    {"bf16",          G942, ROW("6144,4096,8,2",    "Silu",   BF16, BF16, "No", "0"),           18, 18},
    {"bf16",          G950, ROW("4096,384,128,8",   "Silu",   BF16, BF16, "No", "0"),           15, 15},
    {"per_Tensor int8", G942, ROW("6144,4096,8,2",  "Silu",   "torch.int8", "torch.int8", "per_Tensor", "0"),
     49, 49},
    {"per_Token fp8", G942, ROW("7168,256,256,8",   "Silu",   FNUZ, FNUZ, "per_Token", "0"),    57, 57},
    {"per_Token fp8", G942, ROW("6144,4096,8,2",    "Silu",   FNUZ, FNUZ, "per_Token", "0"),    59, 59},
    {"per_Token fp8", G950, ROW("4096,1536,160,8",  "Silu",   FN, FN, "per_Token", "0"),        46, 46},
    {"per_1x128",     G942, ROW("6144,4096,8,2",    "Silu",   FNUZ, FNUZ, "per_1x128", "0"),    40, 40},
    {"per_1x128",     G950, ROW("7168,256,257,9",   "Silu",   FN, FN, "per_1x128", "0"),        43, 49},
    {"a16wi4",        G950, ROW("7168,512,384,8",   "Silu",   BF16, "torch.int4", "per_1x32", "0"), 84, 84},
    {"a16w4",         G950, ROW("3584,384,896,16",  "Situv2", BF16, FP4, "per_1x32", "0"),     432, 432},
    {"mxfp8",         G950, ROW("6144,512,257,9",   "Silu",   FN, FN, "per_1x32", "0"),        714, 714},
    {"a8w4",          G950, ROW("7168,512,384,8",   "Silu",   FN, FP4, "per_1x32", "0"),       958, 960},
    {"a4w4",          G950, ROW("7168,512,257,9",   "Silu",   FP4, FP4, "per_1x32", "0"),     1212, 1212},
    {"a4w4 Swiglu",   G950, ROW("3072,1536,128,4",  "Swiglu", FP4, FP4, "per_1x32", "0"),     1154, 1154},
};
/* clang-format on */

MF_TEST(candidate_counts, .rows = MF_ARRAY_LEN(kinds))
{
    struct mf_shape shape;
    ck_assert_int_eq(mf_shape_parse(kinds[_i].row, &shape), 0);
    const struct space *g = enumerate(kinds[_i].device, &shape);
    printf("%-16s %-18s %5d candidates, of which AITER's tuner tries %d (%d to %d)\n", kinds[_i].kind,
           kinds[_i].device, g->n_kernels, g->n_tried, kinds[_i].least, kinds[_i].most);
    ck_assert_int_ge(g->n_tried, (int)(0.98 * kinds[_i].least));
    ck_assert_int_le(g->n_tried, (int)(1.02 * kinds[_i].most));
    for (size_t i = 0; i < g->n; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(g->steps[i].name, g->steps[j].name) == 0 &&
                strcmp(g->steps[i].family, g->steps[j].family) == 0)
                ck_abort_msg("step %s:%s occurs twice", g->steps[i].family, g->steps[i].name);
}

/* Every kind of shape has pipelines. A pipeline uses v2 steps for both stages or for neither stage. */
MF_TEST(kinds_have_pipelines, .rows = MF_ARRAY_LEN(kinds))
{
    struct mf_shape shape;
    ck_assert_int_eq(mf_shape_parse(kinds[_i].row, &shape), 0);
    const struct space *g = enumerate(kinds[_i].device, &shape);
    struct mf_path_problem p = {.ops = mf_layer_ops(&shape),
                                .format = MF_FORMAT_BF16,
                                .steps = g->timed,
                                .n_steps = g->n,
                                .gap_us = 1,
                                .keep = 8};
    _cleanup_(mf_freep) struct mf_path *paths = NULL;
    size_t n_paths = 0;
    ck_assert_int_eq(mf_path_find(&p, &paths, &n_paths), 0);
    ck_assert_msg(n_paths > 0, "%s: no pipeline of %zu steps", kinds[_i].kind, g->n);
    for (size_t i = 0; i < n_paths; i++) {
        int n_v2 = 0, n_mxmoe = 0, n_pertoken = 0;
        for (int k = 0; k < paths[i].n; k++) {
            const struct mf_step *s = &g->steps[paths[i].steps[k]];
            n_v2 += strcmp(s->family, "flydslv2") == 0 || strcmp(s->family, "opusv2") == 0;
            n_mxmoe += strcmp(s->family, "mxmoe") == 0;
            n_pertoken += shape.q_type == MF_QTYPE_PER_1X32 && strstr(s->name, "pertokenFp8");
        }
        ck_assert_msg(n_v2 == 0 || n_v2 == 2, "a pipeline uses a v2 step for one stage only");
        ck_assert_msg(n_mxmoe == 0 || n_mxmoe == 2, "a pipeline uses an mxmoe step for one stage only");
        ck_assert_int_eq(n_pertoken, 0);
    }
}

/* Shapes for which AITER has no key or no kernel. The family only reports rejections: it offers no steps, not
 * even host steps. */
static const char *const others[] = {
    ROW("7168,512,256,8", "GeluTanh", BF16, BF16, "No", "0"),
    ROW("7168,512,256,8", "Silu", FP4, FP4, "per_1x16", "0"),
    ROW("7168,512,256,8", "Silu", FNUZ, FNUZ, "per_Token", "0"), /* FP8 encoding of gfx942 */
    "64,7168,512,256,8,ActivationType.Silu," BF16 "," BF16 "," BF16 ",QuantType.No,0,0",
    ROW("7168,512,256,8", "Swiglu", FN, FP4, "per_1x32", "0") ",limit:10",
};

MF_TEST(unsupported_shapes, .rows = MF_ARRAY_LEN(others))
{
    struct mf_shape shape;
    ck_assert_msg(mf_shape_parse(others[_i], &shape) == 0, "%s", others[_i]);
    const struct space *g = enumerate(G950, &shape);
    ck_assert_uint_eq(g->n, 0);
    ck_assert_int_gt(g->n_rejections, 0);
}

/* Split-K is offered for each factor that leaves whole scale blocks of 128. */
/* clang-format off */
static const struct {
    const char *device, *row, *factors;
} splits[] = {
    {G950, ROW("7168,256,257,9", "Silu", FN, FN, "per_1x128", "0"),     " 2 4 7 8"},
    {G942, ROW("6144,4096,8,2",  "Silu", FNUZ, FNUZ, "per_1x128", "0"), " 2 3 4 6 8"},
    {G950, ROW("640,256,8,2",    "Silu", FN, FN, "per_1x128", "0"),     " 5"},
    {G950, ROW("896,256,8,2",    "Silu", FN, FN, "per_Token", "0"),     ""},
};
/* clang-format on */

MF_TEST(splits_of_k, .rows = MF_ARRAY_LEN(splits))
{
    struct mf_shape shape;
    char found[64] = "", plain[MF_STEP_NAME_MAX];
    ck_assert_int_eq(mf_shape_parse(splits[_i].row, &shape), 0);
    const struct space *g = enumerate(splits[_i].device, &shape);
    for (size_t i = 0; i < g->n; i++) {
        if (!strstr(g->steps[i].name, "gemm1_256x32x128x128_1x4") || g->steps[i].ksplit == 0)
            continue;
        ck_assert_int_eq(mf_step_drop_ksplit(g->steps[i].name, plain), g->steps[i].ksplit);
        ck_assert_int_eq(mf_aiter_name_known(NULL, plain), MF_AITER_KNOWN);
        (void)snprintf(found + strlen(found), sizeof(found) - strlen(found), " %d", g->steps[i].ksplit);
    }
    ck_assert_str_eq(found, splits[_i].factors);
}

/* The prebuilt kernels with scales per 1x128 are those of AITER's manifests. A kernel whose tile does not
 * divide inter_dim is rejected by its name. */
MF_TEST(manifest_names)
{
    static const char *const lists[] = {"fmoe/silu/fmoe_bf16_blockscaleFp8_g1u1_silu",
                                        "fmoe/silu/fmoe_bf16_blockscaleBf16_g1u1_silu"};
    struct mf_shape shape;
    struct mf_aiter_entry e;
    int n_listed = 0, n_offered = 0;
    ck_assert_int_eq(mf_shape_parse("128,4096,256,289,9,ActivationType.Silu," BF16 "," FN "," FN
                                    ",QuantType.per_1x128,1,0",
                                    &shape),
                     0);
    const struct space *g = enumerate(G950, &shape);
    for (size_t i = 0; i < g->n; i++)
        n_offered += strstr(g->steps[i].name, "blockscale") && g->steps[i].stage == MF_STAGE_ONE;
    for (size_t l = 0; l < MF_ARRAY_LEN(lists); l++) {
        struct mf_aiter_cursor c = mf_aiter_list_find(mf_aiter_lists_builtin(), lists[l], "gfx950");
        while (mf_aiter_list_next(&c, &e)) {
            size_t i = 0;
            while (i < g->n && strcmp(g->steps[i].name, e.name) != 0)
                i++;
            ck_assert_msg((i < g->n) == (256 % e.value[1] == 0), "%s", e.name);
            ck_assert_msg(i < g->n || strstr(g->rejected, e.name), "%s is not rejected", e.name);
            n_listed++;
            n_offered -= i < g->n;
        }
    }
    ck_assert_int_eq(n_listed, 21);
    ck_assert_int_eq(n_offered, 0);
}

/* --- the shipped catalogue ------------------------------------------------------------------------------ */

/* Number of candidates that AITER's own generators create for a whole table. */
/* clang-format off */
static const struct {
    const char *file;
    long n;
} totals[] = {
    {"dsv3_fp4_untuned_fmoe.csv", 75144},       {"kimik2_fp4_untuned_fmoe.csv", 77568},
    {"glm5_fp4_untuned_fmoe.csv", 74496},       {"minimax_m25_fp4_untuned_fmoe.csv", 72960},
    {"kimik2_fp8fp4_untuned_fmoe.csv", 60592},  {"qwen3_5_397b_fp4_untuned_fmoe.csv", 55872},
    {"gptoss_fp4_untuned_fmoe.csv", 55392},     {"qwen3next_80b_fp8_untuned_fmoe.csv", 3840},
    {"a8w8_blockscale_untuned_fmoe_glm5.csv", 688},
};
/* clang-format on */

static void check_total(const char *file, long n)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(totals); i++)
        if (strcmp(totals[i].file, file) == 0)
            ck_assert_msg(labs(n - totals[i].n) <= totals[i].n / 50, "%s: %ld, AITER %ld", file, n,
                          totals[i].n);
}

/* Every row has candidates on at least one of the two device classes. On a class without candidates, the row
 * has a rejection. */
MF_TEST(catalogue)
{
    static const char *const devices[] = {G942, G950};
    long n_rows = 0, n_candidates = 0, n_refused = 0;
    for (size_t f = 0; f < sizeof(shipped) / sizeof(shipped[0]); f++) {
        if (shipped[f].tuned || shipped[f].op != MF_TABLE_FMOE)
            continue;
        _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(shipped[f].file);
        long of_file = 0;
        for (size_t i = 0; i < t->n_rows; i++) {
            int most = 0;
            for (int d = 0; d < 2; d++) {
                const struct space *g = enumerate(devices[d], &t->rows[i].shape);
                ck_assert_msg(g->n_kernels > 0 || g->n_rejections > 0, "%s: neither a step nor a reason",
                              shipped[f].file);
                most = MF_MAX(most, g->n_tried);
            }
            of_file += most;
            n_refused += most == 0;
        }
        printf("%-50s %4zu rows %7ld candidates\n", shipped[f].file, t->n_rows, of_file);
        check_total(shipped[f].file, of_file);
        n_rows += (long)t->n_rows;
        n_candidates += of_file;
    }
    printf("%ld rows, %ld candidates, %ld rows refused\n", n_rows, n_candidates, n_refused);
    ck_assert_int_eq(n_refused, 0);
}

#define CK(tile, op, version, act)                                                                         \
    "moe_ck2stages_gemm" tile "_1x4_" op "_v" version "_Nswizzle0_Quant0_MulRoutedWeight0_" act "B16_B16_" \
    "B16"

/* clang-format off */
static const struct {
    const char *row, *kernel, *says; /* says NULL: the launcher accepts the kernel */
} launches[] = {
    {ROW("7168,256,256,8", "Silu", FNUZ, FNUZ, "per_Token", "0"),
     "_ZN5aiter44fmoe_stage1_bf16_pertokenFp8_g1u1_32x512_pf3E",
     "inter_dim 256 is not a multiple of the tile width 512"},
    {ROW("7168,512,256,8", "Silu", FNUZ, FNUZ, "per_Token", "0"),
     "_ZN5aiter44fmoe_stage1_bf16_pertokenFp8_g1u1_32x512_pf3E", NULL},
    {ROW("7168,512,256,8", "Silu", FN, FN, "per_1x32", "0"),
     "_ZN5aiter47fmoe_stage1_bf16_pertokenFp8_g1u1_32x64_4tg_pf3E",
     "scales per token"},
    {ROW("7168,512,256,8", "Silu", FN, FN, "per_1x32", "0"), "flydsl_moe1_afp8_wfp8_bf16_t32x64x256_gui_fp8",
     NULL},
    {ROW("2048,224,32,4", "Silu", BF16, BF16, "No", "0"), CK("1_256x64x128x64", "TypeCast", "3", "silu_"),
     "inter_dim % NPerBlock = 0 in stage 1: 224 is not a multiple of 128"},
    {ROW("2048,224,32,4", "Silu", BF16, BF16, "No", "0"), CK("2_256x64x128x64", "TypeCast", "3", ""),
     "inter_dim % KPerBlock = 0 in stage 2: 224 is not a multiple of 64"},
    {ROW("2080,448,32,4", "Silu", BF16, BF16, "No", "0"), CK("1_256x64x64x64", "TypeCast", "1", "silu_"),
     "model_dim % KPerBlock = 0 in stage 1: 2080 is not a multiple of 64"},
    {ROW("2080,448,32,4", "Silu", BF16, BF16, "No", "0"), CK("2_256x64x64x64", "TypeCast", "1", ""),
     "model_dim % NPerBlock = 0 in stage 2: 2080 is not a multiple of 64"},
    {ROW("2048,448,32,4", "Silu", BF16, BF16, "No", "0"), CK("2_256x64x64x64", "TypeCast", "1", ""), NULL},
};
/* clang-format on */

MF_TEST(refused_launches, .rows = MF_ARRAY_LEN(launches))
{
    struct mf_shape shape;
    char why[MF_REASON_MAX] = "";
    ck_assert_int_eq(mf_shape_parse(launches[_i].row, &shape), 0);
    bool refused = mf_aiter_launch_refuses(&shape, launches[_i].kernel, why, sizeof(why));
    ck_assert_int_eq(refused, launches[_i].says != NULL);
    ck_assert_msg(!refused || strstr(why, launches[_i].says), "%s", why);
}

/* No tile of composable kernel divides an inter_dim of 224. Only tiles of 64 divide the others. */
/* clang-format off */
static const struct {
    const char *row;
    int n_ck;
} widths[] = {
    {ROW("2048,224,32,4",  "Silu", BF16, BF16, "No", "0"), 0},
    {ROW("2048,448,32,4",  "Silu", BF16, BF16, "No", "0"), 11},
    {ROW("2816,704,128,8", "Silu", BF16, BF16, "No", "0"), 11},
    {ROW("2048,192,64,4",  "Silu", BF16, BF16, "No", "0"), 11},
};
/* clang-format on */

MF_TEST(ck_widths, .rows = MF_ARRAY_LEN(widths))
{
    struct mf_shape shape;
    int n = 0, stage1 = 0;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(mf_shape_parse(widths[_i].row, &shape), 0);
    const struct space *g = enumerate(G942, &shape);
    for (size_t i = 0; i < g->n; i++) {
        if (strcmp(g->steps[i].family, "ck") != 0)
            continue;
        ck_assert_msg(!mf_aiter_launch_refuses(&shape, g->steps[i].name, why, sizeof(why)), "%s", why);
        n++;
        stage1 += g->steps[i].stage == MF_STAGE_STAGE1;
    }
    printf("%s: %d candidates of composable kernel, %d of stage 1\n", widths[_i].row, n, stage1);
    ck_assert_int_eq(n, widths[_i].n_ck);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 110});
}
