/* common/table/triton/triton_key.c: names of the files that vLLM and SGLang look up. The expected names are
 * files of vLLM 0.33.0 (vllm/model_executor/layers/fused_moe/configs/) and SGLang 0.5.23
 * (python/sglang/srt/layers/moe/moe_runner/triton_utils/configs/). */
#include "common/table/model.h"
#include "common/table/triton/triton_key.h"
#include "support/mf_check.h"

#define VLLM   MF_FRAMEWORK_VLLM
#define SGLANG MF_FRAMEWORK_SGLANG
#define H200   "NVIDIA H200"
#define MI300X "AMD Instinct MI300X"
#define MI350X "AMD Instinct MI350X"

/* clang-format off */
static const struct {
    enum mf_framework framework;
    const char *model;
    int tp, ep, fused_shared;
    const char *device, *path;
} files[] = {
    {VLLM, "mixtral-8x7b",         2, 1, 0, H200, "E=8,N=7168,device_name=NVIDIA_H200.json"},
    {VLLM, "mixtral-8x22b",        4, 1, 0, MI300X, "E=8,N=4096,device_name=AMD_Instinct_MI300X.json"},
    {VLLM, "deepseek-v3",          8, 1, 0, H200,
     "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"},
    {VLLM, "deepseek-v3",          8, 1, 0, MI300X,
     "E=256,N=256,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128,128].json"},
    {VLLM, "deepseek-v3",          1, 8, 0, H200,
     "E=32,N=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"},
    {VLLM, "kimi-k2",             16, 1, 0, H200,
     "E=384,N=128,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"},
    {VLLM, "kimi-k2-thinking",     8, 1, 0, MI350X,
     "E=384,N=256,device_name=AMD_Instinct_MI350X,dtype=int4_w4a16.json"},
    {VLLM, "qwen3-30b-a3b",        1, 1, 0, "NVIDIA H200 NVL", "E=128,N=768,device_name=NVIDIA_H200.json"},
    {VLLM, "qwen3-235b-a22b-fp8",  4, 1, 0, H200,
     "E=128,N=384,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"},
    {VLLM, "qwen3-coder-480b-a35b-fp8", 1, 8, 0, "NVIDIA H20-3e",
     "E=20,N=2560,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,block_shape=[128,128].json"},
    {VLLM, "glm-4.7-fp8",          8, 1, 0, H200, "E=160,N=192,device_name=NVIDIA_H200,dtype=fp8_w8a8.json"},
    {VLLM, "qwen3-next-80b-a3b",   2, 1, 0, H200, "E=512,N=256,device_name=NVIDIA_H200.json"},
    {SGLANG, "mixtral-8x7b",       2, 1, 0, H200,
     "configs/triton_3_1_0/E=8,N=7168,device_name=NVIDIA_H200.json"},
    {SGLANG, "qwen3-30b-a3b",      4, 1, 0, H200,
     "configs/triton_3_2_0/E=128,N=192,device_name=NVIDIA_H200.json"},
    {SGLANG, "qwen3-30b-a3b",      1, 1, 0, H200,
     "configs/triton_3_6_0/E=128,N=768,device_name=NVIDIA_H200.json"},
    {SGLANG, "qwen3-235b-a22b-fp8", 4, 1, 0, H200,
     "configs/triton_3_2_0/E=128,N=384,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"},
    {SGLANG, "deepseek-v3",        8, 1, 1, H200,
     "configs/triton_3_5_1/E=257,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"},
    {SGLANG, "deepseek-v3",        8, 1, 0, H200,
     "configs/triton_3_1_0/E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"},
    {SGLANG, "kimi-k2",           16, 1, 1, H200,
     "configs/triton_3_3_1/E=385,N=128,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"},
    {SGLANG, "kimi-k2-thinking",   4, 1, 0, MI350X,
     "configs/triton_3_4_0/E=384,N=256,device_name=AMD_Instinct_MI350X,dtype=int4_w4a16.json"},
    {SGLANG, "glm-4.7-fp8",        8, 1, 1, H200,
     "configs/triton_3_5_1/E=161,N=192,device_name=NVIDIA_H200,dtype=fp8_w8a8,per_channel_quant=True.json"},
    {SGLANG, "glm-4.7-fp8",        1, 4, 0, H200,
     "configs/triton_3_5_1/E=40,N=1536,device_name=NVIDIA_H200,dtype=fp8_w8a8,per_channel_quant=True.json"},
    {SGLANG, "glm-4.7",            1, 8, 0, H200,
     "configs/triton_3_5_1/E=20,N=1536,device_name=NVIDIA_H200.json"},
    {SGLANG, "gemma-4-26b-a4b",    1, 1, 0, H200,
     "configs/triton_3_6_0/E=128,N=704,device_name=NVIDIA_H200.json"},
};
/* clang-format on */

