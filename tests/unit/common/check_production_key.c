/* common/moe/production_key.c: the key that production looks up for a shape. A shape that is already such a
 * key maps to itself. */
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/moe/production_key.h"
#include "common/moe/status.h"
#include "support/mf_check.h"
#include "support/shipped.h"

#define ROW(token, act, a, w, q) \
    token ",7168,512,256,8,ActivationType." act ",torch.bfloat16," a "," w ",QuantType." q ",1,0"
#define BF16 "torch.bfloat16"
#define FN   "torch.float8_e4m3fn"
#define FP4  "torch.float4_e2m1fn_x2"
#define INT4 "torch.int4"

/* clang-format off */
static const struct {
    const char *requested, *key, *reason; /* key is NULL if it equals `requested` */
} cases[] = {
    {ROW("64",    "Silu",   FN,   FN,   "per_1x128"), NULL, NULL},
    {ROW("64",    "Silu",   BF16, BF16, "No"),        NULL, NULL},
    {ROW("56",    "Silu",   FN,   FN,   "per_1x128"), ROW("64", "Silu", FN, FN, "per_1x128"),
     "token 64 instead of 56"},
    {ROW("65536", "Silu",   FN,   FN,   "per_Token"), ROW("32768", "Silu", FN, FN, "per_Token"),
     "token 32768"},
    {ROW("64",    "Silu",   FP4,  FP4,  "per_1x32"),  NULL, NULL},
    {ROW("64",    "Silu",   BF16, FP4,  "per_1x32"),  NULL, NULL},
    {ROW("256",   "Silu",   BF16, FP4,  "per_1x32"),  ROW("256", "Silu", FP4, FP4, "per_1x32"), "separated"},
    {ROW("64",    "Silu",   BF16, INT4, "per_1x32"),  NULL, NULL},
    {ROW("64",    "Silu",   FN,   INT4, "per_1x32"),  ROW("64", "Silu", BF16, INT4, "per_1x32"),
     "int4 weights"},
    {ROW("64",    "Silu",   FN,   FN,   "per_1x32"),  NULL, NULL},
    {ROW("64",    "Silu",   BF16, FN,   "per_1x32"),  ROW("64", "Silu", FN, FN, "per_1x32"), "fp8 weights"},
    {ROW("128",   "Silu",   FN,   FP4,  "per_1x32"),  ROW("128", "Silu", BF16, FP4, "per_1x32"),
     "below 256 tokens (AITER_BF16_FP8_MOE_BOUND)"},
    {ROW("256",   "Silu",   FN,   FP4,  "per_1x32"),  NULL, NULL},
    {ROW("128",   "Swiglu", FP4,  FP4,  "per_1x32"),  ROW("128", "Swiglu", BF16, FP4, "per_1x32"),
     "below 256"},
    {ROW("256",   "Swiglu", FP4,  FP4,  "per_1x32"),  NULL, NULL},
    {ROW("128",   "Swiglu", BF16, FP4,  "per_1x32"),  NULL, NULL},
    {ROW("256",   "Swiglu", BF16, FP4,  "per_1x32"),  ROW("256", "Swiglu", FP4, FP4, "per_1x32"),
     "separated"},
    {ROW("256",   "Swiglu", FN,   FP4,  "per_1x32"),  NULL, NULL},
    {ROW("4096",  "Situv2", FP4,  FP4,  "per_1x32"),  ROW("4096", "Situv2", BF16, FP4, "per_1x32"),
     "AITER_SITUV2_A8W4"},
    {ROW("4096",  "Situv2", BF16, FP4,  "per_1x32"),  NULL, NULL},
};
/* clang-format on */

/* AITER's environment variables. */
/* clang-format off */
static const struct {
    struct mf_production_env env;
    const char *requested, *key, *reason;
} envs[] = {
    {{.bf16_fp8_bound = 0},   ROW("8", "Silu", FN, FP4, "per_1x32"), NULL, NULL},
    {{.bf16_fp8_bound = 64},  ROW("64", "Silu", FN, FP4, "per_1x32"), NULL, NULL},
    {{.bf16_fp8_bound = 64},  ROW("32", "Silu", FN, FP4, "per_1x32"),
     ROW("32", "Silu", BF16, FP4, "per_1x32"),
     "below 64 tokens (AITER_BF16_FP8_MOE_BOUND)"},
    {{.bf16_fp8_bound = 512}, ROW("256", "Swiglu", FN, FP4, "per_1x32"),
     ROW("256", "Swiglu", BF16, FP4, "per_1x32"), "below 512 tokens"},
    {{.bf16_fp8_bound = 256, .situv2_a8w4 = true}, ROW("8", "Situv2", FN, FP4, "per_1x32"), NULL, NULL},
    {{.bf16_fp8_bound = 256, .situv2_a8w4 = true}, ROW("8", "Situv2", BF16, FP4, "per_1x32"),
     ROW("8", "Situv2", FN, FP4, "per_1x32"), "AITER_SITUV2_A8W4 (now 1)"},
    {{.bf16_fp8_bound = 256, .situv2_a4w4 = true}, ROW("8", "Situv2", FP4, FP4, "per_1x32"), NULL, NULL},
    {{.bf16_fp8_bound = 256}, ROW("8", "Situv2", FN, FP4, "per_1x32"),
     ROW("8", "Situv2", BF16, FP4, "per_1x32"),
     "AITER_SITUV2_A8W4 (now 0)"},
};

