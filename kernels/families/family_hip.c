#include "kernels/families/family_hip.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "kernels/core/codec.h"
#include "kernels/gpu/src/args.h"

#define TOKEN_MAX (1 << 24) /* a sorted id packs the token into 24 bits */
#define TOPK_MAX  32        /* a lane of the combine keeps one load per slot in flight */

/* clang-format off */
static const struct mf_hip_machine machines[] = {
    {"sm_",    89, 32, 227 * 1024, 228 * 1024, 1024, true,  false, false},
    {"sm_",    80, 32, 227 * 1024, 228 * 1024, 1024, false, false, false},
    {"gfx90a", 0,  64, 64 * 1024,  64 * 1024,  0,    true,  true,  true},
    {"gfx942", 0,  64, 64 * 1024,  64 * 1024,  0,    true,  true,  true},
    {"gfx950", 0,  64, 160 * 1024, 160 * 1024, 0,    true,  true,  true},
};
/* clang-format on */

static bool is_of(const struct mf_hip_machine *m, const char *gfx)
{
    size_t n = strlen(m->gfx);
    return m->least == 0 ? strcmp(gfx, m->gfx) == 0
                         : strncmp(gfx, m->gfx, n) == 0 && strtol(gfx + n, NULL, 10) >= m->least;
}

const struct mf_hip_machine *mf_hip_machine_of(const struct mf_device_info *device)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(machines); i++) {
        if (is_of(&machines[i], device->class.gfx))
            return &machines[i];
    }
    return NULL;
}

/* Supported pairs of activation and weight formats. */
/* clang-format off */
static const struct {
    enum mf_format a;
    enum mf_scale a_scale;
    enum mf_format w;
    enum mf_scale w_scale;
    enum mf_hip_format hip;
} formats[] = {
    {MF_FORMAT_BF16,    MF_SCALE_NONE,      MF_FORMAT_BF16,    MF_SCALE_NONE,        MF_HIP_BF16},
    {MF_FORMAT_FP8FN,   MF_SCALE_PER_TOKEN, MF_FORMAT_FP8FN,   MF_SCALE_PER_TOKEN,   MF_HIP_FP8_TOKEN},
    {MF_FORMAT_FP8FN,   MF_SCALE_PER_1X128, MF_FORMAT_FP8FN,   MF_SCALE_PER_128X128, MF_HIP_FP8_BLOCK},
    {MF_FORMAT_FP8FNUZ, MF_SCALE_PER_TOKEN, MF_FORMAT_FP8FNUZ, MF_SCALE_PER_TOKEN,   MF_HIP_FP8_TOKEN},
    {MF_FORMAT_FP8FNUZ, MF_SCALE_PER_1X128, MF_FORMAT_FP8FNUZ, MF_SCALE_PER_128X128, MF_HIP_FP8_BLOCK},
    {MF_FORMAT_BF16,    MF_SCALE_NONE,      MF_FORMAT_FP4,     MF_SCALE_PER_1X32,    MF_HIP_NARROW},
    {MF_FORMAT_BF16,    MF_SCALE_NONE,      MF_FORMAT_FP4,     MF_SCALE_PER_1X16,    MF_HIP_NARROW},
    {MF_FORMAT_BF16,    MF_SCALE_NONE,      MF_FORMAT_INT4,    MF_SCALE_PER_1X32,    MF_HIP_NARROW},
    {MF_FORMAT_BF16,    MF_SCALE_NONE,      MF_FORMAT_INT4,    MF_SCALE_PER_TOKEN,   MF_HIP_NARROW},
    {MF_FORMAT_FP8FN,   MF_SCALE_PER_1X32,  MF_FORMAT_FP8FN,   MF_SCALE_PER_1X32,    MF_HIP_NARROW},
    {MF_FORMAT_FP8FN,   MF_SCALE_PER_1X32,  MF_FORMAT_FP4,     MF_SCALE_PER_1X32,    MF_HIP_NARROW},
    {MF_FORMAT_FP8FN,   MF_SCALE_PER_1X32,  MF_FORMAT_INT4,    MF_SCALE_PER_1X32,    MF_HIP_NARROW},
    {MF_FORMAT_FP8FN,   MF_SCALE_PER_TOKEN, MF_FORMAT_INT4,    MF_SCALE_PER_TOKEN,   MF_HIP_NARROW},
    {MF_FORMAT_FP8FNUZ, MF_SCALE_PER_TOKEN, MF_FORMAT_INT4,    MF_SCALE_PER_TOKEN,   MF_HIP_NARROW},
    {MF_FORMAT_FP4,     MF_SCALE_PER_1X32,  MF_FORMAT_FP4,     MF_SCALE_PER_1X32,    MF_HIP_NARROW},
    {MF_FORMAT_FP4,     MF_SCALE_PER_1X16,  MF_FORMAT_FP4,     MF_SCALE_PER_1X16,    MF_HIP_NARROW},
    {MF_FORMAT_FP8FN,   MF_SCALE_PER_TENSOR, MF_FORMAT_FP8FN,   MF_SCALE_PER_TENSOR,  MF_HIP_FP8_TENSOR},
    {MF_FORMAT_FP8FNUZ, MF_SCALE_PER_TENSOR, MF_FORMAT_FP8FNUZ, MF_SCALE_PER_TENSOR,  MF_HIP_FP8_TENSOR},
    {MF_FORMAT_INT8,    MF_SCALE_PER_TOKEN, MF_FORMAT_INT8,    MF_SCALE_PER_TOKEN,   MF_HIP_INT8_TOKEN},
    {MF_FORMAT_INT8,    MF_SCALE_PER_1X128, MF_FORMAT_INT8,    MF_SCALE_PER_128X128, MF_HIP_INT8_BLOCK},
    {MF_FORMAT_INT8,    MF_SCALE_PER_TENSOR, MF_FORMAT_INT8,   MF_SCALE_PER_TENSOR,  MF_HIP_INT8_TENSOR},
};
/* clang-format on */

