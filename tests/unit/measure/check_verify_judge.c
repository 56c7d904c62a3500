/* mf_verify_judge on outputs large enough for several threads: first bad row, number of bad rows, sums, worst
 * row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/limits.h"
#include "measure/verify/verify_judge.h"
#include "support/mf_check.h"

#define ROWS 9001 /* not a multiple of any block size */
#define COLS 256

static struct mf_verify_row rows[ROWS];
static struct mf_layer_data data;
static struct mf_reference ref;
static struct mf_guarded out;
static struct mf_verify_input input;
static struct mf_verdict verdict;

/* Rows of x with relative error 0.001. Every hundredth row has no source, so its other fields are garbage. */
static void start(void)
{
    data.shape = (struct mf_shape){.token = ROWS, .topk = 1, .expert = 1, .model_dim = COLS};
    out = (struct mf_guarded){
        .tensor_spec = {MF_TENSOR_X, MF_FORMAT_BF16, MF_SCALE_NONE, "token", 0, false},
        .parts = {{"x", 2, ROWS, COLS}},
        .n_parts = 1,
    };
    input = (struct mf_verify_input){.data = &data, .ref = &ref, .out = &out, .err_ratio = 0.05};
    for (int64_t p = 0; p < ROWS; p++) {
        rows[p] = (struct mf_verify_row){.source = p, .difference = 1e-6 * 64, .norm = 64, .size = 64};
        if (p % 100 == 50)
            rows[p] = (struct mf_verify_row){
                .source = -1, .unwritten = 9, .bad = 9, .mismatches = COLS, .difference = 1e9, .norm = 1e9};
    }
    verdict = (struct mf_verdict){.reason = ""};
}

static int judge(bool written_only)
{
    return mf_verify_judge(&input, rows, COLS, written_only, &verdict);
}

MF_TEST(correct_rows_pass)
{
    rows[4711].difference = rows[8999].difference = 25e-6 * 64; /* two rows tie for the worst */
    rows[4711].mismatches = 3;
    ck_assert_int_eq(judge(false), 0);
    ck_assert_str_eq(verdict.reason, "");
    ck_assert_double_eq_tol(verdict.err, 3.0 / ((ROWS - 90) * (double)COLS), 1e-15);
    ck_assert_double_eq_tol(verdict.row_err, 0.005, 1e-12);
    ck_assert_double_eq(verdict.row_limit, mf_row_floor(MF_FORMAT_BF16));
    ck_assert_double_eq_tol(rows[1].error, 0.001, 1e-12);
}

/* Findings of some rows, and the expected reason. */
static const struct {
    struct mf_verify_row seen;
    int64_t at[3]; /* -1: end */
    const char *reason;
} wrong[] = {
    {{.unwritten = 7, .unwritten_at = 11, .bad = 1},
     {8998, 149, 152},
     "unwritten: row 149 of x still holds the poison in 7 elements, first in column 11, 3 rows in all"},
    {{.unwritten_scales = 1},
     {9000, -1, -1},
     "unwritten: row 9000 of x still holds the poison in its scale, 1 rows in all"},
    {{.bad = 2, .bad_at = 5, .mismatches = COLS},
     {0, 9000, -1},
     "not finite: row 0 of x has 2 NaN or infinity, first in column 5, 2 rows in all"},
    {{.norm = 64, .difference = 16},
     {6000, 5999, 6001},
     "row: row 5999 of x has relative error 0.5, limit 0.01"},
};

MF_TEST(bad_rows_are_rejected, .rows = MF_ARRAY_LEN(wrong))
{
    for (int i = 0; i < 3 && wrong[_i].at[i] >= 0; i++) {
        rows[wrong[_i].at[i]] = wrong[_i].seen;
        rows[wrong[_i].at[i]].source = wrong[_i].at[i];
    }
    ck_assert_int_eq(judge(false), 1);
    ck_assert_str_eq(verdict.reason, wrong[_i].reason);
    bool unwritten = wrong[_i].seen.unwritten + wrong[_i].seen.unwritten_scales > 0;
    ck_assert_int_eq(judge(true), unwritten);
}

MF_TEST(mismatch_ratio_is_limited)
{
    for (int64_t p = 0; p < ROWS; p++)
        rows[p].mismatches = COLS / 16;
    ck_assert_int_eq(judge(false), 1);
    ck_assert_str_eq(
        verdict.reason,
        "mismatch: 6.25% of elements differ by more than 0.01 + 0.01·|ref|, limit 5% plus 0.000537% "
        "that rounding causes");
}

/* While all rows are within half their limits, no expert is examined. If one row exceeds half its limit, the
 * median of every expert is checked. */
MF_TEST(expert_medians)
{
    int32_t *ids = calloc(ROWS, sizeof(*ids));
    ck_assert_ptr_nonnull(ids);
    data.shape.expert = 8;
    data.ids = ids;
    out.tensor_spec.tensor = MF_TENSOR_Y;
    for (int64_t p = 0; p < ROWS; p++)
        ids[p] = (int32_t)(p % 8);
    ck_assert_int_eq(judge(false), 0);
    for (int64_t p = 3; p < ROWS; p += 8)
        rows[p].difference = 36e-6 * rows[p].norm;
    ck_assert_int_eq(judge(false), 1);
    ck_assert_msg(strstr(verdict.reason, "expert 3: median relative error 0.006 over its 1125 rows, limit "),
                  "%s", verdict.reason);
    free(ids);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = start});
}
