/* Compiles the GPU kernels for AMD without a GPU: for gfx90a with hipRTC and for gfx942 with clang. The
 * kernels are a pairwise-covering set of kernel, variant, format, activation, widths, form and position of
 * the routing weight. They must not spill registers and must contain the expected matrix instructions. Logs a
 * table of register counts. Code objects are cached in the build folder by source digest, so a second run
 * compiles nothing. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/cpus.h"
#include "common/base/text.h"
#include "kernels/families/family_hip.h"
#include "kernels/gpu/host/device_data.h"
#include "support/kernels/amd_object.h"
#include "support/kernels/covering.h"
#include "support/kernels/launch_recorder.h"
#include "support/mf_check.h"
#include "support/mf_draw.h"

#define CODES_MAX 512
#define STEPS_MAX 128
#define LDS       65536 /* LDS of a compute unit of gfx90a and gfx942, in bytes */

#define VARIANTS_MAX 20
#define DRAWN_EVERY  8 /* see mf_draw.h */

static int variants = 12; /* `check_compile_amd all` sets VARIANTS_MAX */

enum factor { KERNEL, VARIANT, FORMAT, ACT, WIDTH, WEIGHT, FORM, N_FACTORS };
enum form { PLAIN, EXPERT_PARALLEL, BIASED, GATE_ONLY, INTERLEAVED, N_FORMS };
enum kernel {
    SORT,
    SORT_ZERO,
    ALIGN,
    FROM_ALIGNED,
    QUANT1,
    QUANT2,
    COMBINE,
    STAGE1,
    STAGE2,
    ONE,
    GATHER,
    QUANT1_GATHER,
    SORT_GATHER,
    ACT_ALONE,
    UNPERMUTE,
    NARROW1,
    NARROW2,
    N_KERNELS
};

/* clang-format off */
static const struct {
    const char *family, *prefix;
    /* number of steps to compile (at most `variants`), spread evenly over the enumerated steps */
    int n_variants;
    bool formats, acts, weights; /* factors that change the code */
    int forms;                   /* bit mask of the forms that change the code */
} kernels[N_KERNELS] = {
    [SORT]    = {"move", "sort_",    4,  false, false, false, 1 << EXPERT_PARALLEL},
    [SORT_ZERO]    = {"move", "sort_zero_",    1, true,  false, false, 1 << EXPERT_PARALLEL},
    [ALIGN]        = {"move", "align_",        2, false, false, false, 1 << EXPERT_PARALLEL},
    [FROM_ALIGNED] = {"move", "from_aligned_", 2, false, false, false, 0},
    [QUANT1]  = {"move", "quant1_",  1,  true,  false, false, 0},
    [QUANT2]  = {"move", "quant2_",  1,  true,  false, false, 0},
    [COMBINE] = {"move", "combine_", 2,  false, false, true,  1 << EXPERT_PARALLEL},
    [STAGE1]  = {"two_stage", "s1_",      20, true,  true,  true,
        1 << BIASED | 1 << GATE_ONLY | 1 << INTERLEAVED},
    [STAGE2]  = {"two_stage", "s2_",      20, true,  false, true,  1 << BIASED},
    [ONE]     = {"one_stage",  "one_",     9,  true,  true,  true,
        1 << EXPERT_PARALLEL | 1 << BIASED | 1 << GATE_ONLY | 1 << INTERLEAVED},
    [GATHER]      = {"permute", "gather_",      2, true,  false, false, 1 << EXPERT_PARALLEL},
    [QUANT1_GATHER] = {"permute", "quant1_gather_", 1, true, false, false, 1 << EXPERT_PARALLEL},
    [ACT_ALONE]     = {"permute", "act_",           1, false, true, true,  1 << BIASED | 1 << GATE_ONLY},
    [SORT_GATHER] = {"permute", "sort_gather_", 1, true,  false, false, 1 << EXPERT_PARALLEL},
    [UNPERMUTE]   = {"permute", "unpermute_",   4, false, false, true,  1 << EXPERT_PARALLEL},
    /* family from formats[].narrow */
    [NARROW1] = {NULL,   "s1_",      7,  true,  true,  true,
        1 << BIASED | 1 << GATE_ONLY | 1 << INTERLEAVED},
    [NARROW2] = {NULL,   "s2_",      7,  true,  false, true,  1 << BIASED},
};
static const struct {
    enum mf_dtype a, w;
    enum mf_qtype q_type;
    const char *narrow;  /* family for 4-bit weights; NULL for other weights */
    bool only_quantised; /* no GEMM supports the format */
} formats[] = {
    {MF_DTYPE_BF16,         MF_DTYPE_BF16,         MF_QTYPE_NO,        NULL, false},
    {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP8_E4M3FN,   MF_QTYPE_PER_TOKEN, NULL, false},
    {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP8_E4M3FN,   MF_QTYPE_PER_1X128, NULL, false},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_TOKEN, NULL, false},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_1X128, NULL, false},
    {MF_DTYPE_BF16,         MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X32,  "two_stage_mx", false},
    {MF_DTYPE_BF16,         MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X16,  "two_stage_mx", false},
    {MF_DTYPE_BF16,         MF_DTYPE_INT4,         MF_QTYPE_PER_1X32,  "two_stage_int4", false},
    {MF_DTYPE_BF16,         MF_DTYPE_INT4,         MF_QTYPE_PER_TOKEN, "two_stage_int4", false},
    {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP8_E4M3FN,   MF_QTYPE_PER_1X32,  "two_stage_mx", false},
    {MF_DTYPE_FP4X2,        MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X16,  "two_stage_mx", false},
    {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_INT4,         MF_QTYPE_PER_1X32,  "two_stage_int4", false},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_TENSOR, NULL, false},
    {MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP8_E4M3FN,   MF_QTYPE_PER_1X32,  NULL, true},
    {MF_DTYPE_INT8,         MF_DTYPE_INT8,         MF_QTYPE_PER_TOKEN, NULL, false},
    {MF_DTYPE_INT8,         MF_DTYPE_INT8,         MF_QTYPE_PER_TENSOR, NULL, false},
    {MF_DTYPE_INT8,         MF_DTYPE_INT8,         MF_QTYPE_PER_1X128, NULL, false},
    {MF_DTYPE_FP4X2,        MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X32,  NULL, true},
    {MF_DTYPE_FP4X2,        MF_DTYPE_FP4X2,        MF_QTYPE_PER_1X16,  NULL, true},
};
static const struct {
    int model_dim, inter_dim, expert, topk;
} widths[] = {{2048, 768, 128, 8}, {4096, 3584, 8, 2}, {7168, 256, 256, 8}};
/* clang-format on */

