/* Request handlers over real sockets: tests submissions to a fake writer, and lists and their pages on the
 * fixture. */
#include "support/farm/farm_fixture.h"
#include "support/farm/http_client.h"
#include "support/farm/http_harness.h"
#include "support/mf_check.h"
#include "support/table_columns.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "server/api/submission.h"

#include <stdio.h>
#include <string.h>

#define HEADER SHAPE_COLUMNS "\n"
#define TAIL \
    ",2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define JSON_FORM                                                                                            \
    "\"model_dim\":2048,\"inter_dim\":96,\"act_type\":\"ActivationType.Silu\",\"dtype\":\"torch.bfloat16\"," \
    "\"q_dtype_a\":\"torch.bfloat16\",\"q_dtype_w\":\"torch.bfloat16\",\"q_type\":\"QuantType.No\","         \
    "\"use_g1u1\":true,\"doweight_stage1\":0}"
#define JSON_TAIL "\"expert\":128,\"topk\":8," JSON_FORM
#define SWIGLU                                                                                             \
    ",3072,1536,128,4,ActivationType.Swiglu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2," \
    "QuantType.per_1x32,1,0\n"
#define SWIGLU_BF16                                                                                          \
    ",3072,1536,128,4,ActivationType.Swiglu,torch.bfloat16,torch.bfloat16,torch.float4_e2m1fn_x2,QuantType." \
    "per_1x32,1,0"

/* A tuned table as a JSON string. It has one row with the given token count and pipeline. */
#define HEADER_JSON SHAPE_COLUMNS "\\n"
#define BASELINE(token, pipeline)                           \
    "\"" TUNED_COLUMNS ",pipeline\\ngfx942,304," token TAIL \
    ",16,0,40,a,0.0%,30,b,0.0%,70,0,0,0,1,1," pipeline "\\n\""

struct submission {
    const char *query, *type, *body;
    int status;
    const char *text;         /* part of the response; NULL: not checked */
    const char *farm_request; /* part of the request to the writer; NULL: not checked */
};

