#include "common/table/table_check.h"

#include "common/base/text.h"
#include "common/moe/device_peak.h"
#include "common/moe/layer.h"
#include "support/mf_check.h"
#include "support/shipped.h"
#include "support/table_columns.h"
#include "support/table_text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------------ AITER's own tables */

static size_t count(struct mf_table *const *tables, size_t n, enum mf_problem_code code)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        if (mf_check_applies(tables[i], code))
            found += tables[i]->n_of[code][MF_WARNING] + tables[i]->n_of[code][MF_ERROR];
    return found;
}

static const struct mf_table_row *row_at(const struct mf_table *t, int64_t line)
{
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].line == line)
            return &t->rows[i];
    return NULL;
}

static bool differ_in_act_only(const struct mf_table_row *a, const struct mf_table_row *b)
{
    struct mf_shape x = a->shape;
    x.act_type = b->shape.act_type;
    return a->shape.act_type != b->shape.act_type && mf_shape_equal(&x, &b->shape) &&
           mf_device_class_equal(&a->class, &b->class);
}

/* True if AITER's lookup finds an earlier row instead of this row. Rows are in the order of the tables. */
static bool is_shadowed(struct mf_table *const *tables, size_t n, const struct mf_table *t,
                        const struct mf_table_row *row)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < tables[i]->n_rows; k++) {
            if (tables[i] == t && &tables[i]->rows[k] == row)
                return false;
            if (tables[i]->tuned && tables[i]->op == MF_TABLE_FMOE &&
                differ_in_act_only(&tables[i]->rows[k], row))
                return true;
        }
    return false;
}

static double tflops(const struct mf_table_row *row)
{
    return mf_layer_flops(&row->shape) / row->us / 1e6;
}

/* clang-format off */
static const struct {
    enum mf_problem_code code;
    size_t n;
} expected[] = {
    /* Findings for the 2038 tuned rows in tests/data/aiter (ROCm/aiter at e4048607 has 2402): 654 rows have
     * the time of another token count, 13 have no time, 449 are shadowed, and 172 are beyond the device's
     * peak. One more row of ROCm/aiter is beyond the peak. Its table is not in tests/data, so the row is
     * among the planted rows below. */
    {MF_PROBLEM_COPIED_TIME, 654}, {MF_PROBLEM_ZERO_TIME, 13}, {MF_PROBLEM_SHADOWED, 449},
    {MF_PROBLEM_BEYOND_PEAK, 172},
    {MF_PROBLEM_RAGGED, 11},       {MF_PROBLEM_TAGGED, 14},    {MF_PROBLEM_BUCKET, 5},
    {MF_PROBLEM_ERR_LIMIT, 3},     {MF_PROBLEM_UNSTABLE, 0},   {MF_PROBLEM_TOKEN_ORDER, 6},
    {MF_PROBLEM_UNREACHABLE, 64},      {MF_PROBLEM_HOLE, 14},         {MF_PROBLEM_OPERATOR, 3},
    {MF_PROBLEM_DUPLICATE, 0},     {MF_PROBLEM_SPELLING, 0},   {MF_PROBLEM_MIXED, 0},
    {MF_PROBLEM_MALFORMED, 0},
    {MF_PROBLEM_CONFLICT, 0},      {MF_PROBLEM_UNKNOWN_COLUMN, 0}, {MF_PROBLEM_MISSPELT_COLUMN, 0},
};
/* clang-format on */

MF_TEST(test_shipped)
{
    struct mf_table *tables[MF_ARRAY_LEN(shipped)];
    const size_t n = MF_ARRAY_LEN(shipped);
    size_t n_reported = 0;
    for (size_t i = 0; i < n; i++)
        tables[i] = shipped_read(shipped[i].file);
    ck_assert_int_eq(mf_tables_check(tables, n, &(struct mf_check_options){.err_ratio = 0.2}), 0);
    for (size_t i = 0; i < MF_ARRAY_LEN(expected); i++)
        ck_assert_msg(count(tables, n, expected[i].code) == expected[i].n,
                      "%zu problems with code %s, expected %zu", count(tables, n, expected[i].code),
                      mf_problem_code_name(expected[i].code), expected[i].n);
    /* problems are sorted by line, and a simple check confirms each problem */
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < tables[i]->n_problems; k++) {
            const struct mf_problem *p = &tables[i]->problems[k];
            const struct mf_table_row *row = row_at(tables[i], p->line);
            ck_assert(k == 0 || tables[i]->problems[k - 1].line <= p->line);
            if (p->code == MF_PROBLEM_SHADOWED)
                ck_assert(is_shadowed(tables, n, tables[i], row));
            else if (p->code == MF_PROBLEM_BEYOND_PEAK)
                ck_assert_double_gt(tflops(row), row->class.cu_num == 80 ? 344 : 1307);
            /* AITER chooses the activation type only for 4-bit weights with per_1x32 scales */
            else if (p->code == MF_PROBLEM_UNREACHABLE)
                ck_assert(row->shape.q_type == MF_QTYPE_PER_1X32 && row->shape.q_dtype_w == MF_DTYPE_FP4X2 &&
                          row->shape.q_dtype_a != MF_DTYPE_BF16);
            else if (p->code == MF_PROBLEM_ERR_LIMIT)
                ck_assert(row->err1 > 0.2 || row->err2 > 0.2);
            n_reported++;
        }
    ck_assert_uint_ge(n_reported, 654 + 449 + 172 + 13);
    for (size_t i = 0; i < n; i++)
        mf_table_free(tables[i]);
}

