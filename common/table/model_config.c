/* Parses a model's config.json in the format of Hugging Face transformers. Configs use different names for
 * the same number. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/model.h"

#define CONFIG_MAX  (4u << 20)
#define SHARED_MAX  64
#define LIMIT_MAX   65536.0 /* maximum of `limit` in the form of a shape */
#define CONTEXT_MAX (INT64_C(1) << 40)

/* Members that contain the language model of a multimodal model. */
static const char *const text_models[] = {"text_config", "llm_config", "language_config", "ffn_config"};

/* Names of each number, the most specific first, so that the sizes of routed experts are found before those
 * of a dense layer. */
static const char *const hidden[] = {"routed_expert_hidden_size", "hidden_size", "d_model", "n_embd", NULL};
static const char *const inter[] = {"moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size",
                                    "intermediate_size",     "ffn_hidden_size",        NULL};
static const char *const experts[] = {"n_routed_experts", "num_experts",     "num_local_experts",
                                      "moe_num_experts",  "num_moe_experts", NULL};
static const char *const routes[] = {"num_experts_per_tok",
                                     "num_experts_per_token",
                                     "experts_per_token",
                                     "moe_topk",
                                     "moe_top_k",
                                     "moe_k",
                                     NULL};
static const char *const shared[] = {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts",
                                     NULL};
static const char *const context[] = {"max_position_embeddings", "model_max_length", "n_positions", NULL};

/* clang-format off */
static const struct { const char *text; enum mf_act act; } acts[] = {
    {"silu",              MF_ACT_SILU},
    {"swish",             MF_ACT_SILU},
    {"gelu",              MF_ACT_GELU},
    {"gelu_new",          MF_ACT_GELU_TANH},
    {"gelu_fast",         MF_ACT_GELU_TANH},
    {"gelu_pytorch_tanh", MF_ACT_GELU_TANH},
    {"gelu_tanh",         MF_ACT_GELU_TANH},
    {"swigluoai",         MF_ACT_SWIGLU},
    {"swiglu_oai",        MF_ACT_SWIGLU},
    {"situ",              MF_ACT_SITUV2},
};
/* clang-format on */

static int refuse(char why[MF_REASON_MAX], const char *member, const char *sentence)
{
    mf_format(why, MF_REASON_MAX, "%s: expected %s", member, sentence);
    return -EBADMSG;
}

/* Reads the first member of *names that the object has, and sets *names to its name. -ENOENT: the object has
 * no such member. -EBADMSG: the member's value is not a number or is out of range. */
static int read_number(const cJSON *object, const char *const **names, int64_t min, int64_t max, int64_t *ret,
                       char why[MF_REASON_MAX])
{
    for (; **names; (*names)++) {
        int r = mf_json_i64(object, **names, min, max, ret);
        if (r == -EINVAL)
            return refuse(why, **names, "a number in the valid range");
        if (r == 0)
            return 0;
    }
    return -ENOENT;
}

/* As read_number for a required number. */
static int need_number(const cJSON *object, const char *const *names, int32_t *ret, char why[MF_REASON_MAX])
{
    const char *const *name = names;
    int64_t value;
    int r = read_number(object, &name, 1, INT32_MAX, &value, why);

    if (r == -ENOENT)
        return refuse(
            why, *names,
            "a number, but it is missing under all its names; is this the config.json of an MoE model?");
    if (r == 0)
        *ret = (int32_t)value;
    return r;
}

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = "";
    return mf_json_text(object, key, &text) == 0 ? text : "";
}

static int64_t number_of(const cJSON *object, const char *key)
{
    int64_t value;
    return mf_json_i64(object, key, 0, INT64_C(1) << 40, &value) == 0 ? value : 0;
}

/* ---- quantisation ---- */

struct quant {
    enum mf_qtype type;
    enum mf_dtype a, w;
};

#define FP8  MF_DTYPE_FP8_E4M3FN
#define FP4  MF_DTYPE_FP4X2
#define BF16 MF_DTYPE_BF16

static bool set_quant(struct quant *q, enum mf_qtype type, enum mf_dtype a, enum mf_dtype w)
{
    *q = (struct quant){type, a, w};
    return true;
}

