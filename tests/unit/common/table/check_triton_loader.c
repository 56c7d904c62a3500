/* common/table/triton/triton_export.c against the frameworks' own code: with VLLM_DIR or SGLANG_DIR set, the
 * functions of that vLLM or SGLang find each exported file and choose the expected entry
 * (tests/python/framework_loader.py). */
#include "common/base/cleanup.h"
#include "common/table/model.h"
#include "common/table/triton/triton_export.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/run_program.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#define VERSION "3.6.0"

/* clang-format off */
static const struct {
    const char *model;   /* a built-in model, or a shape's row without its token count */
    int tp, ep, fused_shared;
    const char *device, *quant; /* quant: flag of the framework's kernel without "use_"; "": none */
} layers[] = {
    {"mixtral-8x7b",        2, 1, 0, "NVIDIA H200",           ""},
    {"qwen3-30b-a3b",       1, 1, 0, "NVIDIA H200 NVL",       ""},
    {"qwen3-30b-a3b",       1, 4, 0, "NVIDIA H100 80GB HBM3", ""},
    {"deepseek-v3",         8, 1, 0, "NVIDIA H200",           "fp8_w8a8"},
    {"deepseek-v3",         8, 1, 1, "NVIDIA H20-3e",         "fp8_w8a8"},
    {"deepseek-v3",         1, 8, 0, "AMD Instinct MI300X",   "fp8_w8a8"},
    {"kimi-k2",            16, 1, 1, "NVIDIA B200",           "fp8_w8a8"},
    {"kimi-k2-thinking",    8, 1, 0, "NVIDIA H200",           "int4_w4a16"},
    {"glm-4.7-fp8",         8, 1, 1, "NVIDIA H200",           "fp8_w8a8"},
    {"glm-4.7-fp8",         1, 8, 0, "NVIDIA RTX PRO 6000 Blackwell Server Edition", "fp8_w8a8"},
    {"llama-4-maverick-fp8", 8, 1, 0, "AMD Instinct MI325X",  "fp8_w8a8"},
    {"4096,3072,16,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.int8,QuantType.per_Token,1,0",
     1, 1, 0, "NVIDIA A100-SXM4-80GB", "int8_w8a16"},
    {"7168,256,64,8,ActivationType.Silu,torch.bfloat16,torch.int8,torch.int8,QuantType.per_Token,1,0",
     1, 1, 0, "NVIDIA L40S", "int8_w8a8"},
    {"7168,256,96,8,ActivationType.Silu,torch.bfloat16,torch.int8,torch.int8,QuantType.per_1x128,1,0",
     1, 1, 0, "NVIDIA L20", "int8_w8a8"},
};
static const struct {
    const char *variable;
    enum mf_framework framework;
} frameworks[] = {{"VLLM_DIR", MF_FRAMEWORK_VLLM}, {"SGLANG_DIR", MF_FRAMEWORK_SGLANG}};
/* clang-format on */

/* Entry i has GROUP_SIZE_M i + 1, and i + 101 for the second GEMM. */
static const int64_t ladder[] = {1, 4, 16, 64, 256, 1024, 4096};
static const int64_t calls[] = {1, 2, 3, 10, 11, 40, 41, 200, 9000};

static char folder[] = "/tmp/moefarm-loader-XXXXXX";

