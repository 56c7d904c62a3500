/* common/table/model.c and common/table/model_config.c: the shipped models, their names and layers per
 * rank, and the dialects of config.json. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/model.h"
#include "support/mf_check.h"
#include "support/shipped.h"

/* ---- the shipped list ---- */

/* Each model has a public source, can be divided over the ranks of a node, and is found by its name and by
 * its Hugging Face id. */
MF_TEST(shipped_models)
{
    _cleanup_(mf_freep) struct mf_model *models = NULL;
    size_t n = 0;

    ck_assert_int_eq(mf_model_list(&models, &n), 0);
    ck_assert_uint_ge(n, 25);
    for (size_t i = 0; i < n; i++) {
        const struct mf_model *m = &models[i];
        char why[MF_REASON_MAX] = "";
        struct mf_model found;
        struct mf_shape layer;

        ck_assert_msg(i == 0 || strcmp(models[i - 1].name, m->name) != 0, "duplicate name %s", m->name);
        ck_assert_msg(strncmp(m->source, "https://", 8) == 0, "%s: %s", m->name, m->source);
        ck_assert_int_eq(mf_model_find(m->name, &found), 0);
        ck_assert_msg(mf_shape_equal(&found.layer, &m->layer), "%s: another model has this name", m->name);
        ck_assert_msg(mf_model_find(m->hub, &found) == 0 && strcmp(found.hub, m->hub) == 0, "%s", m->hub);
        for (int ranks = 1; ranks <= 8; ranks *= 2) {
            struct mf_model_split split = {.tp = ranks, .ep = 1, .fused_shared = m->shared};

            if (m->layer.q_type == MF_QTYPE_PER_1X128 && m->layer.inter_dim / ranks % 128 != 0)
                continue; /* see rejected_splits */
            ck_assert_msg(mf_model_layer(m, &split, &layer, why) == 0, "%s", why);
            ck_assert_int_eq(layer.inter_dim * ranks, m->layer.inter_dim);
            ck_assert_int_eq(layer.expert - m->layer.expert, m->shared);
            ck_assert_int_eq(layer.topk - m->layer.topk, m->shared);
            split = (struct mf_model_split){.tp = 1, .ep = ranks};
            ck_assert_msg(mf_model_layer(m, &split, &layer, why) == 0, "%s", why);
            ck_assert_int_eq(layer.expert * ranks, m->layer.expert);
            ck_assert_int_eq(layer.ep_experts, m->layer.ep_experts > 0 ? m->layer.ep_experts
                                               : ranks > 1             ? m->layer.expert
                                                                       : 0);
        }
    }
}

/* clang-format off */
static const struct { const char *text, *found; } names[] = {
    /* the most deployed models of 2026 */
    {"Qwen3.6-35B-A3B",                            "qwen3.6-35b-a3b"},
    {"Kimi-K2.5",                                  "kimi-k2.5"},
    {"Kimi-K3",                                    "kimi-k3"},
    {"GLM-5.2",                                    "glm-5.2"},
    {"DeepSeek-V3.2",                              "deepseek-v3.2"},
    {"DeepSeek-V4-Flash",                          "deepseek-v4-flash"},
    {"DeepSeek-V4-Pro",                            "deepseek-v4-pro"},
    {"MiniMax-M3",                                 "minimax-m3"},
    {"gemma-4-26B-A4B-it",                         "gemma-4-26b-a4b"},
    {"Qwen3-Coder-480B-A35B-Instruct",             "qwen3-coder-480b-a35b"},
    {"Qwen3-VL-235B-A22B-Instruct",                "qwen3-vl-235b-a22b"},
    {"MiMo-V2.5-Pro",                              "mimo-v2.5-pro"},
    {"Step-3.5-Flash",                             "step-3.5-flash"},
    {"NVIDIA-Nemotron-3-Super-120B-A12B-BF16",     "nemotron-3-super"},
    {"LongCat-Flash-Chat",                         "longcat-flash"},
    {"Mistral-Large-3-675B-Instruct-2512",         "mistral-large-3"},
    {"Hunyuan-A13B-Instruct",                      "hunyuan-a13b"},
    {"DeepSeek-R1",                                "deepseek-r1"},
    {"gpt-oss-120b",                               "gpt-oss-120b"},
    {"Qwen3.5-397B-A17B",                          "qwen3.5-397b-a17b"},
    {"MiniMax-M2.5",                               "minimax-m2.5"},
    {"qwen3-coder-480b-a35b-fp8",                  "qwen3-coder-480b-a35b-fp8"},
    {"Qwen3-Coder-480B-A35B-Instruct-FP8",         "qwen3-coder-480b-a35b-fp8"},
    {"Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",    "qwen3-coder-480b-a35b-fp8"},
    {"mirror/qwen3-coder-480b-a35b-instruct-fp8",  "qwen3-coder-480b-a35b-fp8"},
    {"DEEPSEEK-V3",                                "deepseek-v3"},
    {"/models/DeepSeek-V3",                        NULL}, /* a path of files */
    {"DeepSeek-V",                                 NULL},
    {"",                                           NULL},
};
/* clang-format on */

