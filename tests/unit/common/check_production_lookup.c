/* common/moe/production_lookup.c: the keys that each set of rules tries for a call, and the row that serves
 * the call. */
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/production_lookup.h"
#include "common/table/table.h"
#include "support/mf_check.h"
#include "support/shipped.h"
#include "support/table_columns.h"

#define ROW(token, act, a, w, q) \
    token ",7168,512,256,8,ActivationType." act ",torch.bfloat16," a "," w ",QuantType." q ",1,0"
#define BLOCK(token) ROW(token, "Silu", FN, FN, "per_1x128")
#define RANK(token, first)                                                \
    token ",7168,2048,32,8,ActivationType.Silu,torch.bfloat16," FN "," FN \
          ",QuantType.per_1x128,1,0,ep:" first "/256"
#define BF16 "torch.bfloat16"
#define FN   "torch.float8_e4m3fn"
#define FP4  "torch.float4_e2m1fn_x2"

#define RANKS        MF_LOOKUP_ANY_RANK
#define ANY_ACT_FORM (MF_LOOKUP_ANY_ACT | MF_LOOKUP_ANY_FORM)

static struct mf_shape shape_of(const char *row)
{
    struct mf_shape s;
    ck_assert_msg(mf_shape_parse(row, &s) == 0, "%s", row);
    return s;
}

/* clang-format off */
static const struct {
    const char *call;
    enum mf_lookup rules;
    struct { const char *key; unsigned any; } tries[MF_LOOKUP_TRIES_MAX];
} cases[] = {
    /* buckets and tiers */
    {BLOCK("1"),        MF_LOOKUP_MOEFARM, {{BLOCK("1"), 0}}},
    {BLOCK("33"),       MF_LOOKUP_MOEFARM, {{BLOCK("64"), 0}}},
    {BLOCK("32767"),    MF_LOOKUP_MOEFARM, {{BLOCK("32768"), 0}}},
    {BLOCK("65536"),    MF_LOOKUP_MOEFARM, {{BLOCK("32768"), 0}}},
    {BLOCK("131071"),   MF_LOOKUP_MOEFARM, {{BLOCK("32768"), 0}}},
    {BLOCK("131072"),   MF_LOOKUP_MOEFARM, {{BLOCK("131072"), 0}, {BLOCK("32768"), 0}}},
    {BLOCK("16777215"), MF_LOOKUP_MOEFARM, {{BLOCK("131072"), 0}, {BLOCK("32768"), 0}}},
    {BLOCK("131072"),   MF_LOOKUP_AITER,   {{BLOCK("131072"), ANY_ACT_FORM}, {BLOCK("32768"), ANY_ACT_FORM}}},
    /* moefarm keeps the requested activation type. The rules drop-in and aiter choose the activation type by
     * the token count before padding. */
    {ROW("200", "Swiglu", FP4, FP4, "per_1x32"), MF_LOOKUP_MOEFARM,
     {{ROW("256", "Swiglu", FP4, FP4, "per_1x32"), 0}}},
    {ROW("200", "Swiglu", FP4, FP4, "per_1x32"), MF_LOOKUP_DROP_IN,
     {{ROW("256", "Swiglu", BF16, FP4, "per_1x32"), 0}}},
    {ROW("256", "Swiglu", FP4, FP4, "per_1x32"), MF_LOOKUP_DROP_IN,
     {{ROW("256", "Swiglu", FP4, FP4, "per_1x32"), 0}}},
    {ROW("200", "Swiglu", FP4, FP4, "per_1x32"), MF_LOOKUP_AITER,
     {{ROW("256", "Swiglu", BF16, FP4, "per_1x32"), ANY_ACT_FORM}}},
    /* expert parallelism: ranks */
    {RANK("3", "64"),      MF_LOOKUP_MOEFARM, {{RANK("4", "64"), 0}, {RANK("4", "64"), RANKS}}},
    {RANK("3", "64"),      MF_LOOKUP_DROP_IN, {{RANK("4", "64"), 0}, {RANK("4", "64"), RANKS}}},
    {RANK("3", "64"),      MF_LOOKUP_AITER,   {{RANK("4", "64"), ANY_ACT_FORM}}},
    {RANK("131072", "32"), MF_LOOKUP_MOEFARM, {{RANK("131072", "32"), 0}, {RANK("131072", "32"), RANKS},
                                               {RANK("32768", "32"), 0},  {RANK("32768", "32"), RANKS}}},
};
/* clang-format on */

