#include "kernels/families/family_asm.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/codec.h"
#include "kernels/families/asm_args.h"
#include "kernels/families/asm_manifest.h"
#include "kernels/families/family_cpu.h"

#define ZERO     "asm_zero_y"
#define PATH_CAP 1024

/* clang-format off */
/* Maps a word of the manifest's path to the formats of its kernels. The first match applies. */
static const struct rule {
    const char *word;
    enum mf_qtype q_type;
    const char *formats;
    bool fp8, int8;
    bool packs_scales; /* true: stage 1 appends the scales of h to the elements of h */
} rules[] = {
    {"pertokenFp8_blockscale", MF_QTYPE_PER_1X128, "fp8", true, false, true},
    {"blockscaleBf16", MF_QTYPE_PER_1X128, "fp8", true, false, false},
    {"blockscaleFp8", MF_QTYPE_PER_1X128, "fp8", true, false, false},
    {"pertokenFp8", MF_QTYPE_PER_TOKEN, "fp8", true, false, false},
    {"pertokenInt8", MF_QTYPE_PER_TOKEN, "int8", false, true, false},
    {"noquantBf16", MF_QTYPE_NO, "bf16", false, false, false},
};
/* clang-format on */

struct mf_kernel {
    struct mf_device *device;
    struct mf_module *module; /* NULL for the step that zeroes y */
    void *function;
    struct mf_asm_kernel k;
    struct mf_shape shape;
    bool xbf16;
    void *const *stream; /* stream of launches: the device's, or `own_stream` of a copy */
    void *own_stream;
};

static const struct rule *rule_of(const struct mf_asm_kernel *k)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(rules); i++) {
        if (strstr(k->file, rules[i].word))
            return &rules[i];
    }
    return NULL;
}

/* True if the kernel reads bf16 activations and quantises them itself. */
static bool is_xbf16(const struct mf_asm_kernel *k)
{
    return strstr(k->file, "blockscaleBf16") || strstr(k->name, "_a16_");
}

static bool formats_fit(const struct rule *rule, const struct mf_shape *s)
{
    enum mf_dtype a = s->q_dtype_a;
    bool fp8 = a == MF_DTYPE_FP8_E4M3FN || a == MF_DTYPE_FP8_E4M3FNUZ;
    return s->q_type == rule->q_type && a == s->q_dtype_w && rule->fp8 == fp8 &&
           rule->int8 == (a == MF_DTYPE_INT8);
}

static bool weighting_fits(const struct mf_asm_kernel *k, const struct mf_shape *s)
{
    return s->doweight_stage1 == (strstr(k->file, k->kind == MF_ASM_ONE ? "_tkw1" : "_doweight") != NULL);
}

static bool activation_fits(const struct mf_asm_kernel *k, const struct mf_shape *s)
{
    char folder[32];
    mf_format(folder, sizeof(folder), "fmoe/%s/", mf_cpu_act_word(s));
    return k->kind == MF_ASM_ONE ? strncmp(k->file, folder, strlen(folder)) == 0
                                 : s->act_type == MF_ACT_SILU || s->act_type == MF_ACT_GELU;
}

static mf_ops covers_of(const struct mf_asm_kernel *k, const struct mf_shape *s)
{
    if (k->kind == MF_ASM_ONE)
        return mf_layer_ops(s) & ~(is_xbf16(k) ? 0 : MF_OP_BIT(MF_OP_QUANT1)) &
               ~(k->flat ? 0 : MF_OP_BIT(MF_OP_SORT));
    return MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT) |
           (s->doweight_stage1 ? MF_OP_BIT(MF_OP_WEIGHT) : 0);
}

/* True if the fusion rules let the kernel cover its ops. A one-stage kernel contains both GEMMs and
 * accumulates into the output. A work group quantises the part of an h row that it holds as if that part were
 * the whole row. Only flat kernels sort the routes. */
static bool may_cover(const struct mf_asm_kernel *k, const struct mf_shape *s, struct mf_refusal *ret)
{
    bool one = k->kind == MF_ASM_ONE;
    const struct mf_fusion_caps caps = {
        .prologue = MF_OP_BIT(MF_OP_GATHER) | (is_xbf16(k) ? MF_OP_BIT(MF_OP_QUANT1) : 0),
        .epilogue = MF_OP_BIT(MF_OP_ACT) | MF_OP_BIT(MF_OP_WEIGHT) |
                    (one ? MF_OP_BIT(MF_OP_QUANT2) | MF_OP_BIT(MF_OP_COMBINE) : 0),
        .whole_rows = one,
        .both_gemms = one,
        .accumulates = one,
        .sorts = k->flat,
        .block_n = k->sub_n,
    };

    return mf_cpu_may_cover(s, covers_of(k, s), k->sub_m, &caps, ret);
}

