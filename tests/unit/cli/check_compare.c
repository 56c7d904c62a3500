/* moefarm compare on the CPU: compares two small tables with known verdicts. */
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/cpu_device.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"
#include "support/tuned_table.h"

#define LAYER "256,128,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"

struct cell {
    int token;
    const char *step;
};

static void write_table(const char *name, const struct cell *cells)
{
    char text[8192] = TABLE_HEADER, shape[256];

    for (; cells->step; cells++) {
        mf_format(shape, sizeof(shape), "%d,%s", cells->token, LAYER);
        add_row(text, sizeof(text), class_text, shape, "100.0", cells->step, "");
    }
    text_file_write(in_folder(name), text);
}

/* Writes both tables from lists of cells. */
#define ROWS(...) ((const struct cell[]){__VA_ARGS__, {0, NULL}})
static void write_tables(const struct cell *old, const struct cell *new)
{
    write_table("table.csv", old);
    write_table("other.csv", new);
}

#define COMPARE "compare", in_folder("table.csv"), in_folder("other.csv"), "--family-so", ROWS_SO

static const cJSON *row_of(const cJSON *all, int token)
{
    const cJSON *row;
    char start[16];

    mf_format(start, sizeof(start), "%d,", token);
    cJSON_ArrayForEach (row, cJSON_GetObjectItem(all, "rows")) {
        const char *shape = cJSON_GetStringValue(cJSON_GetObjectItem(row, "shape"));

        if (shape && strncmp(shape, start, strlen(start)) == 0)
            return row;
    }
    ck_abort_msg("no row with %d tokens", token);
    return NULL;
}

static void assert_verdict(const cJSON *all, int token, const char *expected)
{
    const cJSON *row = row_of(all, token);

    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(row, "verdict")), expected);
}

static double number(const cJSON *object, const char *name)
{
    const cJSON *value = cJSON_GetObjectItem(object, name);

    ck_assert_msg(cJSON_IsNumber(value), "member %s is not a number", name);
    return value->valuedouble;
}

/* Asserts that the interval of a changed row excludes zero and contains the median, and returns the time
 * ratio. The size of the change depends on the machine, so only check_paired checks it (without a clock). */
static double assert_change(const cJSON *all, int token, int sign)
{
    const cJSON *change = cJSON_GetObjectItem(row_of(all, token), "change");
    double low = number(change, "low"), mid = number(change, "mid"), high = number(change, "high");

    ck_assert_double_gt(sign * low, 0);
    ck_assert_double_gt(sign * high, 0);
    ck_assert_double_le(low, mid);
    ck_assert_double_le(mid, high);
    return 1 + mid;
}

/* A row with four times the work is detected in both directions. The other rows keep their verdicts. */
MF_TEST(known_verdicts)
{
    _cleanup_(cJSON_Deletep) cJSON *all = NULL;
    const cJSON *verdicts;
    double slower, faster;
    struct ran r;

    write_tables(ROWS({1, "rows:right"}, {2, "rows:right"}, {4, "rows:slower"}, {8, "rows:right"}),
                 ROWS({2, "rows:slower"}, {4, "rows:right"}, {8, "rows:right"}, {16, "rows:right"}));
    r = moefarm("", COMPARE, "--json", "--order-seed", "7", NULL);
    assert_code(r, 1);
    all = cJSON_Parse(r.out);
    ck_assert_ptr_nonnull(all);
    assert_verdict(all, 1, "only in OLD");
    assert_verdict(all, 2, "SLOWER");
    assert_verdict(all, 4, "FASTER");
    assert_verdict(all, 8, "SAME");
    assert_verdict(all, 16, "only in NEW");
    slower = assert_change(all, 2, 1);
    faster = assert_change(all, 4, -1);
    /* both tables have the same pipeline, so nothing is measured */
    ck_assert_double_eq(number(row_of(all, 8), "rounds"), 0);
    verdicts = cJSON_GetObjectItem(all, "verdicts");
    ck_assert_double_eq(number(verdicts, "SLOWER"), 1);
    ck_assert_double_eq(number(verdicts, "SAME"), 1);
    ck_assert_double_eq(number(verdicts, "only in OLD"), 1);
    ck_assert_double_eq(number(all, "seed"), 7);
    ck_assert_double_eq(number(all, "measured"), 2);
    ck_assert_double_eq_tol(number(all, "geometric_mean"), sqrt(slower * faster), 1e-6);
}

/* A wrong row is reported with the name of its table and the message of the verification gate. A wrong row is
 * never timed. */
