#include "common/moe/shape.h"

#include "common/base/cleanup.h"
#include "support/mf_check.h"
#include "support/table_columns.h"

static const char qwen[] =
    "4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0";

static struct mf_shape qwen_shape(void)
{
    struct mf_shape shape;
    ck_assert_int_eq(mf_shape_parse(qwen, &shape), 0);
    return shape;
}

/* clang-format off */
/* Accepted spellings and their canonical form. */
static const struct {
    const char *column, *text, *canonical;
} spellings[] = {
    {"token",           "1",                         "1"},
    {"token",           "16777215",                  "16777215"},
    {"model_dim",       "7168",                      "7168"},
    {"inter_dim",       "0256",                      "256"},
    {"expert",          "257",                       "257"},
    {"topk",            "9",                         "9"},
    {"act_type",        "ActivationType.Silu",       "ActivationType.Silu"},
    {"act_type",        "ActivationType.Gelu",       "ActivationType.Gelu"},
    {"act_type",        "ActivationType.Swiglu",     "ActivationType.Swiglu"},
    {"act_type",        "ActivationType.Situv2",     "ActivationType.Situv2"},
    {"act_type",        "ActivationType.No",         "ActivationType.No"},
    {"act_type",        "Gelu",                      "ActivationType.Gelu"},
    {"dtype",           "torch.bfloat16",            "torch.bfloat16"},
    {"dtype",           "dtypes.bf16",               "torch.bfloat16"},
    {"dtype",           "bf16",                      "torch.bfloat16"},
    {"dtype",           "bfloat16",                  "torch.bfloat16"},
    {"dtype",           "torch.float16",             "torch.float16"},
    {"dtype",           "torch.half",                "torch.float16"},
    {"dtype",           "dtypes.fp16",               "torch.float16"},
    {"q_dtype_a",       "torch.float8_e4m3fn",       "torch.float8_e4m3fn"},
    {"q_dtype_a",       "torch.float8_e4m3fnuz",     "torch.float8_e4m3fnuz"},
    {"q_dtype_a",       "dtypes.fp8",                "torch.float8_e4m3fn"},
    {"q_dtype_a",       "torch.int8",                "torch.int8"},
    {"q_dtype_a",       "dtypes.i8",                 "torch.int8"},
    {"q_dtype_w",       "torch.int4",                "torch.int4"},
    {"q_dtype_w",       "dtypes.i4x2",               "torch.int4"},
    {"q_dtype_w",       "torch.float4_e2m1fn_x2",    "torch.float4_e2m1fn_x2"},
    {"q_dtype_w",       "dtypes.fp4x2",              "torch.float4_e2m1fn_x2"},
    {"q_type",          "QuantType.No",              "QuantType.No"},
    {"q_type",          "QuantType.per_Tensor",      "QuantType.per_Tensor"},
    {"q_type",          "QuantType.per_Token",       "QuantType.per_Token"},
    {"q_type",          "QuantType.per_1x32",        "QuantType.per_1x32"},
    {"q_type",          "QuantType.per_1x128",       "QuantType.per_1x128"},
    {"q_type",          "QuantType.per_128x128",     "QuantType.per_1x128"},
    {"q_type",          "per_128x128",               "QuantType.per_1x128"},
    {"use_g1u1",        "1",                         "1"},
    {"use_g1u1",        "True",                      "1"},
    {"use_g1u1",        "true",                      "1"},
    {"use_g1u1",        "0",                         "0"},
    {"use_g1u1",        "False",                     "0"},
    {"doweight_stage1", "true",                      "1"},
    {"act_type",        "GeluTanh",                  "ActivationType.GeluTanh"},
    {"q_type",          "per_1x16",                  "QuantType.per_1x16"},
    {"form",            "",                          ""},
    {"form",            "limit:10",                  "limit:10"},
    {"form",            "alpha:1.702+limit:7.0",     "limit:7+alpha:1.702"},
    {"form",            "gate_up:tiled+b1",          "b1+gate_up:tiled"},
    {"form",            "gate_up:separated",         "gate_up:separated"},
    {"form",            "ep:48/384",                 "ep:48/384"},
    {"form",            "ep:0/384+b2",               "b2+ep:0/384"},
    {"doweight_stage1", "0",                         "0"},
};

