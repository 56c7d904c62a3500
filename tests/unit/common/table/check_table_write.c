#include "support/mf_check.h"
#include "support/shipped.h"
#include "support/table_columns.h"
#include "support/text_file.h"

#include "common/table/csv.h"
#include "common/table/table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define CELLS_MAX 64

/* Splits a line at every comma, as other readers of these tables do. The code under test is not used. */
static size_t split(char *line, char *cells[CELLS_MAX])
{
    size_t n = 0;
    for (char *cell; (cell = strsep(&line, ",")) != NULL;) {
        ck_assert_uint_lt(n, CELLS_MAX);
        cells[n++] = cell;
    }
    return n;
}

static const char *const columns_28[] = {
    "gfx",      "cu_num", "token",      "model_dim",   "inter_dim", "expert",   "topk",
    "act_type", "dtype",  "q_dtype_a",  "q_dtype_w",   "q_type",    "use_g1u1", "doweight_stage1",
    "block_m",  "ksplit", "us1",        "kernelName1", "err1",      "us2",      "kernelName2",
    "err2",     "us",     "run_1stage", "xbf16",       "flat",      "tflops",   "bw",
};

struct lines {
    char *text, *line[1024];
    size_t n;
};

/* Splits the text into its non-empty lines. */
static void to_lines(char *text, struct lines *ret)
{
    ret->text = text;
    ret->n = 0;
    for (char *line; (line = strsep(&text, "\n")) != NULL;) {
        ck_assert_uint_lt(ret->n, MF_ARRAY_LEN(ret->line));
        if (*line)
            ret->line[ret->n++] = line;
    }
}

static char *read_file(const char *file)
{
    char path[512];
    shipped_path(file, path);
    return text_file_read(path);
}

static char *print(const struct mf_table *t, enum mf_table_columns columns)
{
    struct mf_buf out;
    char why[MF_REASON_MAX];
    mf_buf_init(&out, 1 << 20);
    ck_assert_msg(mf_table_write(t, columns, &out, why) == 0, "%s", why);
    char *text = mf_buf_take(&out);
    ck_assert_ptr_nonnull(text);
    mf_buf_release(&out);
    return text;
}

static const char *find(char *const *names, char *const *cells, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return cells[i];
    return NULL;
}

/* Returns the expected cell of a shipped row in one of the 28 columns. If the file has no gfx, it is inferred
 * from cu_num. If the file lacks a result, the cell is 0. */
static const char *expected_cell(char *const *names, char *const *cells, size_t n, const char *column)
{
    const char *cell = find(names, cells, n, column);
    if (!cell && strcmp(column, "gfx") == 0)
        return strcmp(find(names, cells, n, "cu_num"), "256") == 0 ? "gfx950" : "gfx942";
    return cell ? cell : "0";
}

/* Asserts that the shipped tuned rows have the same fields in the 28 columns after reading and writing. */
static void compare_fields(const struct lines *original, const struct lines *rewritten)
{
    char *names[CELLS_MAX], *old[CELLS_MAX], *new_names[CELLS_MAX], *new[CELLS_MAX];
    size_t n = split(original->line[0], names);
    size_t n_new = split(rewritten->line[0], new_names);
    ck_assert_uint_ge(n_new, MF_ARRAY_LEN(columns_28));
    for (size_t i = 0; i < MF_ARRAY_LEN(columns_28); i++)
        ck_assert_str_eq(new_names[i], columns_28[i]);
    ck_assert_uint_eq(original->n, rewritten->n);
    for (size_t row = 1; row < original->n; row++) {
        size_t n_old = split(original->line[row], old);
        ck_assert_uint_eq(split(rewritten->line[row], new), n_new);
        for (size_t i = 0; i < MF_ARRAY_LEN(columns_28); i++)
            ck_assert_str_eq(new[i], expected_cell(names, old, MF_MIN(n, n_old), columns_28[i]));
        const char *tag = find(new_names, new, n_new, "_tag"), *old_tag = n_old == n ? old[n - 1] : "";
        ck_assert_str_eq(tag ? tag : "", old_tag);
    }
}

