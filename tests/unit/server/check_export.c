/* Export of the tuned table over HTTP: tests rows, filters, tasks that are left out, bytes and merging. Also
 * tests the metrics. */
#include "support/farm/farm_fixture.h"
#include "support/farm/http_client.h"
#include "support/farm/http_harness.h"
#include "support/mf_check.h"
#include "support/text_file.h"

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/table/table.h"
#include "server/api/export.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static struct mf_table *read_table(const struct http_reply *r)
{
    struct mf_table *t = NULL;
    char why[MF_REASON_MAX];
    ck_assert_msg(mf_table_read("export", r->body, r->len, &t, why) == 0, "%s", why);
    for (size_t i = 0; i < t->n_problems; i++)
        printf("line %lld %s: %s\n", (long long)t->problems[i].line, t->problems[i].column,
               t->problems[i].reason);
    ck_assert_uint_eq(t->n_errors, 0);
    return t;
}

static const struct {
    const char *query;
    size_t rows;
    int left_out;
} filters[] = {
    {"", 8, 1}, /* seven rows are from one batch, one row is from another batch; one task failed */
    {"?batch=1", 7, 0},
    {"?batch=2", 1, 1},
    {"?batch=3", 0, 0},
    {"?class=cpu-znver4/2", 8, 1},
    {"?class=gfx942/304", 0, 0},
    {"?gfx=cpu-znver4", 8, 1},
    {"?gfx=gfx942", 0, 0},
    /* the failed task had no device model yet, but its class contains this model */
    {"?model=EPYC%209R14", 8, 1},
    {"?model=MI300X", 0, 0},
    {"?layer_model=2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType."
     "No,1,0",
     7, 0},
    {"?layer_model=2048,96,128,8,ActivationType.Silu,dtypes.bf16,dtypes.bf16,dtypes.bf16,QuantType.No,True,"
     "False",
     7, 0},
    {"?consumer=aiter", 0, 9},
};

MF_TEST(test_filters)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    for (size_t i = 0; i < MF_ARRAY_LEN(filters); i++) {
        char path[512];
        (void)snprintf(path, sizeof(path), "/api/v1/export/tuned_fmoe.csv%s", filters[i].query);
        struct http_reply r = http_get(http_harness_port(h), path);
        ck_assert_msg(r.status == 200, "%s: %s", path, r.body);
        _cleanup_(mf_table_freep) struct mf_table *t = read_table(&r);
        ck_assert_msg(t->n_rows == filters[i].rows, "%s: %zu rows", path, t->n_rows);
        ck_assert_msg(atoi(http_header(&r, "Moefarm-Left-Out")) == filters[i].left_out, "%s: %s left out",
                      path, http_header(&r, "Moefarm-Left-Out"));
        http_reply_free(&r);
        (void)snprintf(path, sizeof(path), "/api/v1/export/left_out%s", filters[i].query);
        r = http_get(http_harness_port(h), path);
        cJSON *json = mf_json_parse(r.body, r.len, r.len);
        ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(json, "items")), filters[i].left_out);
        cJSON_Delete(json);
        http_reply_free(&r);
    }
    http_harness_stop(h);
}

MF_TEST(test_rows)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    struct http_reply r = http_get(http_harness_port(h), "/api/v1/export/tuned_fmoe.csv");
    _cleanup_(mf_table_freep) struct mf_table *t = read_table(&r);
    int one = 0, two = 0;
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct mf_table_row *row = &t->rows[i];
        ck_assert_str_eq(row->class.gfx, "cpu-znver4");
        ck_assert_double_gt(row->us, 0);
        ck_assert_double_gt(row->tflops, 0);
        ck_assert(row->us1 + row->us2 - row->us < 0.001 && row->us - row->us1 - row->us2 < 0.001);
        ck_assert_int_eq(row->run_1stage, mf_table_no_kernel(row->kernel2));
        ck_assert_str_eq(row->own[MF_OWN_PROVENANCE], "moefarm:race");
        ck_assert_str_eq(row->own[MF_OWN_MODEL], "EPYC 9R14");
        ck_assert_str_eq(row->own[MF_OWN_N], "4");
        if (row->run_1stage) {
            one++;
            ck_assert_str_eq(row->own[MF_OWN_PIPELINE], "one_stage:one_t16_avx512bf16");
            ck_assert(row->us2 == 0);
        } else {
            two++;
            ck_assert_ptr_eq(strstr(row->own[MF_OWN_PIPELINE], "move:sort_m"), row->own[MF_OWN_PIPELINE]);
            ck_assert_ptr_nonnull(strstr(row->own[MF_OWN_PIPELINE], row->kernel1));
            ck_assert_ptr_nonnull(strstr(row->own[MF_OWN_PIPELINE], row->kernel2));
            ck_assert_int_ge(row->block_m, 16);
        }
        /* rows are ordered by layer model, then by token count */
        if (i > 0)
            ck_assert_int_lt(row[-1].shape.model_dim * 1000000L + row[-1].shape.token,
                             row->shape.model_dim * 1000000L + row->shape.token);
    }
    ck_assert_int_gt(one, 0);
    ck_assert_int_gt(two, 0);
    http_reply_free(&r);
    http_harness_stop(h);
}