static const struct submission submissions[] = {
    /* plain tables */
    {"", "text/csv", HEADER "4" TAIL "\n8" TAIL "\n", 201, "\"shapes\":2,\"errors\":[]",
     "2 shapes, first 4,2048"},
    {"", "text/csv; charset=utf-8", "\xef\xbb\xbf" HEADER "4" TAIL, 201, "\"shapes\":1", NULL},
    {"", "text/csv",
     HEADER
     "4,2048,96,128,8,ActivationType.Silu,dtypes.bf16,dtypes.bf16,dtypes.bf16,QuantType.No,True,False\n",
     201, "\"shapes\":1", "first 4" TAIL},
    {"", "text/csv", HEADER "4" TAIL "\nx" TAIL "\n8" TAIL "\n", 201, "\"at\":\"token\"", "2 shapes"},
    {"", "text/csv", HEADER "4" TAIL "\nx" TAIL "\n8" TAIL "\n", 201, "\"line\":3", NULL},
    {"", "text/csv", HEADER "4" TAIL "\n8" TAIL "\n4" TAIL "\n", 201, "duplicate of line 2; tuned once",
     "2 shapes"},
    {"", "text/csv",
     HEADER
     "4" TAIL
     "\n4,2048,96,128,8,ActivationType.Silu,dtypes.bf16,dtypes.bf16,dtypes.bf16,QuantType.No,True,False\n",
     201, "\"code\":\"duplicate\"", "1 shapes"},
    {"", "text/csv",
     HEADER
     "4,2048,96,128,300,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n",
     422, "\"at\":\"topk\"", NULL},
    /* an unknown column is reported; a misspelt optional shape column causes rejection */
    {"", "text/csv", SHAPE_COLUMNS ",act_limt\n4" TAIL ",7\n", 201,
     "\"errors\":[],\"unknown_columns\":[{\"at\":\"act_limt\",\"code\":\"unknown_column\",\"message\":"
     "\"unknown column 'act_limt' is not read;",
     "1 shapes, first 4" TAIL},
    {"", "text/csv", SHAPE_COLUMNS ",a\"\"b\x1f<i>\n4" TAIL ",7\n", 422, "\"at\":\"body\"", NULL},
    {"", "text/csv", SHAPE_COLUMNS ",\"a\"\"b\x1f<i>\"\n4" TAIL ",7\n", 201, "\"at\":\"a\\\"b?<i>\"", NULL},
    {"", "text/csv",
     TUNED_COLUMNS ",_tag,form\ngfx942,304,4" TAIL ",16,0,40,a,0.0%,30,b,0.0%,70,0,0,0,1,1,,\n", 201,
     "\"unknown_columns\":[]", "1 shapes"},
    /* the results in a tuned table are not read, because AITER's tuner writes -1 for a shape that it could
     * not tune */
    {"", "text/csv", TUNED_COLUMNS "\ngfx942,304,4" TAIL ",16,0,-1,a,0.0%,30,b,0.0%,-1,0,0,0,1,1\n", 201,
     "\"shapes\":1,\"errors\":[]", "1 shapes, first 4" TAIL},
    {"", "text/csv", TUNED_COLUMNS "\ngfx942,304,4" TAIL ",16,0,40,a,0.0%,30,b,0.0%,nan,0,0,0,1,1\n", 201,
     "\"shapes\":1,\"errors\":[]", NULL},
    {"", "text/csv", TUNED_COLUMNS "\ngfx942,304,4" TAIL ",16,0,40,a,0.0%,30,b,0.0%,1e400,0,0,0,1,1\n", 201,
     "\"shapes\":1,\"errors\":[]", NULL},
    {"", "text/csv", TUNED_COLUMNS "\ngfx942,304,4" TAIL ",abc,-1,40,,0.0%,30,,0.0%,70,2,x,9,1,1\n", 201,
     "\"shapes\":1,\"errors\":[]", NULL},
    {"", "text/csv", TUNED_COLUMNS "\n,-9,4" TAIL ",16,0,40,a,0.0%,30,b,0.0%,70,0,0,0,1,1\n", 201,
     "\"shapes\":1,\"errors\":[]", NULL},
    {"", "text/csv", SHAPE_COLUMNS ",us\n4" TAIL ",-1\n", 201, "\"shapes\":1,\"errors\":[]", NULL},
    {"", "text/csv", KEY_COLUMNS "\ngfx942,,4" TAIL "\n", 201, "\"shapes\":1,\"errors\":[]", NULL},
    /* shape columns are read, so a row with missing cells is rejected */
    {"", "text/csv",
     TUNED_COLUMNS "\ngfx942,304,4" TAIL ",16,0,-1,a,0.0%,30,b,0.0%,-1,0,0,0,1,1\ngfx942,304,x" TAIL
                   ",16,0,-1,a,0.0%,30,b,0.0%,-1,0,0,0,1,1\n",
     201, "\"errors\":[{\"at\":\"token\",", "1 shapes"},
    {"", "text/csv", TUNED_COLUMNS "\ngfx942,304,4" TAIL ",16,0,-1,a\n", 422,
     "the row has 18 cells and the header 28", NULL},
    {"", "application/json",
     "{\"baseline\":\"" TUNED_COLUMNS ",pipeline\\ngfx942,304,4" TAIL
     ",16,0,40,a,0.0%,30,b,0.0%,-1,0,0,0,1,1,a:b\\n\",\"shapes\":[{\"token\":4," JSON_TAIL "]}",
     201, "\"at\":\"baseline, line 2\",\"code\":\"range\"", "; known 0"},
    {"", "text/csv", SHAPE_COLUMNS ",frm\n4" TAIL ",limit:7\n", 422,
     "\"at\":\"frm\",\"code\":\"misspelt_column\",\"message\":\"unknown column 'frm', and the table has no "
     "form: rename it to form",
     NULL},
    {"", "text/csv",
     "token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u,doweight_"
     "stage1\n4" TAIL "\n",
     422, "rename 'use_g1u' if that is meant", NULL},
    {"", "application/json", "{\"csv\":\"" SHAPE_COLUMNS ",frm\\n4" TAIL ",limit:7\\n\"}", 422,
     "\"at\":\"frm\"", NULL},
    {"", "application/json",
     "{\"shapes\":[{\"token\":4,\"frm\":\"limit:7\"," JSON_TAIL ",{\"token\":4," JSON_TAIL "]}", 201,
     "\"at\":\"shapes[0].frm\",\"code\":\"unknown\"", "1 shapes"},
    {"", "text/csv", "", 422, NULL, NULL},
    {"", "text/csv", HEADER, 422, "the submission is empty", NULL},
    {"", "text/csv", "a,b,c\n1,2,3\n", 422, "\"at\":\"body\"", NULL},
    /* the options of a CSV submission are in the query; check_batch_options tests more values */
    {"?name=night%20run&priority=90&topk=4&err_ratio=0.05&time_cap_ms=2000&routing=zipf:1.2&search="
     "exhaustive&layout=free&seed=9&classes=gfx942/304,cpu-znver4/2,gfx942/304",
     "text/csv", HEADER "4" TAIL, 201, NULL,
     "submit night run: 1 shapes, first 4" TAIL
     "; priority 90 topk 4 err_ratio 0.05 cap 2000 routing zipf:1.2 exhaustive free seed 9 classes 2"},
    {"?priority=101", "text/csv", HEADER "4" TAIL, 400,
     "\"at\":\"priority\",\"code\":\"value\",\"message\":\"priority: expected an integer from 0 to 100\"",
     NULL},
    {"?priority=high", "text/csv", HEADER "4" TAIL, 400, "\"at\":\"priority\",\"code\":\"type\"", NULL},
    {"?routing=zipf", "text/csv", HEADER "4" TAIL, 400, "\"at\":\"routing\"", NULL},
    {"?routing=recorded:1.2", "text/csv", HEADER "4" TAIL, 422,
     "the recorded profile has 2 experts, the shape has 128", NULL},
    {"?routing=router:sigmoid_groups%2Bshared", "text/csv", HEADER "4" TAIL, 422, "127 experts in 8 groups",
     NULL},
    {"?routing=router:softmax%2Bshared", "text/csv", HEADER "4" TAIL, 201, NULL,
     "routing router:softmax+shared "},
    {"?no_fuse=gemm1%2Bact,gemm1%2Bgemm2", "text/csv", HEADER "4" TAIL, 201, NULL, NULL},
    {"?fuse_saves=inf", "text/csv", HEADER "4" TAIL, 400, "\"at\":\"fuse_saves\"", NULL},
    {"?warmup=5&iters=101&split_k=0&shape_grouped=1", "text/csv", HEADER "4" TAIL, 201, NULL, NULL},
    {"?split_k=2", "text/csv", HEADER "4" TAIL, 400, "\"at\":\"split_k\"", NULL},
    {"?shape_grouped=maybe", "text/csv", HEADER "4" TAIL, 400, "expected 0 or 1", NULL},
    /* a submitted shape is replaced with the shape that AITER looks up in production, and the receipt
     * contains a note */
    {"?consumer=aiter", "text/csv", HEADER "64" SWIGLU, 201, "\"code\":\"production_key\"",
     "1 shapes, first "
     "64,3072,1536,128,4,ActivationType.Swiglu,torch.bfloat16,torch.bfloat16,torch.float4_e2m1fn_x2,"},
    {"?consumer=aiter", "text/csv", HEADER "56" SWIGLU "64" SWIGLU, 201, "\"code\":\"duplicate\"",
     "1 shapes, first 64,3072"},
    /* a shape is kept if some token count looks it up: 129 to 255 tokens are padded to 256 and look up bf16
     */
    {"?consumer=aiter", "text/csv", HEADER "256" SWIGLU_BF16 "\n", 201, "\"errors\":[]",
     "1 shapes, first 256" SWIGLU_BF16},
    {"?consumer=aiter", "text/csv", HEADER "512" SWIGLU_BF16 "\n", 201, "\"code\":\"production_key\"",
     "1 shapes, first 512,3072,1536,128,4,ActivationType.Swiglu,torch.bfloat16,torch.float4_e2m1fn_x2,"},
    {"?consumer=moefarm", "text/csv", HEADER "64" SWIGLU, 201, "\"errors\":[]",
     "1 shapes, first 64,3072,1536,128,4,ActivationType.Swiglu,torch.bfloat16,torch.float4_e2m1fn_x2,"},
    {"?promote=improved&min_effect=0.05", "text/csv", HEADER "4" TAIL, 201, NULL, NULL},
    {"?min_effect=0.05", "text/csv", HEADER "4" TAIL, 400, "add promote=improved", NULL},
    {"?promote=always&min_effect=0.05", "text/csv", HEADER "4" TAIL, 400, "add promote=improved", NULL},
    {"?time_budget=60", "text/csv", HEADER "4" TAIL, 201, NULL, NULL},
    {"?time_budget=-1", "text/csv", HEADER "4" TAIL, 400, "expected an integer from 0 to 1000000", NULL},
    {"?time_budget=60&search=exhaustive", "text/csv", HEADER "4" TAIL, 400,
     "time_budget: has no effect with search=exhaustive", NULL},
    {"?name=a%0Ab", "text/csv", HEADER "4" TAIL, 400, "\"at\":\"name\"", NULL},
    {"?colour=red", "text/csv", HEADER "4" TAIL, 400, "\"at\":\"colour\"", NULL},
    /* JSON bodies */
    {"", "application/json", "{\"shapes\":[{\"token\":4," JSON_TAIL ",{\"token\":\"8\"," JSON_TAIL "]}", 201,
     "\"shapes\":2,\"errors\":[]", "first 4" TAIL},
    {"", "application/json",
     "{\"csv\":\""
     "token,model_dim\"}",
     422, "\"at\":\"body\"", NULL},
    {"", "application/json",
     "{\"name\":\"x\",\"options\":{\"classes\":[\"gfx942/304\",\"a/"
     "1\"],\"topk\":4,\"seed\":3},\"shapes\":[{\"token\":4," JSON_TAIL "]}",
     201, NULL,
     "submit x: 1 shapes, first 4" TAIL
     "; priority 50 topk 4 err_ratio 0.1 cap 10000 routing uniform race common seed 3 classes 2"},
    {"", "application/json", "{\"shapes\":[{\"token\":4," JSON_TAIL ",{\"token\":0," JSON_TAIL "]}", 201,
     "\"at\":\"shapes[1].token\"", "1 shapes"},
    {"", "application/json", "{\"shapes\":[{\"token\":4," JSON_TAIL ",{\"token\":4," JSON_TAIL "]}", 201,
     "duplicate of shapes[0]", "1 shapes"},
    {"", "application/json", "{\"shapes\":[{\"token\":4,\"colour\":1," JSON_TAIL "]}", 422,
     "\"at\":\"shapes[0].colour\",\"code\":\"unknown\"", NULL},
    {"", "application/json", "{\"shapes\":[{\"token\":4}]}", 422,
     "\"at\":\"shapes[0].topk\",\"code\":\"missing\"", NULL},
    {"", "application/json", "{\"shapes\":[4]}", 422, "\"at\":\"shapes[0]\",\"code\":\"type\"", NULL},
    {"", "application/json", "{\"shapes\":[{\"token\":[4]," JSON_TAIL "]}", 422, "\"at\":\"shapes[0].token\"",
     NULL},
    {"", "application/json", "{\"shapes\":[]}", 422, "the submission is empty", NULL},
    {"", "application/json", "{}", 400, "\"at\":\"shapes\",\"code\":\"missing\"", NULL},
    {"", "application/json", "{\"shapes\":[],\"csv\":\"\"}", 400, "not both", NULL},
    {"", "application/json", "{\"shapes\":{}}", 400,
     "\"at\":\"shapes\",\"code\":\"type\",\"message\":\"shapes: expected an array\"", NULL},
    {"", "application/json", "{\"options\":[]}", 400,
     "\"code\":\"type\",\"message\":\"options: expected an object\"", NULL},
    {"", "application/json", "{\"name\":47}", 400,
     "\"code\":\"type\",\"message\":\"name: expected a string\"", NULL},
    {"", "application/json", "{\"csv\":null}", 400,
     "\"code\":\"type\",\"message\":\"csv: expected a string with the table\"", NULL},
    {"", "application/json", "{\"shape\":[]}", 400, "\"at\":\"shape\",\"code\":\"unknown\"", NULL},
    {"", "application/json", "{\"options\":{\"topk\":4.5},\"shapes\":[]}", 400, "\"at\":\"options.topk\"",
     NULL},
    {"", "application/json", "{\"options\":{\"speed\":1},\"shapes\":[]}", 400,
     "\"at\":\"options.speed\",\"code\":\"unknown\"", NULL},
    {"", "application/json", "{\"options\":{\"topk\":{}},\"shapes\":[]}", 400,
     "\"code\":\"type\",\"message\":\"options.topk: expected a number or a string\"", NULL},
    {"", "application/json", "{\"options\":{\"no_fuse\":[{}]},\"shapes\":[]}", 400,
     "options.no_fuse: expected a string or an array of strings\"", NULL},
    {"", "application/json",
     "{\"options\":{\"routing\":[3,0,131070,65535]},\"shapes\":[{\"token\":4,\"expert\":4,\"topk\":"
     "2," JSON_FORM "]}",
     201, NULL, "routing recorded:1.0.65535.32767 "},
    {"", "application/json", "{\"options\":{\"routing\":[3,-1]},\"shapes\":[]}", 400,
     "\"at\":\"options.routing\",\"code\":\"type\",\"message\":\"options.routing: expected a string or an "
     "array of counts\"",
     NULL},
    /* baseline: rows of other shapes are ignored, and rows that cannot be compared are reported */
    {"", "application/json",
     "{\"baseline\":" BASELINE("4", "tile:a|tile:b") ",\"shapes\":[{\"token\":4," JSON_TAIL "]}", 201,
     "\"errors\":[]", "; known 1: line 2, tile:a|tile:b"},
    {"", "application/json", "{\"baseline\":" BASELINE("8", "") ",\"shapes\":[{\"token\":4," JSON_TAIL "]}",
     201, "\"errors\":[]", "; known 0"},
    {"", "application/json", "{\"baseline\":" BASELINE("4", "") ",\"shapes\":[{\"token\":4," JSON_TAIL "]}",
     201, "\"at\":\"baseline, line 2\",\"code\":\"baseline\"", "; known 1: line 2, "},
    {"", "application/json",
     "{\"baseline\":" BASELINE(
         "4", "") ",\"options\":{\"classes\":\"gfx942/80,gfx950/256\"},\"shapes\":[{\"token\":4," JSON_TAIL
                  "]}",
     201, "\"errors\":[]", "; known 0"},
    {"", "application/json",
     "{\"baseline\":" BASELINE(
         "4", "") ",\"options\":{\"classes\":\"gfx942/80,gfx942/304\"},\"shapes\":[{\"token\":4," JSON_TAIL
                  "]}",
     201, "(kernel: a), so no candidate can race against it", "; known 1"},
    {"", "application/json",
     "{\"baseline\":" BASELINE("x", "a:b") ",\"shapes\":[{\"token\":4," JSON_TAIL "]}", 201,
     "\"at\":\"baseline, line 2\",\"code\":\"value\"", "; known 0"},
    {"", "application/json", "{\"baseline\":\"a,b\",\"shapes\":[{\"token\":4," JSON_TAIL "]}", 422,
     "\"at\":\"baseline\",\"code\":\"csv\"", NULL},
    {"", "application/json", "{\"baseline\":\"" HEADER_JSON "\",\"shapes\":[{\"token\":4," JSON_TAIL "]}",
     422, "expected a tuned_fmoe.csv", NULL},
    {"", "application/json",
     "{\"baseline\":" BASELINE(
         "4", "a:b") ",\"options\":{\"promote\":\"always\"},\"shapes\":[{\"token\":4," JSON_TAIL "]}",
     400, "\"at\":\"options.promote\",\"code\":\"conflict\"", NULL},
    {"", "application/json",
     "{\"baseline\":" BASELINE("4", "a:b") ",\"baseline\":" BASELINE(
         "4", "a:b") ",\"shapes\":[{\"token\":4," JSON_TAIL "]}",
     400, "given twice", NULL},
    {"", "application/json", "{\"baseline\":7,\"shapes\":[]}", 400, "\"at\":\"baseline\",\"code\":\"type\"",
     NULL},
    {"", "application/json", "[1]", 400, "the body is JSON, but not an object", NULL},
    {"", "application/json", "{\"shapes\":", 400,
     "the body is not valid JSON at line 1: check for a missing or extra comma", NULL},
    {"", "application/json", "{\"name\":\"x\",\n\"shapes\":[\n{\"token\":4,,}]}", 400,
     "not valid JSON at line 3", NULL},
    {"?topk=4", "application/json", "{\"shapes\":[]}", 400, "the other options into its `options`", NULL},
    {"?name=x", "application/json", "{\"shapes\":[]}", 400, "put name into the body", NULL},
};