/* True if the device can convert the format's fp8 elements and, for 1x16 groups, its fp8 scales. */
static bool has_words(const struct mf_hip_machine *machine, enum mf_format a, enum mf_scale scale)
{
    return a == MF_FORMAT_FP8FNUZ ? machine->fnuz
                                  : machine->fp8 || (a != MF_FORMAT_FP8FN && scale != MF_SCALE_PER_1X16);
}

static bool codecs_known(const struct mf_shape *s, struct mf_codecs *ret, struct mf_refusal *no)
{
    const char *why;
    if (mf_codecs_of_shape(s, ret, &why) == 0)
        return true;
    mf_refuse(no, "q_dtype", "q_type %s with q_dtype_a %s and q_dtype_w %s is not supported: %s",
              mf_qtype_name(s->q_type), mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w), why);
    return false;
}

static bool format_known(const struct mf_device_info *device, const struct mf_shape *s,
                         enum mf_hip_format *ret, struct mf_refusal *no)
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    struct mf_codecs c;
    if (!codecs_known(s, &c, no))
        return false;
    for (size_t i = 0; i < MF_ARRAY_LEN(formats); i++) {
        if (c.a->format == formats[i].a && c.w->format == formats[i].w && c.a->scale == formats[i].a_scale &&
            c.w->scale == formats[i].w_scale && has_words(machine, formats[i].a, formats[i].w_scale)) {
            *ret = formats[i].hip;
            return true;
        }
    }
    mf_refuse(
        no, "q_dtype",
        "activations are %s and weights %s; %s has kernels for bf16 or mxfp4 activations with mxfp4 weights, "
        "bf16 with bf16 or int4%s, and int8%s with scales per token, per 1x128 or per tensor",
        c.a->name, c.w->name, device->class.gfx,
        machine->fp8 ? ", mxfp8 and nvfp4, fp8 per token with int4" : "",
        machine->fnuz  ? ", fp8fn or fp8fnuz"
        : machine->fp8 ? " or fp8fn"
                       : "");
    return false;
}

