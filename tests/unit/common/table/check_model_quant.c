/* common/table/model_quant.c and common/table/quant_method.c: where checkpoints say how their experts are
 * quantised. tests/data/checkpoints has whole checkpoints, without weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/model.h"
#include "support/mf_check.h"

static const char model[] =
    "\"hidden_size\": 4096, \"moe_intermediate_size\": 1536, \"num_experts\": 128, "
    "\"num_experts_per_tok\": 8, \"num_hidden_layers\": 8, \"first_k_dense_replace\": 1";

/* Reads a checkpoint with the two texts as members of config.json and as another file. */
static void read_texts(const char *members, enum mf_checkpoint other, const char *text, struct mf_model *m)
{
    char config[4096], why[MF_REASON_MAX] = "";
    struct mf_checkpoint_text files = {0};

    mf_format(config, sizeof(config), "{%s%s%s}", model, *members ? ", " : "", members);
    files.text[MF_CHECKPOINT_CONFIG] = config;
    files.len[MF_CHECKPOINT_CONFIG] = strlen(config);
    if (text) {
        files.text[other] = text;
        files.len[other] = strlen(text);
    }
    ck_assert_msg(mf_model_read(&files, "mine", m, why) == 0, "%s: %s", config, why);
}

/* Prints "bfloat16/int4 per_1x32", or the error. */
static const char *quant_of(const struct mf_model *m, char buf[512])
{
    mf_format(buf, 512, "%s/%s %s", strchr(mf_dtype_name(m->layer.q_dtype_a), '.') + 1,
              strchr(mf_dtype_name(m->layer.q_dtype_w), '.') + 1,
              strchr(mf_qtype_name(m->layer.q_type), '.') + 1);
    return buf;
}

#define BF16 "bfloat16/bfloat16 No"
#define FP4  "float4_e2m1fn_x2"
#define FN   "float8_e4m3fn"

/* Groups of compressed-tensors. */
#define CT(rest) "{\"quant_method\": \"compressed-tensors\", " rest "}"
#define NVFP4_GROUP                                                                         \
    "{\"weights\": {\"num_bits\": 4, \"type\": \"float\", \"strategy\": \"tensor_group\", " \
    "\"group_size\": 16}, \"input_activations\": {\"num_bits\": 4, \"type\": \"float\"}"
#define FP8_GROUP                                                                       \
    "{\"weights\": {\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"channel\"}, " \
    "\"input_activations\": {\"num_bits\": 8, \"type\": \"float\"}"
#define FP8_BLOCK                                                                           \
    "{\"weights\": {\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"block\", "        \
    "\"block_structure\": [128, 128]}, \"input_activations\": {\"num_bits\": 8, \"type\": " \
    "\"float\", \"strategy\": \"group\", \"group_size\": 128}"
#define INT4_GROUP(n)                                                              \
    "{\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"strategy\": \"group\", " \
    "\"group_size\": " #n ", \"symmetric\": true}, \"input_activations\": null"
#define TO(group, targets) group ", \"targets\": [" targets "]}"