/* A name is the list's or the hub's, in any case, and with any organisation. */
MF_TEST(finds_names, .rows = MF_ARRAY_LEN(names))
{
    struct mf_model m;

    ck_assert_int_eq(mf_model_find(names[_i].text, &m), names[_i].found ? 0 : -ENOENT);
    if (names[_i].found)
        ck_assert_str_eq(m.name, names[_i].found);
}

/* clang-format off */
static const struct { const char *text, *similar; } misspelt[] = {
    {"deepseek-v33",             "deepseek-v3"},
    {"deepseek-ai/DeepSeekV3",   "deepseek-v3"},
    {"Qwen3-30B-A3B-FB8",        "qwen3-30b-a3b-fp8"},
    {"my-own-model-with-a-name", NULL},
    {"",                         NULL},
};
/* clang-format on */

MF_TEST(suggests_names, .rows = MF_ARRAY_LEN(misspelt))
{
    struct mf_model m;

    ck_assert_int_eq(mf_model_similar(misspelt[_i].text, &m), misspelt[_i].similar ? 0 : -ENOENT);
    if (misspelt[_i].similar)
        ck_assert_str_eq(m.name, misspelt[_i].similar);
}

/* clang-format off */
static const struct {
    const char *name;
    struct mf_model_split split;
    const char *file; /* name of a file in tests/data/aiter that has rows for this layer */
    /* form of the layer, which AITER's tables cannot express; NULL if the layer has no form */
    const char *form;
} layers[] = {
    {"deepseek-v3",          {8, 1, 1, "gfx950"}, "a8w8_blockscale_tuned_fmoe_ds_v3.csv", NULL},
    {"deepseek-v3",          {4, 1, 0, "gfx942"}, "a8w8_blockscale_tuned_fmoe_ds_v3.csv", NULL},
    {"deepseek-v3",          {1, 8, 1, "gfx942"}, "a8w8_blockscale_tuned_fmoe_ds_v3.csv", "ep:0/257"},
    {"deepseek-r1-mxfp4",    {8, 1, 1, "gfx950"}, "dsv3_fp4_tuned_fmoe.csv", NULL},
    {"deepseek-r1-mxfp4",    {4, 1, 0, "gfx950"}, "dsv3_fp4_tuned_fmoe.csv", NULL},
    {"glm-5-fp8",            {8, 1, 1, "gfx950"}, "a8w8_blockscale_tuned_fmoe_glm5.csv", NULL},
    {"glm-5-fp8",            {8, 1, 1, "gfx942"}, "a8w8_blockscale_tuned_fmoe_glm5_1.csv", NULL},
    {"kimi-k2-thinking",     {8, 1, 1, "gfx950"}, "kimik2_i4_tuned_fmoe.csv", NULL},
    {"kimi-k2.5",            {8, 1, 1, "gfx950"}, "kimik2_i4_tuned_fmoe.csv", NULL},
    {"kimi-k3",              {6, 1, 0, "gfx950"}, "kimik3_fp4_tuned_fmoe.csv", NULL},
    {"minimax-m2.5",         {2, 1, 0, "gfx950"}, "a8w8_blockscale_tuned_fmoe_minimax-m2_5.csv", NULL},
    {"minimax-m2.5",         {1, 4, 0, "gfx950"}, "a8w8_blockscale_tuned_fmoe_minimax-m2_5.csv", "ep:0/256"},
    {"qwen3-235b-a22b",      {4, 1, 0, "gfx942"}, "qwen3_235b_bf16_tuned_fmoe.csv", NULL},
    {"qwen3-235b-a22b-fp8",  {4, 1, 0, "gfx950"}, "a8w8_blockscale_tuned_fmoe_qwen3_235b.csv", NULL},
    {"qwen3-next-80b-a3b-fp8", {4, 1, 1, "gfx950"}, "qwen3next_80b_fp8_tuned_fmoe.csv", NULL},
};
/* clang-format on */