/* Invalid values. mf_shape_set leaves the column unchanged, and the reason lists the valid values. */
static const struct {
    const char *column, *text, *why;
} errors[] = {
    {"token",           "",                      "from 1 to"},
    {"token",           "0",                     "from 1 to"},
    {"token",           "-4",                    "from 1 to"},
    {"token",           "+4",                    "from 1 to"},
    {"token",           " 4",                    "from 1 to"},
    {"token",           "4.0",                   "from 1 to"},
    {"token",           "0x10",                  "from 1 to"},
    /* sorted_token_ids stores a token in 24 bits */
    {"token",           "16777216",              "16777215"},
    {"token",           "99999999999999999999",  "from 1 to"},
    {"model_dim",       "262145",                "262144"},
    {"inter_dim",       "4294967297",            "262144"},     /* becomes 1 if truncated to 32 bits */
    {"expert",          "65536",                 "65535"},
    {"topk",            "128",                   "127"},
    {"act_type",        "ActivationType.silu",   "ActivationType.Silu"},
    {"act_type",        "",                      "ActivationType.Silu"},
    {"dtype",           "torch.float32",         "torch.bfloat16"},
    {"q_dtype_a",       "torch.uint8",           "torch.int8"},
    {"q_dtype_w",       "torch.",                "torch.int4"},
    {"q_dtype_w",       "torch.fp8",             "torch.int4"},
    {"q_type",          "QuantType.per_1x64",    "QuantType.per_1x128"},
    {"q_type",          "torch.int8",            "QuantType.No"},
    {"use_g1u1",        "2",                     "1 or 0"},
    {"use_g1u1",        "TRUE",                  "1 or 0"},
    {"doweight_stage1", "",                      "1 or 0"},
    {"form",            "limit",                 "limit:X"},
    {"form",            "limit:0",               "limit:X"},
    {"form",            "limit:-1",              "limit:X"},
    {"form",            "limit:nan",             "limit:X"},
    {"form",            "limit:1+limit:2",       "limit:X"},
    {"form",            "limit:1+",              "limit:X"},
    {"form",            "+limit:1",              "limit:X"},
    {"form",            "limit:65537",           "limit:X"},
    {"form",            "limit:1e-60",           "limit:X"},
    {"form",            "bias",                  "limit:X"},
    {"form",            "gate_up",               "gate_up:separated"},
    {"form",            "ep",                    "ep:FIRST/ALL"},
    {"form",            "ep:48",                 "ep:FIRST/ALL"},
    {"form",            "ep:/384",               "ep:FIRST/ALL"},
    {"form",            "ep:-1/384",             "ep:FIRST/ALL"},
    {"form",            "ep:0/1",                "ep:FIRST/ALL"},
    {"form",            "ep:0/65536",            "ep:FIRST/ALL"},
    {"form",            "ep:0/8+ep:0/8",         "ep:FIRST/ALL"},
    {"form",            "gate_up:any",           "gate_up:separated"},
    {"form",            "gate_up:tiled+gate_up:tiled", "gate_up:separated"},
};

static const struct {
    int64_t token, bucket;
} buckets[] = {
    {1, 1}, {2, 2}, {3, 4}, {4, 4}, {5, 8}, {56, 64}, {64, 64}, {65, 128}, {1000, 1024}, {16385, 32768},
    {32767, 32768}, {32768, 32768}, {32769, 32768}, {65536, 32768}, {131071, 32768}, {131072, 131072},
    {131073, 131072}, {INT64_MAX, 131072},
};
/* clang-format on */

MF_TEST(canonical_spelling, .rows = MF_ARRAY_LEN(spellings))
{
    struct mf_shape shape = qwen_shape();
    const char *why = NULL;
    char text[64];
    ck_assert_int_eq(mf_shape_set(&shape, spellings[_i].column, spellings[_i].text, &why), 0);
    ck_assert_int_eq(mf_shape_get(&shape, spellings[_i].column, text, sizeof(text)), 0);
    ck_assert_str_eq(text, spellings[_i].canonical);
}