/* Code is only compiled here, not run. */
static const struct target {
    const char *vendor, *gfx;
    const char *by;
} targets[] = {{"amd", "gfx90a", "hipRTC"}, {"clang", "gfx942", "clang"}};

/* ---- the covering set ---- */

static int variants_of(int kernel)
{
    return MF_MIN(kernels[kernel].n_variants, variants);
}

static bool legal(const int *row)
{
    if (row[KERNEL] < 0)
        return true;
    const int k = row[KERNEL];
    bool quant = k == QUANT1 || k == QUANT2 || k == QUANT1_GATHER, narrow = !kernels[k].family;
    if (row[FORMAT] >= 0 && narrow != (formats[row[FORMAT]].narrow != NULL))
        return false;
    if (row[FORMAT] >= 0 && formats[row[FORMAT]].a == MF_DTYPE_INT8 && k == ONE)
        return false; /* int8 has no one-launch kernel */
    return row[VARIANT] < variants_of(k) && (kernels[k].formats || row[FORMAT] <= 0) &&
           (quant ? row[FORMAT] != 0 : row[FORMAT] < 0 || !formats[row[FORMAT]].only_quantised) &&
           (kernels[k].acts || row[ACT] <= 0) && (kernels[k].weights || row[WEIGHT] <= 0) &&
           (row[FORM] <= 0 || kernels[k].forms >> row[FORM] & 1) &&
           (row[FORM] != INTERLEAVED || row[FORMAT] < 0 || formats[row[FORMAT]].q_type != MF_QTYPE_PER_1X128);
}