/* True for AITER's own kernels, all of which are functions of its namespace (ROCm/aiter, hsa/<gfx>/fmoe* at
 * e4048607). Kernels with the same argument block and other names are not AITER's. */
static bool is_aiters(const struct mf_asm_kernel *k)
{
    return strncmp(k->name, "_ZN5aiter", strlen("_ZN5aiter")) == 0;
}

static bool is_legal(const struct mf_asm_kernel *k, const struct mf_shape *s, struct mf_refusal *ret)
{
    const struct rule *rule = rule_of(k);
    char form[MF_SHAPE_FORM_MAX] = "";
    ret->rule = NULL;
    (void)mf_shape_get(s, MF_SHAPE_FORM, form, sizeof(form));
    if (is_aiters(k))
        mf_refuse(ret, "layout",
                  "the kernel is AITER's own: its arguments are weights in 16 x 16 tiles and h by token and "
                  "slot, and no tensor spec has this layout and order; --family-py moefarm.families.aiter "
                  "measures it");
    else if (!rule)
        mf_refuse(ret, "manifest", "the path of manifest %s names no known formats", k->file);
    else if (!formats_fit(rule, s))
        mf_refuse(
            ret, "formats",
            "manifest %s holds kernels for %s with %s activations and weights; the layer has %s with %s "
            "activations and %s weights",
            k->file, mf_qtype_name(rule->q_type), rule->formats, mf_qtype_name(s->q_type),
            mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w));
    else if (!weighting_fits(k, s))
        mf_refuse(ret, "doweight", "doweight_stage1 is %d; the kernels of manifest %s require %d",
                  s->doweight_stage1, k->file, !s->doweight_stage1);
    else if (!activation_fits(k, s))
        mf_refuse(ret, "act_type",
                  "the layer's activation is %s, which the kernels of manifest %s do not compute",
                  mf_act_name(s->act_type), k->file);
    else if (form[0])
        mf_refuse(ret, "form", "the layer's form is %s; the kernel's argument block cannot express it", form);
    else if (s->inter_dim % k->sub_n != 0)
        mf_refuse(ret, "divisibility", "inter_dim %d is not a multiple of the tile width %d (remainder %d)",
                  s->inter_dim, k->sub_n, s->inter_dim % k->sub_n);
    else if (k->smf != 0)
        mf_refuse(ret, "smooth", "smf is %d: the kernel needs smoothing scales, which layers do not provide",
                  k->smf);
    else if (k->flat > 1)
        mf_refuse(ret, "flat",
                  "flat is %d: the kernel sorts into a buffer that its argument block does not name",
                  k->flat);
    else if (k->kind == MF_ASM_STAGE1 && rule->packs_scales)
        mf_refuse(ret, "scale",
                  "the kernel appends the scales of h to its %d columns, but a tensor spec stores scales "
                  "separately",
                  s->inter_dim);
    else
        (void)may_cover(k, s, ret);
    return ret->rule == NULL;
}

/* ---- steps ---- */

static struct mf_tensor_spec zeroed_y(void)
{
    struct mf_tensor_spec y = mf_cpu_bf16(MF_TENSOR_Y, "token", 0);
    y.zeroed = true;
    return y;
}

static void count(struct mf_step *step, const struct mf_shape *s)
{
    double T = (double)s->token, gemms = step->stage == MF_STAGE_ONE ? 6 : 4;
    double bytes = mf_cpu_expert_bytes(s, MF_TENSOR_W1);
    if (step->stage == MF_STAGE_ONE)
        bytes += mf_cpu_expert_bytes(s, MF_TENSOR_W2);
    step->flops = T * s->topk * gemms * s->model_dim * s->inter_dim;
    step->bytes = mf_layer_expected_active(s) * bytes + T * s->model_dim * 2;
}

