#include "common/table/table_fix.h"

#include "support/mf_check.h"
#include "support/shipped.h"
#include "support/table_columns.h"
#include "support/table_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAMES     TUNED_COLUMNS ",_tag\n"
#define NAMES_OUT TUNED_COLUMNS "\n"
#define KEY_OF(gfx, T, act, g1u1)                                                                           \
    gfx ",256," T ",7168,256,257,9," act ",torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No," g1u1 \
        ",0"
#define KEY(T)       KEY_OF("gfx950", T, "ActivationType.Silu", "1")
#define RESULT(us)   ",32,0,10.5,k1,0.1%,10.5,k2,0.10%," us ",0,0,0,1.0,1.0"
#define RESULT_F(us) ",32,0,10.5,k1,0.1%%,10.5,k2,0.1%%," us ",0,0,0,1.0,1.0"
#define ROW(T, us)   KEY(T) RESULT(us) ",\n"
#define FIXED(T, us) KEY(T) RESULT(us) "\n"

/* clang-format off */
static const struct {
    const char *before;
    const char *fixes; /* the repairs, each "line code;" */
    const char *after; /* the table as written after the repair; NULL if nothing is repaired */
    const char *reason_part;
} cases[] = {
    {NAMES ROW("1", "20.5") ROW("2", "0.0"), "", NULL, NULL},
    {NAMES KEY_OF("gfx950", "1", "Silu", "1") RESULT("20.5") ",\n", "2 spelling;",
     NAMES_OUT FIXED("1", "20.5"),
     "act_type is written 'ActivationType.Silu'"},
    {NAMES ROW("1", "20.5") KEY_OF("gfx950", "2", "ActivationType.Silu", "True") RESULT("30.5") ",\n",
     "3 spelling;3 mixed;",
     NAMES_OUT FIXED("1", "20.5") FIXED("2", "30.5"), "use_g1u1 is written 1 or 0 in every row"},
    {NAMES KEY("1") RESULT("20.5") "\n", "2 ragged;", NAMES_OUT FIXED("1", "20.5"),
     "as many cells as the header"},
    {NAMES KEY_OF("", "1", "ActivationType.Silu", "1") RESULT("20.5") ",\n", "2 missing;",
     NAMES_OUT FIXED("1", "20.5"),
     "gfx is written 'gfx950', which has 256"},
    /* A row that has the same values as an earlier row is removed, even if the spelling differs. A row with
     * another time stays. */
    {NAMES ROW("1", "20.5") ROW("2", "30.5") ROW("1", "20.50"), "4 duplicate;",
     NAMES_OUT FIXED("1", "20.5") FIXED("2", "30.5"),
     "the row is removed: line 2 has the same"},
    {NAMES ROW("1", "20.5") ROW("1", "20.4"), "", NULL, NULL},
    {NAMES ROW("1", "20.5") ROW("1", "20.4") ROW("1", "20.5"), "4 duplicate;",
     NAMES_OUT FIXED("1", "20.5") FIXED("1", "20.4"), NULL},
    {NAMES ROW("1", "20.5") KEY("1") RESULT("20.5") ",fallback\n", "", NULL, NULL},
    /* Unreadable rows keep their position. */
    {NAMES ROW("1", "20.5") "rubbish\n" ROW("1", "20.5") "more\n" ROW("2", "30.5"), "4 duplicate;",
     NAMES ROW("1", "20.5") "rubbish,,,,,,,,,,,,,,,,,,,,,,,,,,,,\nmore,,,,,,,,,,,,,,,,,,,,,,,,,,,,\n"
     ROW("2", "30.5"), NULL},
    /* Untuned tables contain only keys. */
    {SHAPE_COLUMNS
     "\n1,7168,256,257,9,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n"
     "1,7168,256,257,9,Silu,dtypes.bf16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n", "3 duplicate;",
     SHAPE_COLUMNS
     "\n1,7168,256,257,9,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n",
     NULL},
};
/* clang-format on */

struct repairs {
    struct mf_buf text;
    char last[MF_REASON_MAX];
};