MF_TEST(test_fields, .rows = MF_ARRAY_LEN(shipped))
{
    const struct shipped *s = &shipped[_i];
    if (!s->tuned || s->op != MF_TABLE_FMOE)
        return;
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(s->file);
    static struct lines original, rewritten;
    to_lines(read_file(s->file), &original);
    to_lines(print(t, MF_TABLE_ALL), &rewritten);
    ck_assert_uint_eq(original.n, s->n_rows + 1);
    compare_fields(&original, &rewritten);
    free(original.text);
    free(rewritten.text);
}

/* Removes the last cell of each line if the header's last column is `_tag`. */
static char *without_tag(char *text)
{
    struct mf_buf out;
    mf_buf_init(&out, 1 << 20);
    static struct lines lines;
    to_lines(text, &lines);
    const char *tail = strrchr(lines.line[0], ',');
    bool tagged = strcmp(tail, ",_tag") == 0;
    size_t commas = 0;
    for (const char *p = lines.line[0]; *p; p++)
        commas += *p == ',';
    for (size_t i = 0; i < lines.n; i++) {
        size_t n = 0;
        for (const char *p = lines.line[i]; *p; p++)
            n += *p == ',';
        char *last = strrchr(lines.line[i], ',');
        if (tagged && n == commas)
            *last = '\0';
        mf_buf_addf(&out, "%s\n", lines.line[i]);
    }
    free(text);
    return mf_buf_take(&out);
}

static bool has_28_columns(const char *text)
{
    return strncmp(text, "gfx,cu_num,", 11) == 0 && strstr(text, ",run_1stage,xbf16,flat,tflops,bw") != NULL;
}

/* Untuned files and files with all 28 columns are reproduced byte for byte, except for an unused `_tag`. */
MF_TEST(test_bytes, .rows = MF_ARRAY_LEN(shipped))
{
    const struct shipped *s = &shipped[_i];
    if (s->op != MF_TABLE_FMOE || s->n_rows == 0)
        return;
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(s->file);
    char *original = read_file(s->file);
    if (s->tuned && !has_28_columns(original)) {
        free(original);
        return;
    }
    char *rewritten = print(t, MF_TABLE_ALL);
    original = without_tag(original);
    if (strncmp(s->file, "gptoss_fp8fp4_tuned", 19) == 0) /* its tags are used, so the column is kept */
        rewritten = without_tag(rewritten);
    ck_assert_str_eq(rewritten, original);
    free(original);
    free(rewritten);
}

/* The number of files that test_bytes compares. */
MF_TEST(test_bytes_covers)
{
    size_t tuned = 0, untuned = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(shipped); i++) {
        if (shipped[i].op != MF_TABLE_FMOE || shipped[i].n_rows == 0)
            continue;
        char *text = read_file(shipped[i].file);
        tuned += shipped[i].tuned && has_28_columns(text);
        untuned += !shipped[i].tuned;
        free(text);
    }
    ck_assert_uint_eq(tuned, 9);
    ck_assert_uint_eq(untuned, 23);
}

/* Reading a written table returns the same rows, and writing the table again produces the same text. */
MF_TEST(test_round_trip, .rows = MF_ARRAY_LEN(shipped))
{
    const struct shipped *s = &shipped[_i];
    if (s->op != MF_TABLE_FMOE)
        return;
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(s->file);
    _cleanup_(mf_table_freep) struct mf_table *u = NULL;
    char why[MF_REASON_MAX];
    char *once = print(t, MF_TABLE_ALL);
    ck_assert_int_eq(mf_table_read("again.csv", once, strlen(once), &u, why), 0);
    ck_assert_uint_eq(u->n_rows, t->n_rows);
    ck_assert_uint_eq(u->n_errors, 0);
    char *twice = print(u, MF_TABLE_ALL);
    ck_assert_str_eq(once, twice);
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct mf_table_row *a = &t->rows[i], *b = &u->rows[i];
        ck_assert(mf_table_key_equal(a, b));
        ck_assert_double_eq(a->us, b->us);
        ck_assert_double_eq(a->bw, b->bw);
    }
    free(once);
    free(twice);
}