MF_TEST(test_submissions)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){0});
    for (size_t i = 0; i < MF_ARRAY_LEN(submissions); i++) {
        const struct submission *s = &submissions[i];
        char path[512], headers[128];
        (void)snprintf(path, sizeof(path), "/api/v1/batches%s", s->query);
        (void)snprintf(headers, sizeof(headers), "Content-Type: %s\r\n", s->type);
        struct http_reply r =
            http_call(http_harness_port(h), "POST", path, headers, s->body, strlen(s->body));
        ck_assert_msg(r.status == s->status, "row %zu: status %d, expected %d: %s", i, r.status, s->status,
                      r.body);
        if (s->text)
            ck_assert_msg(strstr(r.body, s->text) != NULL, "row %zu: %s", i, r.body);
        if (s->farm_request)
            ck_assert_msg(strstr(http_harness_last_request(h), s->farm_request) != NULL, "row %zu: %s", i,
                          http_harness_last_request(h));
        http_reply_free(&r);
    }
    http_harness_stop(h);
}

MF_TEST(test_idempotency)
{
    static const struct {
        const char *path, *body;
        int status;
    } calls[] = {
        {"/api/v1/batches?topk=4&seed=2", HEADER "4" TAIL, 201},
        {"/api/v1/batches?topk=4&seed=2", HEADER "4" TAIL, 200},
        /* the order of the options does not matter */
        {"/api/v1/batches?seed=2&topk=4", HEADER "4" TAIL, 200},
        {"/api/v1/batches?topk=5&seed=2", HEADER "4" TAIL, 409},
        {"/api/v1/batches?topk=4&seed=2", HEADER "8" TAIL, 409},
    };
    struct http_harness *h = http_harness_start(&(struct http_harness_options){0});
    char first[256] = "";
    for (size_t i = 0; i < MF_ARRAY_LEN(calls); i++) {
        struct http_reply r = http_call(http_harness_port(h), "POST", calls[i].path,
                                        "Content-Type: text/csv\r\nIdempotency-Key: k1\r\n", calls[i].body,
                                        strlen(calls[i].body));
        ck_assert_msg(r.status == calls[i].status, "call %zu: %d %s", i, r.status, r.body);
        if (i == 0)
            (void)snprintf(first, sizeof(first), "%s", r.body);
        else if (r.status == 200)
            ck_assert_str_eq(r.body, first);
        else
            ck_assert_ptr_nonnull(strstr(r.body, "header.Idempotency-Key"));
        http_reply_free(&r);
    }
    http_harness_stop(h);
}