/* Returns the version in a path of SGLang, such as "3.6.0". */
static const char *version_in(const char *path, char buf[MF_TRITON_VERSION_MAX])
{
    int a = 0, b = 0, c = 0;
    (void)sscanf(path, "configs/triton_%d_%d_%d/", &a, &b, &c);
    snprintf(buf, MF_TRITON_VERSION_MAX, "%d.%d.%d", a, b, c);
    return buf;
}

MF_TEST(names_files_as_the_frameworks, .rows = MF_ARRAY_LEN(files))
{
    struct mf_model model;
    struct mf_shape layer;
    struct mf_triton_key key, parsed;
    char why[MF_REASON_MAX] = "", version[MF_TRITON_VERSION_MAX], path[MF_TRITON_NAME_MAX];
    const struct mf_model_split split = {
        .tp = files[_i].tp, .ep = files[_i].ep, .fused_shared = files[_i].fused_shared};
    ck_assert_int_eq(mf_model_find(files[_i].model, &model), 0);
    ck_assert_msg(mf_model_layer(&model, &split, &layer, why) == 0, "%s", why);
    ck_assert_int_eq(mf_triton_key(files[_i].framework, &layer, files[_i].device, &key, why), 0);
    mf_triton_key_path(files[_i].framework, &key, version_in(files[_i].path, version), path);
    ck_assert_str_eq(path, files[_i].path);
    ck_assert_int_eq(mf_triton_key_parse(path, &parsed), 0);
    ck_assert_uint_eq(mf_triton_key_differences(&key, &parsed), 0);
}

#define SHAPE(e, n, a, w, q) \
    "1,4096," n "," e ",2,ActivationType.Silu,torch.bfloat16,torch." a ",torch." w ",QuantType." q ",1,0"
/* Formats that no built-in model has. NULL: the framework reads no file. */
/* clang-format off */
static const struct {
    const char *shape, *vllm, *sglang;
} formats[] = {
    {SHAPE("8", "3584", "float8_e4m3fn", "float8_e4m3fn", "per_Tensor"),
     "E=8,N=3584,device_name=NVIDIA_H200,dtype=fp8_w8a8.json",
     "E=8,N=3584,device_name=NVIDIA_H200,dtype=fp8_w8a8.json"},
    {SHAPE("16", "3072", "bfloat16", "int8", "per_Token"),
     "E=16,N=3072,device_name=NVIDIA_H200,dtype=int8_w8a16.json",
     "E=16,N=3072,device_name=NVIDIA_H200,dtype=int8_w8a16.json"},
    {SHAPE("256", "128", "int8", "int8", "per_Token"), "E=256,N=128,device_name=NVIDIA_H200.json",
     "E=256,N=128,device_name=NVIDIA_H200,dtype=int8_w8a8,per_channel_quant=True.json"},
    {SHAPE("256", "128", "int8", "int8", "per_1x128"),
     "E=256,N=128,device_name=NVIDIA_H200,block_shape=[128,128].json",
     "E=256,N=128,device_name=NVIDIA_H200,dtype=int8_w8a8,block_shape=[128, 128].json"},
    {SHAPE("8", "512", "bfloat16", "float8_e4m3fn", "per_Tensor"),
     "E=8,N=512,device_name=NVIDIA_H200,dtype=fp8_w8a16.json", NULL},
    {SHAPE("8", "512", "bfloat16", "int4", "per_1x128"),
     "E=8,N=512,device_name=NVIDIA_H200,dtype=int4_w4a16.json",
     "E=8,N=256,device_name=NVIDIA_H200,dtype=int4_w4a16.json"},
    {SHAPE("8", "512", "bfloat16", "float4_e2m1fn_x2", "per_1x32"), NULL, NULL},
    {SHAPE("8", "512", "float8_e4m3fn", "float8_e4m3fn", "per_1x32"), NULL, NULL},
};