MF_TEST(rejects_invalid_values, .rows = MF_ARRAY_LEN(errors))
{
    struct mf_shape shape = qwen_shape(), before = shape;
    const char *why = "";
    ck_assert_int_eq(mf_shape_set(&shape, errors[_i].column, errors[_i].text, &why), -EINVAL);
    ck_assert_msg(strstr(why, errors[_i].why), "'%s' does not contain '%s'", why, errors[_i].why);
    ck_assert(mf_shape_equal(&shape, &before));
}

MF_TEST(unknown_column)
{
    struct mf_shape shape = qwen_shape();
    const char *why;
    char text[8];
    ck_assert_int_eq(mf_shape_set(&shape, "tokens", "1", &why), -ENOENT);
    ck_assert_int_eq(mf_shape_get(&shape, "tokens", text, sizeof(text)), -ENOENT);
}

MF_TEST(columns_match_untuned_file)
{
    char joined[MF_SHAPE_TEXT_MAX] = "";
    for (int i = 0; i < MF_SHAPE_N_COLUMNS; i++) {
        size_t len = strlen(joined);
        snprintf(joined + len, sizeof(joined) - len, "%s%s", i > 0 ? "," : "", mf_shape_columns[i]);
    }
    ck_assert_str_eq(joined, SHAPE_COLUMNS);
}

MF_TEST(row_round_trips)
{
    struct mf_shape shape = qwen_shape(), again;
    char text[MF_SHAPE_TEXT_MAX];
    mf_shape_print(&shape, text);
    ck_assert_str_eq(text, qwen);
    ck_assert_int_eq(mf_shape_parse(text, &again), 0);
    ck_assert(mf_shape_equal(&shape, &again));
    mf_shape_print_layer_model(&shape, text);
    ck_assert_str_eq(text, strchr(qwen, ',') + 1);
}

/* A row in which every column has its longest value fits the buffer. */
MF_TEST(widest_row_fits)
{
    static const char *const widest[MF_SHAPE_N_COLUMNS] = {"16777215",
                                                           "262144",
                                                           "262144",
                                                           "65535",
                                                           "127",
                                                           "ActivationType.Swiglu",
                                                           "torch.float4_e2m1fn_x2",
                                                           "torch.float4_e2m1fn_x2",
                                                           "torch.float4_e2m1fn_x2",
                                                           "QuantType.per_Tensor",
                                                           "1",
                                                           "1"};
    struct mf_shape shape, again;
    memset(&shape, 0, sizeof(shape));
    const char *why;
    char text[MF_SHAPE_TEXT_MAX];
    for (int i = 0; i < MF_SHAPE_N_COLUMNS; i++)
        ck_assert_int_eq(mf_shape_set(&shape, mf_shape_columns[i], widest[i], &why), 0);
    mf_shape_print(&shape, text);
    ck_assert_uint_lt(strlen(text) + 1, MF_SHAPE_TEXT_MAX);
    ck_assert_int_eq(mf_shape_parse(text, &again), 0);
    ck_assert(mf_shape_equal(&shape, &again));
}

static const char *const bad_rows[] = {
    "",
    ",,,,,,,,,,,",
    "4,2048,96,128,8",
    /* a thirteenth value, which is '1' or empty */
    "4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0,1",
    "4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0,",
    "4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,",
    /* topk larger than the number of experts */
    "4,2048,96,8,9,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
    "4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n",
};

MF_TEST(rejects_invalid_row, .rows = MF_ARRAY_LEN(bad_rows))
{
    struct mf_shape shape = {.token = 77};
    ck_assert_int_eq(mf_shape_parse(bad_rows[_i], &shape), -EINVAL);
    ck_assert_int_eq(shape.token, 77);
}