MF_TEST(tries, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_lookup_try tried[MF_LOOKUP_TRIES_MAX];
    struct mf_shape call = shape_of(cases[_i].call);
    size_t n = mf_lookup_tries(&call, cases[_i].rules, NULL, tried), expected = 0;

    while (expected < MF_LOOKUP_TRIES_MAX && cases[_i].tries[expected].key)
        expected++;
    ck_assert_uint_eq(n, expected);
    for (size_t i = 0; i < n; i++) {
        struct mf_shape key = shape_of(cases[_i].tries[i].key);
        char text[MF_SHAPE_TEXT_MAX];

        mf_shape_print(&tried[i].key, text);
        ck_assert_msg(mf_shape_equal(&tried[i].key, &key), "%s: the key of try %zu is %s", cases[_i].call, i,
                      text);
        ck_assert_uint_eq(tried[i].any, cases[_i].tries[i].any);
    }
}

/* ---- a table ---- */

#define HEADER TUNED_COLUMNS ",_tag,form\n"
#define LINE(class, token, inter, expert, act, tag, form)                                           \
    class "," token ",7168," inter "," expert ",8,ActivationType." act ",torch.bfloat16," FN "," FN \
          ",QuantType.per_1x128,1,0,32,0,1.0,a,0.0%,1.0,b,0.0%,2.0,0,0,0,1.0,1.0," tag "," form "\n"
#define MI355 "gfx950,256"
#define MI300 "gfx942,304"

static const char table_text[] = HEADER                             /* 1 */
    LINE(MI355, "64", "512", "256", "Gelu", "", "")                 /* 2 */
    LINE(MI355, "64", "512", "256", "Silu", "", "")                 /* 3 */
    LINE(MI300, "128", "512", "256", "Silu", "", "")                /* 4 */
    LINE(MI355, "256", "512", "256", "Silu", "exact", "")           /* 5 */
    LINE(MI355, "512", "512", "256", "Silu", "flydsl_fallback", "") /* 6 */
    LINE(MI355, "32768", "512", "256", "Silu", "", "")              /* 7 */
    LINE(MI355, "16", "2048", "32", "Silu", "", "ep:0/256")         /* 8 */
    LINE(MI355, "16", "2048", "32", "Silu", "", "ep:32/256")        /* 9 */
    LINE(MI355, "1024", "512", "256", "Silu", "", "limit:10")       /* 10 */
    MI355 ",4096,7168,512,256,8,ActivationType.Silu,dtypes.bf16," FN "," FN
          ",QuantType.per_1x128,1,0,32,0,1.0,a,0.0%,1.0,b,0.0%,2.0,0,0,0,1.0,1.0,,\n"; /* 11 */

/* The first table of the set; no call matches its row. */
static const char before_text[] = HEADER LINE(MI355, "64", "1024", "256", "Silu", "", "");
static const char tier_text[] = HEADER LINE(MI355, "131072", "512", "256", "Silu", "", "");

