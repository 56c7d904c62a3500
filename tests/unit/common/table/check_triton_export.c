/* common/table/triton/triton_export.c: files of vLLM and SGLang from tuned rows. */
#include "common/table/triton/triton_export.h"
#include "support/mf_check.h"

#define MIXTRAL(T) \
    T ",4096,7168,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define OTHER(T) \
    T ",6144,7168,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define DEEPSEEK(T)                                                                                 \
    T ",7168,256,256,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn," \
      "QuantType.per_1x128,1,0"
#define MXFP4(T)                                                                   \
    T ",7168,256,256,8,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2," \
      "torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0"
#define STEP(m) "triton_m" m "_n64_k64_g1_w4_s3"
#define ENTRY(m)                                                                                          \
    "{\n        \"BLOCK_SIZE_M\": " m ",\n        \"BLOCK_SIZE_N\": 64,\n        \"BLOCK_SIZE_K\": 64,\n" \
    "        \"GROUP_SIZE_M\": 1,\n        \"num_warps\": 4,\n        \"num_stages\": 3\n    }"
#define H200_FILE "E=8,N=7168,device_name=NVIDIA_H200.json"

#define ROWS_MAX 4
static const struct {
    enum mf_framework framework;
    struct {
        const char *shape, *step, *version;
    } rows[ROWS_MAX];   /* on an NVIDIA H200 */
    const char *files;  /* "path:content;" for each file */
    const char *reason; /* of the only row that is left out; NULL: none */
} cases[] = {
    {MF_FRAMEWORK_VLLM,
     {{MIXTRAL("64"), STEP("64"), "3.6.0"}, {MIXTRAL("1"), STEP("16"), "3.6.0"}},
     H200_FILE
     ":{\n    \"triton_version\": \"3.6.0\",\n    \"1\": " ENTRY("16") ",\n    \"64\": " ENTRY("64") "\n}\n;",
     NULL},
    {MF_FRAMEWORK_SGLANG,
     {{MIXTRAL("1"), STEP("16"), "3.6.0"}, {MIXTRAL("64"), STEP("64"), "3.6.0"}},
     "configs/triton_3_6_0/" H200_FILE ":{\n    \"1\": " ENTRY("16") ",\n    \"64\": " ENTRY("64") "\n}\n;",
     NULL},
    {MF_FRAMEWORK_VLLM,
     {{MIXTRAL("1"), STEP("16"), ""}},
     H200_FILE ":{\n    \"1\": " ENTRY("16") "\n}\n;",
     NULL},
    {MF_FRAMEWORK_VLLM,
     {{MIXTRAL("1"), STEP("16"), "3.6.0"}, {MIXTRAL("8"), STEP("16"), "3.5.1"}},
     H200_FILE ":{\n    \"1\": " ENTRY("16") ",\n    \"8\": " ENTRY("16") "\n}\n;",
     NULL},
    {MF_FRAMEWORK_SGLANG,
     {{MIXTRAL("1"), STEP("16"), "3.6.0"}, {MIXTRAL("8"), STEP("16"), "3.5.1"}},
     "configs/triton_3_6_0/" H200_FILE ":{\n    \"1\": " ENTRY("16") "\n}\n;"
                                                                     "configs/triton_3_5_1/" H200_FILE
                                                                     ":{\n    \"8\": " ENTRY("16") "\n}\n;",
     NULL},
    {MF_FRAMEWORK_VLLM,
     {{MIXTRAL("1"), STEP("16"), ""}, {MIXTRAL("64"), "default", ""}},
     H200_FILE ":{\n    \"1\": " ENTRY("16") "\n}\n;",
     "the default configuration of vLLM is the fastest one for 64 tokens"},
    {MF_FRAMEWORK_VLLM,
     {{DEEPSEEK("1"), STEP("16"), ""}, {MIXTRAL("1"), STEP("16"), ""}, {DEEPSEEK("2"), STEP("16"), ""}},
     "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json:{\n    \"1\": " ENTRY(
         "16") ",\n    \"2\": " ENTRY("16") "\n}\n;" H200_FILE ":{\n    \"1\": " ENTRY("16") "\n}\n;",
     NULL},
    {MF_FRAMEWORK_VLLM,
     {{MIXTRAL("1"), STEP("16"), ""}, {OTHER("8"), STEP("16"), ""}},
     H200_FILE ":{\n    \"1\": " ENTRY("16") "\n}\n;",
     "another layer model already has the file " H200_FILE},
    {MF_FRAMEWORK_VLLM, {{MXFP4("1"), STEP("16"), ""}}, "", "vLLM has no Triton kernel for weights"},
    {MF_FRAMEWORK_VLLM, {{MIXTRAL("1"), STEP("16") "_tma", ""}}, "", "vLLM has neither USE_TMA nor"},
    {MF_FRAMEWORK_VLLM, {{MIXTRAL("1"), "tile_m16", ""}}, "", "tile_m16 is not a configuration"},
    {MF_FRAMEWORK_SGLANG, {{MIXTRAL("1"), STEP("16"), ""}}, "", "the version of Triton is unknown"},
    {MF_FRAMEWORK_SGLANG,
     {{MIXTRAL("1"), STEP("16") "-down_m32_n64_k64_g1_w4_s3", "3.6.0"}},
     "",
     "BLOCK_SIZE_M 32 of the second GEMM differs from 16"},
    /* The row without a configuration for the second GEMM gets one, because the file now has another one. */
    {MF_FRAMEWORK_SGLANG,
     {{MIXTRAL("1"), STEP("16"), "3.6.0"}, {MIXTRAL("64"), STEP("64") "-down_m64_n64_k64_g1_w4_s3", "3.6.0"}},
     "configs/triton_3_6_0/" H200_FILE ":{\n    \"1\": " ENTRY("16") ",\n    \"64\": " ENTRY(
         "64") "\n}\n;"
               "configs/triton_3_6_0/E=8,N=7168,device_name=NVIDIA_H200_down.json:{\n    \"1\": " ENTRY(
                   "16") ",\n    \"64\": " ENTRY("64") "\n}\n;",
     NULL},
    {MF_FRAMEWORK_VLLM, {{0}}, "", NULL},
};