/* The layer of each rank equals a layer in a published tuned table. */
MF_TEST(layers_match_published_tables, .rows = MF_ARRAY_LEN(layers))
{
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(layers[_i].file);
    char why[MF_REASON_MAX] = "", form[MF_SHAPE_FORM_MAX] = "", text[MF_SHAPE_TEXT_MAX];
    struct mf_model m;
    struct mf_shape layer;
    const char *unused;

    ck_assert_int_eq(mf_model_find(layers[_i].name, &m), 0);
    ck_assert_msg(mf_model_layer(&m, &layers[_i].split, &layer, why) == 0, "%s", why);
    ck_assert_int_eq(mf_shape_get(&layer, MF_SHAPE_FORM, form, sizeof(form)), 0);
    ck_assert_str_eq(form, layers[_i].form ? layers[_i].form : "");
    ck_assert_int_eq(mf_shape_set(&layer, MF_SHAPE_FORM, "", &unused), 0);
    for (size_t i = 0; i < t->n_rows; i++) {
        if (mf_shape_same_layer_model(&t->rows[i].shape, &layer))
            return;
    }
    mf_shape_print_layer_model(&layer, text);
    ck_abort_msg("%s has no row for %s", layers[_i].file, text);
}

/* clang-format off */
static const struct {
    const char *name;
    struct mf_model_split split;
    const char *why;
} rejected[] = {
    {"deepseek-v3",  {3, 1, 0, NULL},  "tp: inter_dim 2048 of deepseek-v3 cannot be divided over 3 ranks"},
    {"deepseek-v3",  {1, 7, 0, NULL},  "ep: expert 256 of deepseek-v3 cannot be divided over 7 ranks"},
    {"deepseek-v3",  {0, 1, 0, NULL},  "tp:"},
    {"deepseek-v3",  {1, 1, 2, NULL},  "deepseek-v3 has 1 shared expert of the size of a routed one, not 2"},
    {"minimax-m2.5", {1, 1, 1, NULL},  "minimax-m2.5 has 0 shared experts"},
    {"qwen3-coder-480b-a35b-fp8", {8, 1, 0, NULL},
     "inter_dim 320 is not a multiple of 128, so that a block of 128 rows of w1 would hold the end of gate "
     "and the beginning of up; tp values that work: 1, 2, 4"},
};
/* clang-format on */

MF_TEST(rejected_splits, .rows = MF_ARRAY_LEN(rejected))
{
    char why[MF_REASON_MAX] = "";
    struct mf_model m;
    struct mf_shape layer;

    ck_assert_int_eq(mf_model_find(rejected[_i].name, &m), 0);
    ck_assert_int_eq(mf_model_layer(&m, &rejected[_i].split, &layer, why), -EINVAL);
    ck_assert_msg(strstr(why, rejected[_i].why) != NULL, "%s", why);
}

#define LIST_HEADER                                                                                       \
    "name,hub,model_dim,inter_dim,expert,topk,shared,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1," \
    "doweight_stage1,"                                                                                    \
    "form,context,source\n"