/* clang-format off */
static const struct {
    const char *call;
    enum mf_lookup rules;
    int64_t line; /* line of the row that is found; 0: no row */
    size_t attempt;
} finds[] = {
    {BLOCK("50"),     MF_LOOKUP_MOEFARM, 3,  0},
    {BLOCK("50"),     MF_LOOKUP_DROP_IN, 3,  0},
    /* the first row is used, although it has another activation function */
    {BLOCK("50"),     MF_LOOKUP_AITER,   2,  0},
    {BLOCK("128"),    MF_LOOKUP_MOEFARM, 0,  0}, /* the row has another device class */
    {BLOCK("128"),    MF_LOOKUP_AITER,   0,  0},
    {BLOCK("256"),    MF_LOOKUP_MOEFARM, 0,  0},
    {BLOCK("256"),    MF_LOOKUP_AITER,   5,  0}, /* AITER skips only rows with the fallback tag */
    {BLOCK("512"),    MF_LOOKUP_MOEFARM, 0,  0},
    {BLOCK("512"),    MF_LOOKUP_AITER,   0,  0},
    {BLOCK("99999"),  MF_LOOKUP_MOEFARM, 7,  0},
    {BLOCK("131072"), MF_LOOKUP_MOEFARM, 7,  1},
    {BLOCK("131072"), MF_LOOKUP_AITER,   7,  1},
    {RANK("16", "32"), MF_LOOKUP_MOEFARM, 9, 0},
    {RANK("16", "96"), MF_LOOKUP_MOEFARM, 8, 1},
    {RANK("16", "32"), MF_LOOKUP_AITER,   8, 0},
    {RANK("32", "32"), MF_LOOKUP_MOEFARM, 0, 0},
    {BLOCK("1000"),   MF_LOOKUP_MOEFARM, 0,  0},
    {BLOCK("1000"),   MF_LOOKUP_AITER,   10, 0}, /* AITER ignores the column `form` */
    {BLOCK("2048"),   MF_LOOKUP_MOEFARM, 0,  0},
    {BLOCK("4096"),   MF_LOOKUP_MOEFARM, 11, 0},
    {BLOCK("4096"),   MF_LOOKUP_AITER,   0,  0}, /* AITER compares text: dtypes.bf16 is not torch.bfloat16 */
};
/* clang-format on */

MF_TEST(find, .rows = MF_ARRAY_LEN(finds))
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL, *before = NULL;
    const struct mf_device_class class = {"gfx950", 256};
    struct mf_lookup_found found = {.attempt = 99};
    struct mf_shape call = shape_of(finds[_i].call);
    char why[MF_REASON_MAX] = "";

    ck_assert_msg(mf_table_read("t.csv", table_text, sizeof(table_text) - 1, &t, why) == 0, "%s", why);
    ck_assert_uint_eq(t->n_rows, 10);
    ck_assert_msg(mf_table_read("before.csv", before_text, sizeof(before_text) - 1, &before, why) == 0, "%s",
                  why);
    const struct mf_table *set[] = {before, t};
    bool has_row = mf_lookup_find(set, 2, &class, &call, finds[_i].rules, NULL, &found);
    ck_assert_msg((has_row ? found.row->line : 0) == finds[_i].line, "%s under %s: line %lld", finds[_i].call,
                  mf_lookup_name(finds[_i].rules), (long long)(has_row ? found.row->line : 0));
    ck_assert_uint_eq(found.attempt, has_row ? finds[_i].attempt : 99);
    ck_assert(!has_row || found.table == t);
}

/* Each try searches all tables before the next try begins, so the lower tier is searched last. */
MF_TEST(each_try_searches_all_tables)
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL, *before = NULL;
    const struct mf_device_class class = {"gfx950", 256};
    struct mf_lookup_found found;
    struct mf_shape call = shape_of(BLOCK("131072"));
    char why[MF_REASON_MAX] = "";

    ck_assert_int_eq(mf_table_read("t.csv", table_text, sizeof(table_text) - 1, &t, why), 0);
    ck_assert_int_eq(mf_table_read("before.csv", tier_text, sizeof(tier_text) - 1, &before, why), 0);
    const struct mf_table *set[] = {t, before};
    ck_assert(mf_lookup_find(set, 2, &class, &call, MF_LOOKUP_MOEFARM, NULL, &found));
    ck_assert(found.table == before && found.attempt == 0);
    ck_assert(mf_lookup_find(set, 1, &class, &call, MF_LOOKUP_MOEFARM, NULL, &found));
    ck_assert(found.table == t && found.attempt == 1);
}

/* If a table spells a flag both as 1 and as True, AITER's dictionary matches none of the table's rows. If the
 * table spells it only as True, the rows match. */
