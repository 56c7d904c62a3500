/* Applies AITER's additive rule to a recorded table of candidates (tests/data/compat). The expected rows are
 * computed by hand. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/support/compat_rank.h"
#include "cli/support/compat_table.h"
#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "support/mf_check.h"
#include "support/table_columns.h"

#define ERR_RATIO 0.1

/* clang-format off */
static const struct {
    size_t n; /* number of rows of the merged table; 0 if the shape fails */
    struct mf_compat_row best;
} expected[] = {
    /* Pairs with equal block_m: 10 + 8 = 18 for block_m 32, and 9.5 + 9 = 18.5 for block_m 64. The one-stage
     * kernel takes 18.2. ck1_64_wrong (9.0) is left out because its error is above the limit, ck1_32 because
     * it is slower than asm1_32 of its kind, and ck2_128 because it has no stage 1. per_Token adds no cost.
     */
    {3, {.kernel1 = "asm1_32", .kernel2 = "ck2_32", .block_m = 32, .us1 = 10, .us2 = 8, .us = 18,
     .err2 = 0.004}},
    /* One of the remaining kernels reads bf16, so the cost of quantising (2) is added to the other rows: 20.0
     * and 19.5. The kernel that reads bf16 takes 19.0. */
    {3, {.kernel1 = "one_xbf16_32", .block_m = 32, .us1 = 19, .us = 19, .run_1stage = true, .xbf16 = true}},
    /* A FLAT kernel remains, so the cost of sorting is added to the other rows. The cost depends on block_m:
     * 18.2 + 3 = 21.2 and 17.5 + 4 = 21.5. The FLAT kernel takes 21.0. */
    {3, {.kernel1 = "one_flat", .block_m = 1, .us1 = 21, .us = 21, .run_1stage = true, .flat = 1}},
    /* Fused and unfused rows are ranked separately. Then the cost of quantising (3.5) is added to the unfused
     * rows: 18 + 3.5 + 15 = 36.5, against 20 + 15 = 35. v2 kernels combine only with v2 kernels: 19.2 + 15.9
     * = 35.1. */
    {3, {.kernel1 = "flydsl_moe1_t32_fp4", .kernel2 = "flydsl_moe2_t32", .block_m = 32, .us1 = 20, .us2 = 15,
     .us = 35,
         .fused = true}},
    /* Two rows tie at 17.0, so the row with the faster stage 1 comes first. A candidate without a time is
     * dropped. */
    {2, {.kernel1 = "ck1_64", .kernel2 = "ck2_64", .block_m = 64, .us1 = 8.5, .us2 = 8.5, .us = 17}},
    /* No candidate remains: their block_m differ, one hangs, and one has an error 0.1% above the limit. */
    {0, {.us = 0}},
    /* fp8 activations add the cost of one cast (0.6), whatever the block_m: 12 + 0.6 + 8 = 20.6. If stage 1
     * casts, no cost is added: 12.5 + 8 = 20.5. */
    {2, {.kernel1 = "moe1_afp8_wfp4_t32_fp8", .kernel2 = "moe2_afp8_wfp4_t32", .block_m = 32, .us1 = 12.5,
     .us2 = 8,
         .us = 20.5, .fused = true}},
    /* int4 weights use bf16 activations. So no quantising runs between the stages, no FLAT kernel is offered,
     * and no cost is added. AITER ships this row (kimik2_i4_tuned_fmoe.csv: 13.6077 + 12.3464 = 25.9541). */
    {1, {.kernel1 = "moe1_abf16_wint4_t16", .kernel2 = "moe2_abf16_wint4_t16", .block_m = 16, .us1 = 13.6077,
         .us2 = 12.3464, .us = 25.9541}},
};
/* clang-format on */

static struct mf_compat_table recorded;

static void setup(void)
{
    static char text[65536];
    char why[MF_REASON_MAX];
    _cleanup_(mf_fclosep) FILE *f = fopen(MF_TEST_DATA "/compat/candidates.csv", "re");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(text, 1, sizeof(text), f);
    ck_assert_msg(mf_compat_table_read(text, n, &recorded, why) == 0, "%s", why);
    ck_assert_uint_eq(recorded.n, MF_ARRAY_LEN(expected));
}

static void teardown(void)
{
    mf_compat_table_release(&recorded);
}

static void check_row(const struct mf_compat_row *row, const struct mf_compat_row *expect)
{
    ck_assert_str_eq(row->kernel1, expect->kernel1);
    ck_assert_str_eq(row->kernel2, expect->kernel2);
    ck_assert_int_eq(row->block_m, expect->block_m);
    ck_assert_int_eq(row->ksplit, expect->ksplit);
    ck_assert_int_eq(row->flat, expect->flat);
    ck_assert_int_eq(row->run_1stage, expect->run_1stage);
    ck_assert_int_eq(row->xbf16, expect->xbf16);
    ck_assert_int_eq(row->fused, expect->fused);
    ck_assert_double_eq_tol(row->us1, expect->us1, 1e-9);
    ck_assert_double_eq_tol(row->us2, expect->us2, 1e-9);
    ck_assert_double_eq(row->us, expect->us);
    ck_assert_double_eq_tol(row->err2, expect->err2, 1e-9);
}

MF_TEST(recorded_table, .rows = MF_ARRAY_LEN(expected))
{
    const struct mf_compat_shape *s = &recorded.shapes[_i];
    struct mf_compat_row *rows = NULL;
    size_t n, best;
    int r = mf_compat_rank(&s->shape, s->candidates, s->n, ERR_RATIO, &rows, &n, &best);
    if (expected[_i].n == 0) {
        ck_assert_int_eq(r, -ENOENT);
        return;
    }
    ck_assert_int_eq(r, 0);
    ck_assert_uint_eq(n, expected[_i].n);
    check_row(&rows[best], &expected[_i].best);
    free(rows);
}