MF_TEST(rejects_very_long_row)
{
    char text[4096];
    struct mf_shape shape;
    memset(text, '1', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    ck_assert_int_eq(mf_shape_parse(text, &shape), -EINVAL);
    ck_assert_int_eq(mf_shape_parse(NULL, &shape), -EINVAL);
}

static const struct {
    size_t offset;
    int32_t value;
    const char *column;
} bad_fields[] = {
    {offsetof(struct mf_shape, model_dim), 0, "model_dim"},
    {offsetof(struct mf_shape, inter_dim), -1, "inter_dim"},
    {offsetof(struct mf_shape, expert), 70000, "expert"},
    {offsetof(struct mf_shape, topk), 0, "topk"},
    {offsetof(struct mf_shape, topk), 127, NULL},
    {offsetof(struct mf_shape, expert), 7, "topk"},
};

/* mf_shape_check also checks shapes that mf_shape_set did not make, and names the invalid column. */
MF_TEST(check_names_the_column, .rows = MF_ARRAY_LEN(bad_fields))
{
    struct mf_shape shape = qwen_shape();
    const char *column = NULL, *why = NULL;
    ck_assert_int_eq(mf_shape_check(&shape, &column, &why), 0);
    *(int32_t *)(void *)((char *)&shape + bad_fields[_i].offset) = bad_fields[_i].value;
    ck_assert_int_eq(mf_shape_check(&shape, &column, &why), bad_fields[_i].column ? -EINVAL : 0);
    ck_assert_pstr_eq(column, bad_fields[_i].column);
    ck_assert((why != NULL) == (bad_fields[_i].column != NULL));
}

/* Gate and up must not share a 128x128 block of w1's scales. */
static const struct {
    enum mf_qtype q_type;
    int32_t inter_dim;
    bool use_g1u1, valid;
} splits[] = {
    {MF_QTYPE_PER_1X128, 320, true, false}, {MF_QTYPE_PER_1X128, 192, true, false},
    {MF_QTYPE_PER_1X128, 384, true, true},  {MF_QTYPE_PER_1X128, 320, false, true},
    {MF_QTYPE_PER_TOKEN, 320, true, true},
};

MF_TEST(blocks_of_gate_and_up, .rows = MF_ARRAY_LEN(splits))
{
    struct mf_shape shape = qwen_shape();
    const char *column = NULL, *why = NULL;
    shape.q_dtype_a = shape.q_dtype_w = MF_DTYPE_FP8_E4M3FN;
    shape.q_type = splits[_i].q_type;
    shape.inter_dim = splits[_i].inter_dim;
    shape.use_g1u1 = splits[_i].use_g1u1;
    ck_assert_int_eq(mf_shape_check(&shape, &column, &why), splits[_i].valid ? 0 : -EINVAL);
    ck_assert_pstr_eq(column, splits[_i].valid ? NULL : "inter_dim");
}

/* A token selects topk of the experts of all ranks; topk may exceed the number of experts of one rank. */
MF_TEST(expert_parallelism)
{
    struct mf_shape shape = qwen_shape();
    const char *column, *why;
    shape.expert = 4;
    ck_assert_int_eq(mf_shape_check(&shape, &column, &why), -EINVAL);
    ck_assert_int_eq(mf_shape_set(&shape, "form", "ep:4/8", &why), 0);
    ck_assert_int_eq(mf_shape_check(&shape, &column, &why), 0);
    ck_assert_int_eq(mf_shape_global_experts(&shape), 8);
    for (int32_t id = -2; id < 10; id++)
        ck_assert_int_eq(mf_shape_local_expert(&shape, id), id >= 4 && id < 8 ? id - 4 : -1);
    ck_assert_int_eq(mf_shape_local_expert(&shape, INT32_MIN), -1);
    ck_assert_int_eq(mf_shape_set(&shape, "form", "ep:0/7", &why), 0);
    ck_assert_int_eq(mf_shape_check(&shape, &column, &why), -EINVAL);
    ck_assert_str_eq(column, "topk");
    shape.topk = 7;
    shape.ep_first = -1;
    ck_assert_int_eq(mf_shape_check(&shape, &column, &why), -EINVAL);
    ck_assert_str_eq(column, "form");
}

/* Shapes that differ in any column except token belong to different layer models. mf_shape_compare is a total
 * order. */
MF_TEST(every_column_is_compared, .rows = MF_SHAPE_N_COLUMNS)
{
    static const char *const other[MF_SHAPE_N_COLUMNS] = {"5",
                                                          "2049",
                                                          "97",
                                                          "129",
                                                          "9",
                                                          "ActivationType.Gelu",
                                                          "torch.float16",
                                                          "torch.int8",
                                                          "torch.int4",
                                                          "QuantType.per_Token",
                                                          "0",
                                                          "1"};
    struct mf_shape a = qwen_shape(), b = a;
    const char *why;
    ck_assert(mf_shape_equal(&a, &b));
    ck_assert_int_eq(mf_shape_set(&b, mf_shape_columns[_i], other[_i], &why), 0);
    ck_assert(!mf_shape_equal(&a, &b));
    ck_assert(mf_shape_same_layer_model(&a, &b) == (_i == 0));
    ck_assert_int_ne(mf_shape_compare(&a, &b), 0);
    ck_assert_int_eq(mf_shape_compare(&a, &b), -mf_shape_compare(&b, &a));

    /* the layer model is compared before the token count */
    struct mf_shape c = a;
    c.token = a.token + 100;
    if (_i > 0)
        ck_assert_int_eq(mf_shape_compare(&c, &b), mf_shape_compare(&a, &b));
    else
        ck_assert_int_gt(mf_shape_compare(&c, &b), 0);
}

MF_TEST(production_bucket, .rows = MF_ARRAY_LEN(buckets))
{
    ck_assert_int_eq(mf_token_bucket(buckets[_i].token), buckets[_i].bucket);
}

MF_TEST(every_dtype_has_bits, .rows = MF_DTYPE_N_)
{
    static const int bits[] = {16, 16, 8, 8, 8, 4, 4};
    ck_assert_uint_eq(MF_ARRAY_LEN(bits), MF_DTYPE_N_);
    ck_assert_int_eq(mf_dtype_bits((enum mf_dtype)_i), bits[_i]);
}

/* The form is the thirteenth value of a shape and part of its key. Each item of the form is valid for some
 * activation functions only. */
MF_TEST(form_is_part_of_the_shape)
{
    static const struct {
        const char *act, *form;
        bool valid;
    } rows[] = {
        {"Silu", "limit:10", true},
        {"Swiglu", "limit:7+alpha:1.5", true},
        {"Swiglu", "alpha:2", true},
        {"SiluStep", "limit:7", true},
        {"SiluStep", "", false},
        {"Gelu", "limit:7", false},
        {"Silu", "alpha:1.702", false},
        {"Situv2", "limit:25", false},
        {"Silu", "limit:10,x", false},
        {"Swiglu", "limit:7+b1+b2", true},
        {"Gelu", "b1", true},
        {"Situv2", "b2", true},
        {"Silu", "b1+b1", false},
        {"Silu", "b1:1", false},
        {"Silu", "limit", false},
        {"Silu", "b3", false},
        {"Silu", "b1+", false},
        {"Silu", "limit:", false},
        {"Silu", "gate_up:tiled", true},
        {"Silu", "ep:0/256", true}, /* the shape has 128 local experts */
        {"Silu", "ep:128/256", true},
        {"Silu", "ep:129/256", false},
        {"Silu", "ep:0/128", false},
        {"Silu", "ep:0/129", true},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++) {
        char text[MF_SHAPE_TEXT_MAX], back[MF_SHAPE_TEXT_MAX];
        struct mf_shape s, plain;
        const char *why;
        (void)snprintf(text, sizeof(text),
                       "4,2048,96,128,8,ActivationType.%s,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
                       "QuantType.No,1,0%s%s",
                       rows[i].act, *rows[i].form ? "," : "", rows[i].form);
        ck_assert_msg((mf_shape_parse(text, &s) == 0) == rows[i].valid, "%s", text);
        if (!rows[i].valid)
            continue;
        mf_shape_print(&s, back);
        ck_assert_str_eq(back, text);
        plain = s;
        ck_assert_int_eq(mf_shape_set(&plain, MF_SHAPE_FORM, "", &why), 0);
        if (plain.act_type == MF_ACT_SILU_STEP)
            plain.act_limit = 8;
        ck_assert(!mf_shape_equal(&s, &plain));
        ck_assert(!mf_shape_same_layer_model(&s, &plain));
        ck_assert_int_eq(mf_shape_compare(&s, &plain), -mf_shape_compare(&plain, &s));
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