/* Sets the quantisation type for groups of 128, 32 or 16 elements along the row. False for other sizes. */
static bool type_of_group(int64_t group, enum mf_qtype *ret)
{
    *ret = group == 128 ? MF_QTYPE_PER_1X128 : group == 32 ? MF_QTYPE_PER_1X32 : MF_QTYPE_PER_1X16;
    return group == 128 || group == 32 || group == 16;
}

/* The type of the experts can differ from that of the linear layers. DeepSeek-V4's experts are fp4 unless
 * expert_dtype is fp8 (vLLM, deepseek_v4/quant_config.py). */
static bool has_fp4_experts(const cJSON *layer)
{
    const char *dtype = text_of(layer, "expert_dtype");

    return strcmp(dtype, "fp4") == 0 ||
           (!*dtype && strncmp(text_of(layer, "model_type"), "deepseek_v4", 11) == 0);
}

/* Reads a quantisation such as {"quant_method": "fp8", "weight_block_size": [128, 128]}. */
static bool quant_of_fp8(const cJSON *quant, const cJSON *layer, struct quant *ret)
{
    const cJSON *block = mf_json_array(quant, "weight_block_size");
    const cJSON *last = block ? cJSON_GetArrayItem(block, cJSON_GetArraySize(block) - 1) : NULL;
    enum mf_qtype type;

    if (has_fp4_experts(layer))
        return set_quant(ret, MF_QTYPE_PER_1X32, FP8, FP4);
    if (!block)
        return set_quant(ret, MF_QTYPE_PER_TENSOR, FP8, FP8);
    return cJSON_IsNumber(last) && type_of_group((int64_t)last->valuedouble, &type) &&
           type != MF_QTYPE_PER_1X16 && set_quant(ret, type, FP8, FP8);
}

/* Sets the types for weights of `bits` bits in groups of `group` elements (0: per channel or per tensor).
 * activations: true if activations are quantised too. Returns false if no tuned table has such a layer. */
static bool quant_of_bits(int64_t bits, bool integer, int64_t group, bool channel, bool activations,
                          struct quant *ret)
{
    enum mf_dtype w = bits == 8 ? (integer ? MF_DTYPE_INT8 : FP8) : integer ? MF_DTYPE_INT4 : FP4;
    enum mf_qtype type = channel ? MF_QTYPE_PER_TOKEN : MF_QTYPE_PER_TENSOR;

    if (bits != 8 && bits != 4)
        return false;
    if (group > 0 && !type_of_group(group, &type))
        return false;
    if (bits == 4 && (group == 0 || group == 128))
        return false; /* no tuned table has such a layer */
    if (bits == 8 && !activations)
        return false;
    return set_quant(ret, type, activations ? w : BF16, w);
}

/* Reads, for example:
 *   {"config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
 *                                  "input_activations": …}}} */
static bool quant_of_compressed(const cJSON *quant, const cJSON *layer, struct quant *ret)
{
    const cJSON *groups = mf_json_object(quant, "config_groups");
    const cJSON *first = groups ? groups->child : NULL;
    const cJSON *weights = cJSON_IsObject(first) ? mf_json_object(first, "weights") : NULL;
    const char *strategy = text_of(weights, "strategy");

    (void)layer;
    if (!weights)
        return false;
    int64_t group = strcmp(strategy, "block") == 0 ? 128 : number_of(weights, "group_size");
    return quant_of_bits(number_of(weights, "num_bits"), strcmp(text_of(weights, "type"), "int") == 0, group,
                         strcmp(strategy, "channel") == 0, mf_json_object(first, "input_activations") != NULL,
                         ret);
}

/* Reads, for example:
 *   {"global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32},
 *                            "input_tensors": {"dtype": "fp4"}}} */
static bool quant_of_quark(const cJSON *quant, const cJSON *layer, struct quant *ret)
{
    const cJSON *all = mf_json_object(quant, "global_quant_config");
    const cJSON *weight = all ? mf_json_object(all, "weight") : NULL,
                *input = all ? mf_json_object(all, "input_tensors") : NULL;
    const char *w = text_of(weight, "dtype"), *a = text_of(input, "dtype");

    (void)layer;
    if (!weight || (strncmp(w, "fp", 2) != 0 && strncmp(w, "int", 3) != 0))
        return false;
    if (!quant_of_bits(strchr(w, '8') ? 8 : 4, w[0] == 'i', number_of(weight, "group_size"),
                       strcmp(text_of(weight, "qscheme"), "per_channel") == 0, input != NULL, ret))
        return false;
    if (strncmp(a, "fp8", 3) == 0)
        ret->a = FP8;
    return true;
}

