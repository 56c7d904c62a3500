#include "common/table/table_diff.h"

#include "support/mf_check.h"
#include "support/shipped.h"
#include "support/table_columns.h"
#include "support/table_text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAMES TUNED_COLUMNS ",_tag"
#define KEY(T, act) \
    "gfx950,256," T ",7168,256,257,9," act ",torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define SILU "ActivationType.Silu"
/* clang-format off */
#define ROW(T, us) KEY(T, SILU) ",32,0,10.5,k1,0.1%,10.5,k2,0.1%," us ",0,0,0,1.0,1.0,\n"
#define ONE(T, us, k2, err) KEY(T, SILU) ",32,0," us ",k1,0.1%,0.0," k2 "," err "," us ",1,0,0,1.0,1.0,\n"

static const struct {
    const char *before, *after;
    const char *expected; /* per row "what T old_line:new_line;", then per cell "column old new;" */
} cases[] = {
    {NAMES "\n" ROW("1", "20.5"), NAMES "\n" ROW("1", "20.5"), ""},
    /* the rows have another order */
    {NAMES "\n" ROW("1", "20.5") ROW("2", "30.5"), NAMES "\n" ROW("2", "30.5") ROW("1", "20.5"), ""},
    {NAMES "\n" ROW("1", "20.5") ROW("2", "30.5"), NAMES "\n" ROW("4", "40.5") ROW("1", "19.5"),
     "changed 1 2:3;us 20.5 19.5;removed 2 3:0;added 4 0:2;"},
    {NAMES "\n" ROW("1", "20.5"), NAMES "\n" KEY("1", SILU)
     ",64,1,10.5,k9,0.1%,10.5,k2,0.2%,20.5,0,1,2,1.0,1.0,\n",
     "changed 1 2:2;kernelName1 k1 k9;block_m 32 64;ksplit 0 1;xbf16 0 1;flat 0 2;err2 0.1% 0.2%;"},
    /* Only the spellings differ. */
    {NAMES "\n" ROW("1", "20.5"), NAMES "\n" KEY("1", "Silu")
     ",32,0,10.5,k1,0.10%,10.5,k2,0.1%,20.50,0,0,0,1.0,1.0,\n",
     "respelled 1 2:2;act_type canonical another spelling;err1 0.1% 0.10%;us 20.5 20.50;"},
    {NAMES "\n" ONE("1", "20.5", "Null", "0"), NAMES "\n" ONE("1", "20.5", "", "0.0%"),
     "respelled 1 2:2;err2 0 0.0%;kernelName2 Null ;"},
    {NAMES ",pipeline\n" KEY("1", SILU) ",32,0,10.5,k1,0.1%,10.5,k2,0.1%,20.5,0,0,0,1.0,1.0,,tile:a\n",
     NAMES ",pipeline\n" KEY("1", SILU) ",32,0,10.5,k1,0.1%,10.5,k2,0.1%,20.5,0,0,0,1.0,1.0,,two_stage:a\n",
     "respelled 1 2:2;pipeline tile:a two_stage:a;"},
    /* For a changed row, only changed values are reported, not changed spellings. */
    {NAMES "\n" ONE("1", "20.5", "Null", "0"), NAMES "\n" ONE("1", "21.5", "", "0.0%"),
     "changed 1 2:2;us 20.5 21.5;us1 20.5 21.5;"},
    /* The old header lacks gfx and the columns with value 0. Its columns have another order. */
    {"cu_num," SHAPE_COLUMNS ",us,block_m,kernelName1,kernelName2\n256,1,7168,256,257,9," SILU
     ",torch.bfloat16,torch.bfloat16,"
     "torch.bfloat16,QuantType.No,1,0,20.5,32,k1,k2\n",
     NAMES "\n" KEY("1", SILU) ",32,0,0.0,k1,0.0%,0.0,k2,0.0%,20.5,0,0,0,0.0,0.0,\n", ""},
    /* Rows with equal keys and equal tags are matched first. Then the remaining rows with equal keys are
     * matched. */
    {NAMES "\n" ROW("1", "20.5") KEY("1", SILU)
     ",32,0,10.5,k1,0.1%,10.5,k2,0.1%,9.5,0,0,0,1.0,1.0,fallback\n",
     NAMES "\n" KEY("1", SILU) ",32,0,10.5,k1,0.1%,10.5,k2,0.1%,9.5,0,0,0,1.0,1.0,fallback\n"
     ROW("1", "20.5"), ""},
    {NAMES "\n" ROW("1", "20.5"), NAMES "\n" KEY("1", SILU)
     ",32,0,10.5,k1,0.1%,10.5,k2,0.1%,20.5,0,0,0,1.0,1.0,fallback\n",
     "changed 1 2:2;_tag  fallback;"},
    {NAMES "\n" ROW("1", "20.5") ROW("1", "20.5"), NAMES "\n" ROW("1", "20.5"), "removed 1 3:0;"},
    /* Unknown columns are compared too. */
    {NAMES ",note\n" ROW("1", "20.5") , NAMES ",note,more\n" KEY("1", SILU)
     ",32,0,10.5,k1,0.1%,10.5,k2,0.1%,20.5,0,0,0,1.0,1.0,,a,b\n",
     "changed 1 2:2;note  a;more  b;"},
    {NAMES ",model\n" ROW("1", "20.5"), NAMES ",model\n" KEY("1", SILU)
     ",32,0,10.5,k1,0.1%,10.5,k2,0.1%,20.5,0,0,0,1.0,1.0,,MI355X\n",
     "changed 1 2:2;model  MI355X;"},
    /* Untuned tables contain only keys. */
    {SHAPE_COLUMNS "\n1,7168,256,257,9," SILU
     ",torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n",
     SHAPE_COLUMNS "\n2,7168,256,257,9," SILU
     ",torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n"
     "1,7168,256,257,9," SILU ",dtypes.bf16,torch.bfloat16,torch.bfloat16,QuantType.No,True,0\n",
     "added 2 0:2;"},
};
/* clang-format on */