/* Two farms with the same results export the same bytes, even if they ran at different times. */
MF_TEST(test_same_bytes)
{
    struct http_harness *a = http_harness_start(&(struct http_harness_options){.fixture = true});
    struct http_reply x = http_get(http_harness_port(a), "/api/v1/export/tuned_fmoe.csv");
    http_harness_stop(a);
    struct http_harness *b = http_harness_start(&(struct http_harness_options){.fixture = true});
    struct http_reply y = http_get(http_harness_port(b), "/api/v1/export/tuned_fmoe.csv");
    http_harness_stop(b);
    char etag[128];
    ck_assert(strcmp(x.body, y.body) == 0);
    (void)snprintf(etag, sizeof(etag), "%s", http_header(&x, "ETag"));
    ck_assert_str_eq(etag, http_header(&y, "ETag"));
    http_reply_free(&x);
    http_reply_free(&y);
}

/* Names of kernels that a spreadsheet would run as a formula. Their rows are left out, because a changed name
 * would not be found in production. */
static const char *const formulas[] = {
    "UPDATE kernel SET name = '-cmd|' || name WHERE family = 'two_stage'",
    "UPDATE kernel SET name = '=1+1;' || name WHERE family = 'two_stage'",
    "UPDATE kernel SET name = '+' || name WHERE family = 'two_stage'",
    "UPDATE kernel SET name = '@SUM(A1)' || name WHERE family = 'two_stage'",
    "UPDATE kernel SET family = '-move' WHERE family = 'move'", /* first name of the pipeline */
};

MF_TEST(test_no_formula, .rows = MF_ARRAY_LEN(formulas))
{
    static const char reason[] = "a spreadsheet would run the cell as a formula";
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    struct http_reply r;
    bool left_out = false;
    http_harness_event(h, 1, "note", "{}", formulas[_i]);
    for (int64_t end = mf_now_ms() + 20000; !left_out;) {
        ck_assert_msg(mf_now_ms() < end, "no row is left out");
        r = http_get(http_harness_port(h), "/api/v1/export/left_out");
        left_out = strstr(r.body, reason) != NULL;
        http_reply_free(&r);
    }
    r = http_get(http_harness_port(h), "/api/v1/export/tuned_fmoe.csv");
    ck_assert_int_eq(r.status, 200);
    _cleanup_(mf_table_freep) struct mf_table *t = read_table(&r);
    for (size_t i = 0; i < t->n_rows; i++) {
        const char *texts[] = {t->rows[i].kernel1, t->rows[i].kernel2, t->rows[i].own[MF_OWN_PIPELINE]};
        for (size_t k = 0; k < MF_ARRAY_LEN(texts); k++)
            ck_assert_msg(!texts[k] || !*texts[k] || !strchr("=+-@", *texts[k]), "%s", texts[k]);
    }
    http_reply_free(&r);
    http_harness_stop(h);
}

/* ---- configuration files of vLLM and SGLang ---- */