MF_TEST(test_other_operators, .rows = 3)
{
    static const char *const files[] = {"tuned_fhmoe.csv", "tuned_grouped_fmoe.csv",
                                        "untuned_grouped_fmoe.csv"};
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(files[_i]);
    struct mf_buf out;
    char why[MF_REASON_MAX] = "";
    mf_buf_init(&out, 1 << 20);
    ck_assert_int_eq(mf_table_write(t, MF_TABLE_ALL, &out, why), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(why, "another operator"));
    ck_assert_uint_eq(out.len, 0);
    mf_buf_release(&out);
}

#define SHAPE                                                                                             \
    "1,6144,2048,257,9,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2," \
    "QuantType.per_1x32,1,0"

static struct mf_table_row example_row(void)
{
    struct mf_table_row row = {
        .class = {"gfx950", 256},
        .block_m = 32,
        .us1 = 23.1763,
        .us2 = 16.8433,
        .us = 40.0196,
        .err1 = 0.009,
        .err2 = 0.014,
        .kernel1 = "k1",
        .kernel2 = "k2",
        .tflops = 16.98,
        .bw = 242417.31,
    };
    ck_assert_int_eq(mf_shape_parse(SHAPE, &row.shape), 0);
    return row;
}

/* New numbers have the format of AITER's tuner: repr(round(us, 4)), f"{err:.1%}", round(bw, 2). */
/* clang-format off */
static const struct {
    double us, err, rate;
    const char *expected;       /* us,err,rate */
} numbers[] = {
    {40.0196,       0.009,    16.98,      "40.0196,0.9%,16.98"},
    {40,            0,        0,          "40.0,0.0%,0.0"},
    {0,             1,        2,          "0.0,100.0%,2.0"},
    {-0.0,          0.00049,  -0.0,       "0.0,0.0%,0.0"},
    {12.3,          0.0005,   5.2,        "12.3,0.1%,5.2"},
    /* both doubles are just below the midpoint, so they are rounded down */
    {12.34565,      0.1579,   5.005,      "12.3456,15.8%,5.0"},
    {0.00004,       0.00001,  0.004,      "0.0,0.0%,0.0"},
    {0.00006,       0.25,     0.006,      "0.0001,25.0%,0.01"},
    {1000000,       0.5,      370590.13,  "1000000.0,50.0%,370590.13"},
    {16386.12344,   0.001,    123456789,  "16386.1234,0.1%,123456789.0"},
};
/* clang-format on */

MF_TEST(test_numbers, .rows = MF_ARRAY_LEN(numbers))
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    ck_assert_int_eq(mf_table_new("new.csv", true, &t), 0);
    struct mf_table_row row = example_row();
    row.us = numbers[_i].us;
    row.err2 = numbers[_i].err;
    row.bw = numbers[_i].rate;
    ck_assert_int_eq(mf_table_add(t, &row), 0);
    static struct lines lines;
    to_lines(print(t, MF_TABLE_ALL), &lines);
    char *cells[CELLS_MAX], actual[128];
    ck_assert_uint_eq(split(lines.line[1], cells), 28);
    snprintf(actual, sizeof(actual), "%s,%s,%s", cells[22], cells[21], cells[27]);
    ck_assert_str_eq(actual, numbers[_i].expected);
    free(lines.text);
}

