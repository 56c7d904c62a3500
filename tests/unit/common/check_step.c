#include "common/moe/step.h"

#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/mf_check.h"

static struct mf_step full_step(void)
{
    struct mf_step step = {
        .name = "tile_s1_m64_n96_k128-x.2",
        .family = "two_stage",
        .stage = MF_STAGE_STAGE1,
        .covers = MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT),
        .block_m = 64,
        .ksplit = 2,
        .n_needs = 3,
        .n_gives = 1,
        .workspace_bytes = UINT64_C(9007199254740991), /* an integer with more digits than cJSON prints */
        .flops = 1.5e12,
        .bytes = 123456789012.0,
        .reorder_tolerance = 0.0009765625,
    };
    ck_assert_int_eq(mf_tensor_spec_parse("x/bf16/none/token", &step.needs[0]), 0);
    ck_assert_int_eq(mf_tensor_spec_parse("sorted/index/none/sorted.64", &step.needs[1]), 0);
    ck_assert_int_eq(mf_tensor_spec_parse("w1/bf16/none/panel16", &step.needs[2]), 0);
    ck_assert_int_eq(mf_tensor_spec_parse("h/bf16/none/sorted.64", &step.gives[0]), 0);
    return step;
}

#define FULL                                                                                           \
    "{\"name\":\"tile_s1_m64_n96_k128-x.2\",\"family\":\"two_stage\",\"covers\":\"gather+gemm1+act\"," \
    "\"stage\":\"stage1\",\"block_m\":64,\"ksplit\":2,\"needs\":[\"x/bf16/none/token\","               \
    "\"sorted/index/none/sorted.64\",\"w1/bf16/none/panel16\"],\"gives\":[\"h/bf16/none/sorted.64\"]," \
    "\"workspace\":9007199254740991,\"flops\":1500000000000,\"bytes\":123456789012,"                   \
    "\"reorder_tolerance\":0.0009765625}"

static cJSON *full_json(void)
{
    cJSON *json = mf_json_parse(FULL, strlen(FULL), 4096);
    ck_assert_ptr_nonnull(json);
    return json;
}

static void assert_equal(const struct mf_step *a, const struct mf_step *b)
{
    ck_assert_str_eq(a->name, b->name);
    ck_assert_str_eq(a->family, b->family);
    ck_assert_int_eq(a->stage, b->stage);
    ck_assert_uint_eq(a->covers, b->covers);
    ck_assert_int_eq(a->block_m, b->block_m);
    ck_assert_int_eq(a->ksplit, b->ksplit);
    ck_assert_int_eq(a->n_needs, b->n_needs);
    ck_assert_int_eq(a->n_gives, b->n_gives);
    for (int i = 0; i < a->n_needs; i++)
        ck_assert(mf_tensor_spec_equal(&a->needs[i], &b->needs[i]));
    for (int i = 0; i < a->n_gives; i++)
        ck_assert(mf_tensor_spec_equal(&a->gives[i], &b->gives[i]));
    ck_assert_uint_eq(a->workspace_bytes, b->workspace_bytes);
    ck_assert_double_eq(a->flops, b->flops);
    ck_assert_double_eq(a->bytes, b->bytes);
    ck_assert_double_eq(a->reorder_tolerance, b->reorder_tolerance);
    ck_assert_double_eq(a->saved, b->saved);
    ck_assert_int_eq(a->aiter, b->aiter);
}

static cJSON *print_and_parse(const struct mf_step *step)
{
    _cleanup_(mf_freep) char *text = mf_step_print(step);
    ck_assert_ptr_nonnull(text);
    return mf_json_parse(text, strlen(text), SIZE_MAX);
}

MF_TEST(json_text)
{
    struct mf_step step = full_step();
    _cleanup_(mf_freep) char *text = mf_step_print(&step);
    ck_assert_pstr_eq(text, FULL);
}

MF_TEST(round_trip)
{
    struct mf_step step = full_step(), back;
    const char *field = NULL;
    _cleanup_(cJSON_Deletep) cJSON *json = print_and_parse(&step);
    ck_assert_int_eq(mf_step_from_json(json, &back, &field), 0);
    assert_equal(&step, &back);

    _cleanup_(cJSON_Deletep) cJSON *parsed = full_json();
    memset(&back, 0xff, sizeof(back));
    ck_assert_int_eq(mf_step_from_json(parsed, &back, &field), 0);
    assert_equal(&step, &back);
}

