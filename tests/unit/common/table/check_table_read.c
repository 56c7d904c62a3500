#include "support/mf_check.h"
#include "support/shipped.h"
#include "support/table_columns.h"

#include "common/base/text.h"
#include "common/table/table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Every shipped table is read without losing a row. Its only problems are those in the two lists below. */
/* The shapes of examples/ have no problem, so that make demo and make bench-gpu can submit them. */
static const char *const examples[] = {"qwen3_untuned_fmoe.csv", "h200.csv", "formats.csv"};

MF_TEST(test_examples, .rows = MF_ARRAY_LEN(examples))
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    char path[512], why[MF_REASON_MAX];
    mf_format(path, sizeof(path), MF_SOURCE_DIR "/examples/%s", examples[_i]);
    ck_assert_msg(mf_table_file_read(path, &t, why) == 0, "%s", why);
    ck_assert_uint_gt(t->n_rows, 20);
    ck_assert_msg(t->n_problems == 0, "%s", t->n_problems ? t->problems[0].reason : "");
}

MF_TEST(test_shipped, .rows = MF_ARRAY_LEN(shipped))
{
    const struct shipped *s = &shipped[_i];
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(s->file);
    ck_assert_uint_eq(t->n_rows + s->n_errors, s->n_rows);
    ck_assert_uint_eq(t->n_errors, s->n_errors);
    ck_assert_uint_eq(t->n_warnings, s->n_warnings);
    ck_assert_uint_eq(t->n_problems, s->n_warnings + s->n_errors);
    ck_assert(t->tuned == s->tuned);
    ck_assert_int_eq(t->op, s->op);
    /* problems are sorted by line, although copied times are found last */
    for (size_t i = 1; i < t->n_problems; i++)
        ck_assert_int_le(t->problems[i - 1].line, t->problems[i].line);
    for (size_t i = 0; i < t->n_rows; i++) {
        const char *column, *why;
        ck_assert_int_eq(mf_shape_check(&t->rows[i].shape, &column, &why), 0);
        if (s->n_errors == 0)
            ck_assert_int_eq(t->rows[i].line, (int64_t)i + 2);
        if (s->tuned && s->op == MF_TABLE_FMOE)
            ck_assert_int_eq(strncmp(t->rows[i].class.gfx, "gfx9", 4), 0);
    }
}

/* clang-format off */
static const struct known_problems {
    const char *file;
    int64_t first, last;
    enum mf_problem_code code;
    const char *column;
} known_problems[] = {
    {"a8w8_blockscale_tuned_fmoe_ds_v3.csv",    48,  48, MF_PROBLEM_BUCKET,    "token"},   /* 40 tokens */
    {"a8w8_blockscale_tuned_fmoe_ds_v3.csv",   347, 351, MF_PROBLEM_ZERO_TIME, "us"},
    {"a8w8_blockscale_tuned_fmoe_glm5_1.csv",    4,  11, MF_PROBLEM_ZERO_TIME, "us"},
    {"glm5_fp4_tuned_fmoe.csv",                 34,  34, MF_PROBLEM_RAGGED,    ""}, /* no _tag cell */
    {"glm5_fp4_tuned_fmoe.csv",                 38,  47, MF_PROBLEM_RAGGED,    ""},
    {"gptoss_fp8fp4_tuned_fmoe.csv",            18,  31, MF_PROBLEM_TAGGED,    "_tag"},
    {"kimik3_a4w4_tuned_fmoe.csv",               4,   4, MF_PROBLEM_BUCKET,    "token"},   /* 3 tokens */
    {"kimik3_fp4_tuned_fmoe.csv",                4,   4, MF_PROBLEM_BUCKET,    "token"},
    {"kimik3_fp4_tuned_fmoe.csv",               20,  20, MF_PROBLEM_BUCKET,    "token"},
    {"tuned_fmoe.csv",                         143, 143, MF_PROBLEM_BUCKET,    "token"},   /* 56 tokens */
    {"tuned_fhmoe.csv",                          1,   1, MF_PROBLEM_OPERATOR,  ""},
    {"tuned_grouped_fmoe.csv",                   1,   1, MF_PROBLEM_OPERATOR,  ""},
    /* -1 stands for any topk */
    {"tuned_grouped_fmoe.csv",                  21,  33, MF_PROBLEM_RANGE,     "topk"},
    {"tuned_grouped_fmoe.csv",                  87,  99, MF_PROBLEM_RANGE,     "topk"},
    {"untuned_grouped_fmoe.csv",                 1,   1, MF_PROBLEM_OPERATOR,  ""},
};
/* clang-format on */