/* clang-format off */
static const struct { const char *list, *why; } bad_lists[] = {
    {"", "the list is empty"},
    {LIST_HEADER "a,o/a,64,64,8,2,0,Silu,bfloat16,bfloat16,bfloat16,No,1,0,,1024,\n", "line 2: source"},
    {LIST_HEADER "a b,o/a,64,64,8,2,0,Silu,bfloat16,bfloat16,bfloat16,No,1,0,,1024,x\n", "line 2: name"},
    {LIST_HEADER "a,o/a,64,64,8,9,0,Silu,bfloat16,bfloat16,bfloat16,No,1,0,,1024,x\n", "line 2: topk"},
    {LIST_HEADER "a,o/a,64,0,8,2,0,Silu,bfloat16,bfloat16,bfloat16,No,1,0,,1024,x\n", "line 2: inter_dim"},
    {LIST_HEADER "a,o/a,64,64,8,2,-1,Silu,bfloat16,bfloat16,bfloat16,No,1,0,,1024,x\n", "line 2: shared"},
    {LIST_HEADER "a,o/a,64,64,8,2,0,Silu,bfloat16,bfloat16,bfloat16,No,1,0,b3,1024,x\n", "line 2: form"},
    {LIST_HEADER "a,a,64,64,8,2,0,Silu,bfloat16,bfloat16,bfloat16,No,1,0,,1024,x\n", "line 2: hub"},
    {"name,hub,source\na,o/a,x\n", "line 2: shared"},
};
/* clang-format on */

MF_TEST(rejected_lists, .rows = MF_ARRAY_LEN(bad_lists))
{
    _cleanup_(mf_freep) struct mf_model *models = NULL;
    char why[MF_REASON_MAX] = "";
    size_t n;

    ck_assert_int_eq(mf_model_list_read(bad_lists[_i].list, strlen(bad_lists[_i].list), &models, &n, why),
                     -EBADMSG);
    ck_assert_msg(strstr(why, bad_lists[_i].why) != NULL, "%s", why);
}

/* ---- config.json ---- */

static int config_read(const char *config, struct mf_model *ret, char why[MF_REASON_MAX])
{
    const struct mf_checkpoint_text files = {.text = {[MF_CHECKPOINT_CONFIG] = config},
                                             .len = {[MF_CHECKPOINT_CONFIG] = strlen(config)}};
    return mf_model_read(&files, "mine", ret, why);
}

#define SIZES "\"hidden_size\": 4096, \"moe_intermediate_size\": 1536, \"intermediate_size\": 12288"
#define BASE  SIZES ", \"num_experts\": 128, \"num_experts_per_tok\": 8"
#define LAYER(act, a, w, q, dw) \
    "1,4096,1536,128,8,ActivationType." act ",torch.bfloat16," a "," w ",QuantType." q ",1," dw
#define BF16  "torch.bfloat16"
#define FN    "torch.float8_e4m3fn"
#define FP4   "torch.float4_e2m1fn_x2"
#define PLAIN LAYER("Silu", BF16, BF16, "No", "0")