static void record_repair(void *data, int64_t line, enum mf_problem_code code, const char *what)
{
    struct repairs *t = data;
    ck_assert_int_eq(mf_buf_addf(&t->text, "%" PRId64 " %s;", line, mf_problem_code_name(code)), 0);
    snprintf(t->last, sizeof(t->last), "%s", what);
}

MF_TEST(test_case, .rows = MF_ARRAY_LEN(cases))
{
    _cleanup_(mf_table_freep) struct mf_table *t = read_text("t.csv", cases[_i].before);
    struct repairs repairs = {0};
    struct mf_buf written;
    char why[MF_REASON_MAX];
    size_t n = 99;
    mf_buf_init(&repairs.text, 4096);
    mf_buf_init(&written, 65536);
    ck_assert_int_eq(mf_table_fix(t, record_repair, &repairs, &n), 0);
    ck_assert_str_eq(repairs.text.len ? repairs.text.data : "", cases[_i].fixes);
    ck_assert((n > 0) == (cases[_i].after != NULL));
    if (cases[_i].reason_part)
        ck_assert_msg(strstr(repairs.last, cases[_i].reason_part) != NULL, "%s", repairs.last);
    if (cases[_i].after) {
        ck_assert_int_eq(mf_table_write(t, MF_TABLE_ALL, &written, why), 0);
        ck_assert_str_eq(written.data, cases[_i].after);
        /* a repaired table needs no further repair, and every row is found */
        _cleanup_(mf_table_freep) struct mf_table *again = read_text("t.csv", written.data);
        ck_assert_int_eq(mf_table_fix(again, record_repair, &repairs, &n), 0);
        ck_assert_uint_eq(n, 0);
        for (size_t i = 0; i < t->n_rows; i++)
            ck_assert_ptr_nonnull(mf_table_find(t, &t->rows[i].class, &t->rows[i].shape));
    }
    mf_buf_release(&repairs.text);
    mf_buf_release(&written);
}

/* In AITER's tables, only ragged rows can be repaired without a decision by the user. No row is removed. */
MF_TEST(test_shipped, .rows = MF_ARRAY_LEN(shipped))
{
    const struct shipped *s = &shipped[_i];
    _cleanup_(mf_table_freep) struct mf_table *t = shipped_read(s->file);
    struct repairs repairs = {0};
    size_t n = 99, n_rows = t->n_rows;
    mf_buf_init(&repairs.text, 1 << 20);
    ck_assert_int_eq(mf_table_fix(t, record_repair, &repairs, &n), 0);
    ck_assert_uint_eq(n, strcmp(s->file, "glm5_fp4_tuned_fmoe.csv") == 0 ? 11 : 0);
    ck_assert_uint_eq(t->n_rows, n_rows);
    mf_buf_release(&repairs.text);
}

/* Problems beyond MF_TABLE_PROBLEMS_MAX are counted but not stored. They are repaired too. */
MF_TEST(test_many)
{
    const size_t n_rows = MF_TABLE_PROBLEMS_MAX + 50;
    struct mf_buf text;
    struct repairs repairs = {0};
    size_t n = 0;
    mf_buf_init(&text, 16 << 20);
    mf_buf_init(&repairs.text, 16 << 20);
    ck_assert_int_eq(mf_buf_adds(&text, NAMES), 0);
    for (size_t i = 1; i <= n_rows; i++)
        ck_assert_int_eq(
            mf_buf_addf(&text,
                        "gfx950,256,%zu,7168,256,257,9,Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
                        "QuantType.No,1,0" RESULT_F("%zu.5") ",\n",
                        i, i),
            0);
    _cleanup_(mf_table_freep) struct mf_table *t = read_text("t.csv", text.data);
    ck_assert_int_eq(mf_table_fix(t, record_repair, &repairs, &n), 0);
    ck_assert_uint_eq(n, n_rows);
    ck_assert_uint_eq(t->n_rows, n_rows);
    mf_buf_release(&text);
    mf_buf_release(&repairs.text);
}

int main(void)
{
    return mf_check_main(NULL);
}