/* us1 of every remaining row includes the added cost, even if the row does not win. */
MF_TEST(added_cost)
{
    const struct mf_compat_shape *s = &recorded.shapes[2];
    struct mf_compat_row *rows = NULL;
    size_t n, best;
    ck_assert_int_eq(mf_compat_rank(&s->shape, s->candidates, s->n, ERR_RATIO, &rows, &n, &best), 0);
    ck_assert_str_eq(rows[0].kernel1, "ck1_16");
    ck_assert_double_eq_tol(rows[0].us1, 13, 1e-9);
    ck_assert_double_eq_tol(rows[0].added, 3, 1e-9);
    ck_assert_double_eq(rows[0].us, 21.2);
    free(rows);
}

/* The split-K factor is moved from the kernel name to the column ksplit. The test leaves out the other row of
 * the tie, so this row wins. */
MF_TEST(split_k)
{
    const struct mf_compat_shape *s = &recorded.shapes[4];
    struct mf_compat_candidate few[2] = {s->candidates[0], s->candidates[2]};
    struct mf_compat_row *rows = NULL;
    size_t n, best;
    ck_assert_int_eq(mf_compat_rank(&s->shape, few, 2, ERR_RATIO, &rows, &n, &best), 0);
    check_row(&rows[best], &(struct mf_compat_row){.kernel1 = "ck1_32_splitk",
                                                   .kernel2 = "ck2_32",
                                                   .block_m = 32,
                                                   .ksplit = 4,
                                                   .us1 = 9,
                                                   .us2 = 8,
                                                   .us = 17});
    free(rows);
}

/* The winner is written as a row of AITER's table. */
MF_TEST(written_row)
{
    const struct mf_compat_shape *s = &recorded.shapes[0];
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    struct mf_compat_row *rows = NULL;
    struct mf_buf out;
    char why[MF_REASON_MAX];
    size_t n, best;
    mf_buf_init(&out, 65536);
    ck_assert_int_eq(mf_compat_rank(&s->shape, s->candidates, s->n, ERR_RATIO, &rows, &n, &best), 0);
    ck_assert_int_eq(mf_table_new("t", true, &t), 0);
    ck_assert_int_eq(mf_compat_add_row(t, s, &rows[best], NULL), 0);
    ck_assert_int_eq(mf_table_write(t, MF_TABLE_AITER, &out, why), 0);
    /* FLOPs: T n H k 2 + k T H I 2 = 4*3072*4096*4*2 + 4*4*4096*1536*2 = 402,653,184 + 201,326,592. In 18 us
     * this is 33.55 TFLOP/s. */
    ck_assert_pstr_eq(
        strchr(out.data, '\n') + 1,
        "gfx942,304,4,4096,1536,64,4,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fnuz,"
        "torch.float8_e4m3fnuz,QuantType.per_Token,1,0,32,0,10.0,asm1_32,0.0%,8.0,ck2_32,0.4%,18.0,0,0,0,"
        "33.55,67111.59\n");
    mf_buf_release(&out);
    free(rows);
}

#define HEAD "stage,cu_num," SHAPE_COLUMNS ",block_m,ksplit,us,kernelName,err,tflops,bw\n"
#define KEY  "2,3072,384,256,8,Silu,bfloat16,bfloat16,bfloat16,No,1,0,"

/* clang-format off */
static const struct {
    const char *text, *says; /* part of the error; NULL if the text is accepted */
} tables[] = {
    {HEAD "stage1,304," KEY "32,0,9.0,a,0.0%,0,0\n", NULL},
    {HEAD "stage1,304," KEY "32,0,inf,a,0.009,0,0\n", NULL},
    {"", "empty file"},
    {"stage,us\n", "missing column"},
    {HEAD "stage3,304," KEY "32,0,9.0,a,0.0%,0,0\n", "line 2: stage 'stage3': expected stage1, stage2"},
    {HEAD "stage1,120," KEY "32,0,9.0,a,0.0%,0,0\n", "line 2: cu_num '120': expected 80, 256 or 304"},
    {HEAD "stage1,304," KEY "x,0,9.0,a,0.0%,0,0\n", "line 2: block_m 'x': expected a whole number"},
    {HEAD "stage1,304," KEY "32,0,fast,a,0.0%,0,0\n", "line 2: us 'fast'"},
    {HEAD "stage1,304," KEY "32,0,9.0,a,few,0,0\n", "line 2: err 'few'"},
    {HEAD "stage1,304,2,3072,384,256,8,Relu,bfloat16,bfloat16,bfloat16,No,1,0,32,0,9.0,a,0.0%,0,0\n",
     "line 2: act_type 'Relu'"},
};
/* clang-format on */

MF_TEST(read_tables, .rows = MF_ARRAY_LEN(tables))
{
    struct mf_compat_table t = {.n = 0};
    char why[MF_REASON_MAX] = "";
    int r = mf_compat_table_read(tables[_i].text, strlen(tables[_i].text), &t, why);
    if (!tables[_i].says) {
        ck_assert_msg(r == 0, "%s", why);
        ck_assert_uint_eq(t.n, 1);
        ck_assert_str_eq(t.shapes[0].class.gfx, "gfx942");
    } else {
        ck_assert_int_eq(r, -EBADMSG);
        ck_assert_msg(strstr(why, tables[_i].says) != NULL, "no '%s' in: %s", tables[_i].says, why);
    }
    mf_compat_table_release(&t);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = setup, .teardown = teardown});
}