static int print_cell(void *data, const char *column, const char *before, const char *after)
{
    return mf_buf_addf(data, "%s %s %s;", column, before, after);
}

static void print_item(const struct mf_diff *d, const struct mf_diff_item *item, struct mf_buf *out)
{
    const struct mf_table_row *a = item->before, *b = item->after;
    ck_assert_int_eq(mf_buf_addf(out, "%s %" PRId64 " %" PRId64 ":%" PRId64 ";",
                                 mf_difference_name(item->what), (a ? a : b)->shape.token, a ? a->line : 0,
                                 b ? b->line : 0),
                     0);
    if (a && b)
        ck_assert_int_eq(mf_diff_cells(d, item, print_cell, out), 0);
}

MF_TEST(test_case, .rows = MF_ARRAY_LEN(cases))
{
    _cleanup_(mf_table_freep) struct mf_table *before = read_text("old.csv", cases[_i].before);
    _cleanup_(mf_table_freep) struct mf_table *after = read_text("new.csv", cases[_i].after);
    _cleanup_(mf_diff_release) struct mf_diff d = MF_DIFF_INIT;
    _cleanup_(mf_buf_release) struct mf_buf actual;
    char why[MF_REASON_MAX];
    mf_buf_init(&actual, 4096);
    ck_assert_int_eq(mf_buf_adds(&actual, ""), 0);
    ck_assert_int_eq(mf_table_diff(before, after, &d, why), 0);
    for (size_t i = 0; i < d.n_items; i++)
        print_item(&d, &d.items[i], &actual);
    ck_assert_str_eq(actual.data, cases[_i].expected);
    ck_assert_uint_eq(d.n[MF_DIFFERENCE_SAME] + d.n[MF_DIFFERENCE_RESPELLED] + d.n[MF_DIFFERENCE_CHANGED] +
                          d.n[MF_DIFFERENCE_REMOVED],
                      before->n_rows);
}

/* Compares each of AITER's tables with the same table as moefarm writes it. The writer keeps all values and
 * spellings. */
MF_TEST(test_shipped, .rows = MF_ARRAY_LEN(shipped))
{
    _cleanup_(mf_table_freep) struct mf_table *before = shipped_read(shipped[_i].file);
    _cleanup_(mf_diff_release) struct mf_diff d = MF_DIFF_INIT;
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX];
    mf_buf_init(&text, 1 << 20);
    if (shipped[_i].op != MF_TABLE_FMOE) {
        ck_assert_int_eq(mf_table_diff(before, before, &d, why), -ENOTSUP);
        ck_assert_ptr_nonnull(strstr(why, "another operator"));
        return;
    }
    ck_assert_int_eq(mf_table_write(before, MF_TABLE_ALL, &text, why), 0);
    _cleanup_(mf_table_freep) struct mf_table *after = read_text("written.csv", text.data);
    ck_assert_int_eq(mf_table_diff(before, after, &d, why), 0);
    ck_assert_uint_eq(d.n[MF_DIFFERENCE_SAME], before->n_rows);
    ck_assert_uint_eq(d.n_items, 0);
    /* after the first row is removed, the diff reports only that row */
    if (before->n_rows == 0)
        return;
    char *first = strchr(text.data, '\n') + 1, *second = strchr(first, '\n') + 1;
    memmove(first, second, strlen(second) + 1);
    _cleanup_(mf_table_freep) struct mf_table *less = read_text("less.csv", text.data);
    mf_diff_release(&d);
    ck_assert_int_eq(mf_table_diff(less, before, &d, why), 0);
    ck_assert_uint_eq(d.n_items, 1);
    ck_assert_int_eq(d.items[0].what, MF_DIFFERENCE_ADDED);
    ck_assert_int_eq(d.items[0].after->line, 2);
}

MF_TEST(test_kinds)
{
    _cleanup_(mf_table_freep) struct mf_table *tuned = shipped_read("tuned_fmoe.csv");
    _cleanup_(mf_table_freep) struct mf_table *untuned = shipped_read("untuned_fmoe.csv");
    struct mf_diff d;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(mf_table_diff(tuned, untuned, &d, why), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(why, "/tuned_fmoe.csv is a tuned table and"));
}

MF_TEST(test_faster)
{
    _cleanup_(mf_table_freep) struct mf_table *before =
        read_text("old.csv", NAMES "\n" ROW("1", "20.5") ROW("2", "30.5") ROW("4", "40.5"));
    _cleanup_(mf_table_freep) struct mf_table *after =
        read_text("new.csv", NAMES "\n" ROW("1", "19.5") ROW("2", "29.5") ROW("4", "41.5"));
    _cleanup_(mf_diff_release) struct mf_diff d = MF_DIFF_INIT;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(mf_table_diff(before, after, &d, why), 0);
    ck_assert_uint_eq(d.n_faster, 2);
    ck_assert_uint_eq(d.n_slower, 1);
}

int main(void)
{
    return mf_check_main(NULL);
}
