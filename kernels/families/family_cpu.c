#include "kernels/families/family_cpu.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"

const int32_t mf_cpu_block_ms[MF_CPU_N_BLOCK_MS] = {8, 16, 32, 64};

#define TOKEN_MAX             (1 << 24) /* a sorted id packs the token into 24 bits */
#define TOPK_MAX              127       /* a sorted id packs the slot into 7 bits */
#define ALTERNATING_BYTES_MAX 1e9
#define DECODED_BYTES_MAX     536870912.0 /* memory limit for the bf16 copy of the weights */
/* minimum rows per active expert for which dequantising first may pay off */
#define DECODED_ROWS 16

void mf_refuse(struct mf_refusal *r, const char *rule, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    r->rule = rule;
    (void)vsnprintf(r->reason, sizeof(r->reason), format, args);
    va_end(args);
}

static struct mf_codecs codecs_of(const struct mf_shape *s)
{
    struct mf_codecs c = {0};
    const char *why;
    (void)mf_codecs_of_shape(s, &c, &why);
    return c;
}

static bool formats_known(const struct mf_shape *s, struct mf_refusal *ret)
{
    struct mf_codecs codecs;
    const char *why;
    if (s->dtype != MF_DTYPE_BF16) {
        mf_refuse(ret, "dtype", "hidden states are %s; the CPU kernels read and write torch.bfloat16 only",
                  mf_dtype_name(s->dtype));
        return false;
    }
    if (mf_codecs_of_shape(s, &codecs, &why) < 0) {
        mf_refuse(ret, "q_dtype", "q_type %s with q_dtype_a %s and q_dtype_w %s is not supported: %s",
                  mf_qtype_name(s->q_type), mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w), why);
        return false;
    }
    return true;
}

static const char *family_of(const struct mf_codec *w)
{
    if (w->format == MF_FORMAT_INT4)
        return "two_stage_int4";
    return mf_codec_folds(w) ? "two_stage_mx" : "two_stage";
}

const char *mf_cpu_family_of(const struct mf_shape *s)
{
    return family_of(codecs_of(s).w);
}

bool mf_cpu_family_takes(const char *family, const struct mf_shape *s, struct mf_refusal *ret)
{
    if (!mf_cpu_shape_known(s, ret))
        return false;
    const struct mf_codec *w = codecs_of(s).w;
    if (strcmp(family, family_of(w)) == 0)
        return true;
    mf_refuse(ret, "q_dtype",
              "weights are %s with %s scales; family %s has no kernels for them, use family %s",
              mf_format_name(w->format), mf_scale_name(w->scale), family, family_of(w));
    return false;
}

bool mf_cpu_may_cover(const struct mf_shape *s, mf_ops ops, int32_t block_m,
                      const struct mf_fusion_caps *caps, struct mf_refusal *ret)
{
    struct mf_fusion_question q = {.ops = ops, .block_m = block_m, .caps = caps};
    struct mf_fusion_verdict no;

    ret->rule = NULL;
    if (!mf_fusion_allows(s, &q, &no))
        mf_refuse(ret, no.rule, "%s", no.reason);
    return ret->rule == NULL;
}

int mf_cpu_weight_bits(const struct mf_shape *s)
{
    return codecs_of(s).w->bits;
}

bool mf_cpu_quantises(const struct mf_shape *s)
{
    return codecs_of(s).a->scale_bytes > 0;
}

bool mf_cpu_shape_known(const struct mf_shape *s, struct mf_refusal *ret)
{
    ret->rule = NULL;
    if (!formats_known(s, ret))
        return false;
    if (!s->use_g1u1) {
        mf_refuse(ret, "use_g1u1",
                  "use_g1u1 is 0, so w1 has only the %d rows of up; the CPU kernels need gate and up (2 x %d "
                  "rows)",
                  s->inter_dim, s->inter_dim);
        return false;
    }
    if (s->token > TOKEN_MAX - 1 || s->topk > TOPK_MAX) {
        mf_refuse(ret, "packed_id",
                  "token %lld with topk %d: a packed id holds token counts below %d and topk up to %d",
                  (long long)s->token, s->topk, TOKEN_MAX - 1, TOPK_MAX);
        return false;
    }
    return true;
}

void mf_cpu_format_word(const struct mf_shape *s, char buf[MF_FORMAT_WORD_MAX])
{
    struct mf_codecs c = codecs_of(s);
    bool alike = strcmp(c.a->name, c.w->name) == 0;
    (void)snprintf(buf, MF_FORMAT_WORD_MAX, "%s%s%s", c.a->name, alike ? "" : "_", alike ? "" : c.w->name);
}

const char *mf_cpu_act_word(const struct mf_shape *s)
{
    static const char *const words[] = {
        [MF_ACT_SILU] = "silu",          [MF_ACT_GELU] = "gelu",   [MF_ACT_SWIGLU] = "swiglu",
        [MF_ACT_SITUV2] = "situv2",      [MF_ACT_NO] = "no",       [MF_ACT_GELU_TANH] = "gelutanh",
        [MF_ACT_SILU_STEP] = "silustep", [MF_ACT_RELU2] = "relu2",
    };
    return words[s->act_type];
}