MF_TEST(test_too_many_shapes)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){0});
    struct mf_buf b;
    mf_buf_init(&b, 16 << 20);
    mf_buf_adds(&b, HEADER);
    for (int i = 1; i <= MF_SUBMISSION_SHAPES_MAX + 1; i++)
        mf_buf_addf(&b, "%d" TAIL "\n", i);
    struct http_reply r = http_call(http_harness_port(h), "POST", "/api/v1/batches",
                                    "Content-Type: text/csv\r\n", b.data, b.len);
    ck_assert_int_eq(r.status, 422);
    ck_assert_ptr_nonnull(strstr(r.body, "split it"));
    http_reply_free(&r);
    mf_buf_release(&b);
    http_harness_stop(h);
}

#define MERGE_HEADER TUNED_COLUMNS "\n"

/* Bodies with many small parts, which take long to parse: `n` pieces between head and tail. */
static const struct {
    const char *path, *type, *head, *piece, *tail;
    int n, status;
    const char *text;
} many_parts[] = {
    {"batches", "application/json", "{\"shapes\":[", "{},", "{}]}", 40000, 413,
     "shapes: 40001 entries; the limit is 40000: split it"},
    {"batches", "application/json", "{\"shapes\":[", "{},", "{}]}", 39999, 422, "no valid shape"},
    {"batches", "application/json", "{\"shapes\":[", "1,", "1]}", 700000, 413,
     "the body has 700003 JSON values; the limit is 640000: split it"},
    {"batches", "application/json", "{\"shapes\":[{", "\"a\":1,", "\"a\":1}]}", 100000, 422,
     "100001 members; a shape has at most 13"},
    {"batches", "application/json", "{\"options\":{\"classes\":[", "\"\",", "\"\"]}}", 1000000, 413,
     "the limit is 640000"},
    {"batches", "application/json", "{\"csv\":\"token", "\\n", "\"}", 40001, 413,
     "csv: the table has more than 40000 lines, the limit: split it"},
    {"batches", "application/json", "{\"baseline\":\"token", "\\n", "\"}", 100001, 413,
     "baseline: the table has more than 100000 lines, the limit: split it"},
    {"batches", "text/csv", HEADER, ",\n", "", 4000000, 413,
     "body: the table has more than 40000 lines, the limit: split it"},
    {"batches", "text/csv", HEADER, "\r", "", 4000000, 413, "lines, the limit"},
    {"batches", "text/csv", HEADER, "4" TAIL "\n", "", 39999, 201, "\"shapes\":1,"},
    {"misses", "application/json", "{\"source\":\"s\",\"class\":\"gfx942/304\",\"misses\":[", "{},", "{}]}",
     700000, 413, "the limit is 640000"},
    {"export/merge", "text/csv", MERGE_HEADER, ",\n", "", 4000000, 413,
     "body: the table has more than 100000 lines, the limit: split it"},
};

