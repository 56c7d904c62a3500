/* Parses a model's config.json in the format of Hugging Face transformers, or Mistral's params.json.
 * Configs use different names for the same number. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/model_internal.h"

#define SHARED_MAX    64
#define LIMIT_MAX     65536.0 /* maximum of `limit` in the form of a shape */
#define ALPHA_DEFAULT 1.702   /* Swiglu's alpha if the form has none */
#define CONTEXT_MAX   (INT64_C(1) << 40)
#define DEPTH_MAX     (MF_MODEL_SCOPES - 1)

MF_NAMES_DEFINE(mf_checkpoint, MF_CHECKPOINT_, MF_CHECKPOINT_MAP)

/* Members that contain the language model of a multimodal model, or the layer. */
static const char *const parts[] = {
    "text_config", "llm_config", "language_config", "thinker_config", "ffn_config", "moe_config",
    "moe",         NULL};

/* Names of each number, the most specific first, so that the sizes of routed experts are found before those
 * of a dense layer. */
static const char *const latent[] = {"routed_expert_hidden_size", "moe_latent_size", NULL};
static const char *const hidden[] = {"hidden_size", "d_model", "n_embd", "dim", NULL};
static const char *const inter[] = {
    "moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size", "expert_hidden_dim",
    "intermediate_size",     "ffn_hidden_size",        "hidden_dim",          NULL};
static const char *const experts[] = {"n_routed_experts", "num_experts",     "num_local_experts",
                                      "moe_num_experts",  "num_moe_experts", NULL};
static const char *const routes[] = {"num_experts_per_tok",
                                     "num_experts_per_token",
                                     "experts_per_token",
                                     "top_k_experts",
                                     "moe_topk",
                                     "moe_top_k",
                                     "moe_k",
                                     NULL};
static const char *const shared[] = {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts",
                                     "num_shared_expert", NULL};
/* width of all shared experts together */
static const char *const shared_width[] = {"moe_shared_expert_intermediate_size",
                                           "shared_expert_intermediate_size", "shared_intermediate_size",
                                           "share_expert_dim", NULL};
static const char *const context[] = {"max_position_embeddings", "model_max_length", "n_positions",
                                      "max_seq_len", NULL};

/* clang-format off */
static const struct { const char *text; enum mf_act act; bool no_up; } acts[] = {
    {"silu",              MF_ACT_SILU, false},
    {"swish",             MF_ACT_SILU, false},
    {"gelu",              MF_ACT_GELU, false},
    {"gelu_new",          MF_ACT_GELU_TANH, false},
    {"gelu_fast",         MF_ACT_GELU_TANH, false},
    {"gelu_pytorch_tanh", MF_ACT_GELU_TANH, false},
    {"gelu_tanh",         MF_ACT_GELU_TANH, false},
    {"swigluoai",         MF_ACT_SWIGLU, false},
    {"swiglu_oai",        MF_ACT_SWIGLU, false},
    {"situ",              MF_ACT_SITUV2, false},
    {"relu2",             MF_ACT_RELU2, true}, /* Nemotron-H: the experts have no up projection */
};
/* clang-format on */

static int refuse(char why[MF_REASON_MAX], const char *member, const char *sentence)
{
    mf_format(why, MF_REASON_MAX, "%s: expected %s", member, sentence);
    return -EBADMSG;
}

/* ---- members ---- */

/* Returns the first of the names that a part has. *ret_name is set to it. */
static const cJSON *find_member(const struct mf_model_scopes *scopes, const char *const *names,
                                const char **ret_name)
{
    for (size_t i = 0; i < scopes->n; i++) {
        for (const char *const *name = names; *name; name++) {
            const cJSON *item = cJSON_GetObjectItemCaseSensitive(scopes->object[i], *name);

            if (!item || cJSON_IsNull(item))
                continue;
            *ret_name = *name;
            return item;
        }
    }
    return NULL;
}

static const cJSON *find_one(const struct mf_model_scopes *scopes, const char *key)
{
    const char *const names[] = {key, NULL}, *unused;
    return find_member(scopes, names, &unused);
}