/* ------------------------------------------------------------------------------------ planted problems */

#define NAMES     TUNED_COLUMNS ",_tag\n"
#define NAMES_OWN TUNED_COLUMNS ",_tag" OWN_COLUMNS "\n"
#define KEY(T, act)                                                                                    \
    "gfx950,256," T ",7168,256,257,9,ActivationType." act ",torch.bfloat16,torch.float8_e4m3fn,torch." \
    "float8_e4m3fn,QuantType.per_1x128,1,0,"
#define RESULT(us, err) "32,0,1.0,k1," err ",1.0,k2,0.0%," us ",0,0,0,1.0,1.0,"
#define ROW(T, us)      KEY(T, "Silu") RESULT(us, "0.0%") "\n"
#define OWN_ERR(us, n_samples, err) \
    RESULT(us, err)                 \
    ",tile:a|move:b,w1=row,MI355X,r1,gcc,uniform,1," n_samples ",0.1,moefarm:race\n"
#define OWN(us, n_samples) OWN_ERR(us, n_samples, "0.0%")
#define NAMES_OF           TUNED_COLUMNS ",_tag" OWN_COLUMNS ",unstable\n"
#define OWN_OF(us, mad, routing, unstable) \
    RESULT(us, "0.0%")                     \
    ",tile:a|move:b,w1=row,MI355X,r1,gcc," routing ",1,9," mad ",moefarm:race," unstable "\n"
#define ROW_4(T, us, a)                                                                                \
    "gfx950,256," T ",7168,2048,33,8,ActivationType.Silu,torch.bfloat16," a ",torch.float4_e2m1fn_x2," \
    "QuantType.per_1x32,1,0," RESULT(us, "0.0%") "\n"

/* Two tables with planted problems, and the expected problems. "a3 code column;" is a problem in line 3 of
 * table a. */