static const struct mf_problem *problem_at(const struct mf_table *t, int64_t line)
{
    for (size_t i = 0; i < t->n_problems; i++)
        if (t->problems[i].line == line)
            return &t->problems[i];
    return NULL;
}

MF_TEST(test_known_problems, .rows = MF_ARRAY_LEN(known_problems))
{
    const struct known_problems *d = &known_problems[_i];
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(d->file);
    for (int64_t line = d->first; line <= d->last; line++) {
        const struct mf_problem *p = problem_at(t, line);
        ck_assert_msg(p != NULL, "%s: no problem for line %" PRId64, d->file, line);
        ck_assert_int_eq(p->code, d->code);
        ck_assert_str_eq(p->column, d->column);
        ck_assert_int_eq(p->severity, p->code == MF_PROBLEM_RANGE ? MF_ERROR : MF_WARNING);
        ck_assert_ptr_nonnull(strstr(p->reason, d->column));
    }
}

/* Number of rows that have the same time as another token count of their layer model. Rows with time 0 are
 * not included. */
static const struct {
    const char *file;
    size_t n;
    int64_t first; /* line of the first such row */
} copied[] = {
    {"a8w8_blockscale_tuned_fmoe_ds_v3.csv", 318, 2}, /* 275.4024 us for both 2048 and 32768 tokens */
    {"a8w8_blockscale_tuned_fmoe_glm5_1.csv", 0, 0},  /* the times are 0 */
    {"tuned_fmoe.csv", 280, 4},
};

static bool has_same_time(const struct mf_table *t, int64_t line)
{
    size_t at = 0;
    while (t->rows[at].line != line)
        at++;
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct mf_table_row *a = &t->rows[at], *b = &t->rows[i];
        if (a->us == b->us && a->shape.token != b->shape.token &&
            mf_device_class_equal(&a->class, &b->class) && mf_shape_same_layer_model(&a->shape, &b->shape))
            return true;
    }
    return false;
}

MF_TEST(test_copied, .rows = MF_ARRAY_LEN(copied))
{
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(copied[_i].file);
    size_t n = 0;
    for (size_t i = 0; i < t->n_problems; i++) {
        const struct mf_problem *p = &t->problems[i];
        if (p->code != MF_PROBLEM_COPIED_TIME)
            continue;
        ck_assert_int_eq(p->severity, MF_WARNING);
        ck_assert(n > 0 || p->line == copied[_i].first);
        ck_assert(has_same_time(t, p->line));
        n++;
    }
    ck_assert_uint_eq(n, copied[_i].n);
    ck_assert_uint_eq(n, t->n_of[MF_PROBLEM_COPIED_TIME][MF_WARNING]);
}

/* The two lists above are complete: the number of listed problems equals the total. */
MF_TEST(test_known_problems_are_complete)
{
    size_t listed = 0, counted = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(known_problems); i++)
        listed += (size_t)(known_problems[i].last - known_problems[i].first) + 1;
    for (size_t i = 0; i < MF_ARRAY_LEN(copied); i++)
        listed += copied[i].n;
    for (size_t i = 0; i < MF_ARRAY_LEN(shipped); i++)
        counted += shipped[i].n_warnings + shipped[i].n_errors;
    ck_assert_uint_eq(MF_ARRAY_LEN(shipped), 51);
    ck_assert_uint_eq(listed, counted);
}

#define SHAPE                                                                                           \
    "256,7168,512,384,6,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float4_e2m1fn_x2," \
    "QuantType.per_1x32,1,0"
#define NAMES_29 TUNED_COLUMNS ",_tag\n"
#define GOOD_29  "gfx950,256," SHAPE ",32,0,12.0719,k1,0.0%,8.8572,k2,0.0%,20.9291,0,0,0,6.31,202009.64,\n"