struct left_out {
    int n;
    char reason[MF_REASON_MAX];
};

static int note(const struct mf_triton_row *row, const char *reason, void *data)
{
    struct left_out *l = data;
    (void)row;
    l->n++;
    snprintf(l->reason, sizeof(l->reason), "%s", reason);
    return 0;
}

MF_TEST(makes_files, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_triton_row rows[ROWS_MAX];
    struct mf_triton_export x = MF_TRITON_EXPORT_INIT;
    struct left_out left_out = {0};
    char text[4096] = "";
    size_t n = 0;
    for (; n < ROWS_MAX && cases[_i].rows[n].shape; n++) {
        rows[n] = (struct mf_triton_row){.model = "NVIDIA H200", .us = 1};
        rows[n].step = cases[_i].rows[n].step;
        rows[n].version = cases[_i].rows[n].version;
        ck_assert_int_eq(mf_shape_parse(cases[_i].rows[n].shape, &rows[n].shape), 0);
    }
    ck_assert_int_eq(mf_triton_export(cases[_i].framework, rows, n, note, &left_out, &x), 0);
    for (size_t i = 0; i < x.n_files; i++) {
        size_t at = strlen(text);
        snprintf(text + at, sizeof(text) - at, "%s:%s;", x.files[i].path, x.files[i].content);
    }
    ck_assert_str_eq(text, cases[_i].files);
    ck_assert_int_eq(left_out.n, cases[_i].reason != NULL);
    if (cases[_i].reason)
        ck_assert_msg(strstr(left_out.reason, cases[_i].reason) != NULL, "%s", left_out.reason);
    mf_triton_export_release(&x);
}

/* An error of the callback ends the export. */
static int end_export(const struct mf_triton_row *row, const char *reason, void *data)
{
    (void)row;
    (void)reason;
    (void)data;
    return -EFBIG;
}

MF_TEST(passes_on_errors)
{
    struct mf_triton_row row = {.model = "NVIDIA H200", .step = "default", .version = ""};
    struct mf_triton_export x = MF_TRITON_EXPORT_INIT;
    ck_assert_int_eq(mf_triton_export(MF_FRAMEWORK_VLLM, &row, 1, end_export, NULL, &x), -EFBIG);
}

int main(void)
{
    return mf_check_main(NULL);
}