static struct mf_shape shape_of(const int *row)
{
    struct mf_shape s;
    ck_assert_int_eq(
        mf_shape_parse("4,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch."
                       "bfloat16,QuantType.No,1,0",
                       &s),
        0);
    s.model_dim = widths[row[WIDTH]].model_dim;
    s.inter_dim = widths[row[WIDTH]].inter_dim;
    s.expert = widths[row[WIDTH]].expert;
    s.topk = widths[row[WIDTH]].topk;
    s.q_dtype_a = formats[row[FORMAT]].a;
    s.q_dtype_w = formats[row[FORMAT]].w;
    s.q_type = formats[row[FORMAT]].q_type;
    s.act_type = (enum mf_act)row[ACT];
    s.doweight_stage1 = row[WEIGHT];
    s.ep_experts = row[FORM] == EXPERT_PARALLEL ? 4 * s.expert : 0;
    s.ep_first = row[FORM] == EXPERT_PARALLEL ? s.expert : 0;
    s.has_b1 = s.has_b2 = row[FORM] == BIASED;
    s.use_g1u1 = row[FORM] != GATE_ONLY;
    if (row[FORM] == INTERLEAVED)
        s.gate_up = row[WEIGHT] ? MF_GATE_UP_TILED : MF_GATE_UP_INTERLEAVED;
    return s;
}

struct offered_steps {
    struct mf_offer offer;
    const char *family, *prefix;
    int n;
    char names[STEPS_MAX][MF_STEP_NAME_MAX];
};

static int take_step(struct mf_offer *o, const struct mf_step *s)
{
    struct offered_steps *h = (struct offered_steps *)o;

    if (strcmp(s->family, h->family) != 0 || strncmp(s->name, h->prefix, strlen(h->prefix)) != 0)
        return 0;
    ck_assert_int_lt(h->n, STEPS_MAX);
    mf_format(h->names[h->n++], MF_STEP_NAME_MAX, "%s", s->name);
    return 0;
}

/* ---- the requested grid is checked against the compiled code ---- */

static struct mf_grid grid_of(const struct mf_family *f, struct mf_device_info info,
                              const struct mf_shape *shape, const char *name)
{
    struct launch_recorder l = {.base = {&recorder_ops, info}};
    const struct mf_tensor_ref none[MF_STEP_TENSOR_SPECS_MAX] = {{{NULL}}};
    const struct mf_launch launch = {.needs = none, .gives = none};
    struct mf_kernel *k = NULL;

    ck_assert_int_eq(f->open(f, &l.base, shape, name, &k), 0);
    ck_assert_int_eq(f->launch(k, &launch), 0);
    (void)f->close(k);
    return l.grid;
}

/* ---- from a row of the covering set to a code ---- */

struct compiled_step {
    char name[MF_STEP_NAME_MAX];
    struct mf_grid grid;
};

static void code_of(const struct target *target, const int *row, struct compiled_step *ret,
                    struct mf_code *ret_code)
{
    const struct mf_family *f = mf_family_find(
        "hip", kernels[row[KERNEL]].family ? kernels[row[KERNEL]].family : formats[row[FORMAT]].narrow);
    const struct mf_shape shape = shape_of(row);
    struct mf_device_info device = {.class = {.cu_num = 104}, .cores = 104};
    static struct offered_steps h;

    h = (struct offered_steps){
        {take_step, mf_offer_ignore_rejection}, f->name, kernels[row[KERNEL]].prefix, 0, {{0}}};
    mf_format(device.class.gfx, sizeof(device.class.gfx), "%s", target->gfx);
    ck_assert_int_eq(mf_family_enumerate(f, &device, &shape, &h.offer), 0);
    ck_assert_msg(h.n > 0, "no step %s… for %s", h.prefix, target->gfx);
    mf_format(ret->name, sizeof(ret->name), "%s", h.names[row[VARIANT] * h.n / variants_of(row[KERNEL])]);
    ck_assert_int_eq(f->code(f, &device, &shape, ret->name, ret_code), 0);
    ret->grid = grid_of(f, device, &shape, ret->name);
}

/* ---- requirements on the compiled code ---- */

static int define_of(const struct mf_code *c, const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; i < c->n_defines; i++) {
        if (strncmp(c->defines[i], name, n) == 0 && (c->defines[i][n] == '=' || !c->defines[i][n]))
            return c->defines[i][n] ? (int)strtol(c->defines[i] + n + 1, NULL, 10) : 1;
    }
    return 0;
}

/* Returns the number of 16 x 16 products per wave. */
static int products_of(const struct mf_code *c)
{
    return define_of(c, "MF_BN") / 16 / define_of(c, "MF_WARPS_N") * define_of(c, "MF_BM") / 16 /
           define_of(c, "MF_WARPS_M");
}

/* A tile multiplies 128 bytes of K at a time. One matrix instruction of a 16 x 16 product takes 16 bf16 or
 * f16 values of K, or 32 fp8 values if the hardware supports fp8. Tiles of 4-bit weights multiply 128 values
 * of K per stage, 16 bf16 values per instruction. Other kernels have no matrix instructions. */