const struct mf_layout *mf_hip_w1_layout(const struct mf_shape *s)
{
    static const char *const names[] = {[MF_GATE_UP_ANY] = "row",
                                        [MF_GATE_UP_SEPARATED] = "row",
                                        [MF_GATE_UP_INTERLEAVED] = "gu1",
                                        [MF_GATE_UP_TILED] = "gu16"};
    return mf_layout_find(names[s->gate_up]);
}

void mf_hip_define_gate_up(struct mf_code *c, const struct mf_shape *s)
{
    const struct mf_layout *l = mf_hip_w1_layout(s);
    if (l->gate_rows > 0)
        mf_code_define(c, "MF_GATE_ROWS=%d", l->gate_rows);
}

bool mf_hip_reads_panel128(const struct mf_device_info *device)
{
    return strcmp(device->class.gfx, "sm_90") == 0;
}

bool mf_hip_may_panel128(const struct mf_shape *s, enum mf_tensor w, struct mf_refusal *no)
{
    const struct mf_tensor_spec a = mf_plain_w(s, w, mf_hip_weights_order(s, w, true));
    const struct mf_layout *l = mf_layout_find(a.order);
    bool first = w == MF_TENSOR_W1, interleaved = first && mf_hip_w1_layout(s)->gate_rows > 0;
    struct mf_part parts[MF_PARTS_MAX];
    if (!interleaved && (!first || s->inter_dim % l->panel == 0) && mf_tensor_spec_parts(&a, s, parts) > 0)
        return true;
    mf_refuse(no, "layout",
              "layout %s of %s needs panels of %d rows of only gate or only up, in groups of %d bytes; "
              "inter_dim is %d and model_dim %d%s",
              l->name, mf_tensor_name(w), l->panel, l->group_bytes, s->inter_dim, s->model_dim,
              interleaved ? ", and gate and up are interleaved" : "");
    return false;
}

const char *mf_hip_weights_order(const struct mf_shape *s, enum mf_tensor w, bool sliced)
{
    if (sliced)
        return "panel128";
    return w == MF_TENSOR_W1 ? mf_hip_w1_layout(s)->name : "row";
}

const char *mf_hip_weights_word(const struct mf_shape *s, enum mf_tensor w, bool sliced)
{
    const char *order = mf_hip_weights_order(s, w, sliced);
    return strcmp(order, "row") == 0 ? "" : mf_layout_find(order)->word;
}

static bool gate_up_known(const struct mf_shape *s, struct mf_refusal *no)
{
    const struct mf_layout *l = mf_hip_w1_layout(s);
    struct mf_codecs c;
    const char *why;
    if (mf_codecs_of_shape(s, &c, &why) == 0 && mf_layout_supports_scales(l, c.w))
        return true;
    mf_refuse(no, "gate_up",
              "gate and up of w1 are stored %s; a scale of %s covers %d consecutive rows of gate or of up",
              mf_gate_up_name(s->gate_up), c.w->name, c.w->group_rows);
    return false;
}

/* Checks everything except the formats. */
static bool layer_known(const struct mf_device_info *device, const struct mf_shape *s, struct mf_refusal *ret)
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    ret->rule = NULL;
    if (!machine)
        mf_refuse(ret, "arch",
                  "the device is %s; the kernels support sm_80 and later, gfx90a, gfx942 and gfx950",
                  device->class.gfx);
    else if (s->dtype != MF_DTYPE_BF16)
        mf_refuse(ret, "dtype", "hidden states are %s; the GPU kernels read and write torch.bfloat16 only",
                  mf_dtype_name(s->dtype));
    else if (s->token > TOKEN_MAX - 1 || s->topk > TOPK_MAX)
        mf_refuse(ret, "packed_id",
                  "token %lld with topk %d: a packed id holds token counts below %d, and the combine handles "
                  "up to %d slots",
                  (long long)s->token, s->topk, TOKEN_MAX - 1, TOPK_MAX);
    else if (s->model_dim % 16 || s->inter_dim % 16)
        mf_refuse(ret, "divisibility",
                  "model_dim %d and inter_dim %d must be multiples of 16 (remainders %d and %d): rows are "
                  "copied 16 bytes at a time",
                  s->model_dim, s->inter_dim, s->model_dim % 16, s->inter_dim % 16);
    return !ret->rule;
}