/* clang-format off */
static const struct planted {
    const char *a, *b;
    const char *problems;
    const char *reason_part; /* fragment of the last reason */
} planted[] = {
    {NAMES ROW("1", "20.5") ROW("2", "30.5"), NAMES ROW("4", "40.5"), "", NULL},
    /* A duplicate in another file is reported at its second occurrence, even if the second row is faster. */
    {NAMES ROW("1", "20.5"), NAMES ROW("2", "30.5") ROW("1", "19.5"), "b3 duplicate ;",
     "same key as a.csv line 2, which has 20.5 us"},
    {NAMES ROW("1", "20.5") ROW("1", "20.5"), NULL, "a3 duplicate ;", "same key as line 2"},
    /* A row that production skips because of its tag is neither a duplicate nor shadowed, and it shadows no
     * other row. */
    {NAMES ROW("1", "20.5"), NAMES KEY("1", "Silu") RESULT("9.5", "0.0%") "flydsl_fallback\n",
     "b2 tagged _tag;", NULL},
    {NAMES KEY("1", "Silu") RESULT("19.5", "0.0%") "flydsl_fallback\n",
     NAMES KEY("1", "Gelu") RESULT("20.5", "0.0%") "\n",
     "a2 tagged _tag;", NULL},
    /* A spelling that AITER's lookup never matches. */
    {NAMES "gfx950,256,1,7168,256,257,9,Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,"
     "QuantType.per_1x128,1,0,"
     RESULT("20.5", "0.0%") "\n", NULL, "a2 spelling act_type;", "only 'ActivationType.Silu'"},
    /* A row whose spelling AITER's lookup never matches does not fill a hole. */
    {NAMES ROW("1", "20.5")
     "gfx950,256,2,7168,256,257,9,Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,"
     "QuantType.per_1x128,1,0,"
     RESULT("30.5", "0.0%") "\n" ROW("4", "40.5"), NULL, "a3 spelling act_type;a4 hole token;",
     "lacks 2 tokens"},
    /* Holes within a file, and a hole that another file fills. Token counts outside a table's range are not
     * holes. */
    {NAMES ROW("16", "80.5") ROW("4", "38.5"), NULL, "a2 hole token;",
     "lacks 8 tokens, between its rows for 4 (line 3) and 16"},
    {NAMES ROW("1", "20.5") ROW("16", "85.5"), NULL, "a3 hole token;", "lacks 2, 4, 8 tokens"},
    {NAMES ROW("1", "20.5") ROW("4", "25.5"), NAMES ROW("2", "22.5"), "", NULL},
    {NAMES ROW("32768", "5000.5") ROW("131072", "20000.5"), NULL, "", NULL},
    {NAMES ROW("1", "20.5") ROW("3", "24.5") ROW("2", "25.5"), NULL, "a3 bucket token;", "looks up 4"},
    /* A row that is slower than a row with more tokens, in the same file and in another one. The fastest row
     * with more tokens is named. A row of another model or routing is no evidence. */
    {NAMES ROW("16", "3628.5") ROW("32", "2206.5") ROW("64", "2300.5"), NULL, "a2 token_order us;",
     "us is 3628 us for 16 tokens but 2206 us for 32 tokens of this layer (39% less): more tokens cannot be "
     "faster (line 3); tune both shapes again on a quiet host"},
    {NAMES ROW("16", "3628.5"), NAMES ROW("32", "2206.5"), "a2 token_order us;", "faster (b.csv line 2)"},
    {NAMES ROW("16", "115.5") ROW("32", "101.5"), NULL, "", NULL},
    {NAMES_OF KEY("16", "Silu") OWN_OF("115.5", "0.5", "uniform", "") KEY("32", "Silu")
     OWN_OF("101.5", "0.5", "uniform", ""), NULL, "a2 token_order us;", "12% less"},
    {NAMES_OF KEY("16", "Silu") OWN_OF("115.5", "0.5", "uniform", "") KEY("32", "Silu")
     OWN_OF("101.5", "0.5", "balanced", ""), NULL, "", NULL},
    /* A time that the farm has not accepted. */
    {NAMES_OF KEY("16", "Silu") OWN_OF("115.5", "0.5", "uniform", "after 3 reruns: it scatters"), NULL,
     "a2 unstable us;",
     "us is 115.5, but no measurement was accepted: after 3 reruns: it scatters; tune the shape again on a "
     "quiet host"},
    /* Below 256 tokens and with fp4 weights, production looks up bf16 activations. So the rows with fp8
     * activations have no hole below 256 tokens. */
    {NAMES ROW_4("1", "25.5", "torch.float8_e4m3fn") ROW_4("512", "95.5", "torch.float8_e4m3fn"), NULL,
     "a2 unreachable q_dtype_a;a3 hole token;", "lacks 256 tokens"},
    /* Shadowed rows: AITER uses the first row in the order of the files. */
    {NAMES KEY("1", "Gelu") RESULT("20.5", "0.0%") "\n", NAMES ROW("1", "10.5") ROW("2", "12.5"),
     "b2 shadowed act_type;",
     "the row for ActivationType.Gelu in a.csv line 2 first"},
    /* The key of libfmoe's lookup includes the activation function, so no row is shadowed. */
    {NAMES_OWN KEY("1", "Gelu") OWN("20.5", "9") KEY("1", "Silu") OWN("21.5", "9"), NULL, "", NULL},
    /* Equal times of two token counts are reported as a copy. Two rows with samples may have equal times
     * by chance, but three such rows may not. */
    {NAMES ROW("1", "20.5") ROW("2", "20.5"), NULL, "a2 copied_time us;a3 copied_time us;",
     "for 2 token counts"},
    {NAMES_OWN KEY("1", "Silu") OWN("20.5", "9") KEY("2", "Silu") OWN("20.5", "9"), NULL, "", NULL},
    {NAMES_OWN KEY("1", "Silu") OWN("40.5", "9") KEY("2", "Silu") OWN("40.5", "9")
     KEY("4", "Silu") OWN("40.5", "9"), NULL,
     "a2 copied_time us;a3 copied_time us;a4 copied_time us;", "lines 2 to 4"},
    /* Beyond the peak: 32768 tokens are 3.2 PFLOP, which takes MI355X at least 0.65 ms. 512 tokens read 257
     * experts of 5.5 MB each. At most 288 MB of these weights come from the caches, so the call takes at
     * least 0.14 ms, less a tolerance of 10%. */
    {NAMES ROW("32768", "640.5"), NULL, "a2 beyond_peak us;",
     "gfx950/256 (MI350X, MI355X) reaches at most 5033"},
    {NAMES ROW("32768", "660.5"), NULL, "", NULL},
    {NAMES ROW("512", "120.5"), NULL, "a2 beyond_peak us;",
     "GB/s for the part of the weights of 257 experts that the caches of gfx950/256"},
    {NAMES ROW("512", "135.5"), NULL, "", NULL},
    {NAMES ROW("1", "1.5"), NULL, "", NULL}, /* all the weights may be in the caches */
    /* A row of ROCm/aiter's kimik3_a8w4_tuned_fmoe.csv that implies 5590 TFLOP/s. AITER does not skip rows
     * with this tag. */
    {NAMES "gfx950,256,4096,3584,3072,896,16,ActivationType.Situv2,torch.bfloat16,torch.float8_e4m3fn,"
     "torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0,64,0,409.5168,"
     "flydsl_moe1_afp8_wfp4_bf16_t64x128x256_w3_bnt0_gui_xcd4_fp8,0.0%,364.9159,"
     "flydsl_moe2_afp8_wfp4_bf16_t64x256x128_reduce,0.0%,774.4327,0,0,0,698.79,4833.75,exact-m4096-a\n", NULL,
     "a2 tagged _tag;a2 beyond_peak us;a2 unreachable q_dtype_a;", NULL},
    {NAMES KEY("1", "Silu") RESULT("20.5", "20.1%") "\n", NULL, "a2 err_limit err1;",
     "err1 is 20.1%, above the limit of 20.0%"},
    {NAMES KEY("1", "Silu") RESULT("20.5", "20.0%") "\n", NULL, "", NULL},
    /* a row of libfmoe, which the farm's gates accepted */
    {NAMES_OWN KEY("1", "Silu") OWN_ERR("20.5", "13", "45.0%"), NULL, "", NULL},
    {NAMES "<<<<<<< ours\n" ROW("1", "20.5") "=======\n" ROW("1", "21.5") ">>>>>>> theirs\n", NULL,
     "a2 conflict ;a4 conflict ;a5 duplicate ;a6 conflict ;", NULL},
};
/* clang-format on */