MF_TEST(test_new_row)
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    ck_assert_int_eq(mf_table_new("new.csv", true, &t), 0);
    char *empty = print(t, MF_TABLE_ALL);
    ck_assert_str_eq(empty, TUNED_COLUMNS "\n");
    free(empty);
    struct mf_table_row row = example_row();
    ck_assert_int_eq(mf_table_add(t, &row), 0);
    row.class.cu_num = 128;
    row.run_1stage = row.xbf16 = true;
    row.flat = 1;
    row.kernel2 = NULL;
    row.own[MF_OWN_PIPELINE] = "a+b";
    row.own[MF_OWN_PROVENANCE] = "moefarm:race";
    ck_assert_int_eq(mf_table_add(t, &row), 0);
    char *text = print(t, MF_TABLE_ALL);
    ck_assert_str_eq(text, TUNED_COLUMNS
                     ",pipeline,layout,model,revision,compiler,routing,seed,n,mad,provenance\n"
                     "gfx950,256," SHAPE
                     ",32,0,23.1763,k1,0.9%,16.8433,k2,1.4%,40.0196,0,0,0,16.98,242417.31,,,,,,,,,,\n"
                     "gfx950,128," SHAPE ",32,0,23.1763,k1,0.9%,16.8433,,1.4%,40.0196,1,1,1,16.98,242417.31,"
                     "a+b,,,,,,,,,moefarm:race\n");
    free(text);
    text = print(t, MF_TABLE_AITER);
    ck_assert_str_eq(
        text, TUNED_COLUMNS
        "\n"
        "gfx950,256," SHAPE ",32,0,23.1763,k1,0.9%,16.8433,k2,1.4%,40.0196,0,0,0,16.98,242417.31\n"
        "gfx950,128," SHAPE ",32,0,23.1763,k1,0.9%,16.8433,,1.4%,40.0196,1,1,1,16.98,242417.31\n");
    free(text);
}

#define TAIL ",32,0,1,k1,0.0%,1,k2,0.0%,2,0,0,0,6.31,2.64"

/* Tables, and their text after rewriting. Data of other tools is kept in its own columns. */
/* clang-format off */
static const struct rewrite {
    const char *text, *all, *aiter;     /* NULL if the write is rejected with -EBADMSG or -EINVAL */
} rewrites[] = {
    /* Unknown columns move to the end. */
    {"note,gfx,cu_num," SHAPE_COLUMNS
     ",block_m,ksplit,us1,kernelName1,err1,us2,kernelName2,err2,us,run_1stage,xbf16,flat,"
     "tflops,bw,who\nn1,gfx950,256," SHAPE TAIL ",w1\n",
     TUNED_COLUMNS ",note,who\ngfx950,256," SHAPE TAIL ",n1,w1\n",
     TUNED_COLUMNS "\ngfx950,256," SHAPE TAIL "\n"},
    /* MF_TABLE_ALL keeps a tagged row; MF_TABLE_AITER omits it. */
    {TUNED_COLUMNS ",_tag\ngfx950,256," SHAPE TAIL ",fallback\n",
     TUNED_COLUMNS ",_tag\ngfx950,256," SHAPE TAIL ",fallback\n",
     TUNED_COLUMNS "\n"},
    /* A row with an unknown activation keeps its position. Columns that the header lacks are filled in. */
    {"cu_num," SHAPE_COLUMNS
     ",block_m,ksplit,us1,kernelName1,err1,us2,kernelName2,err2,us,run_1stage,tflops,bw,_tag\n"
     "256,1,2,3,4,1,ActivationType.New,torch.bfloat16,a,b,c,1,0,32,0,1,k1,0%,1,k2,0%,2,0,6.31,2.64,\n"
     "256," SHAPE ",32,0,1,k1,0.0%,1,k2,0.0%,2,0,6.31,2.64,\n"
     "80,oops\n",
     TUNED_COLUMNS ",_tag\n"
     "gfx950,256,1,2,3,4,1,ActivationType.New,torch.bfloat16,a,b,c,1,0,32,0,1,k1,0%,1,k2,0%,2,0,"
     "0,0,6.31,2.64,\n"
     "gfx950,256," SHAPE TAIL ",\n"
     "gfx942,80,oops,,,,,,,,,,,,,,,,,,,,,,0,0,,,\n",
     TUNED_COLUMNS "\ngfx950,256," SHAPE TAIL "\n"},
    /* Spellings, and integers that pandas wrote as floats, become canonical. */
    {TUNED_COLUMNS
     "\ngfx950,256.0,1,6144,2048,257,9,Silu,dtypes.bf16,dtypes.fp4x2,torch.float4_e2m1fn_x2,"
     "QuantType.per_1x32,"
     "True,False,32.0,0.0,1,k1,0.0%,1,k2,0.0%,2,False,0.0,0,6.31,2.64\n",
     TUNED_COLUMNS "\ngfx950,256," SHAPE TAIL "\n",
     TUNED_COLUMNS "\ngfx950,256," SHAPE TAIL "\n"},
    /* An untuned table keeps its class columns. */
    {SHAPE_COLUMNS ",gfx,cu_num\n" SHAPE ",gfx942,304\n" SHAPE ",,\n",
     "gfx,cu_num," SHAPE_COLUMNS "\ngfx942,304," SHAPE "\n,," SHAPE "\n",
     SHAPE_COLUMNS "\n" SHAPE "\n" SHAPE "\n"},
    {SHAPE_COLUMNS "\n", SHAPE_COLUMNS "\n", SHAPE_COLUMNS "\n"},
    /* Without the columns `us`, `kernelName1` and `block_m` the table is untuned, and `us1` is an unknown
     * column. */
    {SHAPE_COLUMNS ",us1\n" SHAPE ",fast\n", SHAPE_COLUMNS ",us1\n" SHAPE ",fast\n",
     SHAPE_COLUMNS "\n" SHAPE "\n"},
    /* If a cell cannot be written, writing fails; the cell is never dropped silently. */
    {TUNED_COLUMNS "\ngfx950,256," SHAPE TAIL ",surplus\n", NULL, TUNED_COLUMNS "\n"},
    {TUNED_COLUMNS "\ngfx\"950\n", NULL, TUNED_COLUMNS "\n"},
    {TUNED_COLUMNS ",note\ngfx950,256," SHAPE TAIL ",\"a,b\"\n", NULL,
     TUNED_COLUMNS "\ngfx950,256," SHAPE TAIL "\n"},
};
/* clang-format on */