/* clang-format off */
static const struct {
    const char *query;
    int status;
    const char *files[3]; /* paths; NULL: fewer files */
    int left_out;
    const char *has;      /* part of the body */
} configs[] = {
    {"?consumer=vllm", 200,
     {"E=8,N=7168,device_name=NVIDIA_H200.json",
      "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"}, 3,
     "\"variable\":\"VLLM_TUNED_CONFIG_FOLDER\""},
    {"?consumer=vllm", 200, {NULL}, 3,
     "the default configuration of vLLM is the fastest one for 4096 tokens"},
    {"?consumer=vllm", 200, {NULL}, 3, "another layer model already has the file E=8,N=7168,"},
    {"?consumer=vllm", 200, {NULL}, 3, "\\\"triton_version\\\": \\\"3.6.0\\\""},
    {"?consumer=vllm&layer_model=6144,7168,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
     "torch.bfloat16,QuantType.No,1,0", 200, {"E=8,N=7168,device_name=NVIDIA_H200.json"}, 0, "\"8\\\": {"},
    {"?consumer=vllm&class=gfx942/304", 200, {NULL}, 0, "\"files\":{}"},
    {"?consumer=sglang", 200,
     {"configs/triton_3_6_0/E=8,N=7168,device_name=NVIDIA_H200.json",
      "configs/triton_3_6_0/E=8,N=7168,device_name=NVIDIA_H200_down.json"}, 5,
     "\\\"USE_TMA\\\": true"},
    {"", 400, {NULL}, 0, "consumer: expected vllm or sglang"},
    {"?consumer=aiter", 400, {NULL}, 0, "\"at\":\"consumer\""},
    {"?consumer=vllm&triton=3.6", 400, {NULL}, 0, "\"at\":\"triton\""},
};
/* clang-format on */

MF_TEST(test_configs, .rows = MF_ARRAY_LEN(configs))
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.configs = true});
    char path[512];
    (void)snprintf(path, sizeof(path), "/api/v1/export/configs.json%s", configs[_i].query);
    struct http_reply r = http_get(http_harness_port(h), path);
    ck_assert_msg(r.status == configs[_i].status, "%d: %s", r.status, r.body);
    ck_assert_msg(strstr(r.body, configs[_i].has) != NULL, "%s", r.body);
    if (r.status == 200) {
        _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(r.body, r.len, r.len);
        cJSON *files = mf_json_object(json, "files");
        ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(json, "left_out")), configs[_i].left_out);
        ck_assert_int_eq(atoi(http_header(&r, "Moefarm-Left-Out")), configs[_i].left_out);
        for (size_t i = 0; configs[_i].files[i]; i++) {
            cJSON *file = cJSON_GetArrayItem(files, (int)i);
            ck_assert_ptr_nonnull(file);
            ck_assert_str_eq(file->string, configs[_i].files[i]);
        }
    }
    http_reply_free(&r);
    http_harness_stop(h);
}

/* ---- lookup ---- */

#define BF16    "ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define MIXTRAL "4096,7168,8,2," BF16
#define QWEN    "2048,96,128,8," BF16
#define AT_H200 "&class=sm_90/132"
#define AT_CPU  "&class=cpu-znver4/2"

/* clang-format off */
static const struct {
    const char *query;
    int status;
    const char *has[3]; /* parts of the body */
} lookups[] = {
    {"layer=" MIXTRAL "&token=1&consumer=vllm" AT_H200, 200,
     {"\"config\":{\"BLOCK_SIZE_M\":16,\"BLOCK_SIZE_N\":64,", "\"exact\":true",
      "\"file\":\"E=8,N=7168,device_name=NVIDIA_H200.json\""}},
    {"layer=" MIXTRAL "&token=48&consumer=vllm" AT_H200, 200,
     {"\"config\":{\"BLOCK_SIZE_M\":64,", "\"exact\":false", "\"compiler\":\"triton 3.6.0\""}},
    {"layer=" MIXTRAL "&token=8192&consumer=vllm" AT_H200, 200, {"\"config\":null", "\"us\":1200.5"}},
    {"layer=" MIXTRAL "&token=8&consumer=sglang" AT_H200, 200,
     {"\"config_down\":{\"BLOCK_SIZE_M\":16,\"BLOCK_SIZE_N\":128,", "\"USE_TMA\":true", "\"csv\":null"}},
    {"layer=" QWEN "&token=16" AT_CPU, 200,
     {"\"csv\":\"gfx,cu_num,token,", "\"exact\":true", "\"model\":\"EPYC 9R14\""}},
    {"layer=" QWEN "&token=13" AT_CPU, 200, {"\"exact\":false", "\"token\":16", "\"config\":null"}},
    {"layer=" QWEN "&token=65" AT_CPU, 404,
     {"no row of class cpu-znver4/2 serves this layer with 65 tokens"}},
    {"layer=" QWEN "&token=16&consumer=aiter" AT_CPU, 404, {"for consumer aiter"}},
    {"layer=" QWEN "&token=16&consumer=vllm" AT_H200, 404, {"for consumer vllm"}},
    {"layer=" QWEN "&token=16&consumer=any" AT_CPU, 400, {"\"at\":\"consumer\""}},
    {"layer=1,2&token=16" AT_CPU, 400, {"\"at\":\"layer\",\"code\":\"value\""}},
    {"token=16" AT_CPU, 400, {"\"at\":\"layer\",\"code\":\"missing\""}},
    {"layer=" QWEN AT_CPU, 400, {"\"at\":\"token\",\"code\":\"missing\""}},
    {"layer=" QWEN "&token=0" AT_CPU, 400, {"\"at\":\"token\""}},
    {"layer=" QWEN "&token=16", 400, {"\"at\":\"class\",\"code\":\"missing\""}},
    {"layer=" QWEN "&token=16&class=x", 400, {"\"at\":\"class\",\"code\":\"value\""}},
};
/* clang-format on */