const char *mf_model_text(const struct mf_model_scopes *scopes, const char *key)
{
    const cJSON *item = find_one(scopes, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

int64_t mf_model_number(const struct mf_model_scopes *scopes, const char *key)
{
    int64_t value;
    return mf_json_value_i64(find_one(scopes, key), 0, INT64_C(1) << 40, &value) == 0 ? value : 0;
}

const cJSON *mf_model_array(const struct mf_model_scopes *scopes, const char *key)
{
    const cJSON *item = find_one(scopes, key);
    return cJSON_IsArray(item) ? item : NULL;
}

int64_t mf_model_layers(const struct mf_model_scopes *scopes)
{
    static const char *const names[] = {"num_hidden_layers", "num_layers", "n_layers", NULL};
    const char *name;
    int64_t value;

    return mf_json_value_i64(find_member(scopes, names, &name), 0, INT32_MAX, &value) == 0 ? value : 0;
}

static void add_note(struct mf_model *m, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add_note(struct mf_model *m, const char *format, ...)
{
    size_t len = strlen(m->not_modelled);
    va_list args;

    if (len > 0)
        mf_format(m->not_modelled + len, sizeof(m->not_modelled) - len, "; ");
    len = strlen(m->not_modelled);
    va_start(args, format);
    (void)vsnprintf(m->not_modelled + len, sizeof(m->not_modelled) - len, format, args);
    va_end(args);
}

/* Reads a number, or the first positive number of a list with one value per layer or modality. If the list
 * has several values, adds a note. */
static int read_value(const cJSON *item, const char *name, int64_t min, int64_t max, struct mf_model *m,
                      int64_t *ret, char why[MF_REASON_MAX])
{
    const cJSON *first = item, *entry;
    bool same = true;
    int64_t value;

    if (cJSON_IsArray(item)) {
        first = NULL;
        cJSON_ArrayForEach (entry, item) {
            if (!first && cJSON_IsNumber(entry) && entry->valuedouble > 0)
                first = entry;
            same = same && cJSON_Compare(entry, item->child, true);
        }
    }
    if (!first || mf_json_value_i64(first, min, max, &value) < 0)
        return refuse(why, name, "a number in the valid range, or a list of such numbers");
    if (!same)
        add_note(m, "%s has several values, of which only %" PRId64 " is modelled", name, value);
    *ret = value;
    return 0;
}

/* Reads the first member of `names`. -ENOENT: there is none. -EBADMSG: it is not a number in the range. */
static int read_number(const struct mf_model_scopes *scopes, const char *const *names, int64_t min,
                       int64_t max, struct mf_model *m, int64_t *ret, char why[MF_REASON_MAX])
{
    const char *name;
    const cJSON *item = find_member(scopes, names, &name);

    return item ? read_value(item, name, min, max, m, ret, why) : -ENOENT;
}

/* As read_number for a required number. */
static int need_number(const struct mf_model_scopes *scopes, const char *const *names, struct mf_model *m,
                       int32_t *ret, char why[MF_REASON_MAX])
{
    int64_t value;
    int r = read_number(scopes, names, 1, INT32_MAX, m, &value, why);

    if (r == -ENOENT)
        return refuse(
            why, *names,
            "a number, but it is missing under all its names; is this the config.json of an MoE model?");
    if (r == 0)
        *ret = (int32_t)value;
    return r;
}

/* ---- parts of a config ---- */

static bool has_experts(const cJSON *object)
{
    for (const char *const *name = experts; *name; name++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, *name);
        if (item && !cJSON_IsNull(item))
            return true;
    }
    return false;
}

/* Stores the path of parts to the object that has the experts, outermost first. Returns whether it found
 * one. */
static bool find_path(const cJSON *object, int depth, const cJSON *path[MF_MODEL_SCOPES], size_t *ret_n)
{
    path[depth] = object;
    *ret_n = (size_t)depth + 1;
    for (const char *const *part = parts; depth < DEPTH_MAX && *part; part++) {
        const cJSON *inner = mf_json_object(object, *part);
        if (inner && find_path(inner, depth + 1, path, ret_n))
            return true;
    }
    return has_experts(object);
}

static void find_scopes(const cJSON *config, struct mf_model_scopes *ret)
{
    const cJSON *path[MF_MODEL_SCOPES] = {config};
    size_t n = 1;

    if (!find_path(config, 0, path, &n)) {
        path[0] = config;
        n = 1;
    }
    ret->n = n;
    for (size_t i = 0; i < n; i++)
        ret->object[i] = path[n - 1 - i];
}

/* Names other models with experts inside the checkpoint, such as the talker of Qwen3-Omni. */
static void note_other_models(const cJSON *config, const struct mf_model_scopes *scopes, struct mf_model *m)
{
    const cJSON *part;

    cJSON_ArrayForEach (part, config) {
        const cJSON *path[MF_MODEL_SCOPES];
        bool read = false;
        size_t n = 1;

        for (size_t i = 0; i < scopes->n; i++)
            read = read || scopes->object[i] == part;
        if (!read && cJSON_IsObject(part) && find_path(part, 1, path, &n))
            add_note(m, "%.40s has experts of its own", part->string);
    }
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

/* Returns the text of an activation, which some configs wrap in an object: {"name": "silu"}. */
static const char *act_text(const struct mf_model_scopes *scopes, const char **ret_name)
{
    static const char *const names[] = {"hidden_act",          "hidden_activation", "mlp_hidden_act",
                                        "activation_function", "ffn_act_fn",        NULL};
    const cJSON *item = find_member(scopes, names, ret_name);
    const cJSON *name = cJSON_IsObject(item) ? cJSON_GetObjectItemCaseSensitive(item, "name") : item;

    return !item ? "silu" : cJSON_IsString(name) ? name->valuestring : "";
}

static int read_act(const struct mf_model_scopes *scopes, struct mf_model *m, char why[MF_REASON_MAX])
{
    const char *name = "hidden_act", *text = act_text(scopes, &name);
    struct mf_shape *s = &m->layer;
    double limit = 0, alpha = 0;
    size_t i = 0;

    while (i < MF_ARRAY_LEN(acts) && strcmp(acts[i].text, text) != 0)
        i++;
    if (i == MF_ARRAY_LEN(acts)) {
        mf_format(why, MF_REASON_MAX,
                  "%s '%.40s': expected silu, gelu, gelu_pytorch_tanh, swigluoai, situ or relu2", name, text);
        return -EBADMSG;
    }
    s->act_type = acts[i].act;
    s->use_g1u1 = !acts[i].no_up;
    (void)mf_json_value_double(find_one(scopes, "swiglu_limit"), &limit);
    if (limit > LIMIT_MAX)
        return refuse(why, "swiglu_limit", "at most 65536");
    if (limit > 0)
        s->act_limit = (float)limit;
    (void)mf_json_value_double(find_one(scopes, "swiglu_alpha"), &alpha);
    if (s->act_type == MF_ACT_SWIGLU && alpha > 0 && alpha <= LIMIT_MAX && fabs(alpha - ALPHA_DEFAULT) > 1e-6)
        s->act_alpha = (float)alpha;
    return 0;
}

/* Adds a note if some layers clamp the activation and others do not (Step-3.5-Flash: swiglu_limits). */
static void note_limits(const struct mf_model_scopes *scopes, struct mf_model *m)
{
    const cJSON *item;
    double limit = 0;
    int n = 0;

    cJSON_ArrayForEach (item, mf_model_array(scopes, "swiglu_limits")) {
        if (cJSON_IsNumber(item) && item->valuedouble > 0) {
            limit = item->valuedouble;
            n++;
        }
    }
    if (n > 0)
        add_note(m,
                 "swiglu_limits: %d layer%s clamp%s the activation, which is modelled without; for these "
                 "layers use "
                 "--act-type SiluStep --set form=limit:%g",
                 n, n == 1 ? "" : "s", n == 1 ? "s" : "", limit);
}

/* Reads the number of shared experts. The number is 0 if their width differs from that of the routed experts,
 * because experts of different widths cannot be fused. */
static int read_shared(const struct mf_model_scopes *scopes, struct mf_model *m, char why[MF_REASON_MAX])
{
    int64_t n = 0, width = 0, unused;
    int r = read_number(scopes, shared, 0, SHARED_MAX, m, &n, why);

    if (r < 0 && r != -ENOENT)
        return r;
    r = read_number(scopes, shared_width, 0, INT32_MAX, m, &width, why);
    if (r < 0 && r != -ENOENT)
        return r;
    if (width > 0)
        n = width % m->layer.inter_dim == 0 && width / m->layer.inter_dim <= SHARED_MAX
                ? width / m->layer.inter_dim
                : 0;
    if (read_number(scopes, latent, 1, INT32_MAX, m, &unused, why) == 0)
        n = 0; /* the shared experts read the model's hidden state, the routed ones a narrower one */
    m->shared = (int32_t)n;
    return 0;
}

/* Zero experts have no weights: a route to one adds the hidden state itself (LongCat-Flash). For the kernels
 * they are experts of another rank. */
static void read_zero_experts(const struct mf_model_scopes *scopes, struct mf_model *m)
{
    int64_t n = mf_model_number(scopes, "zero_expert_num");

    if (n > 0 && n + m->layer.expert <= UINT16_MAX) {
        m->layer.ep_experts = m->layer.expert + (int32_t)n;
        add_note(m,
                 "zero_expert_num %" PRId64
                 ": routes to zero experts count as routes to experts of other ranks; "
                 "adding the hidden state is not modelled",
                 n);
    }
}

static void read_dtype(const struct mf_model_scopes *scopes, struct mf_model *m)
{
    static const char *const names[] = {"torch_dtype", "dtype", NULL};
    const char *name;
    const cJSON *item = find_member(scopes, names, &name);
    const char *text = cJSON_IsString(item) ? item->valuestring : "bfloat16";

    if (strcmp(text, "float16") == 0)
        m->layer.dtype = MF_DTYPE_FP16;
    else if (strcmp(text, "bfloat16") != 0)
        add_note(m, "%s %.20s is modelled as bfloat16; --dtype changes it", name, text);
}

static int read_sizes(const struct mf_model_scopes *scopes, struct mf_model *m, char why[MF_REASON_MAX])
{
    struct mf_shape *s = &m->layer;
    int r;

    r = need_number(scopes, find_one(scopes, latent[0]) || find_one(scopes, latent[1]) ? latent : hidden, m,
                    &s->model_dim, why);
    if (r < 0 || (r = need_number(scopes, inter, m, &s->inter_dim, why)) < 0 ||
        (r = need_number(scopes, experts, m, &s->expert, why)) < 0 ||
        (r = need_number(scopes, routes, m, &s->topk, why)) < 0)
        return r;
    r = read_number(scopes, context, 1, CONTEXT_MAX, m, &m->context, why);
    return r == -ENOENT ? 0 : r;
}

static int read_layer(const struct mf_checkpoint_json *files, const cJSON *config, struct mf_model *m,
                      char why[MF_REASON_MAX])
{
    struct mf_shape *s = &m->layer;
    struct mf_model_scopes scopes = {.n = 0};
    const char *column, *expected;
    int r;

    *s = (struct mf_shape){.token = 1, .use_g1u1 = true, .dtype = MF_DTYPE_BF16};
    find_scopes(config, &scopes);
    if ((r = read_sizes(&scopes, m, why)) < 0 || (r = read_act(&scopes, m, why)) < 0 ||
        (r = read_shared(&scopes, m, why)) < 0)
        return r;
    read_dtype(&scopes, m);
    read_zero_experts(&scopes, m);
    note_limits(&scopes, m);
    note_other_models(config, &scopes, m);
    apply_type(mf_model_text(&scopes, "model_type"), m);
    if (s->act_type == MF_ACT_SWIGLU && s->act_limit == 7)
        s->act_limit = 0; /* 0 selects the default limit of the activation */
    mf_model_quant_read(files, &scopes, m);
    if (mf_shape_check(s, &column, &expected) < 0)
        return refuse(why, column, expected);
    return 0;
}

static void json_release(struct mf_checkpoint_json *files)
{
    for (int i = 0; i < MF_CHECKPOINT_N_; i++)
        cJSON_Delete(files->file[i]);
}

int mf_model_read(const struct mf_checkpoint_text *files, const char *name, struct mf_model *ret,
                  char why[MF_REASON_MAX])
{
    _cleanup_(json_release) struct mf_checkpoint_json json = {0};
    struct mf_model m = {0};

    for (int i = 0; i < MF_CHECKPOINT_N_; i++) {
        if (!files->text[i])
            continue;
        json.file[i] = mf_json_parse_python(files->text[i], files->len[i], MF_CHECKPOINT_FILE_MAX);
        if (!cJSON_IsObject(json.file[i])) {
            mf_format(why, MF_REASON_MAX, "%s: not a JSON object", mf_checkpoint_name((enum mf_checkpoint)i));
            return -EBADMSG;
        }
    }
    const cJSON *config =
        json.file[json.file[MF_CHECKPOINT_CONFIG] ? MF_CHECKPOINT_CONFIG : MF_CHECKPOINT_PARAMS];
    if (!config) {
        mf_format(why, MF_REASON_MAX, "the checkpoint has neither config.json nor params.json");
        return -EBADMSG;
    }
    mf_format(m.name, sizeof(m.name), "%s", name);
    mf_format(m.source, sizeof(m.source), "%s", name);
    int r = read_layer(&json, config, &m, why);
    if (r == 0)
        *ret = m;
    return r;
}