static const char *print_problems(struct mf_table *const *tables, size_t n, struct mf_buf *out)
{
    const char *last = "";
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < tables[i]->n_problems; k++) {
            const struct mf_problem *p = &tables[i]->problems[k];
            ck_assert_int_eq(mf_buf_addf(out, "%c%" PRId64 " %s %s;", tables[i]->name[strlen("some/")],
                                         p->line, mf_problem_code_name(p->code), p->column),
                             0);
            ck_assert_uint_lt(strlen(p->reason), MF_REASON_MAX);
            last = p->reason;
        }
    return last;
}

MF_TEST(test_planted, .rows = MF_ARRAY_LEN(planted))
{
    const struct planted *s = &planted[_i];
    struct mf_table *tables[2] = {read_text("some/a.csv", s->a), s->b ? read_text("some/b.csv", s->b) : NULL};
    size_t n = s->b ? 2 : 1;
    struct mf_buf actual;
    mf_buf_init(&actual, 4096);
    ck_assert_int_eq(mf_tables_check(tables, n, &(struct mf_check_options){.err_ratio = 0.2}), 0);
    const char *last = print_problems(tables, n, &actual);
    ck_assert_str_eq(actual.len ? actual.data : "", s->problems);
    if (s->reason_part)
        ck_assert_msg(strstr(last, s->reason_part) != NULL, "%s", last);
    mf_buf_release(&actual);
    mf_table_free(tables[0]);
    mf_table_free(tables[1]);
}

/* Reports the kernel name of every row below 4 tokens as wrong. Untuned tables and tables of other operators
 * are not checked. */
static bool check_name(const struct mf_table_row *row, const void *data, struct mf_check_name *ret)
{
    ck_assert_str_eq(data, "data");
    ret->code = row->shape.token == 1 ? MF_PROBLEM_KERNEL : MF_PROBLEM_FOREIGN;
    ret->column = "kernelName1";
    snprintf(ret->reason, sizeof(ret->reason), "no %s", row->kernel1);
    return row->shape.token < 4;
}