/* Expected problems: each is "E" or "W" followed by "line code column;". */
/* clang-format off */
static const struct sample {
    const char *text;
    size_t n_rows;
    const char *problems;
    const char *reason_part;       /* fragment of the last reason */
} samples[] = {
    {NAMES_29 GOOD_29, 1, "", NULL},
    /* The cell of `flat` is missing, so `flat` holds the value of tflops, as in lines 9 and 11 to 17 of
     * AITER's dsv4 table. */
    {NAMES_29 "gfx950,256," SHAPE ",32,0,12.0719,k1,0.0%,8.8572,k2,0.0%,20.9291,0,0,6.31,202009.64,\n"
     GOOD_29,
     1, "E2 ragged flat;", "the row has 28 cells and the header 29, and flat is '6.31'"},
    /* A missing cell of the trailing `_tag` is harmless. */
    {NAMES_29 "gfx950,256," SHAPE ",32,0,12.0719,k1,0.0%,8.8572,k2,0.0%,20.9291,0,0,0,6.31,202009.64\n",
     1, "W2 ragged ;", "28 cells and the header 29"},
    {NAMES_29 "gfx950,256," SHAPE ",32,0,12.0719,k1,0.0%,8.8572,k2,0.0%,20.9291,0,0,0,6.31\n",
     0, "E2 ragged bw;", "bw is ''"},
    {NAMES_29 "gfx950,256," SHAPE "\n", 0, "E2 ragged block_m;", "block_m is ''"},
    {NAMES_29 "gfx950,256," SHAPE ",32,0,12.0719,k1,0.0%,8.8572,k2,0.0%,20.9291,0,0,0,6.31,202009.64,,,\n",
     1, "W2 ragged ;", "the surplus cells are empty"},
    {NAMES_29 "gfx950,256," SHAPE ",32,0,12.0719,k1,0.0%,8.8572,k2,0.0%,20.9291,0,0,0,6.31,202009.64,,x\n",
     0, "E2 ragged ;", "the row has 30 cells and the header 29"},
    {NAMES_29 "<<<<<<< HEAD\n" GOOD_29 "=======\n>>>>>>> theirs\n",
     1, "E2 conflict ;E4 conflict ;E5 conflict ;", "git conflict marker"},
    {NAMES_29 GOOD_29 "a\"b,c\n" GOOD_29, 2, "E3 malformed ;W4 duplicate ;", "same key as line 2"},
    {NAMES_29 "gfx950,256," SHAPE ",32,0,0,k1,0.0%,0,k2,0.0%,0.0,0,0,0,0.0,0.0,\n",
     1, "W2 zero_time us;", "us is 0.0"},
    {NAMES_29 "gfx950,256," SHAPE ",32,0,0,k1,0.0%,0,k2,0.0%,-1,0,0,0,-1,-1,\n",
     0, "E2 range us;E2 range tflops;E2 range bw;", "bw is '-1'"},
    {NAMES_29 "gfx950,256," SHAPE ",32,0,1.5,k1,nan,1.5,k2,0.0%,inf,0,0,0,1e999,1,\n",
     0, "E2 value err1;E2 value us;E2 range tflops;", NULL},
    {NAMES_29 "gfx950,256," SHAPE ",32,0,1,k1,0.0%,1,k2,0.0%,2,0,0,0,6.31,2.64,flydsl_fallback\n" GOOD_29,
     2, "W2 tagged _tag;", "_tag is 'flydsl_fallback'"},
    {NAMES_29 ",256," SHAPE ",32,0,1,k1,0.0%,1,k2,0.0%,2,0,0,0,6.31,2.64,\n",
     1, "W2 missing gfx;", "inferred as gfx950"},
    {NAMES_29 ",300," SHAPE ",32,0,1,k1,0.0%,1,k2,0.0%,2,0,0,0,6.31,2.64,\n",
     0, "E2 missing gfx;", "gfx is empty"},
    {NAMES_29 "gfx 950,0," SHAPE ",32,0,1,k1,0.0%,1,k2,0.0%,2,0,0,0,6.31,2.64,\n",
     0, "E2 range cu_num;", "cu_num is '0'"},
    {NAMES_29 "gfx 950,256," SHAPE ",32,0,1,k1,0.0%,1,k2,0.0%,2,0,0,0,6.31,2.64,\n",
     0, "E2 value gfx;", "gfx is 'gfx 950'"},
    {NAMES_29 "gfx950,256," SHAPE ",0,0,1,k1,0.0%,1,k2,0.0%,2,2,0,3,6.31,2.64,\n",
     0, "E2 range block_m;E2 range flat;E2 value run_1stage;", "write 1 or 0"},
    /* pandas writes flags as True, and writes an integer column as floats if a value of the column was
     * missing. */
    {NAMES_29 "gfx950,256.0," SHAPE ",32.0,0.0,1,k1,0.0%,1,k2,0.0%,2,1.0,True,1.0,6.31,2.64,\n", 1, "", NULL},
    {NAMES_29 "gfx950,256," SHAPE ",32,0,1,,0.0%,1,,0.0%,2,0,0,0,6.31,2.64,\n",
     0, "E2 missing kernelName1;", "kernelName1 is empty"},
    {NAMES_29 "gfx950,256," SHAPE ",32,0,1,Null,0.0%,1,k2,0.0%,2,0,0,0,6.31,2.64,\n",
     0, "E2 value kernelName1;", "kernelName1 is 'Null'"},
    /* Non-canonical spellings are problems in a tuned table only. */
    {NAMES_29 "gfx950,256,256,7168,512,384,6,ActivationType.Silu,dtypes.bf16,torch.bfloat16,torch.bfloat16,"
     "QuantType.per_128x128,True,0,32,0,1,k1,0.0%,1,k2,0.0%,2,0,0,0,6.31,2.64,\n",
     1, "W2 spelling dtype;W2 spelling q_type;W2 spelling use_g1u1;", "use_g1u1 is spelled 'True'"},
    /* A flag spelled in two ways is reported at the row with the second spelling. */
    {NAMES_29
     "gfx950,256,256,7168,512,384,6,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
     "QuantType.No,True,0,32,0,1,k1,0.0%,1,k2,0.0%,2,0,0,0,6.31,2.64,\n" GOOD_29,
     2, "W2 spelling use_g1u1;W3 mixed use_g1u1;", "1 or 0 (line 3) and True or False (line 2)"},
    {SHAPE_COLUMNS "\n256,7168,512,384,6,ActivationType.Silu,dtypes.bf16,torch.bfloat16,torch.bfloat16,"
     "QuantType.per_128x128,True,0\n",
     1, "", NULL},
    /* untuned tables may have any token count */
    {SHAPE_COLUMNS "\n3" SHAPE "\n" SHAPE "\n", 2, "", NULL},
    {SHAPE_COLUMNS
     "\n0,7168,512,384,600,ActivationType.Relu,torch.bfloat16,torch.float8,,QuantType.per_1x32,2,0\n",
     0,
     "E2 range token;E2 range topk;E2 value act_type;E2 value q_dtype_a;E2 missing q_dtype_w;"
     "E2 range use_g1u1;",
     "use_g1u1 is '2'; write 1 or 0"},
    {SHAPE_COLUMNS "\n1,7168,512,4,6,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
     "QuantType.No,1,0\n",
     0, "E2 range topk;", "topk is '6'"},
    {SHAPE_COLUMNS "\n" SHAPE "\n" SHAPE "\n", 2, "W3 duplicate ;", "same key as line 2"},
    {"\xef\xbb\xbf" SHAPE_COLUMNS "\r\n" SHAPE "\r\n\r\n" SHAPE, 2, "W4 duplicate ;", NULL},
    {" token , model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,"
     "doweight_stage1,"
     "Unnamed: 12,\n" SHAPE ",lost,\n", 1, "", NULL},
    /* Unknown columns are reported. If the name of an unknown column is similar to a missing shape column, it
     * is reported as a misspelling of that column. */
    {SHAPE_COLUMNS ",act_limt\n" SHAPE ",7\n", 1, "W1 unknown_column act_limt;",
     "unknown column 'act_limt' is not read; further"},
    {"\n" SHAPE_COLUMNS ",doweight_stage_1\n" SHAPE ",1\n", 1, "W2 unknown_column doweight_stage_1;",
     "the most similar known column is doweight_stage1;"},
    {SHAPE_COLUMNS ",\"<b>\x1b[31m\xc3\xa9-and-what-else-there-is-room-for-in-the-name-of-one\"\n" SHAPE
     ",1\n",
     1, "W1 unknown_column <b>?[31m?\?-and-what-else-there-is-room-for-i...;", "<b>?[31m"},
    {SHAPE_COLUMNS ",frm\n" SHAPE ",limit:7\n", 1, "W1 misspelt_column frm;",
     "rename it to form if that is meant, or remove it"},
    {SHAPE_COLUMNS ",FORM\n" SHAPE ",limit:7\n", 1, "W1 misspelt_column FORM;", NULL},
    {KEY_COLUMNS ",forms,_tag\ngfx942,304," SHAPE ",limit:7,\n", 1, "W1 misspelt_column forms;", NULL},
    {TUNED_COLUMNS ",frm\n" "gfx950,256," SHAPE
     ",32,0,12.0719,k1,0.0%,8.8572,k2,0.0%,20.9291,0,0,0,6.31,2.64,b1\n",
     1, "W1 misspelt_column frm;", "the rows may have the wrong shape"},
    {SHAPE_COLUMNS ",form,frm\n" SHAPE ",,b1\n", 1, "W1 unknown_column frm;",
     "the most similar known column is form;"},
    /* only missing shape columns can be reported as misspelt, and two-letter names are similar to few other
     * names */
    {SHAPE_COLUMNS ",kernel_Name1,k,zz\n" SHAPE ",1,2,3\n",
     1, "W1 unknown_column kernel_Name1;W1 unknown_column k;W1 unknown_column zz;",
     "is not read; further"},
    /* the columns of AITER and moefarm are known in every table */
    {SHAPE_COLUMNS ",ksplit,us1,err1,run_1stage,xbf16,tflops,bw,_tag,form,mad,provenance\n" SHAPE
     ",,,,,,,,,,,\n", 1, "", NULL},
    {"cu_num," SHAPE_COLUMNS ",gate_mode,tile_mm\n," SHAPE ",1,2\n", 1, "W1 operator ;", NULL},
    {SHAPE_COLUMNS ",gate_mode,tile_mm\n" SHAPE ",GateMode.SEPARATED,2\n", 1,
     "W1 unknown_column gate_mode;W1 unknown_column tile_mm;", NULL},
    {SHAPE_COLUMNS ",gate_mode\n" SHAPE ",a b\n", 0,
     "W1 unknown_column gate_mode;E2 value gate_mode;", NULL},
    {SHAPE_COLUMNS ",c1,c2,c3,c4,c5,c6,c7,c8,c9,c10,c11,c12,c13,c14,c15,c16,c17,c18,form_\n" SHAPE
     ",,,,,,,,,,,,,,,,,,,b1\n",
     1,
     "W1 unknown_column c1;W1 unknown_column c2;W1 unknown_column c3;W1 unknown_column c4;"
     "W1 unknown_column c5;W1 unknown_column c6;W1 unknown_column c7;W1 unknown_column c8;"
     "W1 unknown_column c9;W1 unknown_column c10;"
     "W1 unknown_column c11;W1 unknown_column c12;W1 unknown_column c13;W1 unknown_column c14;"
     "W1 unknown_column c15;W1 unknown_column c16;W1 misspelt_column form_;W1 unknown_column ;",
     "2 more unknown columns"},
    /* An untuned table may have class columns. */
    {KEY_COLUMNS "\n,," SHAPE "\n,304," SHAPE "\ngfx942,80," SHAPE "\n", 3, "W3 missing gfx;", NULL},
    {KEY_COLUMNS "\ngfx942,," SHAPE "\n", 0, "E2 missing cu_num;", NULL},
};
/* clang-format on */