const struct mf_layout *mf_cpu_layout(int panel, bool alternating)
{
    size_t n;
    const struct mf_layout *all = mf_layouts(&n), *l = all;

    while (l < all + n - 1 && (l->panel != panel || (l->gate_rows > 0) != alternating))
        l++;
    return l;
}

bool mf_cpu_may_alternate(const struct mf_shape *s, int panel, struct mf_refusal *ret)
{
    const struct mf_layout *l = mf_cpu_layout(panel, true);
    const struct mf_codec *w = codecs_of(s).w;
    double bytes = s->expert * mf_cpu_expert_bytes(s, MF_TENSOR_W1);
    int I = s->inter_dim, H = s->model_dim, group = panel > 1 ? 32 / w->bits : 1;

    ret->rule = NULL;
    if (!mf_layout_supports_scales(l, w))
        mf_refuse(
            ret, "scale",
            "a scale of %s covers %d consecutive rows of gate or of up; layout %s interleaves them every %d "
            "rows",
            w->name, w->group_rows, l->name, l->gate_rows);
    else if (!mf_layout_legal(l, w->bits, 2 * (size_t)I, (size_t)H))
        mf_refuse(ret, "divisibility",
                  "gate and up have %d rows of %d elements each; layout %s needs a multiple of %d rows "
                  "(remainder %d) and of %d elements (remainder %d)",
                  I, H, l->name, l->gate_rows, I % l->gate_rows, group, H % group);
    else if (bytes > ALTERNATING_BYTES_MAX)
        mf_refuse(ret, "memory",
                  "w1 has %.0f bytes; each layout needs a copy, and layouts that interleave gate and up are "
                  "tried up to %.0f bytes",
                  bytes, ALTERNATING_BYTES_MAX);
    return ret->rule == NULL;
}

int mf_cpu_reject_alternating(const struct mf_family *f, const char *prefix, const struct mf_shape *shape,
                              struct mf_offer *offer)
{
    static const int panels[] = {1, 16, 32};
    struct mf_refusal no;
    char kernel[32];
    int r = 0;

    for (size_t i = 0; i < MF_ARRAY_LEN(panels) && r == 0; i++) {
        if (mf_cpu_may_alternate(shape, panels[i], &no))
            continue;
        (void)snprintf(kernel, sizeof(kernel), "%s%s", prefix, mf_cpu_layout(panels[i], true)->word);
        r = offer->reject(offer, f->name, kernel, no.rule, "%s", no.reason);
    }
    return r;
}

double mf_cpu_slots(const struct mf_shape *s)
{
    return (double)(s->token * s->topk) * mf_shape_local_fraction(s);
}

struct mf_moe_sort mf_cpu_sort(const struct mf_shape *s, const struct mf_tensor_ref *topk,
                               struct mf_route_types types, int32_t block_m)
{
    return (struct mf_moe_sort){.ids = topk ? topk->part[0] : NULL,
                                .wide = types.wide,
                                .weights = topk ? topk->part[1] : NULL,
                                .bf16_weights = types.bf16_weights,
                                .tokens = s->token,
                                .topk = s->topk,
                                .experts = mf_shape_global_experts(s),
                                .first = s->ep_first,
                                .n_local = s->ep_experts > 0 ? s->expert : 0,
                                .block = block_m};
}

static struct mf_tensor_spec make(enum mf_tensor tensor, enum mf_format format, const char *order,
                                  int32_t block_m)
{
    struct mf_tensor_spec a = {.tensor = tensor, .format = format, .scale = MF_SCALE_NONE, .block = block_m};

    (void)snprintf(a.order, sizeof(a.order), "%s", order);
    return a;
}

struct mf_tensor_spec mf_cpu_topk(void)
{
    return make(MF_TENSOR_TOPK, MF_FORMAT_INDEX, "token", 0);
}

struct mf_tensor_spec mf_cpu_calib(void)
{
    return make(MF_TENSOR_CALIB, MF_FORMAT_F32, "token", 0);
}

struct mf_tensor_spec mf_cpu_sorted(int32_t block_m)
{
    return make(MF_TENSOR_SORTED, MF_FORMAT_INDEX, "sorted", block_m);
}

struct mf_tensor_spec mf_cpu_aligned(int32_t block_m)
{
    return make(MF_TENSOR_ALIGNED, MF_FORMAT_INDEX, "sorted", block_m);
}

struct mf_tensor_spec mf_cpu_bf16(enum mf_tensor tensor, const char *order, int32_t block_m)
{
    return make(tensor, MF_FORMAT_BF16, order, block_m);
}

struct mf_tensor_spec mf_cpu_dequantised(enum mf_tensor w)
{
    return make(w == MF_TENSOR_W1 ? MF_TENSOR_W1D : MF_TENSOR_W2D, MF_FORMAT_BF16, "panel32", 0);
}