MF_TEST(wrong_row)
{
    struct ran r;

    write_tables(ROWS({2, "rows:right"}), ROWS({2, "rows:wrong"}));
    r = moefarm("", COMPARE, NULL);
    assert_code(r, 1);
    assert_says(r.out, "WRONG        T2 H256");
    assert_says(r.out, "new: row: row 0 of y has relative error");
    assert_says(r.out, "rows:wrong");
    ck_assert_ptr_null(strstr(r.out, "old: row"));
    assert_says(r.out, "0 SAME, 0 FASTER, 0 SLOWER, 0 AMBIGUOUS, 1 WRONG");
}

/* A step that this build does not offer invalidates only the row that names it. */
MF_TEST(missing_step)
{
    struct ran r;

    write_tables(ROWS({2, "rows:gone"}, {4, "rows:slower"}), ROWS({2, "rows:right"}, {4, "rows:right"}));
    r = moefarm("", COMPARE, NULL);
    assert_code(r, 1);
    assert_says(r.out, "WRONG        T2 H256");
    assert_says(r.out, "old: family rows offers no step gone");
    assert_says(r.out, "FASTER       T4 H256");
}

/* The exit status is 0 if all rows are FASTER or occur in one table only. */
MF_TEST(faster_rows_succeed)
{
    struct ran r;

    write_tables(ROWS({2, "rows:slower"}, {4, "rows:right"}), ROWS({2, "rows:right"}));
    r = moefarm("", COMPARE, "--order-seed", "5", NULL);
    assert_code(r, 0);
    assert_says(r.out, "least effect 3%, confidence 99%, random order from seed 5");
    assert_says(r.out, "FASTER       T2 H256");
    assert_says(r.out, "only in OLD  T4 H256");
    assert_says(
        r.out,
        "1 rows in both: 0 SAME, 1 FASTER, 0 SLOWER, 0 AMBIGUOUS, 0 WRONG; 1 only in OLD, 0 only in NEW");
    r = moefarm("", COMPARE, "--shape", "token=4", NULL);
    assert_code(r, 0);
    assert_says(r.out, "0 rows in both");
}

/* If the least effect exceeds the actual change, the verdict is SAME. */
MF_TEST(least_effect)
{
    struct ran r;

    write_tables(ROWS({2, "rows:slower"}), ROWS({2, "rows:right"}));
    r = moefarm("", COMPARE, "--min-effect", "95%", NULL);
    assert_code(r, 0);
    assert_says(r.out, "SAME         T2 H256");
}

/* Two rounds are too few for a verdict at this confidence. */
MF_TEST(too_few_rounds)
{
    struct ran r;

    write_tables(ROWS({2, "rows:slower"}), ROWS({2, "rows:right"}));
    r = moefarm("", COMPARE, "--rounds", "2", "--max-rounds", "2", NULL);
    assert_code(r, 0);
    assert_says(r.out, "AMBIGUOUS    T2 H256");
}

MF_TEST(against_itself)
{
    struct ran r;

    write_table("table.csv", ROWS({2, "rows:right"}, {4, "rows:right"}));
    r = moefarm("", "compare", "--aa", in_folder("table.csv"), "--family-so", ROWS_SO, NULL);
    assert_code(r, 0);
    assert_says(r.out, "T4 H256");
    assert_says(r.out, "A/A: ");
    assert_says(r.out, " of 2 rows FASTER or SLOWER, all false positives: ");
}

static const struct {
    const char *option, *value;
    const char *err;
} errors[] = {
    {"--aa", NULL, "expected OLD and NEW, or --aa and one TABLE"},
    {"--min-effect", "3", "--min-effect '3': expected less than 100%, as 3% or 0.03"},
    {"--min-effect", "-1%", "--min-effect '-1%': expected"},
    {"--min-effect", "few", "--min-effect 'few': expected"},
    {"--confidence", "1", "--confidence 1: expected a number above 0 and below 1"},
    {"--shape", "tokens=4", "--shape: "},
    {"--device", "tpu:0", "--device: "},
    {"--rounds", "0", "--rounds"},
};

MF_TEST(usage_errors, .rows = MF_ARRAY_LEN(errors))
{
    struct ran r;

    write_tables(ROWS({2, "rows:right"}), ROWS({2, "rows:right"}));
    r = moefarm("", COMPARE, errors[_i].option, errors[_i].value, NULL);
    assert_code(r, 2);
    assert_says(r.err, errors[_i].err);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 120, .setup = find_class, .teardown = remove_folder});
}