MF_TEST(test_sample, .rows = MF_ARRAY_LEN(samples))
{
    const struct sample *s = &samples[_i];
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(mf_table_read("sample.csv", s->text, strlen(s->text), &t, why), 0);
    struct mf_buf actual;
    mf_buf_init(&actual, 4096);
    for (size_t i = 0; i < t->n_problems; i++) {
        const struct mf_problem *p = &t->problems[i];
        mf_buf_addf(&actual, "%c%" PRId64 " %s %s;", p->severity == MF_ERROR ? 'E' : 'W', p->line,
                    mf_problem_code_name(p->code), p->column);
    }
    ck_assert_str_eq(actual.data, s->problems);
    ck_assert_uint_eq(t->n_rows, s->n_rows);
    ck_assert_uint_eq(t->n_errors + t->n_warnings, t->n_problems);
    if (s->reason_part)
        ck_assert_msg(strstr(t->problems[t->n_problems - 1].reason, s->reason_part) != NULL, "%s",
                      t->problems[t->n_problems - 1].reason);
    mf_buf_release(&actual);
}

/* Reading only a part of each row ignores the cells outside the part, and the columns of those cells may be
 * missing. n_rows has one entry per part. */
/* clang-format off */
static const struct {
    const char *text;
    size_t n_rows[3];
} parts[] = {
    {TUNED_COLUMNS "\ngfx942,304," SHAPE ",16,0,-1,a,0.0%,30,b,0.0%,-1,0,0,0,1,1\n", {0, 1, 1}},
    {TUNED_COLUMNS "\ngfx942,304," SHAPE ",abc,x,nan,,,1e400,,x,0,7,x,9,inf,x\n",     {0, 1, 1}},
    {TUNED_COLUMNS "\ngfx942,-9," SHAPE ",16,0,40,a,0.0%,30,b,0.0%,70,0,0,0,1,1\n",  {0, 0, 1}},
    {TUNED_COLUMNS "\n,," SHAPE ",16,0,40,a,0.0%,30,b,0.0%,70,0,0,0,1,1\n",          {0, 0, 1}},
    {TUNED_COLUMNS "\ngfx942,304,x" SHAPE ",16,0,40,a,0.0%,30,b,0.0%,70,0,0,0,1,1\n", {0, 0, 0}},
    {TUNED_COLUMNS ",form\ngfx942,304," SHAPE ",16,0,40,a,0.0%,30,b,0.0%,70,0,0,0,1,1,x\n", {0, 0, 0}},
    {TUNED_COLUMNS "\ngfx942,304," SHAPE ",16,0,40,a\n",                              {0, 0, 0}},
    {TUNED_COLUMNS "\ngfx942,304," SHAPE ",16,0,40,a,0.0%,30,b,0.0%,70,0,0,0,1,1\n", {1, 1, 1}},
    {KEY_COLUMNS ",us\ngfx942,304," SHAPE ",-1\n",                                    {0, 1, 1}},
    {SHAPE_COLUMNS ",us\n" SHAPE ",-1\n",                                             {0, 0, 1}},
    {KEY_COLUMNS "\ngfx942,," SHAPE "\n",                                             {0, 0, 1}},
};
/* clang-format on */