static void check_matrix(const struct target *t, const struct mf_code *c, const struct amd_kernel *k)
{
    int least[N_AMD_MATRIX] = {0};

    if (strcmp(c->source, "tile.hip") == 0) {
        bool bf16 = define_of(c, "MF_FORMAT") == MF_HIP_BF16,
             int8 = mf_hip_is_int8((enum mf_hip_format)define_of(c, "MF_FORMAT")),
             own = strcmp(t->gfx, "gfx942") == 0 && define_of(c, "MF_FNUZ");
        /* an int8 instruction takes 16 values of K on gfx90a and 32 on gfx942 */
        if (int8)
            least[AMD_MFMA_INT8] = products_of(c) * (strcmp(t->gfx, "gfx90a") == 0 ? 8 : 4);
        else
            least[bf16  ? AMD_MFMA_BF16
                  : own ? AMD_MFMA_FP8
                        : AMD_MFMA_F16] = products_of(c) * (bf16 || own ? 4 : 8);
    }
    if (strcmp(c->source, "mx.hip") == 0)
        least[AMD_MFMA_BF16] = products_of(c) * 8 * define_of(c, "MF_PARTS");
    for (int i = 0; i < N_AMD_MATRIX; i++)
        ck_assert_msg(least[i] == 0 ? k->matrix[i] == 0 : k->matrix[i] >= least[i],
                      "%s: %d matrix instructions of %s, expected %s%d", c->source, k->matrix[i],
                      amd_matrix_names[i], least[i] ? "at least " : "", least[i]);
}

static void print_row(const struct compiled_step *m, const struct amd_kernel *k)
{
    printf("%-44s %7u %5d %5d %5d %7d %7d %7d", m->name, m->grid.block, k->vgprs, k->agprs, k->sgprs,
           k->lds + (int)m->grid.shared, k->scratch, k->vgpr_spills + k->sgpr_spills);
    for (int i = 0; i < N_AMD_MATRIX; i++) {
        if (k->matrix[i])
            printf("  %d %s", k->matrix[i], amd_matrix_names[i]);
    }
    printf("\n");
}

/* Converts rows of the covering set to codes without duplicates. */
static size_t choose(const struct target *target, const struct mf_compiler *compiler,
                     struct compiled_step *compiled_step, struct mf_code *codes, char (*places)[PATH_MAX])
{
    static const struct covering covering = {
        N_FACTORS,
        {N_KERNELS, VARIANTS_MAX, MF_ARRAY_LEN(formats), MF_ACT_N_, MF_ARRAY_LEN(widths), 2, N_FORMS},
        legal};
    static int rows[CODES_MAX][COVERING_FACTORS];
    struct covering_set set = {.rows = rows, .cap = CODES_MAX};
    size_t n = 0;

    covering_add(&covering, 1, &set);
    ck_assert_int_lt(set.n, CODES_MAX);
    for (int i = 0; i < set.n; i++) {
        size_t j = 0;
        if (!mf_draw(i, DRAWN_EVERY))
            continue;
        code_of(target, rows[i], &compiled_step[n], &codes[n]);
        ck_assert_int_eq(mf_code_path(compiler, &codes[n], places[n]), 0);
        while (j < n && strcmp(places[j], places[n]) != 0)
            j++;
        n += j == n;
    }
    printf("%s: a covering set (seed 1) of %d rows, %zu codes drawn\n", target->gfx, set.n, n);
    return n;
}