/* clang-format off */
static const struct {
    const char *config; /* quantization_config of config.json */
    const char *quant;
    const char *source; /* part of quant_source */
} known[] = {
    {NULL, BF16, "no quantisation in any file"},
    /* fp8 of transformers */
    {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}", FN "/" FN " per_1x128",
     "config.json: quantization_config: weight_block_size [128,128]"},
    {"{\"quant_method\": \"fp8\", \"weight_block_size\": [1, 32]}", FN "/" FN " per_1x32", "[1,32]"},
    {"{\"quant_method\": \"fp8\"}", FN "/" FN " per_Tensor", "no weight_block_size"},
    {"{\"quant_method\": \"fp8\", \"modules_to_not_convert\": [\"lm_head\", \"model.layers.3.mlp.gate\"]}",
     FN "/" FN " per_Tensor", ""},
    {"{\"quant_method\": \"fp8\", \"ignored_layers\": [\"model.layers.7.mlp\"]}", FN "/" FN " per_Tensor",
     "; layers 7: not quantised"},
    {"{\"quant_method\": \"fp8\", \"modules_to_not_convert\": [\"experts\"]}", BF16,
     "modules_to_not_convert 'experts'"},
    {"{\"quant_method\": \"blockwise_int8\", \"weight_block_size\": [128, 128]}", "int8/int8 per_1x128", ""},
    /* methods whose name says everything */
    {"{\"quant_method\": \"mxfp4\", \"modules_to_not_convert\": [\"model.layers.*.self_attn\", "
     "\"model.layers.*.mlp.router\"]}", "bfloat16/" FP4 " per_1x32", "quant_method mxfp4"},
    {"{\"quant_method\": \"mxfp8\"}", FN "/" FN " per_1x32", ""},
    {"{\"quant_method\": \"mxfp8\", \"moe_quant_algo\": \"NVFP4\"}", FP4 "/" FP4 " per_1x16",
     "moe_quant_algo NVFP4"},
    {"{\"quant_method\": \"fbgemm_fp8\"}", FN "/" FN " per_Token", ""},
    {"{\"quant_method\": \"ptpc_fp8\"}", FN "/" FN " per_Token", ""},
    {"{\"quant_method\": \"w8a8_int8\"}", "int8/int8 per_Token", ""},
    /* compressed-tensors */
    {CT("\"config_groups\": {\"group_0\": " TO(FP8_GROUP, "\"Linear\"") "}"), FN "/" FN " per_Token",
     "group_0: weights num_bits 8 float, strategy channel"},
    {CT("\"config_groups\": {\"group_0\": " TO(FP8_BLOCK, "\"Linear\"") "}"), FN "/" FN " per_1x128", ""},
    {CT("\"config_groups\": {\"group_0\": " TO(NVFP4_GROUP, "\"Linear\"") "}"), FP4 "/" FP4 " per_1x16", ""},
    {CT("\"config_groups\": {\"group_0\": " TO(INT4_GROUP(32), "\"Linear\"") "}, "
        "\"ignore\": [\"lm_head\", \"re:.*self_attn.*\", \"re:.*shared_experts.*\", "
        "\"re:.*mlp\\\\.(gate|up|gate_up|down)_proj.*\"]"), "bfloat16/int4 per_1x32", ""},
    /* a target by name has priority over one by class */
    {CT("\"config_groups\": {\"a\": " TO(FP8_GROUP, "\"Linear\"") ", \"b\": "
        TO(NVFP4_GROUP, "\"re:.*mlp.experts.*\"") "}"), FP4 "/" FP4 " per_1x16", "b: weights num_bits 4"},
    {CT("\"config_groups\": {\"a\": " TO(FP8_GROUP, "\"re:.*self_attn.*\"") "}"), BF16,
     "config_groups have no target for the experts"},
    {CT("\"config_groups\": {\"a\": " TO(FP8_GROUP, "\"Linear\"") "}, \"ignore\": "
     "[\"re:.*experts.*\"]"), BF16,
     "ignore 're:.*experts.*'"},
    {CT("\"config_groups\": {\"a\": " TO(NVFP4_GROUP, "\"Linear\"") "}, "
        "\"ignore\": [\"re:^(?!.*\\\\.experts\\\\.).*\"]"), FP4 "/" FP4 " per_1x16", ""},
    /* modelopt in config.json */
    {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}", FP4 "/" FP4 " per_1x16", "quant_algo "
     "NVFP4"},
    {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"ignore\": [\"lm_head\", "
     "\"model.layers.2*\", \"*self_attn*\"]}", FP4 "/" FP4 " per_1x16", "; layers 2: not quantised"},
    {"{\"quant_algo\": \"FP8\"}", FN "/" FN " per_Tensor", ""},
    {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"MXFP8\"}", FN "/" FN " per_1x32", ""},
    {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8_PER_CHANNEL_PER_TOKEN\"}", FN "/" FN " "
     "per_Token",
     ""},
    {"{\"quant_method\": \"modelopt\", \"config_groups\": {\"group_0\": " TO(NVFP4_GROUP, "\"Linear\"") "}}",
     FP4 "/" FP4 " per_1x16", ""},
    {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {"
     "\"model.language_model.layers.1.self_attn.q_proj\": {\"quant_algo\": \"FP8\"}, "
     "\"model.language_model.layers.1.mlp.experts\": {\"quant_algo\": \"W4A16_NVFP4\", \"group_size\": 16}, "
     "\"model.language_model.layers.2.mlp.experts\": {\"quant_algo\": \"W4A16_NVFP4\", \"group_size\": 16}, "
     "\"model.language_model.layers.3.mlp.experts\": {\"quant_algo\": \"W4A16_NVFP4\", \"group_size\": 16}, "
     "\"model.language_model.layers.4.mlp.experts\": {\"quant_algo\": \"W4A16_NVFP4\", \"group_size\": 16}, "
     "\"model.language_model.layers.5.mlp.experts\": {\"quant_algo\": \"NVFP4\", \"group_size\": 16}, "
     "\"model.language_model.layers.6.mlp.experts\": {\"quant_algo\": \"NVFP4\", \"group_size\": 16}}}",
     "bfloat16/" FP4 " per_1x16",
     "quantized_layers: quant_algo W4A16_NVFP4, group_size 16; layers 5-6: float4_e2m1fn_x2/float4_e2m1fn_x2 "
     "per_1x16; layers 7: not quantised"},
    /* quark */
    {"{\"quant_method\": \"quark\", \"global_quant_config\": {"
     "\"weight\": {\"dtype\": \"fp4\", \"qscheme\": \"per_group\", \"group_size\": 32}, "
     "\"input_tensors\": {\"dtype\": \"fp4\", \"group_size\": 32}}, \"exclude\": [\"lm_head\", "
     "\"*self_attn*\"]}",
     FP4 "/" FP4 " per_1x32", "global_quant_config: weight dtype fp4, qscheme per_group, group_size 32"},
    {"{\"quant_method\": \"quark\", \"global_quant_config\": {"
     "\"weight\": {\"dtype\": \"fp4\", \"group_size\": 32}, \"input_tensors\": {\"dtype\": \"fp8_e4m3\"}}}",
     FN "/" FP4 " per_1x32", ""},
    {"{\"quant_method\": \"quark\", \"global_quant_config\": {"
     "\"weight\": {\"dtype\": \"fp8_e4m3\", \"qscheme\": \"per_channel\"}, "
     "\"input_tensors\": {\"dtype\": \"fp8_e4m3\"}}, \"layer_quant_config\": {\"*mlp.experts*\": {"
     "\"weight\": {\"dtype\": \"fp4\", \"group_size\": 32}, \"input_tensors\": {\"dtype\": \"fp4\"}}}}",
     FP4 "/" FP4 " per_1x32", "layer_quant_config: weight dtype fp4"},
    {"{\"quant_method\": \"quark\", \"global_quant_config\": {}, \"exclude\": []}", BF16,
     "global_quant_config is empty"},
    {"{\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": {\"dtype\": \"fp4\"}}, "
     "\"exclude\": [\"re:.*mlp.experts.*\"]}", BF16, "exclude 're:.*mlp.experts.*'"},
    /* AWQ, GPTQ, auto-round */
    {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"sym\": true}", "bfloat16/int4 per_1x32",
     "int, bits 4, group_size 32"},
    {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": -1, \"sym\": true}", "bfloat16/int4 "
     "per_Token",
     ""},
    {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, \"dynamic\": {"
     "\"-:.*mlp\\\\.gate\": {}, \"+:.*experts.*\": {\"bits\": 4, \"group_size\": 32}}}",
     "bfloat16/int4 per_1x32", ""},
    {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, \"dynamic\": {\"-:.*experts.*\": "
     "{}}}", BF16,
     "dynamic '-:.*experts.*'"},
    {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32, \"zero_point\": false}",
     "bfloat16/int4 per_1x32", ""},
    {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 128, \"zero_point\": true, "
     "\"modules_to_not_convert\": [\"mlp\"]}", BF16, "modules_to_not_convert 'mlp'"},
    {"{\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 32, \"data_type\": \"mx_fp\", "
     "\"act_bits\": 4, \"extra_config\": {\"model.layers.3.mlp.gate\": {\"bits\": 16}}}",
     FP4 "/" FP4 " per_1x32", ""},
    {"{\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 128, \"sym\": true, "
     "\"extra_config\": {\".*experts.*\": {\"bits\": 16}}}", BF16, ""},
};
/* clang-format on */

MF_TEST(reads_config, .rows = MF_ARRAY_LEN(known))
{
    char members[2400] = "", quant[512];
    struct mf_model m;

    if (known[_i].config)
        mf_format(members, sizeof(members), "\"quantization_config\": %s", known[_i].config);
    read_texts(members, MF_CHECKPOINT_CONFIG, NULL, &m);
    ck_assert_msg(!*m.quant_error, "%s", m.quant_error);
    ck_assert_str_eq(quant_of(&m, quant), known[_i].quant);
    ck_assert_msg(strstr(m.quant_source, known[_i].source) != NULL, "%s", m.quant_source);
}

/* clang-format off */
static const struct { const char *members, *quant; } by_layer[] = {
    /* DeepSeek-V4: the experts are fp4 unless expert_dtype is fp8 */
    {"\"model_type\": \"deepseek_v4\", \"quantization_config\": {\"quant_method\": \"fp8\", "
     "\"weight_block_size\": [128, 128]}", FN "/" FP4 " per_1x32"},
    {"\"model_type\": \"deepseek_v4\", \"expert_dtype\": \"fp8\", \"quantization_config\": "
     "{\"quant_method\": "
     "\"fp8\", \"weight_block_size\": [128, 128]}", FN "/" FN " per_1x128"},
    {"\"expert_dtype\": \"fp4\", \"quantization_config\": {\"quant_method\": \"fp8\"}", FN "/" FP4 " "
     "per_1x32"},
    /* other members, and the member of the language model */
    {"\"compression_config\": " CT("\"config_groups\": {\"g\": " TO(FP8_GROUP, "\"Linear\"") "}"),
     FN "/" FN " per_Token"},
    {"\"torch_dtype\": \"float16\"", "float16/float16 No"},
};
/* clang-format on */

MF_TEST(reads_members, .rows = MF_ARRAY_LEN(by_layer))
{
    char quant[512];
    struct mf_model m;

    read_texts(by_layer[_i].members, MF_CHECKPOINT_CONFIG, NULL, &m);
    ck_assert_msg(!*m.quant_error, "%s", m.quant_error);
    ck_assert_str_eq(quant_of(&m, quant), by_layer[_i].quant);
}

/* clang-format off */
static const struct {
    enum mf_checkpoint file;
    const char *text, *quant, *source;
} beside[] = {
    {MF_CHECKPOINT_HF_QUANT, "{\"quantization\": {\"quant_algo\": \"NVFP4\", \"group_size\": 16, "
     "\"exclude_modules\": [\"lm_head\", \"model.layers.0*\"]}}", FP4 "/" FP4 " per_1x16",
     "hf_quant_config.json: quantization: quant_algo NVFP4, group_size 16"},
    {MF_CHECKPOINT_HF_QUANT, "{\"quantization\": {\"quant_algo\": null, \"kv_cache_quant_algo\": "
     "\"FP8\"}}", BF16,
     "hf_quant_config.json: quantization: no quant_algo"},
    {MF_CHECKPOINT_QUANTIZE, "{\"bits\": 4, \"group_size\": 32, \"sym\": true}", "bfloat16/int4 per_1x32",
     "quantize_config.json: int, bits 4, group_size 32"},
    {MF_CHECKPOINT_QUANT, "{\"w_bit\": 4, \"q_group_size\": 32, \"zero_point\": false, \"version\": "
     "\"GEMM\"}",
     "bfloat16/int4 per_1x32", "quant_config.json: int, bits 4, group_size 32"},
    {MF_CHECKPOINT_PARAMS, "{\"quantization\": {\"qformat_weight\": \"fp8_e4m3\", \"qscheme_act\": "
     "\"TENSOR\"}}",
     FN "/" FN " per_Tensor", "params.json: quantization: qformat_weight fp8_e4m3"},
};
/* clang-format on */

/* The quantisation is in a file beside config.json. */
MF_TEST(reads_files, .rows = MF_ARRAY_LEN(beside))
{
    char quant[512];
    struct mf_model m;

    read_texts("", beside[_i].file, beside[_i].text, &m);
    ck_assert_msg(!*m.quant_error, "%s", m.quant_error);
    ck_assert_str_eq(quant_of(&m, quant), beside[_i].quant);
    ck_assert_msg(strstr(m.quant_source, beside[_i].source) != NULL, "%s", m.quant_source);
}

/* clang-format off */
static const struct { const char *config, *error; } unknown[] = {
    {"{\"quant_method\": \"aqlm\"}", "quantization_config: quant_method 'aqlm'"},
    {"{\"bits\": 4}", "quant_method ''"},
    {"{\"quant_method\": \"fp8\", \"weight_block_size\": [64, 64]}", "weight_block_size [64,64]"},
    {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128]}", "weight_block_size [128]"},
    {"{\"quant_method\": \"fp8\", \"modules_to_not_convert\": [\"re:(?i)experts\"]}",
     "modules_to_not_convert 're:(?i)experts'"},
    {"{\"quant_method\": \"fp8\", \"modules_to_not_convert\": [3]}", "modules_to_not_convert 'not a text'"},
    {"{\"quant_method\": \"compressed-tensors\"}", "no config_groups"},
    {CT("\"config_groups\": {\"g\": " TO(INT4_GROUP(128), "\"Linear\"") "}"),
     "g: weights num_bits 4 int, strategy group, group_size 128"},
    {CT("\"config_groups\": {\"g\": {\"weights\": {\"num_bits\": 6, \"type\": \"float\"}}}"), "num_bits 6"},
    {CT("\"config_groups\": {\"g\": {\"weights\": {\"num_bits\": 8, \"type\": \"float\"}}}"),
     "input_activations num_bits 0"},
    {CT("\"config_groups\": {\"g\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"strategy\": "
     "\"group\", "
        "\"group_size\": 32, \"symmetric\": false}}}"), "not symmetric"},
    {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"W4A8_AWQ\"}", "quant_algo W4A8_AWQ"},
    {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"group_size\": 32}",
     "quant_algo NVFP4, group_size 32"},
    {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\"}", "no quantized_layers"},
    {"{\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": {\"dtype\": \"mx9\"}}}",
     "global_quant_config: weight dtype mx9"},
    {"{\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": [{\"dtype\": \"fp8_e4m3\"}, "
     "{\"dtype\": \"int4\"}]}}", "weight is not one object"},
    {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 128, \"zero_point\": true}",
     "int, bits 4, group_size 128, zero_point true"},
    {"{\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": 128}", "int, bits 8, group_size 128"},
    {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"sym\": false}", "sym false"},
    /* different types in one layer, and in equally many layers */
    {CT("\"config_groups\": {\"a\": " TO(FP8_GROUP, "\"re:.*down_proj\"") ", \"b\": "
        TO(NVFP4_GROUP, "\"re:.*(gate|up)_proj\"") "}"),
     "gate and up are " FP4 "/" FP4 " per_1x16, but down is " FN "/" FN " per_Token"},
};
/* clang-format on */

/* What no tuned table can express, or what was not understood, is an error that names member and value. */
MF_TEST(unknown_is_an_error, .rows = MF_ARRAY_LEN(unknown))
{
    char members[2400], quant[512];
    struct mf_model m;

    mf_format(members, sizeof(members), "\"quantization_config\": %s", unknown[_i].config);
    read_texts(members, MF_CHECKPOINT_CONFIG, NULL, &m);
    ck_assert_msg(strstr(m.quant_error, unknown[_i].error) != NULL, "'%s' from %s", m.quant_error, members);
    ck_assert_msg(strstr(m.quant_error, "config.json: quantization_config: ") != NULL, "%s", m.quant_error);
    ck_assert_str_eq(quant_of(&m, quant), BF16);
}

/* Two files contradict each other. */
MF_TEST(contradiction_is_an_error)
{
    struct mf_model m;

    read_texts("\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\"}",
               MF_CHECKPOINT_HF_QUANT, "{\"quantization\": {\"quant_algo\": \"NVFP4\"}}", &m);
    ck_assert_str_eq(m.quant_error, "config.json: quantization_config: quant_algo FP8 contradicts "
                                    "hf_quant_config.json: quantization: quant_algo NVFP4");
    read_texts("\"quantization_config\": {\"quant_method\": \"modelopt\"}", MF_CHECKPOINT_HF_QUANT,
               "{\"quantization\": {\"quant_algo\": \"NVFP4\"}}", &m);
    ck_assert_str_eq(m.quant_error, "");
    ck_assert_int_eq(m.layer.q_type, MF_QTYPE_PER_1X16);
}

/* clang-format off */
static const struct { const char *index, *error; } tensors[] = {
    {"{\"weight_map\": {\"model.layers.1.mlp.experts.0.up_proj.weight\": \"a\", "
     "\"model.layers.1.self_attn.q_proj.weight_scale\": \"a\"}}", ""},
    {"{\"weight_map\": {\"model.layers.1.mlp.experts.0.up_proj.weight_scale_inv\": \"a\"}}",
     "model.safetensors.index.json: weight_map has model.layers.1.mlp.experts.0.up_proj.weight_scale_inv, "
     "but no file says how the experts are quantised"},
    {"{\"weight_map\": {\"model.layers.0.mlp.experts.gate_up_proj_blocks\": \"a\"}}",
     "has model.layers.0.mlp.experts.gate_up_proj_blocks"},
    {"{\"weight_map\": {\"model.layers.0.mlp.experts.0.up_proj.qweight\": \"a\"}}", "up_proj.qweight"},
    {"{}", ""},
};
/* clang-format on */

/* The experts' tensors have scales, but no file has a quantisation: not a silent bf16. */
MF_TEST(quantised_tensors, .rows = MF_ARRAY_LEN(tensors))
{
    struct mf_model m;

    read_texts("", MF_CHECKPOINT_INDEX, tensors[_i].index, &m);
    if (*tensors[_i].error)
        ck_assert_msg(strstr(m.quant_error, tensors[_i].error) != NULL, "%s", m.quant_error);
    else
        ck_assert_str_eq(m.quant_error, "");
    read_texts("\"quantization_config\": {\"quant_method\": \"fp8\"}", MF_CHECKPOINT_INDEX, tensors[_i].index,
               &m);
    ck_assert_str_eq(m.quant_error, "");
}

/* ---- whole checkpoints ---- */

/* clang-format off */
static const struct {
    const char *folder, *layer;
    int32_t shared;
    const char *source;
} checkpoints[] = {
    {"nvfp4", "1,7168,2048,256,8,ActivationType.Silu,torch.bfloat16,torch." FP4 ",torch." FP4
     ",QuantType.per_1x16,1,0", 1, "hf_quant_config.json: quantization: quant_algo NVFP4, group_size 16"},
    {"gemma4", "1,2816,704,128,8,ActivationType.GeluTanh,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
     "QuantType.No,1,0", 0, "no quantisation in any file"},
    {"nemotron3_super",
     "1,1024,2688,512,22,ActivationType.Relu2,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
     "QuantType.No,0,0", 0, "no quantisation in any file"},
    {"hunyuan_a13b", "1,4096,3072,64,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
     "QuantType.No,1,0", 1, "no quantisation in any file"},
    {"dbrx", "1,6144,10752,16,4,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
     "QuantType.No,1,0", 0, "no quantisation in any file"},
    {"mistral_large_3", "1,7168,4096,128,4,ActivationType.Silu,torch.bfloat16,torch." FN ",torch." FN
     ",QuantType.per_1x128,1,0", 1, "params.json: quantization_config: FP8_BLOCK: weights num_bits 8 float"},
};
/* clang-format on */

static char *read_file(const char *folder, const char *name, size_t *ret_len)
{
    char path[1024];

    mf_format(path, sizeof(path), "%s/checkpoints/%s/%s", MF_TEST_DATA, folder, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return NULL;
    char *text = calloc(1, 65536);
    ck_assert_ptr_nonnull(text);
    *ret_len = fread(text, 1, 65536, f);
    ck_assert_int_eq(fclose(f), 0);
    return text;
}

MF_TEST(reads_checkpoints, .rows = MF_ARRAY_LEN(checkpoints))
{
    struct mf_checkpoint_text files = {0};
    char *text[MF_CHECKPOINT_N_], why[MF_REASON_MAX] = "", layer[MF_SHAPE_TEXT_MAX];
    struct mf_model m;

    for (int i = 0; i < MF_CHECKPOINT_N_; i++)
        files.text[i] = text[i] =
            read_file(checkpoints[_i].folder, mf_checkpoint_name((enum mf_checkpoint)i), &files.len[i]);
    ck_assert_msg(mf_model_read(&files, "mine", &m, why) == 0, "%s", why);
    ck_assert_str_eq(m.quant_error, "");
    mf_shape_print(&m.layer, layer);
    ck_assert_str_eq(layer, checkpoints[_i].layer);
    ck_assert_int_eq(m.shared, checkpoints[_i].shared);
    ck_assert_msg(strstr(m.quant_source, checkpoints[_i].source) != NULL, "%s", m.quant_source);
    for (int i = 0; i < MF_CHECKPOINT_N_; i++)
        free(text[i]);
}

int main(void)
{
    return mf_check_main(NULL);
}