/* clang-format off */
static const struct {
    const char *config, *layer;
    int32_t shared;
    int64_t context;
} configs[] = {
    /* names of the sizes */
    {"{" BASE ", \"hidden_act\": \"silu\", \"max_position_embeddings\": 40960}", PLAIN, 0, 40960},
    {"{" SIZES ", \"n_routed_experts\": 128, \"num_experts_per_tok\": 8, \"n_shared_experts\": 1}",
     PLAIN, 1, 0},
    {"{\"hidden_size\": 4096, \"intermediate_size\": 1536, \"num_local_experts\": 128, "
     "\"num_experts_per_tok\": 8}", PLAIN, 0, 0},
    {"{" SIZES ", \"moe_num_experts\": 128, \"moe_k\": 8, \"moe_num_shared_experts\": 2}", PLAIN, 2, 0},
    {"{" BASE ", \"shared_expert_intermediate_size\": 1536}", PLAIN, 1, 0},
    {"{" BASE ", \"shared_expert_intermediate_size\": 1000}", PLAIN, 0, 0},
    /* Kimi-K3: the hidden size of the routed experts is half of the model's, so the shared experts have
     * another size */
    {"{\"hidden_size\": 8192, \"routed_expert_hidden_size\": 4096, \"moe_intermediate_size\": 1536, "
     "\"num_experts\": 128, \"num_experts_per_token\": 8, \"num_shared_experts\": 2, "
     "\"hidden_act\": \"situ\"}",
     LAYER("Situv2", BF16, BF16, "No", "0"), 0, 0},
    {"{\"vision_config\": {\"hidden_size\": 1}, \"hidden_size\": 2, \"text_config\": {" BASE "}}",
     PLAIN, 0, 0},
    /* settings that follow from the model type */
    {"{\"model_type\": \"llama4_text\", " BASE "}", LAYER("Silu", BF16, BF16, "No", "1"), 1, 0},
    {"{\"model_type\": \"gpt_oss\", " BASE
     ", \"swiglu_limit\": 7.0, \"quantization_config\": {\"quant_method\": \"mxfp4\"}}",
     LAYER("Swiglu", BF16, FP4, "per_1x32", "0") ",b1+b2+gate_up:interleaved", 0, 0},
    {"{" BASE ", \"hidden_act\": \"gelu_pytorch_tanh\"}", LAYER("GeluTanh", BF16, BF16, "No", "0"), 0, 0},
    {"{" BASE
     ", \"swiglu_limit\": 10.0, \"expert_dtype\": \"fp4\", "
     "\"quantization_config\": {\"quant_method\": \"fp8\"}}",
     LAYER("Silu", FN, FP4, "per_1x32", "0") ",limit:10", 0, 0},
    /* an activation in an object; sizes in the parent of the layer's member (DBRX) */
    {"{\"d_model\": 4096, \"ffn_config\": {\"ffn_act_fn\": {\"name\": \"silu\"}, "
     "\"ffn_hidden_size\": 1536, \"moe_num_experts\": 128, \"moe_top_k\": 8}}", PLAIN, 0, 0},
    {"{\"thinker_config\": {\"text_config\": {" BASE "}}, \"audio_config\": {\"hidden_size\": 1}}",
     PLAIN, 0, 0},
    /* a list with one value per layer; 0 for dense layers */
    {"{\"hidden_size\": 4096, \"moe_intermediate_size\": [1536, 1536], \"num_experts\": [0, 128], "
     "\"moe_topk\": [8, 8], \"num_shared_expert\": [1, 1]}", PLAIN, 1, 0},
    {"{\"hidden_size\": 4096, \"moe_intermediate_size\": 1536, \"num_experts\": 128, "
     "\"top_k_experts\": 8, \"time_step_limit\": [0.0, Infinity, -Infinity], \"x\": NaN}", PLAIN, 0, 0},
    /* Nemotron-3: a latent width, squared ReLU, no up projection; the shared expert reads the full width */
    {"{\"hidden_size\": 8192, \"moe_latent_size\": 4096, \"moe_intermediate_size\": 1536, "
     "\"n_routed_experts\": 128, \"num_experts_per_tok\": 8, \"n_shared_experts\": 1, "
     "\"moe_shared_expert_intermediate_size\": 3072, \"mlp_hidden_act\": \"relu2\"}",
     "1,4096,1536,128,8,ActivationType.Relu2,torch.bfloat16," BF16 "," BF16 ",QuantType.No,0,0", 0, 0},
    /* LongCat-Flash: zero experts are experts without weights */
    {"{" SIZES ", \"n_routed_experts\": 128, \"moe_topk\": 8, \"zero_expert_num\": 64}",
     PLAIN ",ep:0/192", 0, 0},
    {"{" BASE ", \"hidden_act\": \"swigluoai\", \"swiglu_alpha\": 1.702, \"swiglu_limit\": 7.0}",
     LAYER("Swiglu", BF16, BF16, "No", "0"), 0, 0},
    {"{" BASE ", \"hidden_act\": \"swigluoai\", \"swiglu_alpha\": 1.5}",
     LAYER("Swiglu", BF16, BF16, "No", "0") ",alpha:1.5", 0, 0},
    {"{" BASE ", \"dtype\": \"float16\"}",
     "1,4096,1536,128,8,ActivationType.Silu,torch.float16,torch.float16,torch.float16,QuantType.No,1,0", 0,
     0},
    {"{" BASE ", \"share_expert_dim\": 1536}", PLAIN, 1, 0},
};
/* clang-format on */