static void make_folder(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void remove_folder(void)
{
    remove_tree(folder);
}

static struct mf_shape layer_of(int i)
{
    struct mf_model model;
    struct mf_shape shape;
    char why[MF_REASON_MAX] = "", row[MF_SHAPE_TEXT_MAX];
    const struct mf_model_split split = {layers[i].tp, layers[i].ep, layers[i].fused_shared, NULL};
    (void)snprintf(row, sizeof(row), "1,%s", layers[i].model);
    if (mf_shape_parse(row, &shape) == 0)
        return shape;
    ck_assert_int_eq(mf_model_find(layers[i].model, &model), 0);
    ck_assert_msg(mf_model_layer(&model, &split, &shape, why) == 0, "%s", why);
    return shape;
}

static int refuse(const struct mf_triton_row *row, const char *reason, void *data)
{
    (void)data;
    ck_abort_msg("%s: %s", row->step, reason);
    return -EINVAL;
}

static void write_file(const char *path, const char *content)
{
    char full[512];
    (void)snprintf(full, sizeof(full), "%s/%s", folder, path);
    for (char *slash = strchr(full + strlen(folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "we");
    ck_assert_ptr_nonnull(f);
    (void)fputs(content, f);
    ck_assert_int_eq(fclose(f), 0);
}

/* Exports the rows of one layer to the folder. */
static void export_layer(enum mf_framework framework, int i)
{
    struct mf_triton_row rows[MF_ARRAY_LEN(ladder)];
    char steps[MF_ARRAY_LEN(ladder)][MF_STEP_NAME_MAX];
    struct mf_triton_export x = MF_TRITON_EXPORT_INIT;
    for (size_t k = 0; k < MF_ARRAY_LEN(ladder); k++) {
        (void)snprintf(steps[k], sizeof(steps[k]), "triton_m16_n64_k64_g%zu_w4_s3", k + 1);
        if (framework == MF_FRAMEWORK_SGLANG)
            (void)snprintf(steps[k], sizeof(steps[k]),
                           "triton_m16_n64_k64_g%zu_w4_s3-down_m16_n64_k64_g%zu_w4_s3", k + 1, k + 101);
        rows[k] = (struct mf_triton_row){layer_of(i), layers[i].device, steps[k], VERSION, 1};
        rows[k].shape.token = ladder[k];
    }
    ck_assert_int_eq(mf_triton_export(framework, rows, MF_ARRAY_LEN(ladder), refuse, NULL, &x), 0);
    ck_assert_uint_eq(x.n_files, framework == MF_FRAMEWORK_SGLANG ? 2 : 1);
    for (size_t k = 0; k < x.n_files; k++)
        write_file(x.files[k].path, x.files[k].content);
    mf_triton_export_release(&x);
}

/* The request has the dimensions of the weights, from which the framework computes the name. Both frameworks
 * store two int4 weights in a byte of w2. */
static void write_request(int i)
{
    char text[1024], *at = text, *end = text + sizeof(text);
    const struct mf_shape s = layer_of(i);
    bool block = s.q_type == MF_QTYPE_PER_1X128 && s.q_dtype_w != MF_DTYPE_INT4;
    at += snprintf(at, (size_t)(end - at),
                   "{\"device\":\"%s\",\"E\":%" PRId32 ",\"N\":%" PRId32 ",\"K\":%" PRId32
                   ",\"topk\":%" PRId32 ",\"quant\":\"%s\",\"block\":%s,\"per_channel\":%s,\"tokens\":[",
                   layers[i].device, s.expert, s.q_dtype_w == MF_DTYPE_INT4 ? s.inter_dim / 2 : s.inter_dim,
                   s.model_dim, s.topk, layers[i].quant, block ? "[128,128]" : "null",
                   s.q_type == MF_QTYPE_PER_TOKEN && mf_dtype_bits(s.q_dtype_a) == 8 ? "true" : "false");
    for (size_t k = 0; k < MF_ARRAY_LEN(calls); k++)
        at += snprintf(at, (size_t)(end - at), "%s%" PRId64, k > 0 ? "," : "", calls[k]);
    (void)snprintf(at, (size_t)(end - at), "]}\n");
    write_file("requests", text);
}

/* Returns the number of the nearest entry, from 1, as the tokens of `calls` lie between them. */
static int nearest(int64_t token)
{
    size_t best = 0;
    for (size_t k = 1; k < MF_ARRAY_LEN(ladder); k++)
        if (llabs(ladder[k] - token) < llabs(ladder[best] - token))
            best = k;
    return (int)best + 1;
}

static void expect(enum mf_framework framework, char *buf, size_t cap)
{
    size_t at = 0;
    for (size_t down = 0; down < (framework == MF_FRAMEWORK_SGLANG ? 2 : 1); down++)
        for (size_t k = 0; k < MF_ARRAY_LEN(calls); k++)
            at += (size_t)snprintf(buf + at, cap - at, "%s%d", at > 0 ? " " : "",
                                   nearest(calls[k]) + (down ? 100 : 0));
    (void)snprintf(buf + at, cap - at, "\n");
}

static const struct mf_test_group loaders = {
    .timeout_s = 120, .setup = make_folder, .teardown = remove_folder, .optional = true};

MF_TEST(frameworks_find_the_files, .rows = MF_ARRAY_LEN(frameworks) * MF_ARRAY_LEN(layers), .group = &loaders)
{
    int i = _i % (int)MF_ARRAY_LEN(layers);
    const char *variable = frameworks[_i / (int)MF_ARRAY_LEN(layers)].variable;
    enum mf_framework framework = frameworks[_i / (int)MF_ARRAY_LEN(layers)].framework;
    char requests[64], expected[256];
    if (!getenv(variable)) {
        mf_check_skip("%s is not set; it names an installed %s", variable, mf_framework_title(framework));
        return;
    }
    export_layer(framework, i);
    write_request(i);
    (void)snprintf(requests, sizeof(requests), "%s/requests", folder);
    struct ran r =
        run_program((const char *const[]){"python3", MF_SOURCE_DIR "/tests/python/framework_loader.py", NULL},
                    (const char *const[]){mf_framework_name(framework), folder, VERSION, requests, NULL});
    ck_assert_msg(r.code == 0, "%s", r.text);
    expect(framework, expected, sizeof(expected));
    ck_assert_msg(strcmp(r.text, expected) == 0, "%s on %s: expected %sfound %s", layers[i].model,
                  layers[i].device, expected, r.text);
}

int main(void)
{
    return mf_check_main(NULL);
}