MF_TEST(test_many_parts, .rows = MF_ARRAY_LEN(many_parts))
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    char path[64], headers[64];
    struct mf_buf b;
    mf_buf_init(&b, 16 << 20);
    mf_buf_adds(&b, many_parts[_i].head);
    for (int i = 0; i < many_parts[_i].n; i++)
        mf_buf_adds(&b, many_parts[_i].piece);
    mf_buf_adds(&b, many_parts[_i].tail);
    ck_assert_int_eq(mf_buf_error(&b), 0);
    (void)snprintf(path, sizeof(path), "/api/v1/%s", many_parts[_i].path);
    (void)snprintf(headers, sizeof(headers), "Content-Type: %s\r\n", many_parts[_i].type);
    struct http_reply r = http_call(http_harness_port(h), "POST", path, headers, b.data, b.len);
    ck_assert_msg(r.status == many_parts[_i].status, "%d: %.300s", r.status, r.body);
    ck_assert_msg(strstr(r.body, many_parts[_i].text) != NULL, "%.500s", r.body);
    http_reply_free(&r);
    mf_buf_release(&b);
    http_harness_stop(h);
}

/* If many rows are bad, only the first are listed. The last entry contains the number of unlisted rows. */
static const struct {
    int bad, good, status;
    const char *more; /* NULL: all bad rows are listed */
} many_errors[] = {
    {MF_SUBMISSION_ERRORS_MAX, 1, 201, NULL},
    {MF_SUBMISSION_ERRORS_MAX + 1, 1, 201, "1 more is not listed"},
    {MF_SUBMISSION_ERRORS_MAX + 7, 0, 422, "7 more are not listed"},
};