static const struct {
    const char *model, *vllm, *sglang;
} devices[] = {
    {"NVIDIA H200", "NVIDIA_H200", "NVIDIA_H200"},
    {"NVIDIA H200 NVL", "NVIDIA_H200", "NVIDIA_H200_NVL"},
    {"NVIDIA GH200 480GB", "NVIDIA_GH200_480GB", "NVIDIA_GH200_480GB"},
    {"NVIDIA H20-3e", "NVIDIA_H20-3e", "NVIDIA_H20-3e"},
    {"NVIDIA H100 80GB HBM3", "NVIDIA_H100_80GB_HBM3", "NVIDIA_H100_80GB_HBM3"},
    {"A  B/C / D", "A_B_C_D", "A__B/C_/_D"},
};

static const struct {
    const char *path;
    bool ok;
} paths[] = {
    {"/opt/x/E=8,N=1,device_name=A.json", true},
    {"E=8,N=1,device_name=A,dtype=int4_w4a16,backend=flydsl.json", true},
    {"E=8,N=1,device_name=A,block_shape=[128, 128]_down.json", true},
    {"E=8,N=1,device_name=A", false},
    {"E=8,device_name=A.json", false},
    {"E=0,N=1,device_name=A.json", false},
    {"E=8,N=1,device_name=.json", false},
    {"tuned_fmoe.json", false},
    {".json", false},
    {"", false},
};

static const struct {
    const char *text, *version; /* NULL: none */
} versions[] = {
    {"triton 3.6.0", "3.6.0"}, {"torch 2.11.0, triton=3.5.1", "3.5.1"}, {"triton-3.10.0 x", "3.10.0"},
    {"triton 3.6", NULL},      {"NVRTC 12.8", NULL},
    {"tritonx 1.2.3 triton 1.2.3", "1.2.3"}, {"0123456789abcdef-triton3.6.0", "3.6.0"},
};
static const struct {
    const char *text;
    bool ok;
} whole_versions[] = {
    {"3.6.0", true},    {"3.10.0", true},   {"3.6", false},     {"3.6.0a", false},          {"", false},
    {"3. 6.0", false},  {"3.+6.0", false},  {"3.\n6.0", false}, {"3.-6.0", false},
    {"99999999999.0.0", false},
};
/* clang-format on */

static void check_format(enum mf_framework framework, const struct mf_shape *layer, const char *expected)
{
    struct mf_triton_key key;
    char why[MF_REASON_MAX] = "", name[MF_TRITON_NAME_MAX];
    int r = mf_triton_key(framework, layer, "NVIDIA H200", &key, why);
    ck_assert_int_eq(r, expected ? 0 : -ENOTSUP);
    if (!expected) {
        ck_assert_ptr_nonnull(strstr(why, "reads no file"));
        return;
    }
    mf_triton_key_print(framework, &key, name);
    ck_assert_str_eq(name, expected);
}

MF_TEST(selects_dtype_and_block_shape, .rows = MF_ARRAY_LEN(formats))
{
    struct mf_shape layer;
    ck_assert_int_eq(mf_shape_parse(formats[_i].shape, &layer), 0);
    check_format(VLLM, &layer, formats[_i].vllm);
    check_format(SGLANG, &layer, formats[_i].sglang);
}

MF_TEST(writes_device_names, .rows = MF_ARRAY_LEN(devices))
{
    char name[MF_TRITON_DEVICE_MAX];
    mf_triton_device(VLLM, devices[_i].model, name);
    ck_assert_str_eq(name, devices[_i].vllm);
    mf_triton_device(SGLANG, devices[_i].model, name);
    ck_assert_str_eq(name, devices[_i].sglang);
}

MF_TEST(parses_paths, .rows = MF_ARRAY_LEN(paths))
{
    struct mf_triton_key key;
    ck_assert_int_eq(mf_triton_key_parse(paths[_i].path, &key), paths[_i].ok ? 0 : -EINVAL);
}

MF_TEST(accepts_versions, .rows = MF_ARRAY_LEN(whole_versions))
{
    ck_assert_int_eq(mf_triton_version_ok(whole_versions[_i].text), whole_versions[_i].ok);
}

MF_TEST(finds_versions, .rows = MF_ARRAY_LEN(versions))
{
    char version[MF_TRITON_VERSION_MAX] = "";
    int r = mf_triton_version_find(versions[_i].text, version);
    ck_assert_int_eq(r, versions[_i].version ? 0 : -ENOENT);
    ck_assert_str_eq(version, versions[_i].version ? versions[_i].version : "");
}

int main(void)
{
    return mf_check_main(NULL);
}