struct mf_tensor_spec mf_cpu_x_sorted(const struct mf_shape *shape, int32_t block_m)
{
    struct mf_tensor_spec a = mf_plain_x(shape);

    (void)snprintf(a.order, sizeof(a.order), "sorted");
    a.block = block_m;
    return a;
}

void mf_step_need(struct mf_step *s, struct mf_tensor_spec a)
{
    s->needs[s->n_needs++] = a;
}

void mf_step_give(struct mf_step *s, struct mf_tensor_spec a)
{
    s->gives[s->n_gives++] = a;
}

void mf_cpu_weight_sizes(const struct mf_shape *s, enum mf_tensor w, size_t *ret_n, size_t *ret_k)
{
    *ret_n = w == MF_TENSOR_W1 ? (size_t)mf_gemm1_cols(s) : (size_t)s->model_dim;
    *ret_k = w == MF_TENSOR_W1 ? (size_t)s->model_dim : (size_t)s->inter_dim;
}

double mf_cpu_dequantised_bytes(const struct mf_shape *s, mf_ops which, double experts)
{
    double cols = 0;

    if (which & MF_OP_BIT(MF_NODE_DEQUANT_W1))
        cols += (double)mf_gemm1_cols(s);
    if (which & MF_OP_BIT(MF_NODE_DEQUANT_W2))
        cols += s->inter_dim;
    return experts * 2 * cols * s->model_dim;
}

/* Assumed ratio of the busiest expert's rows to the average rows per expert. It is above 1, because routing
 * is uneven. */
#define BUSIEST 8

bool mf_cpu_block_pays(const struct mf_shape *s, const int32_t *block_ms, size_t i, struct mf_refusal *ret)
{
    double tokens = (double)s->token, average = mf_cpu_slots(s) / s->expert;
    int32_t smaller = i > 0 ? block_ms[i - 1] : 0;

    ret->rule = NULL;
    if (i == 0)
        return true;
    if (smaller >= tokens)
        mf_refuse(ret, "rows",
                  "an expert has at most one row per token, %.0f in all; blocks of %d rows already hold them",
                  tokens, smaller);
    else if (smaller >= BUSIEST * average)
        mf_refuse(ret, "rows",
                  "an expert has %.2g rows on average; blocks of %d already hold %d times that, so blocks of "
                  "%d only "
                  "add padding",
                  average, smaller, BUSIEST, block_ms[i]);
    return ret->rule == NULL;
}

bool mf_cpu_may_dequantise(const struct mf_shape *s, mf_ops which, bool legal, struct mf_refusal *ret)
{
    double active = mf_layer_expected_active(s), rows = mf_cpu_slots(s) / active;
    double bytes = mf_cpu_dequantised_bytes(s, which, s->expert);

    ret->rule = NULL;
    if (mf_isa_best() != MF_ISA_AVX512)
        mf_refuse(ret, "isa", "the CPU has %s; the GEMM for dequantised weights (oneDNN 2.6) needs AVX-512",
                  mf_isa_name(mf_isa_best()));
    else if (bytes > DECODED_BYTES_MAX)
        mf_refuse(ret, "memory", "the weights of %d experts are %.0f bytes as bf16; the limit is %.0f bytes",
                  s->expert, bytes, DECODED_BYTES_MAX);
    else if (!legal && rows < DECODED_ROWS)
        mf_refuse(
            ret, "rows",
            "%.1f rows per active expert. Below %d rows, dequantising the weights to bf16 first (%.0f bytes "
            "written and read) costs more than dequantising inside the GEMM",
            rows, DECODED_ROWS, mf_cpu_dequantised_bytes(s, which, active));
    return ret->rule == NULL;
}

/* Returns the bytes of rows x cols elements and their scales. */
static double stored_bytes(const struct mf_codec *c, int64_t rows, int64_t cols)
{
    return (double)rows * (double)mf_codec_row_bytes(c, (size_t)cols) +
           (double)mf_codec_scale_rows(c, (size_t)rows) * (double)mf_codec_scale_cols(c, (size_t)cols) *
               c->scale_bytes;
}

double mf_cpu_expert_bytes(const struct mf_shape *s, enum mf_tensor w)
{
    int64_t n = w == MF_TENSOR_W1 ? mf_gemm1_cols(s) : s->model_dim;
    return stored_bytes(codecs_of(s).w, n, w == MF_TENSOR_W1 ? s->model_dim : s->inter_dim);
}

double mf_cpu_row_bytes(const struct mf_shape *s, int64_t cols)
{
    return stored_bytes(codecs_of(s).a, 1, cols);
}

struct mf_sorted_view mf_cpu_sorted_view(const struct mf_tensor_ref *s)
{
    return (struct mf_sorted_view){
        .ids = s->part[0], .weights = s->part[1], .experts = s->part[2], .num_valid = s->part[3]};
}