MF_TEST(read_configs, .rows = MF_ARRAY_LEN(configs))
{
    struct mf_shape expected;
    struct mf_model m;
    char why[MF_REASON_MAX] = "", text[MF_SHAPE_TEXT_MAX];

    ck_assert_msg(mf_shape_parse(configs[_i].layer, &expected) == 0, "%s", configs[_i].layer);
    ck_assert_msg(config_read(configs[_i].config, &m, why) == 0, "%s: %s", configs[_i].config, why);
    mf_shape_print(&m.layer, text);
    ck_assert_msg(mf_shape_equal(&m.layer, &expected), "%s gives %s", configs[_i].config, text);
    ck_assert_int_eq(m.shared, configs[_i].shared);
    ck_assert_int_eq(m.context, configs[_i].context);
    ck_assert_str_eq(m.name, "mine");
    ck_assert_str_eq(m.quant_error, "");
}

/* clang-format off */
static const struct { const char *config, *why; } bad_configs[] = {
    {"", "not a JSON object"},
    {"[1]", "not a JSON object"},
    {"{}", "hidden_size: expected a number, but it is missing"},
    {"{\"hidden_size\": 4096}", "moe_intermediate_size: expected a number, but it is missing"},
    {"{\"hidden_size\": 4096, \"intermediate_size\": 11008}",
     "n_routed_experts: expected a number, but it is missing"}, /* a config of a dense model */
    {"{" SIZES ", \"num_experts\": [], \"num_experts_per_tok\": 8}",
     "num_experts: expected a number in"},
    {"{" SIZES ", \"num_experts\": [\"all\"], \"num_experts_per_tok\": 8}",
     "num_experts: expected a number in"},
    {"{" SIZES ", \"num_experts\": 128}", "num_experts_per_tok: expected a number, but it is missing"},
    {"{" SIZES ", \"num_experts\": 4, \"num_experts_per_tok\": 8}", "topk"},
    {"{" BASE ", \"hidden_act\": \"relu\"}", "hidden_act 'relu': expected silu"},
    {"{" BASE ", \"hidden_act\": {}}", "hidden_act '': expected silu"},
    {"{" BASE ", \"swiglu_limit\": 1e300}", "swiglu_limit"},
    {"{" SIZES ", \"num_experts\": 1e12, \"num_experts_per_tok\": 8}", "num_experts"},
};
/* clang-format on */

MF_TEST(rejected_configs, .rows = MF_ARRAY_LEN(bad_configs))
{
    struct mf_model m;
    char why[MF_REASON_MAX] = "";

    ck_assert_int_eq(config_read(bad_configs[_i].config, &m, why), -EBADMSG);
    ck_assert_msg(strstr(why, bad_configs[_i].why) != NULL, "%s: %s", bad_configs[_i].config, why);
}

/* clang-format off */
static const struct { const char *members, *note; } notes[] = {
    {"\"a\": 1", ""},
    {"\"moe_intermediate_size\": [1536, 512]", "moe_intermediate_size has several values, of which only "
     "1536"},
    {"\"zero_expert_num\": 256", "zero_expert_num 256: routes to zero experts count as routes to"},
    {"\"swiglu_limits\": [0, 7.0, null, 7.0]", "swiglu_limits: 2 layers clamp the activation, which is "
     "modelled "
     "without; for these layers use --act-type SiluStep --set form=limit:7"},
    {"\"talker_config\": {\"text_config\": {\"num_experts\": 16}}", "talker_config has experts of its own"},
    {"\"torch_dtype\": \"float32\"", "torch_dtype float32 is modelled as bfloat16; --dtype changes it"},
};
/* clang-format on */

/* Members that change the layer beyond what a shape can express are named. */
MF_TEST(names_what_is_not_modelled, .rows = MF_ARRAY_LEN(notes))
{
    char config[1024], why[MF_REASON_MAX] = "";
    struct mf_model m;

    mf_format(config, sizeof(config),
              "{%s, \"hidden_size\": 4096, \"moe_intermediate_size\": 1536, \"num_experts\": 128, "
              "\"num_experts_per_tok\": 8}",
              notes[_i].members);
    ck_assert_msg(config_read(config, &m, why) == 0, "%s", why);
    if (*notes[_i].note)
        ck_assert_msg(strstr(m.not_modelled, notes[_i].note) != NULL, "%s", m.not_modelled);
    else
        ck_assert_str_eq(m.not_modelled, "");
}

int main(void)
{
    return mf_check_main(NULL);
}