/* Inputs (`needs`): x, sorted or topk, w1. One-stage kernels also read w2 and y. */
static void describe(const struct mf_asm_kernel *k, const struct mf_shape *s, struct mf_step *ret)
{
    struct mf_step step = {.family = "asm", .covers = covers_of(k, s), .block_m = k->flat ? 0 : k->sub_m};
    (void)mf_copy(step.name, sizeof(step.name), k->name);
    mf_step_need(&step, is_xbf16(k) ? mf_cpu_bf16(MF_TENSOR_X, "token", 0) : mf_plain_x(s));
    mf_step_need(&step, k->flat ? mf_cpu_topk() : mf_cpu_sorted(k->sub_m));
    mf_step_need(&step, mf_plain_w(s, MF_TENSOR_W1, "row"));
    if (k->kind == MF_ASM_ONE) {
        step.stage = MF_STAGE_ONE;
        step.reorder_tolerance = 0.01; /* work groups add to y in any order */
        mf_step_need(&step, mf_plain_w(s, MF_TENSOR_W2, "row"));
        mf_step_need(&step, zeroed_y());
        mf_step_give(&step, mf_cpu_bf16(MF_TENSOR_Y, "token", 0));
    } else {
        step.stage = MF_STAGE_STAGE1;
        mf_step_give(&step, mf_cpu_bf16(MF_TENSOR_H, "sorted", k->sub_m));
    }
    count(&step, s);
    *ret = step;
}

static int offer_zero(const struct mf_shape *s, struct mf_offer *offer)
{
    struct mf_step zero = {.name = ZERO, .family = "asm", .bytes = (double)s->token * s->model_dim * 2};
    mf_step_give(&zero, zeroed_y());
    return offer->step(offer, &zero);
}

/* ---- the folder ---- */

static bool is_cpu(const char *device_kind)
{
    return strcmp(device_kind, "cpu") == 0;
}

static int load_manifests(const struct mf_device_info *device, const char *kind, struct mf_asm_manifest *m)
{
    const char *folder = getenv(MF_ASM_FOLDER_ENV);
    if (!folder || !*folder)
        return -ENOENT;
    int r = mf_asm_manifest_load(m, folder, device->class.gfx);
    return r < 0 || !is_cpu(kind) ? r : mf_asm_manifest_load(m, folder, "cpu");
}

static void code_path(const char *folder, const struct mf_asm_kernel *k, char path[PATH_CAP])
{
    const char *slash = strrchr(k->file, '/');
    mf_format(path, PATH_CAP, "%s/%s/%.*s/%s", folder, k->arch, (int)(slash ? slash - k->file : 0), k->file,
              k->co_name);
}

static uint64_t hash_file(const char *path, uint64_t hash)
{
    _cleanup_(mf_fclosep) FILE *f = fopen(path, "re");
    char part[8192];
    for (size_t n; f && (n = fread(part, 1, sizeof(part), f)) > 0;)
        hash = mf_hash64(part, n, hash);
    return hash;
}

/* Hashes the fields one by one, because the struct has padding. */
static uint64_t hash_kernel(const char *folder, const struct mf_asm_kernel *k, uint64_t hash)
{
    char path[PATH_CAP], text[MF_REASON_MAX * 2];
    mf_format(text, sizeof(text), "%s %s %s %d %d %d %d %d %d %d", k->arch, k->name, k->file, k->atm,
              k->vskip, k->ps, k->tg_num_per_cu, k->sub_m, k->sub_n, k->flat);
    code_path(folder, k, path);
    return hash_file(path, mf_hash64(text, strlen(text), hash));
}

uint64_t mf_asm_hash(const char *folder)
{
    struct mf_asm_manifest m = MF_ASM_MANIFEST_INIT;
    struct dirent **archs = NULL;
    uint64_t hash = MF_HASH_SEED;
    int n = folder && *folder ? scandir(folder, &archs, NULL, alphasort) : 0;
    for (int i = 0; i < n; i++) {
        if (archs[i]->d_name[0] != '.')
            (void)mf_asm_manifest_load(&m, folder, archs[i]->d_name);
        free(archs[i]);
    }
    free(archs);
    for (size_t i = 0; i < m.n; i++)
        hash = hash_kernel(folder, &m.kernels[i], hash);
    if (m.n == 0)
        hash = 0;
    mf_asm_manifest_release(&m);
    return hash;
}

/* Offers all steps. zeroes: true also offers the step that zeroes y. On GPUs, family move provides that step.
 */