MF_TEST(test_parts, .rows = MF_ARRAY_LEN(parts))
{
    const char *text = parts[_i].text;
    for (enum mf_table_part part = MF_TABLE_ROWS; part <= MF_TABLE_SHAPES; part++) {
        _cleanup_(mf_table_freep) struct mf_table *t = NULL;
        char why[MF_REASON_MAX];
        int r = mf_table_read_part("part.csv", text, strlen(text), part, &t, why);
        ck_assert(r == 0 || r == -EBADMSG);
        ck_assert_uint_eq(t ? t->n_rows : 0, parts[_i].n_rows[part]);
        ck_assert(r < 0 || t->n_rows + t->n_strays == 1);
    }
}

/* Invalid headers. */
/* clang-format off */
static const struct {
    const char *text, *reason_part;
} headers[] = {
    {"", "the table is empty"},
    {"\n\n", "the table is empty"},
    {"token,model_dim\n1,2\n", "no column 'inter_dim'"},
    {SHAPE "\n", "no column 'token'"},                          /* no header */
    {SHAPE_COLUMNS ",us\n" SHAPE ",1.0\n", "no column 'cu_num'"},
    {"cu_num," SHAPE_COLUMNS ",us\n", "no column 'block_m'"},
    {"token," SHAPE_COLUMNS "\n", "names the column 'token' twice"},
    {"\"token\n", "the header in line 1 cannot be read"},
    {"Token,model_dim\n1,2\n", "no column 'token'; rename 'Token' if that is meant"},
    {"token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u,"
     "doweight_stage1\n",
     "no column 'use_g1u1'; rename 'use_g1u' if"},
};
/* clang-format on */