/* A step that covers no op has no block_m, no tensor specs and no `flops`. */
MF_TEST(empty_step_round_trips)
{
    struct mf_step step = {.name = "z", .family = "move", .stage = MF_STAGE_MOVE}, back;
    const char *field = NULL;
    _cleanup_(cJSON_Deletep) cJSON *json = print_and_parse(&step);
    ck_assert_int_eq(mf_step_from_json(json, &back, &field), 0);
    assert_equal(&step, &back);
}

/* The member "aiter" is written only if it is true, and is false if it is missing. Only booleans are
 * accepted. */
MF_TEST(aiter_flag)
{
    struct mf_step step = full_step(), back;
    const char *field = NULL;
    step.aiter = true;
    _cleanup_(cJSON_Deletep) cJSON *json = print_and_parse(&step);
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "aiter")));
    ck_assert_int_eq(mf_step_from_json(json, &back, &field), 0);
    assert_equal(&step, &back);
    ck_assert(cJSON_ReplaceItemInObjectCaseSensitive(json, "aiter", cJSON_CreateNumber(1)));
    ck_assert_int_eq(mf_step_from_json(json, &back, &field), -EINVAL);
    ck_assert_str_eq(field, "aiter");
}

/* When a step is printed, flops and bytes are rounded to integers. Fractions from a Python family are
 * accepted. */
MF_TEST(flops_and_bytes_are_rounded)
{
    struct mf_step step = full_step(), back;
    const char *field = NULL;
    step.flops = 1e12 + 0.75;
    step.bytes = 1234567.25;
    _cleanup_(cJSON_Deletep) cJSON *json = print_and_parse(&step);
    ck_assert_double_eq(cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(json, "flops")), 1e12 + 1);
    ck_assert_double_eq(cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(json, "bytes")), 1234567);
    ck_assert(cJSON_ReplaceItemInObjectCaseSensitive(json, "flops", cJSON_CreateNumber(0.5)));
    ck_assert_int_eq(mf_step_from_json(json, &back, &field), 0);
    ck_assert_double_eq(back.flops, 0.5);
}

/* The member `saved` defaults to 0 and must not be negative. */
MF_TEST(saved_traffic)
{
    struct mf_step step = full_step(), back;
    const char *field = NULL;
    step.saved = 65536;
    _cleanup_(cJSON_Deletep) cJSON *json = print_and_parse(&step);
    ck_assert_double_eq(cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(json, "saved")), 65536);
    ck_assert_int_eq(mf_step_from_json(json, &back, &field), 0);
    assert_equal(&step, &back);
    ck_assert(cJSON_ReplaceItemInObjectCaseSensitive(json, "saved", cJSON_CreateNumber(-1)));
    ck_assert_int_eq(mf_step_from_json(json, &back, &field), -EINVAL);
    ck_assert_str_eq(field, "saved");
}

static const char *const keys[] = {"name",  "family", "covers",    "stage", "block_m", "ksplit",
                                   "needs", "gives",  "workspace", "flops", "bytes",   "reorder_tolerance"};

MF_TEST(missing_field_is_named, .rows = MF_ARRAY_LEN(keys))
{
    struct mf_step back = {.block_m = 99};
    const char *field = NULL;
    _cleanup_(cJSON_Deletep) cJSON *json = full_json();
    cJSON_DeleteItemFromObjectCaseSensitive(json, keys[_i]);
    ck_assert_int_eq(mf_step_from_json(json, &back, &field), -EINVAL);
    ck_assert_pstr_eq(field, keys[_i]);
    ck_assert_int_eq(back.block_m, 99);
}