/* True if the GPU kernels support the shape and the device. ret_format may be NULL. */
static bool is_shape_known(const struct mf_device_info *device, const struct mf_shape *s,
                           enum mf_hip_format *ret_format, struct mf_refusal *ret)
{
    enum mf_hip_format format;
    if (!layer_known(device, s, ret) || !format_known(device, s, &format, ret) || !gate_up_known(s, ret))
        return false;
    if (ret_format)
        *ret_format = format;
    return true;
}

bool mf_hip_rows_known(const struct mf_device_info *device, const struct mf_shape *s, struct mf_refusal *ret)
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    struct mf_codecs c;
    if (!layer_known(device, s, ret) || !codecs_known(s, &c, ret))
        return false;
    if (has_words(machine, c.a->format, c.a->scale))
        return true;
    mf_refuse(ret, "q_dtype", "activations are %s; %s has no conversion for float8_%s", c.a->name,
              device->class.gfx, c.a->format == MF_FORMAT_FP8FNUZ ? "e4m3fnuz" : "e4m3fn");
    return false;
}

bool mf_hip_family_takes(const char *family, const struct mf_device_info *device, const struct mf_shape *s,
                         enum mf_hip_format *ret_format, struct mf_refusal *ret)
{
    struct mf_codecs c;
    const char *why;
    if (!is_shape_known(device, s, ret_format, ret))
        return false;
    if (strcmp(family, mf_cpu_family_of(s)) == 0 || mf_codecs_of_shape(s, &c, &why) < 0)
        return true;
    mf_refuse(ret, "q_dtype", "weights are %s; family %s has no GPU kernels for them, use family %s",
              c.w->name, family, mf_cpu_family_of(s));
    return false;
}

struct mf_grid mf_hip_persistent_grid(const struct mf_device_info *device, int threads, int blocks,
                                      uint32_t shared)
{
    const struct mf_hip_machine *machine = mf_hip_machine_of(device);
    uint32_t fit = (uint32_t)machine->shared_unit / MF_MAX(shared + (uint32_t)machine->shared_extra, 1u);
    return (struct mf_grid){.x = (uint32_t)device->cores * MF_MAX(MF_MIN((uint32_t)blocks, fit), 1u),
                            .y = 1,
                            .z = 1,
                            .block = (uint32_t)threads,
                            .shared = shared,
                            .struct_argument = true};
}

void mf_hip_define_fnuz(struct mf_code *c, const struct mf_shape *s)
{
    if (s->q_dtype_a == MF_DTYPE_FP8_E4M3FNUZ)
        mf_code_define(c, "MF_FNUZ");
}

int32_t mf_hip_route_types(const struct mf_launch *l)
{
    return (l->routes.wide ? MF_HIP_WIDE_IDS : 0) | (l->routes.bf16_weights ? MF_HIP_BF16_WEIGHTS : 0);
}

void mf_hip_define_rank(struct mf_code *c, const struct mf_shape *s)
{
    mf_code_define(c, "MF_E=%d", s->expert);
    if (s->ep_experts > 0)
        mf_code_define(c, "MF_FIRST=%d", s->ep_first);
}

void mf_hip_define_codec(struct mf_code *c, const struct mf_codec *codec)
{
    int element = codec->bits == 4 ? 2 : codec->format == MF_FORMAT_INT8 ? 1 : 0;
    mf_code_define(c, "MF_ELEMENT=%d", element);
    mf_code_define(c, "MF_GROUP=%d", codec->group_rows == 0 ? -1 : codec->group_cols);
    if (codec->format == MF_FORMAT_FP8FNUZ)
        mf_code_define(c, "MF_FNUZ");
}

void mf_hip_define_activation(struct mf_code *c, const struct mf_shape *s)
{
    bool clamps = s->act_type == MF_ACT_SWIGLU || s->act_limit > 0;
    mf_code_define(c, "MF_ACT=%d", (int)s->act_type);
    mf_code_define(c, "MF_LIMIT=%#.9gf", clamps ? (double)(s->act_limit > 0 ? s->act_limit : 7.0f) : 0.0);
    mf_code_define(c, "MF_ALPHA=%#.9gf", (double)(s->act_alpha > 0 ? s->act_alpha : 1.702f));
}