MF_TEST(test_lookup, .rows = MF_ARRAY_LEN(lookups))
{
    struct http_harness *h =
        http_harness_start(&(struct http_harness_options){.fixture = true, .configs = true});
    char path[512], condition[128];
    (void)snprintf(path, sizeof(path), "/api/v1/lookup?%s", lookups[_i].query);
    struct http_reply r = http_get(http_harness_port(h), path);
    ck_assert_msg(r.status == lookups[_i].status, "%d: %s", r.status, r.body);
    for (size_t i = 0; i < 3 && lookups[_i].has[i]; i++)
        ck_assert_msg(strstr(r.body, lookups[_i].has[i]) != NULL, "no %s in %s", lookups[_i].has[i], r.body);
    if (r.status == 200) { /* the answer can be cached */
        (void)snprintf(condition, sizeof(condition), "If-None-Match: %s\r\n", http_header(&r, "ETag"));
        struct http_reply again = http_call(http_harness_port(h), "GET", path, condition, NULL, 0);
        ck_assert_int_eq(again.status, 304);
        http_reply_free(&again);
    }
    http_reply_free(&r);
    http_harness_stop(h);
}

MF_TEST(test_two_models)
{
    struct http_harness *h =
        http_harness_start(&(struct http_harness_options){.fixture = true, .second_model = true});
    struct http_reply r = http_get(http_harness_port(h), "/api/v1/export/tuned_fmoe.csv");
    ck_assert_int_eq(r.status, 409);
    ck_assert_ptr_nonnull(strstr(r.body, "cpu-znver4/2: EPYC 9R14, EPYC 9R45"));
    http_reply_free(&r);
    r = http_get(http_harness_port(h), "/api/v1/export/tuned_fmoe.csv?model=EPYC%209R45");
    ck_assert_int_eq(r.status, 200);
    _cleanup_(mf_table_freep) struct mf_table *t = read_table(&r);
    ck_assert_uint_eq(t->n_rows, 3);
    ck_assert_str_eq(t->rows[0].own[MF_OWN_MODEL], "EPYC 9R45");
    ck_assert_str_eq(http_header(&r, "Moefarm-Left-Out"), "0");
    http_reply_free(&r);
    /* a row of one model does not replace the failed task of the other model */
    r = http_get(http_harness_port(h), "/api/v1/export/tuned_fmoe.csv?model=EPYC%209R14");
    ck_assert_int_eq(r.status, 200);
    ck_assert_str_eq(http_header(&r, "Moefarm-Left-Out"), "1");
    http_reply_free(&r);
    http_harness_stop(h);
}

static const struct {
    const char *query, *at;
} refused[] = {
    {"?batch=0", "batch"},
    {"?batch=x", "batch"},
    {"?class=gfx942", "class"},
    {"?class=gfx942/304&gfx=gfx950", "gfx"},
    {"?consumer=vllm", "consumer"},
    {"?consumer=any", "consumer"},
    {"?layer_model=1,2,3", "layer_model"},
    {"?simulated=maybe", "simulated"},
    {"?replace=1", "replace"},
};

MF_TEST(test_refused)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    for (size_t i = 0; i < MF_ARRAY_LEN(refused); i++) {
        char path[256], at[64];
        (void)snprintf(path, sizeof(path), "/api/v1/export/tuned_fmoe.csv%s", refused[i].query);
        (void)snprintf(at, sizeof(at), "\"at\":\"%s\"", refused[i].at);
        struct http_reply r = http_get(http_harness_port(h), path);
        ck_assert_msg(r.status == 400 && strstr(r.body, at), "%s: %s", path, r.body);
        http_reply_free(&r);
    }
    http_harness_stop(h);
}

