/* Tests scripts/bench_gpu.sh on the CPU: it stops when its time is up, resumes, and then prints the complete
 * table. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/run_program.h"
#include "support/table_columns.h"

#define SCRIPT MF_SOURCE_DIR "/scripts/bench_gpu.sh"

static char folder[64], shapes[96], state[96], bin[96];

static void setup(void)
{
    static const char *const programs[] = {"server/moefarmd", "worker/moefarm-worker", "cli/moefarm"};

    mf_format(folder, sizeof(folder), "/tmp/check_bench_gpu.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    mf_format(shapes, sizeof(shapes), "%s/shapes.csv", folder);
    mf_format(state, sizeof(state), "%s/state", folder);
    mf_format(bin, sizeof(bin), "%s/bin", folder);
    ck_assert_int_eq(mkdir(bin, 0700), 0);
    for (size_t i = 0; i < MF_ARRAY_LEN(programs); i++) {
        char from[512], to[256];

        mf_format(from, sizeof(from), "%s/%s", MF_BINARY_DIR, programs[i]);
        mf_format(to, sizeof(to), "%s%s", bin, strrchr(programs[i], '/'));
        ck_assert_int_eq(symlink(from, to), 0);
    }
    FILE *f = fopen(shapes, "we");
    ck_assert_ptr_nonnull(f);
    (void)fputs(SHAPE_COLUMNS "\n", f);
    for (int token = 1; token <= 2; token++)
        (void)fprintf(f,
                      "%d,256,%d,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
                      "QuantType.No,1,0\n",
                      token, 64 * token);
    ck_assert_int_eq(fclose(f), 0);
}

static void teardown(void)
{
    ck_assert_int_eq(remove_tree(folder), 0);
}

/* Runs the script with the test's shapes and state, and with further words, ended by NULL. */
static struct ran bench(const char *const *words)
{
    static const char *const script[] = {"bash", SCRIPT,     "--state", state, "--bin",
                                         bin,    "--shapes", shapes,    NULL};
    return run_program(script, words);
}

/* Device locks are shared by all processes of a machine, and tests run in parallel, so keep the lock in the
 * test's folder. */
#define OWN_LOCK              "--lock-dir", folder
#define BENCH(...)            bench((const char *const[]){__VA_ARGS__, NULL})
#define assert_ended(r, with) ck_assert_msg((r).code == (with), "exit code %d:\n%s", (r).code, (r).text)

/* A parsed line of the printed table. */
struct row {
    char line[1024];
    double floor, us, ratio, gemms;
};

static struct row row_of(const struct ran *r, const char *layer, int token)
{
    struct row row = {0};
    char start[64];

    mf_format(start, sizeof(start), "\n%s", layer);
    const char *at = strstr(r->text, start);
    ck_assert_msg(at != NULL, "no line for %s in:\n%s", layer, r->text);
    mf_format(row.line, sizeof(row.line), "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
    int n = 0, got = sscanf(row.line + strlen(layer), " bf16 %*s %d %lf %lf %*s %lf %lf", &n, &row.floor,
                            &row.us, &row.ratio, &row.gemms);
    ck_assert_msg(got == 5 && n == token, "%s", row.line);
    return row;
}

MF_TEST(resumes_where_it_stopped)
{
    struct ran r =
        BENCH("--device", "cpu:0", "--minutes", "0.2", "--", OWN_LOCK); /* less time than the run needs */

    assert_ended(r, 75);
    assert_says(r, "h256-i64-e8-k2: batch 1: 1 shapes, 1 tasks\n");
    assert_says(r, "h256-i128-e8-k2: batch 2: 1 shapes, 1 tasks\n");
    assert_says(r, "\nlayer ");
    assert_says(r, "time is up and tasks are left");

    r = BENCH("--device", "cpu:0", "--", OWN_LOCK);
    assert_ended(r, 0);
    assert_says(r, "h256-i64-e8-k2: batch 1: 1 shapes");
    assert_says(r, "h256-i128-e8-k2: batch 2: 1 shapes");
    struct row first = row_of(&r, "H256 I64 E8 k2", 1), second = row_of(&r, "H256 I128 E8 k2", 2);
    ck_assert_msg(first.floor > 0 && first.us > 0 && first.gemms > 0, "%s", first.line);
    ck_assert_msg(fabs(first.ratio - first.us / first.floor) < 0.01 + 0.01 * first.ratio, "%s", first.line);
    /* the second shape's experts are twice as wide as the first shape's, and about twice as many are active
     */
    ck_assert_double_gt(second.floor, 3 * first.floor);
    ck_assert(strstr(first.line, "two_stage:") || strstr(first.line, "one_stage:") ||
              strstr(first.line, "onednn:"));
    assert_says(r, " of its time timing and verifying (timing ");

    r = BENCH("--device", "cpu:0", "--shape", "h256-i128-e8-k2", "--", OWN_LOCK);
    assert_ended(r, 0);
    ck_assert_ptr_null(strstr(r.text, "h256-i64"));
    ck_assert_double_eq(row_of(&r, "H256 I128 E8 k2", 2).us, second.us);
}

/* clang-format off */
static const struct {
    const char *words[8]; /* ends with NULL */
    const char *message;
} wrong[] = {
    {{"--shape", "mixtral"}, "no shape of "},
    {{"--shape", "h256-i64-e8-k2:3"}, "no shape of "},
    {{"--minutes", "soon"}, "--minutes soon: expected a number such as 7.5"},
    {{"--frob", "1"}, "unknown option --frob"},
    {{"--shape"}, "--shape needs a value"},
    {{"--shapes", "/nonexistent.csv"}, "cannot read /nonexistent.csv"},
    {{"--device", "hip:nvidia:9"}, "the worker has ended"},
    {{"--device", "cpu:0", "--", "--families", "no_such", OWN_LOCK}, "--families: unknown family no_such"},
    /* the worker gets the option, but its family has no kernel, so the task fails */
    {{"--device", "cpu:0", "--", "--families", "asm", OWN_LOCK}, NULL},
};
/* clang-format on */

MF_TEST(rejects_bad_options, .rows = MF_ARRAY_LEN(wrong))
{
    struct ran r = bench(wrong[_i].words);

    if (wrong[_i].message) {
        assert_ended(r, 1);
        assert_says(r, wrong[_i].message);
    } else {
        assert_ended(r, 0);
        assert_says(r, "failed");
    }
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 250, .setup = setup, .teardown = teardown});
}