MF_TEST(mixed_flag_spellings)
{
    static const char as_true[] =
        HEADER MI355 ",64,7168,512,256,8,ActivationType.Silu,torch.bfloat16," FN "," FN
                     ",QuantType.per_1x128,True,False,32,0,1.0,a,0.0%,1.0,b,0.0%,2.0,0,0,0,1.0,1.0,,\n";
    _cleanup_(mf_buf_release) struct mf_buf text;
    const struct mf_device_class class = {"gfx950", 256};
    struct mf_shape call = shape_of(BLOCK("64"));
    struct mf_lookup_found found;
    char why[MF_REASON_MAX] = "";

    mf_buf_init(&text, 1u << 16);
    ck_assert_int_eq(mf_buf_adds(&text, as_true), 0);
    for (int mixed = 0; mixed < 2; mixed++) {
        _cleanup_(mf_table_freep) struct mf_table *t = NULL;
        const struct mf_table *set;

        ck_assert_msg(mf_table_read("t.csv", text.data, text.len, &t, why) == 0, "%s", why);
        set = t;
        ck_assert(mf_lookup_find(&set, 1, &class, &call, MF_LOOKUP_MOEFARM, NULL, &found));
        ck_assert_int_eq(mf_lookup_find(&set, 1, &class, &call, MF_LOOKUP_AITER, NULL, &found), !mixed);
        ck_assert_int_eq(mf_buf_adds(&text, LINE(MI355, "128", "512", "256", "Silu", "", "")), 0);
    }
}

/* ---- the tables that AITER ships ---- */

#define ROWS_MAX 4000

struct shipped_row {
    struct mf_device_class class;
    struct mf_shape shape;
};

/* Under moefarm's rules, each row with a valid bucket serves a call of its own shape. The key of AITER's
 * dictionary lacks the activation function, so 449 rows are shadowed by an earlier row with the same key
 * (aiter/configs at e4048607a535, all tables merged in the order of their names). */
MF_TEST(shipped_rows)
{
    static struct shipped_row rows[ROWS_MAX];
    size_t n = 0, n_shadowed = 0, n_without_bucket = 0;

    for (size_t f = 0; f < sizeof(shipped) / sizeof(shipped[0]); f++) {
        if (shipped[f].op != MF_TABLE_FMOE || !shipped[f].tuned)
            continue;
        _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(shipped[f].file);
        for (size_t i = 0; i < t->n_rows; i++) {
            const struct mf_table_row *row = &t->rows[i];
            const struct mf_table *set = t;
            struct mf_lookup_found found = {0};

            if (!mf_lookup_considers(MF_LOOKUP_AITER, t, row))
                continue;
            ck_assert_uint_lt(n, ROWS_MAX);
            rows[n++] = (struct shipped_row){row->class, row->shape};
            if (!mf_lookup_considers(MF_LOOKUP_MOEFARM, t, row))
                continue;
            if (mf_token_bucket(row->shape.token) != row->shape.token)
                n_without_bucket++;
            else
                ck_assert_msg(
                    mf_lookup_find(&set, 1, &row->class, &row->shape, MF_LOOKUP_MOEFARM, NULL, &found) &&
                        found.row == row,
                    "%s:%lld", shipped[f].file, (long long)row->line);
        }
    }
    for (size_t i = 0; i < n; i++) {
        const struct mf_lookup_try any_act_form = {rows[i].shape, ANY_ACT_FORM};
        size_t j = 0;

        while (!mf_lookup_matches(&any_act_form, &rows[j].shape) ||
               !mf_device_class_equal(&rows[j].class, &rows[i].class))
            j++;
        n_shadowed += j != i;
    }
    printf("%zu rows, %zu of them shadowed by a row of another activation, %zu in no bucket\n", n, n_shadowed,
           n_without_bucket);
    ck_assert_uint_eq(n_shadowed, 449);
    ck_assert_uint_eq(n_without_bucket, 5);
}

int main(void)
{
    return mf_check_main(NULL);
}