struct mf_tensor_spec mf_hip_zeroed_y(void)
{
    struct mf_tensor_spec y = mf_cpu_bf16(MF_TENSOR_Y, "token", 0);
    y.zeroed = true;
    return y;
}

int mf_hip_function_open(struct mf_device *device, const struct mf_code *code, struct mf_hip_function *ret)
{
    char path[1][PATH_MAX], why[1][MF_CODE_WHY_MAX];
    *ret = (struct mf_hip_function){.device = device, .stream = &device->stream};
    if (!device->ops->compile)
        return -ENOTSUP;
    if (device->ops->compile(device, code, 1, path, why) < 1) {
        log_warn("%s: %s", code->source, why[0]);
        mf_format(device->open_error, sizeof(device->open_error), "%s: %s", code->source, why[0]);
        return -ENOTSUP;
    }
    int r = device->ops->module_load(device, path[0], why[0], sizeof(why[0]), &ret->module);
    if (r < 0) {
        log_warn("%s", why[0]);
        mf_format(device->open_error, sizeof(device->open_error), "%s", why[0]);
        return r == -ENOMEM ? r : -ENOTSUP;
    }
    r = device->ops->module_function(device, ret->module, code->function, &ret->function);
    if (r < 0)
        mf_hip_function_close(ret);
    return r;
}

int mf_hip_function_lookup(const struct mf_hip_function *opened, const char *name,
                           struct mf_hip_function *ret)
{
    *ret = (struct mf_hip_function){.device = opened->device, .stream = opened->stream};
    return opened->device->ops->module_function(opened->device, opened->module, name, &ret->function);
}

void mf_hip_function_close(struct mf_hip_function *f)
{
    if (f->module)
        f->module = f->device->ops->module_unload(f->device, f->module);
}

int mf_hip_code(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *shape,
                const char *name, struct mf_code *ret)
{
    _cleanup_(mf_freep) void *plan = calloc(1, f->hip_steps->plan_bytes);
    int r = plan ? f->hip_steps->find(f, device, shape, name, plan) : -ENOMEM;
    if (r == 0)
        f->hip_steps->code(device, shape, plan, ret);
    return r;
}

static int open_function(const struct mf_family *f, struct mf_device *device, const char *name,
                         struct mf_kernel *k)
{
    struct mf_code code;
    int r = k->steps->find(f, &device->info, &k->shape, name, k->plan);
    if (r < 0)
        return r;
    k->steps->code(&device->info, &k->shape, k->plan, &code);
    return mf_hip_function_open(device, &code, &k->function);
}

int mf_hip_open(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                const char *name, struct mf_kernel **ret)
{
    struct mf_kernel *k = calloc(1, sizeof(*k) + f->hip_steps->plan_bytes);
    assert(sizeof(*k) + f->hip_steps->plan_bytes <= MF_KERNEL_COPY_MAX);
    if (!k)
        return -ENOMEM;
    k->steps = f->hip_steps;
    k->shape = *shape;
    k->plan = k + 1;
    int r = open_function(f, device, name, k);
    if (r < 0) {
        free(k);
        return r;
    }
    if (k->steps->open)
        k->steps->open(k);
    mf_hip_set_token_count(k, shape->token);
    *ret = k;
    return 0;
}

void mf_hip_set_token_count(struct mf_kernel *k, int64_t token)
{
    k->shape.token = token;
    if (k->steps->set_token_count)
        k->steps->set_token_count(k);
}

/* A kernel and its plan are one block of memory. */
struct mf_kernel *mf_hip_copy(const struct mf_kernel *k, void *stream, void *to)
{
    struct mf_kernel *copy = memcpy(to, k, sizeof(*k) + k->steps->plan_bytes);
    copy->plan = copy + 1;
    copy->stream = stream;
    copy->function.stream = &copy->stream;
    return copy;
}

struct mf_kernel *mf_hip_close(struct mf_kernel *k)
{
    mf_hip_function_close(&k->function);
    free(k);
    return NULL;
}
