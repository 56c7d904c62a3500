/* kernels/pipeline/fmoe_table.c: tests which rows of a table libfmoe accepts, and which row serves a call. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/pipeline/fmoe.h"
#include "support/mf_check.h"
#include "support/table_columns.h"

#define HEADER TUNED_COLUMNS OWN_COLUMNS "\n"
#define KEY(T) \
    T ",2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0,"
#define ROW_OF(class, T, us, pipeline)                                             \
    class "," KEY(T) "16,0,50.0,a,0.0%,40.0,b,0.0%," us ",0,0,0,1.0,2.0," pipeline \
                     ",w1=row,some cpu,r1,gcc,uniform,1,20,0.5,moefarm:race\n"
#define ROW(T, us, pipeline) ROW_OF("sim-x,2", T, us, pipeline)

static const struct mf_device_ops ops = {.kind = "sim"};
static struct mf_device device = {.ops = &ops, .info.class = {"sim-x", 2}};
static char path[64];

static void write_table(const char *text)
{
    int fd;

    mf_format(path, sizeof(path), "/tmp/check_fmoe_table.XXXXXX");
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_int_eq(close(fd), 0);
}

static int open_table(char why[MF_REASON_MAX], struct mf_fmoe **ret)
{
    const char *paths[] = {path};

    return mf_fmoe_open(&device, paths, 1, NULL, why, MF_REASON_MAX, ret);
}

static void remove_table(void)
{
    (void)unlink(path);
}

static struct mf_shape shape_of(int64_t token)
{
    struct mf_shape shape;

    ck_assert_int_eq(
        mf_shape_parse("1,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
                       "QuantType.No,1,0",
                       &shape),
        0);
    shape.token = token;
    return shape;
}

/* Two rows of the device's class, mixed with rows of other classes. */
static const char good[] = HEADER ROW_OF("gfx942,304", "4", "7.0", "asm:x") ROW("4", "90.5", "sim:a|sim:b")
    ROW_OF("sim-x,4", "8", "8.0", "sim:z") ROW("16", "120.25", "sim:c");

MF_TEST(rows)
{
    struct mf_fmoe *f = NULL;
    char why[MF_REASON_MAX] = "", text[MF_SHAPE_TEXT_MAX];
    const char *pipeline;
    struct mf_shape shape;
    double us;

    write_table(good);
    ck_assert_msg(open_table(why, &f) == 0, "%s", why);
    ck_assert_uint_eq(mf_fmoe_n_rows(f), 2);
    ck_assert_int_eq(mf_fmoe_row(f, 0, &shape, &us, &pipeline), 0);
    ck_assert_int_eq(shape.token, 4);
    ck_assert_double_eq(us, 90.5);
    ck_assert_str_eq(pipeline, "sim:a|sim:b");
    ck_assert_int_eq(mf_fmoe_row(f, 1, &shape, &us, &pipeline), 0);
    mf_shape_print(&shape, text);
    ck_assert_int_eq(shape.token, 16);
    ck_assert_str_eq(pipeline, "sim:c");
    ck_assert_int_eq(mf_fmoe_row(f, 2, &shape, &us, &pipeline), -ENOENT);
    mf_fmoe_close(f);
}

/* The bucket is the next power of two (ROCm/aiter fused_moe.py, get_padded_M). */
static const struct {
    int64_t token;
    int32_t inter_dim;
    int r;
    size_t row;
} lookups[] = {
    {4, 96, 0, 0},  {3, 96, 0, 0},        {5, 96, -ENOENT, 0},  {9, 96, 0, 1},
    {16, 96, 0, 1}, {17, 96, -ENOENT, 0}, {4, 192, -ENOENT, 0}, {0, 96, -ENOENT, 0},
};

MF_TEST(look_up, .rows = MF_ARRAY_LEN(lookups))
{
    struct mf_shape shape = shape_of(lookups[_i].token);
    struct mf_fmoe *f = NULL;
    char why[MF_REASON_MAX] = "";
    size_t row = 99;

    write_table(good);
    ck_assert_msg(open_table(why, &f) == 0, "%s", why);
    shape.inter_dim = lookups[_i].inter_dim;
    ck_assert_int_eq(mf_fmoe_lookup(f, &shape, MF_LOOKUP_MOEFARM, &row), lookups[_i].r);
    if (lookups[_i].r == 0)
        ck_assert_uint_eq(row, lookups[_i].row);
    mf_fmoe_close(f);
}

/* With expert parallelism, a rank uses its own row if the table has one, otherwise the row of another rank of
 * the same size. It never uses the row of the whole layer. */
