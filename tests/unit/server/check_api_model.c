/* Tests POST /models/layer. */
#include "common/base/text.h"
#include "support/farm/http_client.h"
#include "support/farm/http_harness.h"
#include "support/mf_check.h"

#define CONFIG                                                                                       \
    "{\\\"model_type\\\":\\\"qwen3_moe\\\",\\\"hidden_size\\\":64,\\\"moe_intermediate_size\\\":32," \
    "\\\"num_experts\\\":4,\\\"num_experts_per_tok\\\":2,\\\"hidden_act\\\":\\\"silu\\\","           \
    "\\\"torch_dtype\\\":\\\"bfloat16\\\"}"
#define FILES "\"files\":{\"config.json\":\"" CONFIG "\"}"

/* clang-format off */
static const struct {
    const char *body;
    int status;
    const char *has[3]; /* parts of the response */
} bodies[] = {
    {"{" FILES "}", 200,
     {"\"model_dim\":64,\"inter_dim\":32,\"expert\":4,\"topk\":2,", "\"tokens\":[1,2,4,8,", ",32768]"}},
    {"{" FILES ",\"name\":\"mine\",\"tp\":2}", 200,
     {"\"name\":\"mine\"", "\"inter_dim\":16", "\"token\":1,"}},
    {"{" FILES ",\"ep\":2}", 200, {"\"expert\":2", "\"form\":\"ep:0/4\""}},
    {"{\"model\":\"deepseek-v3\",\"tp\":8,\"fused_shared\":1,\"class\":\"gfx942/304\"}", 200,
     {"\"expert\":257,\"topk\":9,", "e4m3fnuz", "\"shared\":1,"}},
    {"{" FILES ",\"tp\":3}", 422, {"\"at\":\"tp\"", "32"}},
    {"{" FILES ",\"tp\":0}", 422, {"tp: expected an integer from 1 to 1024"}},
    {"{" FILES ",\"ep\":\"2\"}", 422, {"ep: expected an integer from 1 to 4096"}},
    {"{" FILES ",\"fused_shared\":65}", 422, {"fused_shared: expected an integer from 0 to 64"}},
    {"{" FILES ",\"class\":\"H200\"}", 422, {"class: expected a device class such as gfx942/304"}},
    {"{" FILES ",\"class\":1}", 422, {"class: expected a device class"}},
    {"{" FILES ",\"name\":1}", 422, {"name: expected a text"}},
    {"{" FILES ",\"model\":\"deepseek-v3\"}", 422, {"model: expected either files, an object, or model"}},
    {"{}", 422, {"model: expected either files"}},
    {"{\"files\":[]}", 422, {"model: expected either files"}},
    {"{\"files\":{}}", 422, {"\"at\":\"files\""}},
    {"{\"files\":{\"config.json\":1}}", 422, {"files: config.json: expected the texts of files"}},
    {"{\"files\":{\"../config.json\":\"\"}}", 422, {"files: ../config.json: expected the texts"}},
    {"{\"files\":{\"config.json\":\"{\"}}", 422, {"\"at\":\"files\"", "config.json"}},
    {"{\"model\":\"deepseek-v33\"}", 422, {"deepseek-v33 is not a known model; did you mean deepseek-v3;"}},
    {"{\"model\":\"\"}", 422, {"is not a known model"}},
    {"{" FILES ",\"topk\":2}", 422, {"\"at\":\"topk\",\"code\":\"unknown\""}},
    {"[]", 400, {"object"}},
    {"", 400, {"JSON"}},
};
/* clang-format on */

MF_TEST(reads_models, .rows = MF_ARRAY_LEN(bodies))
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    struct http_reply r =
        http_call(http_harness_port(h), "POST", "/api/v1/models/layer", "Content-Type: application/json\r\n",
                  bodies[_i].body, strlen(bodies[_i].body));
    ck_assert_msg(r.status == bodies[_i].status, "%d: %s", r.status, r.body);
    for (size_t i = 0; i < 3 && bodies[_i].has[i]; i++)
        ck_assert_msg(strstr(r.body, bodies[_i].has[i]) != NULL, "no %s in %s", bodies[_i].has[i], r.body);
    http_reply_free(&r);
    http_harness_stop(h);
}

int main(void)
{
    return mf_check_main(NULL);
}