MF_TEST(test_header, .rows = MF_ARRAY_LEN(headers))
{
    struct mf_table *t = NULL;
    char why[MF_REASON_MAX] = "";
    const char *text = headers[_i].text;
    ck_assert_int_eq(mf_table_read("sample.csv", text, strlen(text), &t, why), -EBADMSG);
    ck_assert_ptr_null(t);
    ck_assert_msg(strstr(why, headers[_i].reason_part) != NULL, "%s", why);
}

/* The header variants that occur in ROCm/aiter. Each variant results in the same row, except for absent
 * columns. */
/* clang-format off */
#define HEAD(gfx, tail) gfx "cu_num," SHAPE_COLUMNS \
    ",block_m,ksplit,us1,kernelName1,err1,us2,kernelName2,err2,us," tail
#define ROW(gfx, tail) gfx "256," SHAPE ",16,3,1.5,k1,0.9%,2.25,k2,1.4%,3.75," tail
static const struct {
    const char *text;
    bool xbf16;
    int flat;
} variants[] = {
    {HEAD("", "run_1stage,tflops,bw,_tag\n") ROW("", "1,16.98,242.31,\n"), false, 0},
    {HEAD("gfx,", "run_1stage,xbf16,flat,tflops,bw,_tag\n") ROW("gfx950,", "1,1,2,16.98,242.31,\n"), true, 2},
    {HEAD("", "run_1stage,xbf16,flat,tflops,bw,_tag\n") ROW("", "1,1,2,16.98,242.31,\n"), true, 2},
    {HEAD("", "run_1stage,xbf16,tflops,bw,_tag\n") ROW("", "1,1,16.98,242.31,\n"), true, 0},
    {HEAD("", "run_1stage,tflops,bw,xbf16,_tag\n") ROW("", "1,16.98,242.31,1,\n"), true, 0},
    {HEAD("gfx,", "run_1stage,xbf16,flat,tflops,bw\n") ROW("gfx950,", "1,1,2,16.98,242.31\n"), true, 2},
    {HEAD("gfx,", "run_1stage,xbf16,flat,tflops,bw\n") ROW("  gfx950 ,", " 1, 1 ,\t2,16.98 , 242.31\n"), true,
     2},
    {HEAD("gfx,", "flat,bw,xbf16,tflops,run_1stage\n") ROW("gfx950,", "2,242.31,1,16.98,1\n"), true, 2},
};
/* clang-format on */