/* Merging the farm's own table changes nothing. Merging the farm's rows into a shipped table adds rows and
 * keeps all rows of the shipped table. */
MF_TEST(test_merge)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    int port = http_harness_port(h);
    struct http_reply own = http_get(port, "/api/v1/export/tuned_fmoe.csv"), r;
    r = http_call(port, "POST", "/api/v1/export/merge", "Content-Type: text/csv\r\n", own.body, own.len);
    ck_assert_msg(r.status == 200, "%s", r.body);
    cJSON *json = mf_json_parse(r.body, r.len, r.len);
    const char *csv = "";
    ck_assert_int_eq(mf_json_text(json, "csv", &csv), 0);
    ck_assert(strcmp(csv, own.body) == 0);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(json, "kept")), 8);
    cJSON_Delete(json);
    http_reply_free(&r);

    _cleanup_(mf_freep) char *shipped = text_file_read(MF_TEST_DATA "/aiter/tuned_fmoe.csv");
    r = http_call(port, "POST", "/api/v1/export/merge?batch=1", "Content-Type: text/csv\r\n", shipped,
                  strlen(shipped));
    json = mf_json_parse(r.body, r.len, r.len);
    ck_assert_int_eq(mf_json_text(json, "csv", &csv), 0);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(json, "added")), 7);
    _cleanup_(mf_table_freep) struct mf_table *merged = NULL, *old = NULL;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(mf_table_read("merged", csv, strlen(csv), &merged, why), 0);
    ck_assert_int_eq(mf_table_read("old", shipped, strlen(shipped), &old, why), 0);
    ck_assert_uint_eq(merged->n_rows, old->n_rows + 7);
    cJSON_Delete(json);
    http_reply_free(&r);

    static const char untuned[] = "token,model_dim\n1,2\n";
    r = http_call(port, "POST", "/api/v1/export/merge", "Content-Type: text/csv\r\n", untuned,
                  sizeof(untuned) - 1);
    ck_assert_int_eq(r.status, 422);
    http_reply_free(&r);
    http_reply_free(&own);
    http_harness_stop(h);
}

/* --- metrics --- */

MF_TEST(test_metrics)
{
    static const char *const samples[] = {
        "moefarm_tasks{state=\"done\"} 8\n",
        "moefarm_workers{state=\"lost\"} 1\n",
        "moefarm_results_committed_total 7\n",
        "moefarm_iteration_duration_seconds_bucket{le=\"0.001\"} 2\n",
        "moefarm_iteration_duration_seconds_count 3\n",
        "moefarm_worker_busy_seconds_total{worker=\"node-a-cpu0\",phase=\"timing\"} 412.5\n",
        "moefarm_http_requests_total{method=\"GET\",route=\"/api/v1/tasks/{id}\",code=\"404\"} 2\n",
        "moefarm_http_requests_total{method=\"any\",route=\"none\",code=\"404\"} 1\n",
        "moefarm_quarantined_kernels 1\n",
    };
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    static const char *const paths[] = {"/api/v1/tasks/98", "/api/v1/tasks/99", "/nowhere"};
    for (size_t i = 0; i < MF_ARRAY_LEN(paths); i++) {
        struct http_reply r = http_get(http_harness_port(h), paths[i]);
        http_reply_free(&r);
    }
    struct http_reply r = http_get(http_harness_port(h), "/metrics");
    ck_assert_ptr_nonnull(strstr(http_header(&r, "Content-Type"), "version=0.0.4"));
    for (size_t i = 0; i < MF_ARRAY_LEN(samples); i++)
        ck_assert_msg(strstr(r.body, samples[i]) != NULL, "%s is not in\n%s", samples[i], r.body);
    http_reply_free(&r);
    http_harness_stop(h);
}

static const struct mf_test_group optional_tests = {.timeout_s = 60, .optional = true};

/* promtool is in Debian's package prometheus. If promtool is missing, the test is skipped. */
MF_TEST(test_promtool, .group = &optional_tests)
{
    if (system("command -v promtool >/dev/null 2>&1") != 0) {
        mf_check_skip("promtool is missing (package prometheus)");
        return;
    }
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    struct http_reply r = http_get(http_harness_port(h), "/metrics");
    FILE *p = popen("promtool check metrics", "w");
    ck_assert_ptr_nonnull(p);
    ck_assert_uint_eq(fwrite(r.body, 1, r.len, p), r.len);
    int status = pclose(p);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    http_reply_free(&r);
    http_harness_stop(h);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