MF_TEST(test_many_errors)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){0});
    for (size_t i = 0; i < MF_ARRAY_LEN(many_errors); i++) {
        struct mf_buf b;
        mf_buf_init(&b, 1 << 20);
        mf_buf_adds(&b, HEADER);
        for (int row = 0; row < many_errors[i].bad; row++)
            mf_buf_adds(&b, "x" TAIL "\n");
        if (many_errors[i].good)
            mf_buf_adds(&b, "4" TAIL "\n");
        struct http_reply r = http_call(http_harness_port(h), "POST", "/api/v1/batches",
                                        "Content-Type: text/csv\r\n", b.data, b.len);
        ck_assert_int_eq(r.status, many_errors[i].status);
        _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(r.body);
        const cJSON *errors = mf_json_array(json, "errors");
        int n = cJSON_GetArraySize(errors);
        ck_assert_int_eq(n, MF_SUBMISSION_ERRORS_MAX + (many_errors[i].more != NULL));
        const char *last;
        ck_assert_int_eq(mf_json_text(cJSON_GetArrayItem(errors, n - 1), "message", &last), 0);
        if (many_errors[i].more)
            ck_assert_str_eq(last, many_errors[i].more);
        http_reply_free(&r);
        mf_buf_release(&b);
    }
    http_harness_stop(h);
}

static const struct {
    const char *path, *farm_request;
    int status;
} changes[] = {
    {"/api/v1/batches/2/cancel", "cancel 2", 200},
    {"/api/v1/batches/1/cancel", "cancel 1", 409},
    {"/api/v1/batches/77/cancel", "cancel 77", 404},
    {"/api/v1/workers/3/drain", "drain 3", 200},
    {"/api/v1/workers/77/drain", "drain 77", 404},
    {"/api/v1/workers/3/revive", "revive worker 3", 200},
    {"/api/v1/workers/77/revive", "revive worker 77", 404},
    {"/api/v1/quarantine/12/revive?class=cpu-znver4/2", "revive 12 on cpu-znver4/2", 200},
    {"/api/v1/quarantine/1200/revive?class=cpu-znver4/2", "revive 1200", 404},
};

MF_TEST(test_changes)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    for (size_t i = 0; i < MF_ARRAY_LEN(changes); i++) {
        struct http_reply r = http_call(http_harness_port(h), "POST", changes[i].path, "", NULL, 0);
        ck_assert_msg(r.status == changes[i].status, "%s: %d", changes[i].path, r.status);
        ck_assert_ptr_nonnull(strstr(http_harness_last_request(h), changes[i].farm_request));
        http_reply_free(&r);
    }
    http_harness_stop(h);
}