MF_TEST(test_variant, .rows = MF_ARRAY_LEN(variants))
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    char why[MF_REASON_MAX], shape[MF_SHAPE_TEXT_MAX];
    const char *text = variants[_i].text;
    ck_assert_int_eq(mf_table_read("v.csv", text, strlen(text), &t, why), 0);
    ck_assert_uint_eq(t->n_rows, 1);
    ck_assert_uint_eq(t->n_problems, 0);
    const struct mf_table_row *row = &t->rows[0];
    mf_shape_print(&row->shape, shape);
    ck_assert_str_eq(shape, SHAPE);
    ck_assert_str_eq(row->class.gfx, "gfx950");
    ck_assert_int_eq(row->class.cu_num, 256);
    ck_assert_int_eq(row->block_m, 16);
    ck_assert_int_eq(row->ksplit, 3);
    ck_assert_double_eq(row->us1, 1.5);
    ck_assert_double_eq(row->us2, 2.25);
    ck_assert_double_eq(row->us, 3.75);
    ck_assert_double_eq_tol(row->err1, 0.009, 1e-12);
    ck_assert_double_eq_tol(row->err2, 0.014, 1e-12);
    ck_assert_str_eq(row->kernel1, "k1");
    ck_assert_str_eq(row->kernel2, "k2");
    ck_assert(row->run_1stage);
    ck_assert(row->xbf16 == variants[_i].xbf16);
    ck_assert_int_eq(row->flat, variants[_i].flat);
    ck_assert_double_eq(row->tflops, 16.98);
    ck_assert_double_eq(row->bw, 242.31);
}

/* If the table is for another operator, only the columns that also exist in tables of this operator are read.
 */