MF_TEST(test_compiles, .rows = MF_ARRAY_LEN(targets))
{
    static struct compiled_step compiled_step[CODES_MAX];
    static struct mf_code codes[CODES_MAX];
    static char paths[CODES_MAX][PATH_MAX], whys[CODES_MAX][MF_CODE_WHY_MAX];
    const struct target *t = &targets[_i];
    struct mf_compiler compiler = {.vendor = t->vendor};
    char why[MF_CODE_WHY_MAX];

    mf_format(compiler.arch, sizeof(compiler.arch), "%s", t->gfx);
    if (mf_code_version(t->vendor, compiler.version, why, sizeof(why)) < 0) {
        mf_check_skip("%s by %s: %s", t->gfx, t->by, why);
        return;
    }
    size_t n = choose(t, &compiler, compiled_step, codes, paths);
    (void)mf_code_make(&compiler, codes, n, mf_cpus_allowed(), paths, whys);
    printf("%s by %s (compiled only, not run)\n%-44s %7s %5s %5s %5s %7s %7s %7s  matrix instructions\n",
           t->gfx, compiler.version, "step", "threads", "vgpr", "agpr", "sgpr", "lds", "scratch", "spills");
    for (size_t i = 0; i < n; i++) {
        struct amd_kernel k;
        ck_assert_msg(*paths[i], "%s for %s: %s", compiled_step[i].name, t->gfx, whys[i]);
        ck_assert_msg(amd_object_read(paths[i], codes[i].function, &k) == 0, "%s: %s", compiled_step[i].name,
                      paths[i]);
        ck_assert_int_eq(amd_object_read(paths[i], "none", &k), -ENOENT);
        print_row(&compiled_step[i], &k);
        ck_assert_int_eq(k.wave, 64);
        ck_assert_int_gt(k.vgprs, 0);
        ck_assert_uint_le(compiled_step[i].grid.block, (unsigned)k.threads);
        ck_assert_uint_le(compiled_step[i].grid.shared + (unsigned)k.lds, LDS);
        ck_assert_msg(k.vgpr_spills == 0 && k.sgpr_spills == 0 && k.scratch == 0, "%s spills",
                      compiled_step[i].name);
        check_matrix(t, &codes[i], &k);
    }
}

/* Compiles the kernels that create data and references, for every format. These kernels must not contract a
 * product and a sum to an FMA, because the FMA's result has other bits. */
MF_TEST(test_data_kernels_compile, .rows = MF_ARRAY_LEN(targets))
{
    static char paths[CODES_MAX][PATH_MAX], whys[CODES_MAX][MF_CODE_WHY_MAX];
    static struct mf_code codes[CODES_MAX];
    const struct target *t = &targets[_i];
    struct mf_compiler compiler = {.vendor = t->vendor};
    struct mf_device_info device = {.cores = 104};
    char why[MF_CODE_WHY_MAX];
    size_t n = 0;

    mf_format(compiler.arch, sizeof(compiler.arch), "%s", t->gfx);
    mf_format(device.class.gfx, sizeof(device.class.gfx), "%s", t->gfx);
    if (mf_code_version(t->vendor, compiler.version, why, sizeof(why)) < 0) {
        mf_check_skip("%s by %s: %s", t->gfx, t->by, why);
        return;
    }
    for (size_t f = 0; f < MF_ARRAY_LEN(formats); f++) {
        const int row[N_FACTORS] = {[FORMAT] = (int)f};
        const struct mf_shape shape = shape_of(row);
        if (!mf_draw((int)f, DRAWN_EVERY))
            continue;
        size_t more = mf_device_data_codes(&device, &shape, codes + n), last = n + more;
        ck_assert_uint_gt(more, 0);
        for (size_t i = n; i < last; i++) {
            size_t j = 0;
            while (j < n && !mf_code_equal(&codes[j], &codes[i]))
                j++;
            if (j == n)
                codes[n++] = codes[i];
        }
    }
    (void)mf_code_make(&compiler, codes, n, mf_cpus_allowed(), paths, whys);
    for (size_t i = 0; i < n; i++) {
        struct amd_kernel k;
        ck_assert_msg(*paths[i], "%s for %s: %s", codes[i].source, t->gfx, whys[i]);
        ck_assert_int_eq(amd_object_read(paths[i], codes[i].function, &k), 0);
        /* scalar registers may be spilled to lanes of a vector register */
        ck_assert_msg(k.vgpr_spills == 0 && k.scratch == 0, "%s spills", codes[i].source);
    }
}

/* A file that is not a code object is an error, and so is a missing kernel. */
MF_TEST(test_invalid_code_objects)
{
    struct amd_kernel k;

    ck_assert_int_eq(amd_object_read("/proc/self/exe", "mf_quant", &k), -EINVAL);
    ck_assert_int_eq(amd_object_read(MF_TEST_DATA, "mf_quant", &k), -EINVAL);
}

int main(int argc, char **argv)
{
    mf_draw_start();
    if (argc > 1 && strcmp(argv[1], "all") == 0)
        variants = VARIANTS_MAX;
    if (!getenv("MOEFARM_CODE_CACHE") && setenv("MOEFARM_CODE_CACHE", MF_BINARY_DIR "/code", 1) < 0)
        return EXIT_FAILURE;
    return mf_check_main(&(struct mf_test_group){.timeout_s = 850});
}