/* --- lists --- */

static const char *const lists[] = {
    "/api/v1/batches?",
    "/api/v1/batches/1/tasks?",
    "/api/v1/batches/2/tasks?",
    "/api/v1/shapes?",
    "/api/v1/shapes?class=cpu-znver4/2&",
    "/api/v1/tasks/5/pipelines?",
    "/api/v1/tasks/5/pipelines?finalists=1&",
    "/api/v1/tasks/5/steps?",
    "/api/v1/tasks/10/steps?status=pending&",
    "/api/v1/tasks/5/rejections?",
    "/api/v1/tasks/10/rejections?kernel=tile*&",
    "/api/v1/steps/1/results?",
    "/api/v1/workers?",
    "/api/v1/quarantine?",
    "/api/v1/export/left_out?consumer=aiter&",
};

static cJSON *get(int port, const char *path)
{
    struct http_reply r = http_get(port, path);
    ck_assert_msg(r.status == 200, "%s: %s", path, r.body);
    cJSON *json = mf_json_parse(r.body, r.len, r.len);
    http_reply_free(&r);
    return json;
}

static cJSON *page(int port, const char *path, int limit, const char *cursor)
{
    char text[512];
    (void)snprintf(text, sizeof(text), "%slimit=%d%s%s", path, limit, cursor ? "&cursor=" : "",
                   cursor ? cursor : "");
    return get(port, text);
}

/* A list that is read in pages of any size equals the list that is read in one page. */
MF_TEST(test_pages)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    for (size_t i = 0; i < MF_ARRAY_LEN(lists); i++) {
        cJSON *whole = page(http_harness_port(h), lists[i], 1000, NULL);
        char *want = cJSON_PrintUnformatted(mf_json_array(whole, "items"));
        int n = cJSON_GetArraySize(mf_json_array(whole, "items"));
        ck_assert_msg(n > 0, "%s is empty", lists[i]);
        for (int limit = 1; limit <= 16; limit *= 4) {
            cJSON *all = cJSON_CreateArray();
            char cursor[128] = "";
            int pages = 0;
            do {
                const char *next = "";
                cJSON *json = page(http_harness_port(h), lists[i], limit, *cursor ? cursor : NULL),
                      *items = mf_json_array(json, "items");
                ck_assert_int_le(cJSON_GetArraySize(items), limit);
                while (items->child)
                    cJSON_AddItemToArray(all, cJSON_DetachItemFromArray(items, 0));
                (void)mf_json_text(json, "next", &next);
                (void)snprintf(cursor, sizeof(cursor), "%s", next);
                cJSON_Delete(json);
                ck_assert_int_le(++pages, n + 1);
            } while (*cursor);
            char *got = cJSON_PrintUnformatted(all);
            ck_assert_msg(strcmp(got, want) == 0, "%s by %d differs", lists[i], limit);
            free(got);
            cJSON_Delete(all);
        }
        free(want);
        cJSON_Delete(whole);
    }
    http_harness_stop(h);
}

/* Requests on the fixture, with a part of the expected response. */
static const struct {
    const char *path, *text;
} answers[] = {
    {"/api/v1/batches/1", "\"done\":7"},
    {"/api/v1/batches/1", "\"free_gain\":0.013"},
    {"/api/v1/batches/1", "\"eta_s\":null"},
    {"/api/v1/batches/2", "\"line\":9"},
    {"/api/v1/batches/3",
     "{\"class\":\"gfx942/304\",\"tasks\":1,\"reason\":\"no worker of the class gfx942/304 is connected\"}"},
    {"/api/v1/batches/2/tasks?state=failed", "every step that covers gemm2 failed"},
    {"/api/v1/shapes?limit=1", "{\"id\":1,\"layer_model\":\"2048,96,128,8,"},
    {"/api/v1/shapes?limit=1", "\"tasks\":[{\"id\":1,\"batch\":1,\"class\":\"cpu-znver4/2\",\"model\":\"EPYC "
                               "9R14\",\"state\":\"done\""},
    {"/api/v1/shapes?class=gfx942/304", "\"state\":\"waiting\""},
    {"/api/v1/shapes?layer_model=1", "{\"items\":[],\"next\":null}"},
    {"/api/v1/"
     "shapes?layer_model=2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
     "QuantType."
     "No,1,0&limit=1",
     "{\"id\":1,"},
    {"/api/v1/tasks/5", "\"shape\":{\"token\":16,\"model_dim\":2048"},
    {"/api/v1/tasks/5", "\"compiler\":\"gcc 12.2.0\""},
    {"/api/v1/tasks/5", "\"race\":{\"winner\":"},
    {"/api/v1/tasks/5", "\"active_experts\":41"},
    {"/api/v1/tasks/10", "\"config\":null"},
    {"/api/v1/tasks/5/pipelines?limit=1", "\"winner\":true"},
    {"/api/v1/tasks/5/rejections?kernel=onednn*", "oneDNN's matmul supports bf16"},
    {"/api/v1/tasks/5/rejections?kernel=nothing*", "{\"items\":[],\"next\":null}"},
    {"/api/v1/tasks/5/steps?covers=gemm2&family=two_stage&limit=1", "\"family\":\"two_stage\""},
    {"/api/v1/tasks/5/steps?covers=gemm2&family=tile&limit=1", "\"family\":\"two_stage\""},
    {"/api/v1/tasks/5/steps?covers=gemm2&limit=1",
     "\"registers\":null,\"spills\":null,\"lds\":null,\"occupancy\":null"},
    {"/api/v1/tasks/5/steps?covers=gather%2Bgemm1%2Bact&limit=1",
     "\"registers\":168,\"spills\":0,\"lds\":98304,\"occupancy\":2"},
    {"/api/v1/batches/1/timeline", "\"bucket_ms\":4000"}, /* 840 s are divided into at most 240 buckets */
    {"/api/v1/batches/3/timeline", "\"bucket_ms\":1000"},
    {"/api/v1/pipelines/1", "\"task\":1}"},
    {"/api/v1/steps/1",
     "\"name\":\"sort_m16\",\"revision\":\"r1\",\"stage\":\"move\",\"covers\":\"sort\",\"block_m\":16,"},
    {"/api/v1/steps/1", "\"shape\":{\"token\":1,\"model_dim\":2048"},
    {"/api/v1/steps/1/results?task=1", "\"samples\":[1."},
    {"/api/v1/steps/1/results?task=2", "{\"items\":[],\"next\":null}"},
    {"/api/v1/workers", "\"busy\":{\"timing\":0.7014"},
    {"/api/v1/quarantine", "\"strikes\":[{\"status\":\"crash\""},
};