static bool quant_of_modelopt(const cJSON *quant, const cJSON *layer, struct quant *ret)
{
    const char *algo = text_of(quant, "quant_algo");

    (void)layer;
    if (strcmp(algo, "NVFP4") == 0)
        return set_quant(ret, MF_QTYPE_PER_1X16, FP4, FP4);
    if (strcmp(algo, "MXFP8") == 0)
        return set_quant(ret, MF_QTYPE_PER_1X32, FP8, FP8);
    return strcmp(algo, "FP8") == 0 && set_quant(ret, MF_QTYPE_PER_TENSOR, FP8, FP8);
}

static bool quant_of_mxfp4(const cJSON *quant, const cJSON *layer, struct quant *ret)
{
    (void)quant;
    (void)layer;
    return set_quant(ret, MF_QTYPE_PER_1X32, BF16, FP4);
}

static bool quant_of_mxfp8(const cJSON *quant, const cJSON *layer, struct quant *ret)
{
    (void)quant;
    (void)layer;
    return set_quant(ret, MF_QTYPE_PER_1X32, FP8, FP8);
}

static bool quant_of_channels(const cJSON *quant, const cJSON *layer, struct quant *ret)
{
    (void)quant;
    (void)layer;
    return set_quant(ret, MF_QTYPE_PER_TOKEN, FP8, FP8);
}

/* clang-format off */
static const struct {
    const char *method;
    /* returns false if the quantisation is not supported */
    bool (*read)(const cJSON *quant, const cJSON *layer, struct quant *ret);
} methods[] = {
    {"fp8",                quant_of_fp8},
    {"compressed-tensors", quant_of_compressed},
    {"quark",              quant_of_quark},
    {"modelopt",           quant_of_modelopt},
    {"mxfp4",              quant_of_mxfp4},
    {"mxfp8",              quant_of_mxfp8},
    {"fbgemm_fp8",         quant_of_channels},
    {"ptpc_fp8",           quant_of_channels},
};
/* clang-format on */

/* Finds the quantisation in the config or in its member for the language model. */
static const cJSON *find_quant(const cJSON *config, const cJSON *layer)
{
    static const char *const names[] = {"quantization_config", "compression_config"};

    for (size_t i = 0; i < MF_ARRAY_LEN(names); i++) {
        const cJSON *quant = mf_json_object(config, names[i]);
        if (!quant)
            quant = mf_json_object(layer, names[i]);
        if (quant)
            return quant;
    }
    return NULL;
}

static void read_quant(const cJSON *config, const cJSON *layer, struct mf_model *m)
{
    const cJSON *object = find_quant(config, layer);
    struct quant q = {MF_QTYPE_NO, m->layer.dtype, m->layer.dtype};
    const char *method = text_of(object, "quant_method");
    bool known = object == NULL;

    for (size_t i = 0; object && i < MF_ARRAY_LEN(methods); i++) {
        if (strcmp(methods[i].method, method) == 0)
            known = methods[i].read(object, layer, &q);
    }
    if (!known)
        mf_format(m->quant_error, sizeof(m->quant_error),
                  "quantization_config: quant_method '%s' with these members is not supported", method);
    m->layer.q_type = q.type;
    m->layer.q_dtype_a = q.a;
    m->layer.q_dtype_w = q.w;
}

/* ---- other properties ---- */

/* Applies properties that follow from the model type only. */
static void apply_type(const char *type, struct mf_model *m)
{
    if (strcmp(type, "gpt_oss") == 0) {
        m->layer.act_type = MF_ACT_SWIGLU;
        m->layer.has_b1 = m->layer.has_b2 = true;
        m->layer.gate_up = MF_GATE_UP_INTERLEAVED;
    } else if (strncmp(type, "llama4", 6) == 0) {
        m->layer.doweight_stage1 = true;
        m->shared = 1;
    }
}

