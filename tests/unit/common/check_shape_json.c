/* common/moe/shape_json.c: shapes that are written are read as they were, and every fault of one that is read is told by its member. */
#include "common/moe/shape_json.h"

#include <errno.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/json.h"
#include "support/mf_check.h"

#define ROW \
    "16,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define TEXTS                                                                                             \
    "\"act_type\":\"ActivationType.Silu\",\"dtype\":\"torch.bfloat16\",\"q_dtype_a\":\"torch.bfloat16\"," \
    "\"q_dtype_w\":\"torch.bfloat16\",\"q_type\":\"QuantType.No\""
#define SIZES "\"model_dim\":2048,\"inter_dim\":96,\"expert\":128,\"topk\":8"
#define X16   "xxxxxxxxxxxxxxxx"
#define LONG  X16 X16 X16 X16 X16 X16 X16 X16 X16 /* longer than any value */
#define FLAGS "\"use_g1u1\":1,\"doweight_stage1\":0"

static const struct {
    const char *row, *form, *json;
} written[] = {
    {ROW, "", "{\"token\":16," SIZES "," TEXTS "," FLAGS "}"},
    {ROW, "ep:0/256", "{\"token\":16," SIZES "," TEXTS "," FLAGS ",\"form\":\"ep:0/256\"}"},
};

static int hear(void *context, const char *member, const char *code, const char *why)
{
    return mf_buf_addf(context, "%s %s: %s\n", member, code, why);
}

START_TEST(written_and_read)
{
    _cleanup_(cJSON_Deletep) cJSON *json = NULL, *holder = cJSON_CreateObject();
    _cleanup_(mf_buf_release) struct mf_buf heard;
    struct mf_shape shape, again;
    const char *why;
    char *text;

    mf_buf_init(&heard, 4096);
    ck_assert_int_eq(mf_shape_parse(written[_i].row, &shape), 0);
    ck_assert_int_eq(mf_shape_set(&shape, MF_SHAPE_FORM, written[_i].form, &why), 0);
    json = mf_shape_to_json(&shape);
    text = mf_json_print(json);
    ck_assert_str_eq(text, written[_i].json);
    free(text);
    cJSON_Delete(json);
    json = cJSON_Parse(written[_i].json); /* numbers that are raw text are none yet */
    ck_assert_int_eq(mf_shape_from_json(json, &again, hear, &heard), 1);
    ck_assert(mf_shape_equal(&shape, &again));
    ck_assert_int_eq(mf_shape_add(holder, written[_i].row), 0);
    ck_assert_ptr_nonnull(cJSON_GetObjectItem(mf_json_object(holder, "shape"), "token"));
    ck_assert_int_eq(mf_shape_add(holder, "no shape"), 0);
}
END_TEST

static const struct {
    const char *json, *told;
} wrong[] = {
    {"[]", " type: an object with the twelve columns is expected\n"},
    {"{" SIZES "," TEXTS "," FLAGS "}",
     "token missing: token is missing; write an integer from 1 to 16777215\n"},
    {"{\"token\":16," SIZES "," TEXTS ",\"use_g1u1\":1}",
     "doweight_stage1 missing: doweight_stage1 is missing; write 1 or 0\n"},
    {"{\"token\":16," SIZES "," TEXTS "," FLAGS ",\"colour\":1}",
     "colour unknown: there is no such column; a shape has token, model_dim, inter_dim, expert, topk, "
     "act_type, dtype, q_dtype_a, q_dtype_w, q_type, use_g1u1, doweight_stage1, and may have form\n"},
    {"{\"token\":16," SIZES "," TEXTS "," FLAGS ",\"colour\":[1]}", "colour unknown: "},
    {"{\"token\":[1]," SIZES "," TEXTS "," FLAGS "}",
     "token type: token: a number, a text or a boolean is expected\n"},
    {"{\"token\":16," SIZES "," TEXTS "," FLAGS ",\"form\":null}",
     "form type: form: a number, a text or a boolean is expected\n"},
    {"{\"token\":1.5," SIZES "," TEXTS "," FLAGS "}",
     "token value: token is '1.5'; write an integer from 1 to 16777215\n"},
    {"{\"token\":\"\"," SIZES "," TEXTS "," FLAGS "}",
     "token value: token is empty; write an integer from 1 to 16777215\n"},
    {"{\"token\":\"" LONG "\"," SIZES "," TEXTS "," FLAGS "}", "token value: token is 'xxxxxxxxxxxxxxxx"},
    {"{\"token\":16,\"model_dim\":2048,\"inter_dim\":96,\"expert\":4,\"topk\":8," TEXTS "," FLAGS "}",
     "topk range: topk is '8'; write at most expert"},
    {"{\"token\":16," SIZES "," TEXTS "," FLAGS ",\"form\":\"ep:0/64\"}",
     "form range: form is 'ep:0/64'; write "},
};

START_TEST(faults_are_told)
{
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(wrong[_i].json);
    _cleanup_(mf_buf_release) struct mf_buf heard;
    struct mf_shape shape;

    mf_buf_init(&heard, 4096);
    ck_assert_int_eq(mf_shape_from_json(json, &shape, hear, &heard), 0);
    ck_assert_msg(strncmp(heard.data, wrong[_i].told, strlen(wrong[_i].told)) == 0, "%s", heard.data);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shape_json");
    TCase *tc = tcase_create("shape_json");

    tcase_add_loop_test(tc, written_and_read, 0, MF_ARRAY_LEN(written));
    tcase_add_loop_test(tc, faults_are_told, 0, MF_ARRAY_LEN(wrong));
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