MF_TEST(test_names)
{
    struct mf_table *tables[] = {
        read_text("some/a.csv", NAMES ROW("1", "20.5") ROW("2", "30.5") ROW("4", "40.5")),
        shipped_read("untuned_fmoe.csv"), shipped_read("tuned_grouped_fmoe.csv")};
    const struct mf_check_options options = {.err_ratio = 1, .name = check_name, .name_data = "data"};
    size_t n_before = tables[1]->n_problems + tables[2]->n_problems;
    ck_assert_int_eq(mf_tables_check(tables, 3, &options), 0);
    ck_assert_uint_eq(tables[0]->n_problems, 2);
    ck_assert_int_eq(tables[0]->problems[0].code, MF_PROBLEM_KERNEL);
    ck_assert_int_eq(tables[0]->problems[1].code, MF_PROBLEM_FOREIGN);
    ck_assert_str_eq(tables[0]->problems[1].reason, "no k1");
    ck_assert_uint_eq(tables[1]->n_problems + tables[2]->n_problems, n_before);
    for (size_t i = 0; i < MF_ARRAY_LEN(tables); i++)
        mf_table_free(tables[i]);
}

MF_TEST(test_severity)
{
    for (enum mf_problem_code c = 0; c < MF_PROBLEM_N_; c++) {
        ck_assert_ptr_nonnull(mf_check_meaning(c));
        ck_assert_int_eq(mf_check_severity(c, MF_ERROR), MF_ERROR); /* unusable rows are always errors */
    }
    ck_assert_int_eq(mf_check_severity(MF_PROBLEM_RAGGED, MF_WARNING), MF_WARNING);
    ck_assert_int_eq(mf_check_severity(MF_PROBLEM_HOLE, MF_WARNING), MF_WARNING);
    ck_assert_int_eq(mf_check_severity(MF_PROBLEM_DUPLICATE, MF_WARNING), MF_ERROR);
}

MF_TEST(test_unreadable)
{
    struct mf_table *t = NULL;
    ck_assert_int_eq(mf_table_unreadable("a.csv", "the table is empty", &t), 0);
    ck_assert_int_eq(mf_tables_check(&t, 1, &(struct mf_check_options){0}), 0);
    ck_assert_uint_eq(t->n_errors, 1);
    ck_assert_str_eq(t->problems[0].reason, "the table is empty");
    mf_table_free(t);
}

MF_TEST(test_peaks)
{
    const struct mf_device_peak *p = mf_device_peak_find(&(struct mf_device_class){"gfx942", 304});
    ck_assert_ptr_nonnull(p);
    /* AMD specifies 1307.4 TFLOP/s for bf16 and 2614.9 for fp8. The device has no 4-bit arithmetic, so fp4
     * reaches at most the fp8 rate. */
    ck_assert_double_eq(mf_device_peak_tflops(p, MF_DTYPE_BF16), 1307.4);
    ck_assert_double_eq(mf_device_peak_tflops(p, MF_DTYPE_FP8_E4M3FNUZ), 2614.9);
    ck_assert_double_eq(mf_device_peak_tflops(p, MF_DTYPE_FP4X2), 2614.9);
    p = mf_device_peak_find(&(struct mf_device_class){"sm_80", 108});
    ck_assert_double_eq(mf_device_peak_tflops(p, MF_DTYPE_FP4X2), 312);
    ck_assert_double_eq(mf_device_peak_tflops(p, MF_DTYPE_INT8), 624);
    ck_assert_double_eq(p->gbs, 2039);
    ck_assert_double_eq(p->cache_mb, 40);
    ck_assert_ptr_null(mf_device_peak_find(&(struct mf_device_class){"gfx942", 305}));
    ck_assert_ptr_null(mf_device_peak_find(&(struct mf_device_class){"cpu-znver4", 304}));
}

static const struct {
    const char *gfx;
    enum mf_dtype activations;
    double ratio;
} ratios[] = {
    {"gfx942", MF_DTYPE_BF16, 1},
    {"gfx942", MF_DTYPE_FP8_E4M3FNUZ, 2},
    {"sm_100", MF_DTYPE_FP4X2, 4},
    {"cpu-znver5", MF_DTYPE_BF16, 1},
    {"cpu-znver5", MF_DTYPE_INT8, 4},
    {"cpu-znver5", MF_DTYPE_FP8_E4M3FN, 1},
    {"cpu-emeraldrapids", MF_DTYPE_BF16, 16},
    {"cpu-sapphirerapids", MF_DTYPE_INT8, 32},
};

MF_TEST(test_peak_ratios, .rows = MF_ARRAY_LEN(ratios))
{
    struct mf_device_class class = {.cu_num = 2};
    ck_assert_int_eq(mf_copy(class.gfx, sizeof(class.gfx), ratios[_i].gfx), 0);
    ck_assert_double_eq(mf_device_peak_ratio(&class, ratios[_i].activations), ratios[_i].ratio);
}

int main(void)
{
    return mf_check_main(NULL);
}