MF_TEST(ranks_share_rows)
{
    static const struct {
        const char *form;
        int r;
        size_t row;
    } calls[] = {
        {"ep:96/384", 0, 2}, {"ep:0/384", 0, 1},       {"ep:192/384", 0, 1},        {"", 0, 0},
        {"ep:64/192", 0, 3}, {"ep:0/256", -ENOENT, 0}, {"b1+ep:0/384", -ENOENT, 0},
    };
    struct mf_fmoe *f = NULL;
    char why[MF_REASON_MAX] = "", text[8192];

#define FORM(T, form)                                                                      \
    "sim-x,2," KEY(T) "16,0,50.0,a,0.0%,40.0,b,0.0%,90.0,0,0,0,1.0,2.0,sim:a,w1=row,some " \
                      "cpu,r1,gcc,uniform,1,20,0.5,moefarm:race," form "\n"
    mf_format(text, sizeof(text), "%.*s,form\n%s", (int)strlen(HEADER) - 1, HEADER,
              FORM("4", "") FORM("4", "ep:0/384") FORM("4", "ep:96/384") FORM("4", "ep:0/192"));
    write_table(text);
    ck_assert_msg(open_table(why, &f) == 0, "%s", why);
    for (size_t i = 0; i < MF_ARRAY_LEN(calls); i++) {
        struct mf_shape shape = shape_of(3);
        const char *reason;
        size_t row = 99;
        ck_assert_int_eq(mf_shape_set(&shape, "form", calls[i].form, &reason), 0);
        ck_assert_int_eq(mf_fmoe_lookup(f, &shape, MF_LOOKUP_MOEFARM, &row), calls[i].r);
        ck_assert_msg(calls[i].r != 0 || row == calls[i].row, "%s: row %zu", calls[i].form, row);
    }
    mf_fmoe_close(f);
}

static const struct {
    const char *table;
    int r;
    const char *why;
} refusals[] = {
    {HEADER ROW("4", "90.0", "sim:a") ROW("4", "91.0", "sim:b"), -EBADMSG, ":3: has the same key as line 2"},
    {HEADER ROW("4", "90.0", ""), -EBADMSG, ":2: column pipeline is empty"},
    {HEADER ROW("4", "90.0", "sim:a|"), -EBADMSG, ":2: column pipeline: expected family:step"},
    {HEADER ROW("4", "90.0", "a"), -EBADMSG, ":2: column pipeline: expected family:step"},
    {HEADER ROW("4", "90.0", "sim:"), -EBADMSG, ":2: column pipeline has a step name"},
    {HEADER ROW("4", "90.0", "sim:a b"), -EBADMSG, ":2: column pipeline has a step name"},
    {HEADER ROW("4", "90.0", "unheardof:a|"), -EBADMSG, ":2: column pipeline: expected family:step"},
    {HEADER ROW("4", "90.0", "move:a"), -EBADMSG,
     ":2: column pipeline names a family of another device kind"},
    {HEADER ROW("4", "0.0", "sim:a"), -EBADMSG, ":2: column us: expected a positive time"},
    {HEADER ROW("x", "90.0", "sim:a"), -EBADMSG, ":2: "},
    {"token,model_dim\n1,2\n", -EBADMSG, ""},
    {"", -EBADMSG, ""},
    {SHAPE_COLUMNS "\n", -EBADMSG, "not a tuned_fmoe.csv"},
};

MF_TEST(refused, .rows = MF_ARRAY_LEN(refusals))
{
    struct mf_fmoe *f = NULL;
    char why[MF_REASON_MAX] = "";

    write_table(refusals[_i].table);
    ck_assert_int_eq(open_table(why, &f), refusals[_i].r);
    ck_assert_ptr_null(f);
    ck_assert_msg(strstr(why, refusals[_i].why) != NULL, "'%s' does not contain '%s'", why, refusals[_i].why);
    ck_assert_msg(*why != '\0', "the error has no reason");
}

/* A row whose family this build lacks (from a Python module or a shared object) is counted, but lookups
 * never find it. Lookups still find the other rows. */
MF_TEST(foreign_rows)
{
    struct mf_shape shape = shape_of(8);
    struct mf_fmoe *f = NULL;
    char why[MF_REASON_MAX] = "";
    size_t row = 99;

    write_table(HEADER ROW("4", "90.5", "sim:a|sim:b") ROW("8", "80.0", "sim:a|unheardof:b")
                    ROW("16", "120.25", "sim:c"));
    ck_assert_msg(open_table(why, &f) == 0, "%s", why);
    ck_assert_uint_eq(mf_fmoe_n_rows(f), 2);
    ck_assert_uint_eq(mf_fmoe_n_foreign(f), 1);
    ck_assert_int_eq(mf_fmoe_foreign_line(f, 0), 3);
    ck_assert_int_eq(mf_fmoe_lookup(f, &shape, MF_LOOKUP_MOEFARM, &row), -ENOENT);
    shape.token = 16;
    ck_assert_int_eq(mf_fmoe_lookup(f, &shape, MF_LOOKUP_MOEFARM, &row), 0);
    ck_assert_uint_eq(row, 1);
    mf_fmoe_close(f);
}

MF_TEST(missing_file)
{
    struct mf_fmoe *f = NULL;
    char why[MF_REASON_MAX] = "";

    mf_format(path, sizeof(path), "/nonexistent/tuned_fmoe.csv");
    ck_assert_int_eq(open_table(why, &f), -ENOENT);
    ck_assert_msg(strstr(why, path) != NULL, "%s", why);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.teardown = remove_table});
}
