/* common/moe/shape_json.c: shapes survive a round trip through JSON, and each error names its member. */
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
#define LONG  X16 X16 X16 X16 X16 X16 X16 X16 X16 /* longer than any valid value */
#define FLAGS "\"use_g1u1\":1,\"doweight_stage1\":0"

static const struct {
    const char *row, *form, *json;
} written[] = {
    {ROW, "", "{\"token\":16," SIZES "," TEXTS "," FLAGS "}"},
    {ROW, "ep:0/256", "{\"token\":16," SIZES "," TEXTS "," FLAGS ",\"form\":\"ep:0/256\"}"},
};

static int record_error(void *context, const char *member, const char *code, const char *why)
{
    return mf_buf_addf(context, "%s %s: %s\n", member, code, why);
}

MF_TEST(round_trip, .rows = MF_ARRAY_LEN(written))
{
    _cleanup_(cJSON_Deletep) cJSON *json = NULL, *holder = cJSON_CreateObject();
    _cleanup_(mf_buf_release) struct mf_buf errors;
    struct mf_shape shape, again;
    const char *why;
    char *text;

    mf_buf_init(&errors, 4096);
    ck_assert_int_eq(mf_shape_parse(written[_i].row, &shape), 0);
    ck_assert_int_eq(mf_shape_set(&shape, MF_SHAPE_FORM, written[_i].form, &why), 0);
    json = mf_shape_to_json(&shape);
    text = mf_json_print(json);
    ck_assert_str_eq(text, written[_i].json);
    free(text);
    cJSON_Delete(json);
    /* parse the printed JSON, because mf_shape_to_json adds numbers as raw text */
    json = cJSON_Parse(written[_i].json);
    ck_assert_int_eq(mf_shape_from_json(json, &again, record_error, &errors), 1);
    ck_assert(mf_shape_equal(&shape, &again));
    ck_assert_int_eq(mf_shape_add_to_json(holder, written[_i].row), 0);
    ck_assert_ptr_nonnull(cJSON_GetObjectItem(mf_json_object(holder, "shape"), "token"));
    ck_assert_int_eq(mf_shape_add_to_json(holder, "no shape"), 0);
}

static const struct {
    const char *json, *expected;
} invalid[] = {
    {"[]", " type: expected an object with the twelve columns\n"},
    {"{" SIZES "," TEXTS "," FLAGS "}",
     "token missing: token is missing; write an integer from 1 to 16777215\n"},
    {"{\"token\":16," SIZES "," TEXTS ",\"use_g1u1\":1}",
     "doweight_stage1 missing: doweight_stage1 is missing; write 1 or 0\n"},
    {"{\"token\":16," SIZES "," TEXTS "," FLAGS ",\"colour\":1}",
     "colour unknown: unknown column; a shape has token, model_dim, inter_dim, expert, topk, "
     "act_type, dtype, q_dtype_a, q_dtype_w, q_type, use_g1u1, doweight_stage1, and optionally form\n"},
    {"{\"token\":16," SIZES "," TEXTS "," FLAGS ",\"colour\":[1]}", "colour unknown: "},
    {"{\"token\":[1]," SIZES "," TEXTS "," FLAGS "}",
     "token type: token: expected a number, a string or a boolean\n"},
    {"{\"token\":16," SIZES "," TEXTS "," FLAGS ",\"form\":null}",
     "form type: form: expected a number, a string or a boolean\n"},
    {"{\"token\":1.5," SIZES "," TEXTS "," FLAGS "}",
     "token value: token is '1.5'; write an integer from 1 to 16777215\n"},
    {"{\"token\":\"\"," SIZES "," TEXTS "," FLAGS "}",
     "token value: token is empty; write an integer from 1 to 16777215\n"},
    {"{\"token\":\"" LONG "\"," SIZES "," TEXTS "," FLAGS "}", "token value: token is 'xxxxxxxxxxxxxxxx"},
    {"{\"token\":16,\"model_dim\":2048,\"inter_dim\":96,\"expert\":4,\"topk\":8," TEXTS "," FLAGS "}",
     "topk range: topk is '8'; write at most the number of experts"},
    {"{\"token\":16," SIZES "," TEXTS "," FLAGS ",\"form\":\"ep:0/64\"}",
     "form range: form is 'ep:0/64'; write "},
};

MF_TEST(error_messages, .rows = MF_ARRAY_LEN(invalid))
{
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(invalid[_i].json);
    _cleanup_(mf_buf_release) struct mf_buf errors;
    struct mf_shape shape;

    mf_buf_init(&errors, 4096);
    ck_assert_int_eq(mf_shape_from_json(json, &shape, record_error, &errors), 0);
    ck_assert_msg(strncmp(errors.data, invalid[_i].expected, strlen(invalid[_i].expected)) == 0, "%s",
                  errors.data);
}

int main(void)
{
    return mf_check_main(NULL);
}