MF_TEST(test_other_operators)
{
    _cleanup_(mf_table_freep) struct mf_table *fhmoe = shipped_read("tuned_fhmoe.csv");
    ck_assert_int_eq(fhmoe->rows[0].block_m, 32);
    ck_assert_str_eq(fhmoe->rows[0].kernel1, "flydsl_moe1_afp8_wfp4_bf16_t32x64x256_w4_gui_kw4_fp8");
    ck_assert_double_eq(fhmoe->rows[0].us, 0);
    ck_assert_ptr_nonnull(strstr(fhmoe->problems[0].reason, "shared expert"));
    _cleanup_(mf_table_freep) struct mf_table *grouped = shipped_read("tuned_grouped_fmoe.csv");
    ck_assert_str_eq(grouped->rows[0].class.gfx, "gfx1250");
    ck_assert_double_eq(grouped->rows[0].us, 468.0528);
    _cleanup_(mf_table_freep) struct mf_table *untuned = shipped_read("untuned_grouped_fmoe.csv");
    ck_assert_int_eq(untuned->rows[0].class.cu_num, 0);
    ck_assert_int_eq(untuned->rows[15].shape.token, 32768);
}

/* For a file without a valid row, only a limited number of problems is stored. */
MF_TEST(test_problem_limit)
{
    struct mf_buf text;
    mf_buf_init(&text, 1 << 20);
    mf_buf_adds(&text, SHAPE_COLUMNS "\n");
    for (int i = 0; i < MF_TABLE_PROBLEMS_MAX + 50; i++)
        mf_buf_addf(&text, "row %d\n", i);
    ck_assert_int_eq(mf_buf_error(&text), 0);
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(mf_table_read("rubbish.csv", text.data, text.len, &t, why), 0);
    ck_assert_uint_eq(t->n_problems, MF_TABLE_PROBLEMS_MAX);
    ck_assert_uint_eq(t->n_errors, MF_TABLE_PROBLEMS_MAX + 50);
    ck_assert_uint_eq(t->n_rows, 0);
    mf_buf_release(&text);
}

/* If a reason quotes invalid text, the control characters in the text are replaced and the length of the
 * reason is limited. */
/* Reads n equal rows. Returns the processor time in seconds. */
static double time_of_equal_rows(int n)
{
    static const char row[] = "4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
                              "torch.bfloat16,QuantType.No,1,0\n";
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX] = "";
    struct timespec begin, end;
    mf_buf_init(&text, 32u << 20);
    (void)mf_buf_adds(&text, SHAPE_COLUMNS "\n");
    for (int i = 0; i < n; i++)
        (void)mf_buf_adds(&text, row);
    ck_assert_int_eq(mf_buf_error(&text), 0);
    ck_assert_int_eq(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin), 0);
    ck_assert_int_eq(mf_table_read_part("t", text.data, text.len, MF_TABLE_SHAPES, &t, why), 0);
    ck_assert_int_eq(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end), 0);
    ck_assert_uint_eq(t->n_rows, (size_t)n);
    ck_assert_uint_eq(t->n_of[MF_PROBLEM_DUPLICATE][MF_WARNING], (size_t)n - 1);
    ck_assert_int_eq(t->problems[n < 9999 ? n - 2 : 9998].line, n < 9999 ? n + 1 : 10001);
    ck_assert_ptr_nonnull(strstr(t->problems[0].reason, "same key as line 2"));
    return (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
}

/* The time to read equal rows grows in proportion to their number. */
MF_TEST(test_many_equal_rows)
{
    double few = time_of_equal_rows(5000), many = time_of_equal_rows(80000);
    ck_assert_msg(many < 64 * few, "5,000 rows take %g s, 80,000 rows %g s", few, many);
}

MF_TEST(test_reason_is_sanitised)
{
    struct mf_buf text;
    mf_buf_init(&text, 1 << 20);
    mf_buf_adds(&text, SHAPE_COLUMNS "\n\xff\xfe");
    for (int i = 0; i < 30000; i++)
        mf_buf_adds(&text, "x");
    mf_buf_adds(
        &text,
        ",1,1,1,1,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n");
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(mf_table_read("odd.csv", text.data, text.len, &t, why), 0);
    ck_assert_uint_eq(t->n_problems, 1);
    ck_assert_ptr_nonnull(strstr(t->problems[0].reason, "token is '\?\?xxx"));
    ck_assert_uint_lt(strlen(t->problems[0].reason), MF_REASON_MAX);
    mf_buf_release(&text);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