static int offer_all(const struct mf_family *f, const struct mf_asm_manifest *m, const struct mf_shape *s,
                     bool zeroes, struct mf_offer *offer)
{
    struct mf_refusal refusal;
    bool zero = false;
    int r = 0;
    for (size_t i = 0; i < m->n && r >= 0; i++) {
        const struct mf_asm_kernel *k = &m->kernels[i];
        struct mf_step step;
        if (!is_legal(k, s, &refusal)) {
            r = offer->reject(offer, f->name, k->name, refusal.rule, "%s", refusal.reason);
            continue;
        }
        zero = zero || (zeroes && k->kind == MF_ASM_ONE);
        describe(k, s, &step);
        r = offer->step(offer, &step);
    }
    for (size_t i = 0; i < m->n_problems && r >= 0; i++)
        r = offer->reject(offer, f->name, f->name, "manifest", "%s:%lld: %s", m->problems[i].file,
                          (long long)m->problems[i].line, m->problems[i].reason);
    return r >= 0 && zero ? offer_zero(s, offer) : r;
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *s,
                     struct mf_offer *offer)
{
    struct mf_asm_manifest m = MF_ASM_MANIFEST_INIT;
    struct mf_refusal refusal;
    int r = load_manifests(device, f->device_kind, &m);
    if (r == -ENOENT)
        return offer->reject(offer, f->name, f->name, "folder",
                             "no folder of prebuilt kernels; start moefarm-worker with --asm-dir FOLDER");
    if (r < 0)
        ;
    else if (m.n == 0 && m.n_problems == 0)
        r = offer->reject(
            offer, f->name, f->name, "folder", "%s has no manifest below %s/%s in fmoe/* or fmoe_2stages",
            getenv(MF_ASM_FOLDER_ENV), device->class.gfx, is_cpu(f->device_kind) ? " or cpu/" : "");
    else if (!mf_cpu_shape_known(s, &refusal))
        r = offer->reject(offer, f->name, f->name, refusal.rule, "%s", refusal.reason);
    else
        r = offer_all(f, &m, s, is_cpu(f->device_kind), offer);
    mf_asm_manifest_release(&m);
    return r;
}

/* ---- one step ---- */

static int load_code(struct mf_kernel *k, const char *folder)
{
    const struct mf_device_ops *ops = k->device->ops;
    char path[PATH_CAP], why[MF_REASON_MAX];
    if (!ops->module_load)
        return -ENOTSUP;
    code_path(folder, &k->k, path);
    int r = ops->module_load(k->device, path, why, sizeof(why), &k->module);
    if (r < 0) {
        (void)fprintf(stderr, "%s\n", why); /* the runner's stderr is part of the result */
        return r;
    }
    r = ops->module_function(k->device, k->module, k->k.name, &k->function);
    if (r < 0)
        (void)fprintf(stderr, "%s has no function %s\n", path, k->k.name);
    return r;
}

static struct mf_kernel *close_step(struct mf_kernel *k)
{
    if (k && k->module)
        k->module = k->device->ops->module_unload(k->device, k->module);
    free(k);
    return NULL;
}

static int find_kernel(struct mf_kernel *k, const char *name)
{
    struct mf_asm_manifest m = MF_ASM_MANIFEST_INIT;
    struct mf_refusal refusal;
    int r = load_manifests(&k->device->info, k->device->ops->kind, &m);
    const struct mf_asm_kernel *found = mf_asm_manifest_find(&m, k->device->info.class.gfx, name);
    if (!found && is_cpu(k->device->ops->kind))
        found = mf_asm_manifest_find(&m, "cpu", name);
    if (r == 0 && !found)
        r = -EINVAL;
    if (r == 0 && (!mf_cpu_shape_known(&k->shape, &refusal) || !is_legal(found, &k->shape, &refusal)))
        r = -ENOTSUP;
    if (r == 0)
        k->k = *found;
    mf_asm_manifest_release(&m);
    return r;
}

static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret)
{
    struct mf_kernel *k = calloc(1, sizeof(*k));
    (void)f;
    if (!k)
        return -ENOMEM;
    k->device = device;
    k->stream = &device->stream;
    k->shape = *shape;
    int r = strcmp(name, ZERO) == 0 && is_cpu(device->ops->kind) ? 0 : find_kernel(k, name);
    if (r == 0 && k->k.name[0])
        r = load_code(k, getenv(MF_ASM_FOLDER_ENV));
    if (r < 0) {
        (void)close_step(k);
        return r;
    }
    k->xbf16 = k->k.name[0] && is_xbf16(&k->k);
    *ret = k;
    return 0;
}