/* clang-format off */
static const struct {
    const char *key, *value;
} invalid[] = {
    {"name", "\"\""}, {"name", "\"a b\""}, {"name", "\"a/b\""}, {"name", "5"}, {"name", "null"},
    {"family", "\"\""}, {"family", "\"thirty_two_letters_name_too_long\""}, {"family", "[]"},
    {"covers", "\"\""}, {"covers", "\"gemm1+gemm1\""}, {"covers", "\"gemm3\""}, {"covers", "[\"gemm1\"]"},
    {"stage", "\"stage3\""}, {"stage", "1"},
    /* the step covers gather, gemm1 and act, so its stage is stage1 */
    {"stage", "\"stage2\""}, {"stage", "\"one\""}, {"stage", "\"move\""},
    {"block_m", "-1"}, {"block_m", "2147483648"}, {"block_m", "1.5"}, {"block_m", "\"64\""},
    {"ksplit", "-1"}, {"ksplit", "true"},
    {"needs", "\"x/bf16/none/token\""}, {"needs", "[\"x/bf16/none\"]"}, {"needs", "[5]"}, {"needs", "[null]"},
    {"needs", "{}"},
    {"gives", "[\"x/bf16/none/token\",\"x/bf16/none/token\",\"x/bf16/none/token\",\"x/bf16/none/token\","
              "\"x/bf16/none/token\",\"x/bf16/none/token\",\"x/bf16/none/token\",\"x/bf16/none/token\","
              "\"x/bf16/none/token\"]"},      /* nine tensor specs; the limit is eight */
    {"workspace", "-1"}, {"workspace", "1e300"}, {"workspace", "0.5"},
    {"flops", "-1"}, {"flops", "1e999"}, {"flops", "\"1\""},
    {"bytes", "-0.001"}, {"bytes", "null"},
    {"reorder_tolerance", "-1"}, {"reorder_tolerance", "false"},
};
/* clang-format on */

MF_TEST(invalid_field_is_named, .rows = MF_ARRAY_LEN(invalid))
{
    struct mf_step back;
    const char *field = NULL;
    _cleanup_(cJSON_Deletep) cJSON *json = full_json();
    cJSON *value = cJSON_Parse(invalid[_i].value);
    ck_assert_ptr_nonnull(value);
    ck_assert(cJSON_ReplaceItemInObjectCaseSensitive(json, invalid[_i].key, value));
    ck_assert_int_eq(mf_step_from_json(json, &back, &field), -EINVAL);
    ck_assert_pstr_eq(field, invalid[_i].key);
}

MF_TEST(name_length_limit)
{
    char name[MF_STEP_NAME_MAX + 1];
    memset(name, 'n', sizeof(name));
    for (int len = MF_STEP_NAME_MAX - 1; len <= MF_STEP_NAME_MAX; len++) {
        struct mf_step back;
        const char *field = NULL;
        name[len] = '\0';
        _cleanup_(cJSON_Deletep) cJSON *json = full_json();
        ck_assert(cJSON_ReplaceItemInObjectCaseSensitive(json, "name", cJSON_CreateString(name)));
        ck_assert_int_eq(mf_step_from_json(json, &back, &field), len < MF_STEP_NAME_MAX ? 0 : -EINVAL);
        name[len] = 'n';
    }
}

static const struct {
    const char *covers;
    enum mf_stage stage;
} stages[] = {
    {"-", MF_STAGE_MOVE},
    {"weight+combine", MF_STAGE_MOVE},
    {"gemm1", MF_STAGE_STAGE1},
    {"gemm2+weight+combine", MF_STAGE_STAGE2},
    {"quant1+gather+gemm1+act+quant2+gemm2+weight+combine", MF_STAGE_ONE},
};

/* The ops that a step covers determine its stage, so a step with any other stage is rejected. */
MF_TEST(stage_follows_from_covers, .rows = MF_ARRAY_LEN(stages))
{
    for (int stage = 0; stage < MF_STAGE_N_; stage++) {
        struct mf_step step = full_step(), back;
        const char *field = NULL;
        step.stage = (enum mf_stage)stage;
        ck_assert_int_eq(mf_ops_parse(stages[_i].covers, &step.covers), 0);
        _cleanup_(cJSON_Deletep) cJSON *json = print_and_parse(&step);
        ck_assert_int_eq(mf_step_from_json(json, &back, &field),
                         step.stage == stages[_i].stage ? 0 : -EINVAL);
    }
}

MF_TEST(rejects_non_steps)
{
    static const char *const texts[] = {"[]", "5", "\"name\"", "null", "{}"};
    for (size_t i = 0; i < MF_ARRAY_LEN(texts); i++) {
        struct mf_step back;
        const char *field = NULL;
        _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(texts[i]);
        ck_assert_int_eq(mf_step_from_json(json, &back, &field), -EINVAL);
        ck_assert_pstr_eq(field, "name");
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
