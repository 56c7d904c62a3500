/* Reads how a quantisation config treats the experts: one function per writer of checkpoints. The functions
 * follow the loaders of transformers and vLLM (vllm/model_executor/layers/quantization). */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/model_internal.h"

#define FP8   MF_DTYPE_FP8_E4M3FN
#define FP4   MF_DTYPE_FP4X2
#define INT8  MF_DTYPE_INT8
#define INT4  MF_DTYPE_INT4
#define BF16  MF_DTYPE_BF16
#define PLAIN MF_DTYPE_N_ /* activations are not quantised */

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = "";
    return mf_json_text(object, key, &text) == 0 ? text : "";
}

/* Reads the first member that the object has. 0: it has none of them; -1: not a number. */
static int64_t number_of(const cJSON *object, const char *key, const char *other)
{
    int64_t value = 0;
    int r = mf_json_i64(object, key, INT32_MIN, INT32_MAX, &value);

    if (r == -ENOENT && other)
        r = mf_json_i64(object, other, INT32_MIN, INT32_MAX, &value);
    return r == -EINVAL ? -1 : value;
}

/* ---- answers ---- */

static void answer(struct mf_quant_answer *ret, enum mf_quant_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void answer(struct mf_quant_answer *ret, enum mf_quant_kind kind, const char *format, ...)
{
    va_list args;

    *ret = (struct mf_quant_answer){.kind = kind};
    va_start(args, format);
    (void)vsnprintf(ret->from, sizeof(ret->from), format, args);
    va_end(args);
}

static void known(struct mf_quant_answer *ret, enum mf_qtype type, enum mf_dtype a, enum mf_dtype w)
{
    ret->kind = MF_QUANT_KNOWN;
    ret->quant = (struct mf_quant){type, a, w};
}

/* A number format with its scales, as most configs describe it. */
enum grain { TENSOR, CHANNEL, GROUP, BLOCK };
struct scheme {
    enum mf_dtype w, a; /* a is PLAIN if activations are not quantised */
    enum grain grain;   /* of the weights' scales */
    int64_t group;      /* elements per scale along K for GROUP and BLOCK */
};

/* Schemes that the columns of a tuned table can express. */
/* clang-format off */
static const struct { struct scheme scheme; struct mf_quant quant; } schemes[] = {
    {{FP8,  FP8,   TENSOR,  0},   {MF_QTYPE_PER_TENSOR, FP8,  FP8}},
    {{FP8,  FP8,   CHANNEL, 0},   {MF_QTYPE_PER_TOKEN,  FP8,  FP8}},
    {{FP8,  FP8,   BLOCK,   128}, {MF_QTYPE_PER_1X128,  FP8,  FP8}},
    {{FP8,  FP8,   GROUP,   32},  {MF_QTYPE_PER_1X32,   FP8,  FP8}},
    {{FP8,  FP8,   BLOCK,   32},  {MF_QTYPE_PER_1X32,   FP8,  FP8}}, /* blocks of [1, 32] only */
    {{INT8, INT8,  TENSOR,  0},   {MF_QTYPE_PER_TENSOR, INT8, INT8}},
    {{INT8, INT8,  CHANNEL, 0},   {MF_QTYPE_PER_TOKEN,  INT8, INT8}},
    {{INT8, INT8,  BLOCK,   128}, {MF_QTYPE_PER_1X128,  INT8, INT8}},
    {{FP4,  FP4,   GROUP,   16},  {MF_QTYPE_PER_1X16,   FP4,  FP4}},
    {{FP4,  PLAIN, GROUP,   16},  {MF_QTYPE_PER_1X16,   BF16, FP4}},
    {{FP4,  FP4,   GROUP,   32},  {MF_QTYPE_PER_1X32,   FP4,  FP4}},
    {{FP4,  FP8,   GROUP,   32},  {MF_QTYPE_PER_1X32,   FP8,  FP4}},
    {{FP4,  PLAIN, GROUP,   32},  {MF_QTYPE_PER_1X32,   BF16, FP4}},
    {{INT4, PLAIN, GROUP,   32},  {MF_QTYPE_PER_1X32,   BF16, INT4}},
    {{INT4, FP8,   GROUP,   32},  {MF_QTYPE_PER_1X32,   FP8,  INT4}},
    {{INT4, PLAIN, CHANNEL, 0},   {MF_QTYPE_PER_TOKEN,  BF16, INT4}},
    {{INT4, FP8,   CHANNEL, 0},   {MF_QTYPE_PER_TOKEN,  FP8,  INT4}},
};
/* clang-format on */

/* Sets kind and quant; `from` stays. */
static void apply_scheme(const struct scheme *s, struct mf_quant_answer *ret)
{
    ret->kind = MF_QUANT_UNKNOWN;
    for (size_t i = 0; i < MF_ARRAY_LEN(schemes); i++) {
        const struct scheme *t = &schemes[i].scheme;
        if (t->w == s->w && t->a == s->a && t->grain == s->grain &&
            (t->grain < GROUP || t->group == s->group))
            known(ret, schemes[i].quant.type, schemes[i].quant.a, schemes[i].quant.w);
    }
}

/* Sets *ret for a number of bits. False: no such type. */
static bool dtype_of_bits(int64_t bits, bool integer, enum mf_dtype *ret)
{
    *ret = bits == 8 ? (integer ? INT8 : FP8) : (integer ? INT4 : FP4);
    return bits == 8 || bits == 4;
}

/* ---- lists of modules ---- */

/* Answers PLAIN if an entry of the list `key` excludes the module. Returns whether it answered. */
static bool is_excluded(const struct mf_quant_section *s, const char *key,
                        const struct mf_expert_module *module, struct mf_quant_answer *ret)
{
    const cJSON *entry, *list = mf_json_array(s->object, key);

    cJSON_ArrayForEach (entry, list) {
        int r = cJSON_IsString(entry) ? mf_module_matches(entry->valuestring, module) : -EBADMSG;

        if (r == 0)
            continue;
        answer(ret, r > 0 ? MF_QUANT_PLAIN : MF_QUANT_UNKNOWN, "%s '%s'", key,
               cJSON_IsString(entry) ? entry->valuestring : "not a text");
        return true;
    }
    return false;
}

/* Finds the member of an object of patterns that matches the module. NULL: none, or *ret is answered. */
static const cJSON *find_pattern(const cJSON *patterns, const char *key,
                                 const struct mf_expert_module *module, struct mf_quant_answer *ret)
{
    const cJSON *item;

    cJSON_ArrayForEach (item, patterns) {
        int r = mf_module_matches(item->string, module);

        if (r > 0)
            return item;
        if (r < 0) {
            answer(ret, MF_QUANT_UNKNOWN, "%s '%s'", key, item->string);
            return NULL;
        }
    }
    return NULL;
}

/* Algorithms of modelopt. */
/* clang-format off */
static const struct { const char *algo; int64_t group; struct mf_quant quant; } algos[] = {
    {"NVFP4",                     16, {MF_QTYPE_PER_1X16,   FP4,  FP4}},
    {"W4A16_NVFP4",               16, {MF_QTYPE_PER_1X16,   BF16, FP4}},
    {"FP8",                       0,  {MF_QTYPE_PER_TENSOR, FP8,  FP8}},
    {"FP8_PER_CHANNEL_PER_TOKEN", 0,  {MF_QTYPE_PER_TOKEN,  FP8,  FP8}},
    {"MXFP8",                     32, {MF_QTYPE_PER_1X32,   FP8,  FP8}},
    {"W4A8_MXFP4_FP8",            32, {MF_QTYPE_PER_1X32,   FP8,  FP4}},
};
/* clang-format on */

/* {"quant_algo": "NVFP4", "group_size": 16} */
static void read_algo(const cJSON *object, const char *key, const char *where, struct mf_quant_answer *ret)
{
    const char *algo = text_of(object, key);
    int64_t group = number_of(object, "group_size", NULL);
    char size[40] = "";

    if (group != 0)
        mf_format(size, sizeof(size), ", group_size %" PRId64, group);
    answer(ret, MF_QUANT_UNKNOWN, "%s%s %s%s", where, key, *algo ? algo : "none", size);
    for (size_t i = 0; i < MF_ARRAY_LEN(algos); i++) {
        if (strcmp(algos[i].algo, algo) == 0 && (group == 0 || group == algos[i].group))
            known(ret, algos[i].quant.type, algos[i].quant.a, algos[i].quant.w);
    }
}

/* ---- methods ---- */

typedef void (*method_fn)(const struct mf_quant_section *s, const struct mf_expert_module *module,
                          struct mf_quant_answer *ret);

/* The type of the experts can differ from that of the linear layers. DeepSeek-V4's experts are fp4 unless
 * expert_dtype is fp8 (vLLM, deepseek_v4/quant_config.py). */
static bool has_fp4_experts(const struct mf_model_scopes *scopes)
{
    const char *dtype = mf_model_text(scopes, "expert_dtype");

    return strcmp(dtype, "fp4") == 0 ||
           (!*dtype && strncmp(mf_model_text(scopes, "model_type"), "deepseek_v4", 11) == 0);
}

/* Reads weight_block_size, as in [128, 128]. Sets the grain to BLOCK, or to GROUP for [1, N]. */
static bool read_block(const cJSON *block, struct scheme *scheme)
{
    int64_t rows = 0, columns = 0;

    if (cJSON_GetArraySize(block) != 2 ||
        mf_json_value_i64(cJSON_GetArrayItem(block, 0), 1, 4096, &rows) < 0 ||
        mf_json_value_i64(cJSON_GetArrayItem(block, 1), 1, 4096, &columns) < 0)
        return false;
    scheme->grain = rows == 1 ? GROUP : BLOCK;
    scheme->group = columns;
    return rows == 1 || rows == columns;
}

/* {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]} */
static void read_blocks(const struct mf_quant_section *s, const struct mf_expert_module *module,
                        enum mf_dtype dtype, struct mf_quant_answer *ret)
{
    const cJSON *block = mf_json_array(s->object, "weight_block_size");
    struct scheme scheme = {dtype, dtype, TENSOR, 0};

    if (is_excluded(s, "modules_to_not_convert", module, ret) ||
        is_excluded(s, "ignored_layers", module, ret))
        return;
    if (has_fp4_experts(s->scopes)) {
        answer(ret, MF_QUANT_KNOWN, "%s", "expert_dtype fp4");
        known(ret, MF_QTYPE_PER_1X32, FP8, FP4);
        return;
    }
    if (!block) {
        answer(ret, MF_QUANT_KNOWN, "no weight_block_size");
        apply_scheme(&scheme, ret);
        return;
    }
    bool valid = read_block(block, &scheme);
    _cleanup_(mf_freep) char *text = mf_json_print(block);
    answer(ret, MF_QUANT_UNKNOWN, "weight_block_size %s", text ? text : "");
    if (valid)
        apply_scheme(&scheme, ret);
}

static void read_fp8(const struct mf_quant_section *s, const struct mf_expert_module *module,
                     struct mf_quant_answer *ret)
{
    read_blocks(s, module, FP8, ret);
}

static void read_int8_blocks(const struct mf_quant_section *s, const struct mf_expert_module *module,
                             struct mf_quant_answer *ret)
{
    read_blocks(s, module, INT8, ret);
}

/* Methods whose name says everything. */
/* clang-format off */
static const struct { const char *method; struct mf_quant quant; } fixed[] = {
    {"mxfp4",      {MF_QTYPE_PER_1X32,  BF16, FP4}},
    {"gpt_oss_mxfp4", {MF_QTYPE_PER_1X32, BF16, FP4}},
    {"mxfp8",      {MF_QTYPE_PER_1X32,  FP8,  FP8}},
    {"fbgemm_fp8", {MF_QTYPE_PER_TOKEN, FP8,  FP8}},
    {"ptpc_fp8",   {MF_QTYPE_PER_TOKEN, FP8,  FP8}},
    {"w8a8_fp8",   {MF_QTYPE_PER_TOKEN, FP8,  FP8}},
    {"w8a8_int8",  {MF_QTYPE_PER_TOKEN, INT8, INT8}},
};
/* clang-format on */

static void read_fixed(const struct mf_quant_section *s, const struct mf_expert_module *module,
                       struct mf_quant_answer *ret)
{
    const char *method = text_of(s->object, "quant_method");

    if (is_excluded(s, "modules_to_not_convert", module, ret) ||
        is_excluded(s, "ignored_layers", module, ret))
        return;
    if (*text_of(s->object, "moe_quant_algo")) { /* MiniMax-M3.1: the experts differ from the other layers */
        read_algo(s->object, "moe_quant_algo", "", ret);
        return;
    }
    answer(ret, MF_QUANT_UNKNOWN, "quant_method %s", method);
    for (size_t i = 0; i < MF_ARRAY_LEN(fixed); i++) {
        if (strcmp(fixed[i].method, method) == 0)
            known(ret, fixed[i].quant.type, fixed[i].quant.a, fixed[i].quant.w);
    }
}

/* ---- compressed-tensors ---- */

static bool read_args(const cJSON *args, enum mf_dtype *ret)
{
    *ret = PLAIN;
    return !args ||
           dtype_of_bits(number_of(args, "num_bits", NULL), strcmp(text_of(args, "type"), "int") == 0, ret);
}

/* {"weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
 *  "input_activations": {"num_bits": 4, "type": "float"}} */
static void read_group(const cJSON *group, struct mf_quant_answer *ret)
{
    const cJSON *weights = mf_json_object(group, "weights"),
                *input = mf_json_object(group, "input_activations");
    const char *strategy = text_of(weights, "strategy"), *type = text_of(weights, "type");
    int64_t size = number_of(weights, "group_size", NULL), bits = number_of(weights, "num_bits", NULL);
    struct scheme s = {.grain = size > 0 ? GROUP : TENSOR, .group = size};
    bool symmetric = true, valid = weights && read_args(weights, &s.w) && read_args(input, &s.a);

    (void)mf_json_bool(weights, "symmetric", &symmetric);
    if (strcmp(strategy, "channel") == 0)
        s.grain = CHANNEL;
    if (strcmp(strategy, "block") == 0 && !read_block(mf_json_array(weights, "block_structure"), &s))
        valid = false;
    answer(ret, MF_QUANT_UNKNOWN,
           "%s: weights num_bits %" PRId64 " %s, strategy %s, group_size %" PRId64
           "%s; input_activations num_bits %" PRId64,
           group->string ? group->string : "group", bits, type, *strategy ? strategy : "none", size,
           symmetric ? "" : ", not symmetric", number_of(input, "num_bits", NULL));
    if (valid && symmetric)
        apply_scheme(&s, ret);
}

/* True if a target of the group matches: by name (classes == false) or by class. */
static int has_target(const cJSON *group, const struct mf_expert_module *module, bool classes)
{
    static const char *const names[] = {"Linear", "FusedMoE"};
    const cJSON *target, *targets = mf_json_array(group, "targets");

    if (!targets)
        return classes;
    cJSON_ArrayForEach (target, targets) {
        const char *text = cJSON_IsString(target) ? target->valuestring : "";

        for (size_t i = 0; i < MF_ARRAY_LEN(names); i++) {
            if (classes && strcmp(text, names[i]) == 0)
                return 1;
        }
        int r = classes || !*text ? 0 : mf_module_matches(text, module);
        if (r != 0)
            return r;
    }
    return 0;
}

/* A target that names the module has priority over one that names its class. */
static void read_groups(const struct mf_quant_section *s, const struct mf_expert_module *module,
                        struct mf_quant_answer *ret)
{
    const cJSON *group, *groups = mf_json_object(s->object, "config_groups");

    for (int classes = 0; classes < 2; classes++) {
        cJSON_ArrayForEach (group, groups) {
            int r = has_target(group, module, classes);

            if (r < 0) {
                answer(ret, MF_QUANT_UNKNOWN, "config_groups.%s.targets", group->string);
                return;
            }
            if (r > 0) {
                read_group(group, ret);
                return;
            }
        }
    }
    answer(ret, groups && groups->child ? MF_QUANT_PLAIN : MF_QUANT_UNKNOWN, "%s",
           groups ? "config_groups have no target for the experts" : "no config_groups");
}

static void read_compressed(const struct mf_quant_section *s, const struct mf_expert_module *module,
                            struct mf_quant_answer *ret)
{
    if (!is_excluded(s, "ignore", module, ret))
        read_groups(s, module, ret);
}

/* ---- modelopt ---- */

static void read_modelopt(const struct mf_quant_section *s, const struct mf_expert_module *module,
                          struct mf_quant_answer *ret)
{
    static const char *const lists[] = {"exclude_modules", "ignore", "modules_to_not_convert"};
    const cJSON *layers = mf_json_object(s->object, "quantized_layers"), *layer;
    const char *algo = text_of(s->object, "quant_algo");

    for (size_t i = 0; i < MF_ARRAY_LEN(lists); i++) {
        if (is_excluded(s, lists[i], module, ret))
            return;
    }
    if (strcmp(algo, "MIXED_PRECISION") != 0) {
        if (*algo)
            read_algo(s->object, "quant_algo", "", ret);
        else if (mf_json_object(s->object, "config_groups"))
            read_groups(s, module, ret);
        else
            answer(ret, MF_QUANT_SILENT, "no quant_algo");
        return;
    }
    *ret = (struct mf_quant_answer){0};
    layer = find_pattern(layers, "quantized_layers", module, ret);
    if (layer)
        read_algo(layer, "quant_algo", "quantized_layers: ", ret);
    else if (ret->kind == MF_QUANT_SILENT)
        answer(ret, layers ? MF_QUANT_PLAIN : MF_QUANT_UNKNOWN, "quant_algo MIXED_PRECISION: %s",
               layers ? "quantized_layers has no experts" : "no quantized_layers");
}

/* ---- quark ---- */

/* clang-format off */
static const struct { const char *text; enum mf_dtype dtype; int64_t group; } quark_dtypes[] = {
    {"fp8_e4m3", FP8,  0},
    {"fp4",      FP4,  0},
    {"mxfp4",    FP4,  32},
    {"int8",     INT8, 0},
    {"int4",     INT4, 0},
};
/* clang-format on */

/* Reads a dtype such as fp4, and its group size if the dtype implies one. */
static bool quark_dtype(const cJSON *tensor, enum mf_dtype *ret, int64_t *group)
{
    const char *text = text_of(tensor, "dtype");

    *ret = PLAIN;
    if (!tensor)
        return true;
    for (size_t i = 0; i < MF_ARRAY_LEN(quark_dtypes); i++) {
        if (strcmp(quark_dtypes[i].text, text) == 0) {
            *ret = quark_dtypes[i].dtype;
            *group =
                quark_dtypes[i].group > 0 ? quark_dtypes[i].group : number_of(tensor, "group_size", NULL);
            return true;
        }
    }
    return false;
}

/* {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}, "input_tensors": {"dtype": "fp4"}}
 * */
static void read_quark_tensors(const cJSON *config, const char *where, struct mf_quant_answer *ret)
{
    const cJSON *weight = mf_json_object(config, "weight"), *input = mf_json_object(config, "input_tensors");
    const char *scheme = text_of(weight, "qscheme");
    struct scheme s = {.grain = TENSOR};
    int64_t unused = 0;
    bool valid = weight && quark_dtype(weight, &s.w, &s.group) && quark_dtype(input, &s.a, &unused);

    if (strcmp(scheme, "per_channel") == 0)
        s.grain = CHANNEL;
    else if (strcmp(scheme, "per_block") == 0)
        s.grain = BLOCK;
    else if (strcmp(scheme, "per_group") == 0 || s.group > 0)
        s.grain = GROUP;
    if (weight)
        answer(ret, MF_QUANT_UNKNOWN,
               "%s: weight dtype %s, qscheme %s, group_size %" PRId64 "; input_tensors dtype %s", where,
               text_of(weight, "dtype"), *scheme ? scheme : "none", s.group,
               input ? text_of(input, "dtype") : "none");
    else
        answer(ret, MF_QUANT_UNKNOWN, "%s: weight is not one object", where);
    if (valid)
        apply_scheme(&s, ret);
}

static void read_quark(const struct mf_quant_section *s, const struct mf_expert_module *module,
                       struct mf_quant_answer *ret)
{
    static const char *const members[] = {"layer_quant_config", "layer_type_quant_config"};
    const cJSON *all = mf_json_object(s->object, "global_quant_config"), *layer;
    const cJSON *types = mf_json_object(s->object, members[1]);

    if (is_excluded(s, "exclude", module, ret))
        return;
    *ret = (struct mf_quant_answer){0};
    layer = find_pattern(mf_json_object(s->object, members[0]), members[0], module, ret);
    if (layer)
        read_quark_tensors(layer, members[0], ret);
    else if (ret->kind != MF_QUANT_SILENT)
        return;
    else if (mf_json_object(types, "Linear"))
        read_quark_tensors(mf_json_object(types, "Linear"), members[1], ret);
    else if (all && !all->child)
        answer(ret, MF_QUANT_PLAIN, "global_quant_config is empty");
    else
        read_quark_tensors(all, "global_quant_config", ret);
}

/* ---- AWQ, GPTQ and auto-round ---- */

/* {"bits": 4, "group_size": 32, "sym": true}; AutoAWQ's own files say w_bit and q_group_size. */
static void read_bits(const struct mf_quant_section *s, const cJSON *own, struct mf_quant_answer *ret)
{
    const cJSON *o = own && cJSON_HasObjectItem(own, "bits") ? own : s->object;
    const cJSON *sized = own && cJSON_HasObjectItem(own, "group_size") ? own : s->object;
    int64_t bits = number_of(o, "bits", "w_bit"), group = number_of(sized, "group_size", "q_group_size");
    int64_t act_bits = number_of(s->object, "act_bits", NULL);
    const char *type = text_of(s->object, "data_type");
    bool zero = false, sym = true, integer = !*type || strcmp(type, "int") == 0;
    struct scheme scheme = {.a = PLAIN, .grain = group > 0 ? GROUP : CHANNEL, .group = group};

    (void)mf_json_bool(s->object, "zero_point", &zero);
    (void)mf_json_bool(s->object, "sym", &sym);
    answer(ret, MF_QUANT_UNKNOWN, "%s%s, bits %" PRId64 ", group_size %" PRId64 "%s%s%s",
           *type ? "data_type " : "int", type, bits, group, zero ? ", zero_point true" : "",
           sym ? "" : ", sym false", act_bits > 0 && act_bits < 16 ? ", quantised activations" : "");
    if (bits == 16) {
        ret->kind = MF_QUANT_PLAIN;
        return;
    }
    bool valid = !zero && sym && dtype_of_bits(bits, integer, &scheme.w) &&
                 (integer || strncmp(type, "mx_fp", 5) == 0 || strncmp(type, "nv_fp", 5) == 0);
    if (valid && act_bits > 0 && act_bits < 16)
        valid = dtype_of_bits(act_bits, integer, &scheme.a);
    if (valid)
        apply_scheme(&scheme, ret);
}

static void read_awq(const struct mf_quant_section *s, const struct mf_expert_module *module,
                     struct mf_quant_answer *ret)
{
    if (!is_excluded(s, "modules_to_not_convert", module, ret))
        read_bits(s, NULL, ret);
}

/* GPTQModel: "dynamic": {"-:REGEX": {}, "+:REGEX": {"bits": 8}}; the first match decides. */
static void read_gptq(const struct mf_quant_section *s, const struct mf_expert_module *module,
                      struct mf_quant_answer *ret)
{
    const cJSON *rule, *rules = mf_json_object(s->object, "dynamic");

    if (is_excluded(s, "modules_in_block_to_not_quantize", module, ret))
        return;
    cJSON_ArrayForEach (rule, rules) {
        const char *regex =
            rule->string +
            (strncmp(rule->string, "-:", 2) == 0 || strncmp(rule->string, "+:", 2) == 0 ? 2 : 0);
        int r = mf_module_matches_regex(regex, module);

        if (r == 0)
            continue;
        if (r < 0 || rule->string[0] == '-')
            answer(ret, r < 0 ? MF_QUANT_UNKNOWN : MF_QUANT_PLAIN, "dynamic '%s'", rule->string);
        else
            read_bits(s, rule, ret);
        return;
    }
    read_bits(s, NULL, ret);
}

/* auto-round: "extra_config": {"model.layers.0.mlp.experts": {"bits": 16}, ".*mlp\\.gate.*": …} */
static void read_auto_round(const struct mf_quant_section *s, const struct mf_expert_module *module,
                            struct mf_quant_answer *ret)
{
    const cJSON *item;

    cJSON_ArrayForEach (item, mf_json_object(s->object, "extra_config")) {
        int r = strpbrk(item->string, "*\\[(^") ? mf_module_matches_regex(item->string, module)
                                                : mf_module_matches(item->string, module);
        if (r < 0) {
            answer(ret, MF_QUANT_UNKNOWN, "extra_config '%s'", item->string);
            return;
        }
        if (r > 0) {
            read_bits(s, item, ret);
            return;
        }
    }
    read_bits(s, NULL, ret);
}

/* Mistral's params.json: {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}, as in vLLM's
 * transformers_utils/configs/mistral.py */
static void read_mistral(const struct mf_quant_section *s, const struct mf_expert_module *module,
                         struct mf_quant_answer *ret)
{
    const char *weight = text_of(s->object, "qformat_weight"), *act = text_of(s->object, "qscheme_act");

    (void)module;
    answer(ret, MF_QUANT_UNKNOWN, "qformat_weight %s, qscheme_act %s", weight, *act ? act : "none");
    if (strcmp(weight, "fp8_e4m3") == 0 &&
        (!*act || strcmp(act, "TENSOR") == 0 || strcmp(act, "NO_SCALES") == 0))
        known(ret, MF_QTYPE_PER_TENSOR, FP8, FP8);
}

/* clang-format off */
static const struct { const char *method; method_fn read; } methods[] = {
    {"fp8",                read_fp8},
    {"deepseek_v4_fp8",    read_fp8},
    {"blockwise_int8",     read_int8_blocks},
    {"compressed-tensors", read_compressed},
    {"compressed_tensors", read_compressed},
    {"quark",              read_quark},
    {"modelopt",           read_modelopt},
    {"modelopt_fp4",       read_modelopt},
    {"modelopt_mixed",     read_modelopt},
    {"modelopt_mxfp8",     read_modelopt},
    {"awq",                read_awq},
    {"awq_marlin",         read_awq},
    {"gptq",               read_gptq},
    {"gptq_marlin",        read_gptq},
    {"gptqmodel",          read_gptq},
    {"auto-round",         read_auto_round},
};
/* clang-format on */

static method_fn find_method(const char *method)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(methods); i++) {
        if (strcmp(methods[i].method, method) == 0)
            return methods[i].read;
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(fixed); i++) {
        if (strcmp(fixed[i].method, method) == 0)
            return read_fixed;
    }
    return NULL;
}

/* Objects without quant_method: modelopt, compressed-tensors and Mistral have members of their own. */
static method_fn guess_method(const cJSON *object)
{
    if (cJSON_HasObjectItem(object, "quant_algo"))
        return read_modelopt;
    if (cJSON_HasObjectItem(object, "config_groups"))
        return read_compressed;
    return cJSON_HasObjectItem(object, "qformat_weight") ? read_mistral : NULL;
}

void mf_quant_of_module(const struct mf_quant_section *s, const struct mf_expert_module *module,
                        struct mf_quant_answer *ret)
{
    const char *method = text_of(s->object, "quant_method");

    if (!*method)
        method = s->method;
    method_fn read = *method ? find_method(method) : guess_method(s->object);
    if (read)
        read(s, module, ret);
    else
        answer(ret, MF_QUANT_UNKNOWN, "quant_method '%s'", method);
}