/* Returns the number of scales per expert, or 0 for weights without scales. */
static int64_t scale_stride(const struct mf_shape *s, enum mf_tensor w)
{
    struct mf_tensor_spec a = mf_plain_w(s, w, "row");
    struct mf_part parts[MF_PARTS_MAX];
    return mf_tensor_spec_parts(&a, s, parts) > 1 ? parts[1].rows * parts[1].cols / s->expert : 0;
}

static struct mf_asm_call call_of(const struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_shape *s = &k->shape;
    const struct mf_tensor_ref *rows = &l->needs[1];
    bool one = k->k.kind == MF_ASM_ONE, flat = k->k.flat, quantised = mf_cpu_quantises(s);
    return (struct mf_asm_call){
        .out = l->gives[0].part[0],
        .x = l->needs[0].part[0],
        .x_scale = quantised && !k->xbf16 ? l->needs[0].part[1] : NULL,
        .w1 = l->needs[2].part[0],
        .w1_scale = quantised ? l->needs[2].part[1] : NULL,
        .w2 = one ? l->needs[3].part[0] : NULL,
        .w2_scale = one && quantised ? l->needs[3].part[1] : NULL,
        .num_valid = flat ? rows->part[0] : rows->part[3],
        .sorted_ids = rows->part[0],
        .sorted_weights = rows->part[1],
        .sorted_experts = flat ? rows->part[0] : rows->part[2],
        .token = (int32_t)s->token,
        .model_dim = s->model_dim,
        .inter_dim = s->inter_dim,
        .expert = s->expert,
        .topk = s->topk,
        .gated = s->use_g1u1,
        .x_bytes = quantised && !k->xbf16 ? 1 : 2,
        .x_stride = s->model_dim,
        .w_bits = mf_cpu_weight_bits(s),
        .out_bytes = 2,
        .w1_scale_stride = scale_stride(s, MF_TENSOR_W1),
        .w2_scale_stride = one ? scale_stride(s, MF_TENSOR_W2) : 0,
        .scale_bytes = 4,
        .act = s->act_type,
        .cu_num = k->device->info.class.cu_num,
        .n_blocks = flat ? 0 : mf_padded_rows(s, k->k.sub_m) / k->k.sub_m,
    };
}

static int launch_step(struct mf_kernel *k, const struct mf_launch *l)
{
    unsigned char block[MF_ASM_ONE_BYTES];
    const char *slot;
    if (!k->module) {
        memset(l->gives[0].part[0], 0, (size_t)k->shape.token * (size_t)k->shape.model_dim * 2);
        return 0;
    }
    bool one = k->k.kind == MF_ASM_ONE;
    if (k->k.flat && (l->routes.wide || l->routes.bf16_weights))
        return -ENOTSUP; /* flat kernels read int32 ids and float32 weights */
    struct mf_asm_call c = call_of(k, l);
    int r = one ? mf_asm_one_block(&k->k, &c, block, &slot) : mf_asm_stage1_block(&c, block, &slot);
    if (r < 0)
        return r;
    struct mf_asm_grid g = mf_asm_grid_of(&k->k, &c, false);
    struct mf_grid grid = {g.x, g.y, g.z, MF_ASM_THREADS, 0, false, false};
    return k->device->ops->module_launch(k->device, k->function, &grid, block,
                                         one ? MF_ASM_ONE_BYTES : MF_ASM_STAGE1_BYTES, *k->stream);
}

static void set_token_count(struct mf_kernel *k, int64_t token)
{
    k->shape.token = token;
}

static struct mf_kernel *copy_step(const struct mf_kernel *k, void *stream, void *to)
{
    struct mf_kernel *copy = memcpy(to, k, sizeof(*k));

    static_assert(sizeof(*k) <= MF_KERNEL_COPY_MAX, "copies fit");
    copy->own_stream = stream;
    copy->stream = &copy->own_stream;
    return copy;
}

#define FAMILY(kind)                                                                                         \
    {                                                                                                        \
        .api = MF_FAMILY_API, .name = "asm", .device_kind = kind, .enumerate = enumerate, .open = open_step, \
        .launch = launch_step, .close = close_step, .set_token_count = set_token_count, .copy = copy_step,   \
    }
const struct mf_family mf_family_asm = FAMILY("cpu"), mf_family_hip_asm = FAMILY("hip");