static int read_act(const cJSON *layer, struct mf_shape *s, char why[MF_REASON_MAX])
{
    static const char *const names[] = {"hidden_act", "hidden_activation", "mlp_hidden_act",
                                        "activation_function"};
    const char *text = "silu";
    double limit = 0;

    for (size_t i = 0; i < MF_ARRAY_LEN(names); i++) {
        if (mf_json_text(layer, names[i], &text) == 0)
            break;
    }
    size_t i = 0;
    while (i < MF_ARRAY_LEN(acts) && strcmp(acts[i].text, text) != 0)
        i++;
    if (i == MF_ARRAY_LEN(acts))
        return refuse(why, "hidden_act", "silu, gelu, gelu_pytorch_tanh, swigluoai or situ");
    s->act_type = acts[i].act;
    (void)mf_json_double(layer, "swiglu_limit", &limit);
    if (limit > LIMIT_MAX)
        return refuse(why, "swiglu_limit", "at most 65536");
    if (limit > 0)
        s->act_limit = (float)limit;
    return 0;
}

/* Reads the number of shared experts. The number is 0 if their width differs from that of the routed experts,
 * because experts of different widths cannot be fused. */
static int read_shared(const cJSON *layer, struct mf_model *m, char why[MF_REASON_MAX])
{
    const char *const *name = shared;
    int64_t n = 0;
    int r = read_number(layer, &name, 0, SHARED_MAX, &n, why);

    if (r == -ENOENT) {
        n = number_of(layer, "shared_expert_intermediate_size");
        n = n % m->layer.inter_dim == 0 && n / m->layer.inter_dim <= SHARED_MAX ? n / m->layer.inter_dim : 0;
    } else if (r < 0) {
        return r;
    }
    if (number_of(layer, hidden[0]) > 0 && number_of(layer, hidden[0]) != number_of(layer, hidden[1]))
        n = 0;
    m->shared = (int32_t)n;
    return 0;
}

/* Returns the part of the config that contains the layer. */
static const cJSON *find_layer(const cJSON *config)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(text_models); i++) {
        const cJSON *part = mf_json_object(config, text_models[i]);

        for (size_t j = 0; part && experts[j]; j++) {
            if (cJSON_GetObjectItemCaseSensitive(part, experts[j]))
                return part;
        }
    }
    return config;
}

static int read_layer(const cJSON *config, const cJSON *layer, struct mf_model *m, char why[MF_REASON_MAX])
{
    struct mf_shape *s = &m->layer;
    const char *dtype = text_of(layer, "torch_dtype"), *column, *expected;
    const char *const *lengths = context;
    int r;

    *s = (struct mf_shape){.token = 1, .use_g1u1 = true, .dtype = MF_DTYPE_BF16};
    if ((r = need_number(layer, hidden, &s->model_dim, why)) < 0 ||
        (r = need_number(layer, inter, &s->inter_dim, why)) < 0 ||
        (r = need_number(layer, experts, &s->expert, why)) < 0 ||
        (r = need_number(layer, routes, &s->topk, why)) < 0 || (r = read_act(layer, s, why)) < 0 ||
        (r = read_shared(layer, m, why)) < 0)
        return r;
    if (!*dtype)
        dtype = *text_of(layer, "dtype") ? text_of(layer, "dtype") : text_of(config, "torch_dtype");
    if (strcmp(dtype, "float16") == 0)
        s->dtype = MF_DTYPE_FP16;
    apply_type(text_of(layer, "model_type"), m);
    if (s->act_type == MF_ACT_SWIGLU && s->act_limit == 7)
        s->act_limit = 0; /* 0 selects the default limit of the activation */
    r = read_number(layer, &lengths, 1, CONTEXT_MAX, &m->context, why);
    if (r < 0 && r != -ENOENT)
        return r;
    read_quant(config, layer, m);
    if (mf_shape_check(s, &column, &expected) < 0)
        return refuse(why, column, expected);
    return 0;
}

int mf_model_config_read(const char *text, size_t len, const char *name, struct mf_model *ret,
                         char why[MF_REASON_MAX])
{
    _cleanup_(cJSON_Deletep) cJSON *config = mf_json_parse(text, len, CONFIG_MAX);
    struct mf_model m = {0};
    int r;

    if (!cJSON_IsObject(config)) {
        mf_format(why, MF_REASON_MAX, "not a JSON object");
        return -EBADMSG;
    }
    mf_format(m.name, sizeof(m.name), "%s", name);
    mf_format(m.source, sizeof(m.source), "%s", name);
    r = read_layer(config, find_layer(config), &m, why);
    if (r == 0)
        *ret = m;
    return r;
}