MF_TEST(test_answers)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    for (size_t i = 0; i < MF_ARRAY_LEN(answers); i++) {
        struct http_reply r = http_get(http_harness_port(h), answers[i].path);
        ck_assert_msg(r.status == 200 && strstr(r.body, answers[i].text), "%s: %s", answers[i].path, r.body);
        http_reply_free(&r);
    }
    http_harness_stop(h);
}

/* The timeline contains every result of a batch once. The first and the last bucket also contain the results
 * before and after the timeline's range. */
MF_TEST(test_timeline)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    static const char *const names[] = {"measured", "refused", "raced"};
    static const int measured[] = {FIXTURE_BATCH_DONE, FIXTURE_BATCH_OPEN};
    for (size_t i = 0; i < MF_ARRAY_LEN(measured); i++) {
        char path[64];
        int sums[3] = {0}, n = 0, want = 0;
        (void)snprintf(path, sizeof(path), "/api/v1/batches/%d", measured[i]);
        cJSON *batch = get(http_harness_port(h), path);
        want = cJSON_GetObjectItem(batch, "measured")->valueint;
        cJSON_Delete(batch);
        (void)snprintf(path, sizeof(path), "/api/v1/batches/%d/timeline", measured[i]);
        cJSON *json = get(http_harness_port(h), path);
        for (size_t k = 0; k < MF_ARRAY_LEN(names); k++) {
            const cJSON *list = mf_json_array(json, names[k]), *item;
            ck_assert_int_le(n = cJSON_GetArraySize(list), 241);
            cJSON_ArrayForEach (item, list)
                sums[k] += item->valueint;
            if (i == 0 && k == 0) /* the first bucket contains a result that is older than its batch */
                ck_assert_int_eq(cJSON_GetArrayItem(list, 0)->valueint, 1);
        }
        ck_assert_int_eq(sums[0], want);
        ck_assert_int_gt(sums[1], 0);
        ck_assert_int_lt(sums[1], sums[0]);
        ck_assert_int_eq(sums[2], measured[i] == FIXTURE_BATCH_DONE ? 8 * FIXTURE_TASKS_DONE : 8);
        cJSON_Delete(json);
    }
    http_harness_stop(h);
}

/* Raced pipelines come first. They are sorted by time, with the winner before all others. Then the remaining
 * pipelines follow, sorted by forecast. */
MF_TEST(test_ranking)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    cJSON *json = page(http_harness_port(h), "/api/v1/tasks/5/pipelines?", 1000, NULL);
    const cJSON *item;
    double last = 0;
    int raced = 0, ties = 0, i = 0;
    cJSON_ArrayForEach (item, mf_json_array(json, "items")) {
        bool winner = false, tie = false;
        double us = 0, forecast = 0;
        ck_assert_int_eq(mf_json_bool(item, "winner", &winner), 0);
        ck_assert_int_eq(mf_json_bool(item, "tie", &tie), 0);
        ck_assert_int_eq(mf_json_double(item, "forecast_us", &forecast), 0);
        ck_assert_int_eq(winner, i++ == 0);
        ties += tie;
        bool measured = mf_json_double(item, "us", &us) == 0;
        ck_assert_msg(!measured || raced == i - 1, "a raced pipeline follows one that was not raced");
        if (raced == i - 1 && !measured)
            last = 0;
        ck_assert_double_ge(measured ? us : forecast, last);
        last = measured ? us : forecast;
        raced += measured;
    }
    ck_assert_int_eq(raced, 8);
    ck_assert_int_eq(ties, 1);
    cJSON_Delete(json);
    http_harness_stop(h);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