static void check_rewrite(const struct mf_table *t, enum mf_table_columns columns, const char *expected)
{
    struct mf_buf out;
    char why[MF_REASON_MAX] = "";
    mf_buf_init(&out, 1 << 16);
    int r = mf_table_write(t, columns, &out, why);
    if (!expected) {
        ck_assert(r == -EBADMSG || r == -EINVAL);
        ck_assert_ptr_nonnull(strstr(why, "line 2"));
    } else {
        ck_assert_msg(r == 0, "%s", why);
        ck_assert_str_eq(out.data, expected);
    }
    mf_buf_release(&out);
}

MF_TEST(test_rewrite, .rows = MF_ARRAY_LEN(rewrites))
{
    const struct rewrite *w = &rewrites[_i];
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    char why[MF_REASON_MAX];
    ck_assert_msg(mf_table_read("t.csv", w->text, strlen(w->text), &t, why) == 0, "%s", why);
    check_rewrite(t, MF_TABLE_ALL, w->all);
    check_rewrite(t, MF_TABLE_AITER, w->aiter);
}

/* A changed number is reformatted; the other numbers keep their text. */
MF_TEST(test_changed_number)
{
    static const char text[] =
        TUNED_COLUMNS "\ngfx950,256," SHAPE ",32,0,1.00,k1,0.00%,1,k2,0,2.0000,0,0,0,6.310,2.64\n";
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(mf_table_read("t.csv", text, strlen(text), &t, why), 0);
    check_rewrite(t, MF_TABLE_ALL, text);
    t->rows[0].us = 3;
    check_rewrite(t, MF_TABLE_ALL,
                  TUNED_COLUMNS "\ngfx950,256," SHAPE ",32,0,1.00,k1,0.00%,1,k2,0,3.0,0,0,0,6.310,2.64\n");
}

MF_TEST(test_size_limit)
{
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read("tuned_fmoe.csv");
    struct mf_buf out;
    char why[MF_REASON_MAX] = "";
    mf_buf_init(&out, 10000);
    ck_assert_int_eq(mf_table_write(t, MF_TABLE_ALL, &out, why), -EFBIG);
    ck_assert_ptr_nonnull(strstr(why, "longer than"));
    mf_buf_release(&out);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