/* The assignment with which production looks up a row. */
static const struct {
    const char *row, *setting;
} settings[] = {
    {ROW("8", "Silu", FN, FP4, "per_1x32"),    "AITER_BF16_FP8_MOE_BOUND=0"},
    {ROW("8", "Situv2", FN, FP4, "per_1x32"),  "AITER_SITUV2_A8W4=1"},
    {ROW("8", "Situv2", FP4, FP4, "per_1x32"), "AITER_SITUV2_A4W4=1"},
    {ROW("8", "Silu", FN, INT4, "per_1x32"),   NULL},
};
/* clang-format on */

static struct mf_shape shape_of(const char *row)
{
    struct mf_shape s;
    ck_assert_msg(mf_shape_parse(row, &s) == 0, "%s", row);
    return s;
}

MF_TEST(rules, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_shape requested = shape_of(cases[_i].requested), key = {0};
    struct mf_shape expected = shape_of(cases[_i].key ? cases[_i].key : cases[_i].requested);
    char why[MF_REASON_MAX] = "";
    ck_assert_int_eq(mf_production_shape(&requested, NULL, &key, why, sizeof(why)), cases[_i].key != NULL);
    ck_assert(mf_shape_equal(&key, &expected));
    ck_assert_msg(!cases[_i].reason || strstr(why, cases[_i].reason), "%s", why);
}

MF_TEST(environment, .rows = MF_ARRAY_LEN(envs))
{
    struct mf_shape requested = shape_of(envs[_i].requested), key = {0};
    struct mf_shape expected = shape_of(envs[_i].key ? envs[_i].key : envs[_i].requested);
    char why[MF_REASON_MAX] = "";
    ck_assert_int_eq(mf_production_shape(&requested, &envs[_i].env, &key, why, sizeof(why)),
                     envs[_i].key != NULL);
    ck_assert(mf_shape_equal(&key, &expected));
    ck_assert_msg(!envs[_i].reason || strstr(why, envs[_i].reason), "%s", why);
}

MF_TEST(setting_of_a_row, .rows = MF_ARRAY_LEN(settings))
{
    struct mf_shape row = shape_of(settings[_i].row);
    const char *setting = mf_production_setting(&row);
    ck_assert_str_eq(setting ? setting : "none", settings[_i].setting ? settings[_i].setting : "none");
}

/* Production looks up a table row if at least one token count that is padded to the row's count has the row's
 * key. For any other row, the function returns a key that production does look up. */
/* clang-format off */
static const struct {
    const char *row, *key; /* key is NULL if production looks up the row */
} rows[] = {
    {ROW("256", "Swiglu", BF16, FP4, "per_1x32"), NULL}, /* looked up for 129 to 255 tokens */
    {ROW("256", "Swiglu", FP4, FP4, "per_1x32"),  NULL}, /* looked up for 256 tokens */
    {ROW("256", "Swiglu", FN, FP4, "per_1x32"),   NULL},
    {ROW("256", "Silu", BF16, FP4, "per_1x32"),   NULL},
    {ROW("128", "Swiglu", FP4, FP4, "per_1x32"),  ROW("128", "Swiglu", BF16, FP4, "per_1x32")},
    {ROW("512", "Swiglu", BF16, FP4, "per_1x32"), ROW("512", "Swiglu", FP4, FP4, "per_1x32")},
    {ROW("1", "Silu", FN, FN, "per_1x128"),       NULL},
    {ROW("56", "Silu", FN, FN, "per_1x128"),      ROW("64", "Silu", FN, FN, "per_1x128")},
    {ROW("131072", "Silu", FN, FN, "per_1x128"),  NULL},
    {ROW("65536", "Silu", FN, FN, "per_1x128"),   ROW("32768", "Silu", FN, FN, "per_1x128")},
};
/* clang-format on */

MF_TEST(rows_that_production_looks_up, .rows = MF_ARRAY_LEN(rows))
{
    struct mf_shape row = shape_of(rows[_i].row), key = {0}, again;
    struct mf_shape expected = shape_of(rows[_i].key ? rows[_i].key : rows[_i].row);
    char why[MF_REASON_MAX] = "";

    ck_assert_int_eq(mf_production_row(&row, NULL, &key, why, sizeof(why)), rows[_i].key != NULL);
    ck_assert(mf_shape_equal(&key, &expected));
    ck_assert((why[0] != '\0') == (rows[_i].key != NULL));
    ck_assert_int_eq(mf_production_row(&key, NULL, &again, why, sizeof(why)), 0);
}

/* Some of the rows that AITER ships have keys that AITER's own production does not look up by default. */
MF_TEST(shipped_rows)
{
    long n = 0, n_other = 0;
    for (size_t f = 0; f < sizeof(shipped) / sizeof(shipped[0]); f++) {
        if (shipped[f].op != MF_TABLE_FMOE)
            continue;
        _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(shipped[f].file);
        for (size_t i = 0; i < t->n_rows; i++) {
            struct mf_shape key, again;
            char why[MF_REASON_MAX] = "";
            n++;
            n_other += mf_production_row(&t->rows[i].shape, NULL, &key, why, sizeof(why));
            if (strcmp(shipped[f].file, "dsv3_fp4_tuned_fmoe.csv") == 0)
                ck_assert(mf_shape_equal(&key, &t->rows[i].shape));
            ck_assert_msg(mf_production_row(&key, NULL, &again, why, sizeof(why)) == 0, "%s:%lld: %s",
                          shipped[f].file, (long long)t->rows[i].line, why);
        }
    }
    printf("%ld of %ld shipped rows are under a key that production does not compute by default\n", n_other,
           n);
    ck_assert_int_gt(n_other, 0);
    ck_assert_int_lt(n_other, n / 5);
}

int main(void)
{
    return mf_check_main(NULL);
}
