/* common/table/triton/triton_config.c: step names and JSON objects of Triton configurations. */
#include "common/base/json.h"
#include "common/table/triton/triton_config.h"
#include "support/mf_check.h"

/* Names that parse and are printed unchanged. */
static const struct {
    const char *name;
    int m, down_m; /* down_m 0: no second configuration */
    bool tma, down_tma;
} names[] = {
    {"triton_m64_n128_k64_g8_w4_s3", 64, 0, false, false},
    {"triton_m8_n64_k128_g1_w4_s4", 8, 0, false, false},
    {"triton_m64_n128_k64_g8_w4_s3_tma", 64, 0, true, false},
    {"triton_m16_n64_k64_g1_w4_s5-down_m16_n128_k64_g64_w8_s2_tma", 16, 16, false, true},
    {"triton_m16_n64_k64_g1_w4_s2_eu1_mi16_kp2", 16, 0, false, false},
    {"triton_m128_n256_k64_g16_w8_s4_sk1_cta1", 128, 0, false, false},
};

MF_TEST(reads_and_prints_step_names, .rows = MF_ARRAY_LEN(names))
{
    struct mf_triton_step step;
    char text[MF_STEP_NAME_MAX];
    ck_assert_int_eq(mf_triton_step_parse(names[_i].name, &step), 0);
    ck_assert_int_eq(step.up.value[MF_TRITON_BLOCK_M], names[_i].m);
    ck_assert_int_eq(step.has_down, names[_i].down_m > 0);
    ck_assert_int_eq(step.down.value[MF_TRITON_BLOCK_M], names[_i].down_m);
    ck_assert_int_eq(step.up.value[MF_TRITON_TMA], names[_i].tma);
    ck_assert_int_eq(step.down.value[MF_TRITON_TMA], names[_i].down_tma);
    mf_triton_step_print(&step, text);
    ck_assert_str_eq(text, names[_i].name);
}

static const struct {
    const char *name;
    int r;
} wrong_names[] = {
    {"default", -ENOENT},
    {"default2", -EINVAL},
    {"", -EINVAL},
    {"triton", -EINVAL},
    {"triton_m64_n128_k64_g8_w4", -EINVAL}, /* no stages */
    {"triton_m64_n128_k64_g8_w4_s3_", -EINVAL},
    {"triton_m64_m64_n128_k64_g8_w4_s3", -EINVAL}, /* twice */
    {"triton_m65_n128_k64_g8_w4_s3", -EINVAL},     /* not a power of two */
    {"triton_m64_n128_k64_g8_w3_s3", -EINVAL},
    {"triton_m64_n128_k64_g0_w4_s3", -EINVAL},
    {"triton_m64_n128_k64_g8_w4_s3_x1", -EINVAL},
    {"triton_m64_n128_k64_g8_w4_s3_tma1", -EINVAL},
    {"triton_m64_n128_k64_g8_w4_s3-down", -EINVAL},
    {"triton_m64_n128_k64_g8_w4_s3-up_m64_n128_k64_g8_w4_s3", -EINVAL},
    {"triton_m99999999999_n128_k64_g8_w4_s3", -EINVAL},
    {"tile_m64_n128_k64_g8_w4_s3", -EINVAL},
};

MF_TEST(refuses_other_names, .rows = MF_ARRAY_LEN(wrong_names))
{
    struct mf_triton_step step;
    ck_assert_int_eq(mf_triton_step_parse(wrong_names[_i].name, &step), wrong_names[_i].r);
}

#define REST "\"BLOCK_SIZE_N\":64,\"BLOCK_SIZE_K\":128,\"GROUP_SIZE_M\":1"
static const struct {
    const char *json, *printed, *expected; /* printed NULL: a field is refused with `expected` */
} objects[] = {
    {"{\"BLOCK_SIZE_M\":16," REST ",\"num_warps\":4,\"num_stages\":5}",
     "{\"BLOCK_SIZE_M\":16," REST ",\"num_warps\":4,\"num_stages\":5}", NULL},
    {"{" REST ",\"BLOCK_SIZE_M\":16,\"USE_TMA\":true,\"waves_per_eu\":2,\"kpack\":2}",
     "{\"BLOCK_SIZE_M\":16," REST ",\"USE_TMA\":true,\"waves_per_eu\":2,\"kpack\":2}", NULL},
    {"{\"BLOCK_SIZE_M\":16," REST ",\"grf_mode\":\"256\"}", "{\"BLOCK_SIZE_M\":16," REST ",\"grf_mode\":256}",
     NULL},
    {"{\"BLOCK_SIZE_M\":24," REST "}", NULL, "a power of two from 8 to 512"},
    {"{\"BLOCK_SIZE_M\":16.5," REST "}", NULL, "a power of two from 8 to 512"},
    {"{\"BLOCK_SIZE_M\":16," REST ",\"USE_TMA\":1}", NULL, "true or false"},
};

/* Reads the fields of an object. Returns NULL, or the description of the first refused field's values. */
static const char *read_fields(const cJSON *object, struct mf_triton_config *ret)
{
    const cJSON *field;
    *ret = (struct mf_triton_config){0};
    cJSON_ArrayForEach (field, object) {
        enum mf_triton i;
        const char *expected;
        ck_assert_int_eq(mf_triton_parse(field->string, &i), 0);
        if (mf_triton_value(i, field, &ret->value[i], &expected) < 0)
            return expected;
        ret->set |= 1u << i;
    }
    return NULL;
}

MF_TEST(reads_and_prints_json, .rows = MF_ARRAY_LEN(objects))
{
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(objects[_i].json);
    struct mf_triton_config config;
    const char *expected = read_fields(json, &config);
    if (!objects[_i].printed || expected) {
        ck_assert_pstr_eq(expected, objects[_i].expected);
        return;
    }
    _cleanup_(cJSON_Deletep) cJSON *again = mf_triton_config_json(&config);
    _cleanup_(mf_freep) char *text = mf_json_print(again);
    ck_assert_str_eq(text, objects[_i].printed);
}

int main(void)
{
    return mf_check_main(NULL);
}
