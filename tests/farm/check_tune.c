/* Tests moefarm tune with real processes on a simulated device: repeated, killed, interrupted and concurrent
 * runs. */
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "support/farm/farm_harness.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/run_moefarm.h"

#define DEADLINE_MS 60000

#define HEAD SHAPE_COLUMNS "\n"
#define FORM                                                                   \
    ",128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16," \
    "QuantType.No,1,0\n"
#define ROW(token) #token ",2048,768" FORM
#define DIRTY(token) \
#    token ",2048,768,128,8,Silu,dtypes.bf16,dtypes.bf16,dtypes.bf16,QuantType.No,True,False\n"

/* Device locks are shared by all processes of a machine, and tests run in parallel, so each process uses an
 * ordinal of its own. */
static char device[160];

static void setup(void)
{
    make_folder();
    mf_format(device, sizeof(device), "sim:gfx942/304:%ld", (long)getpid() % 40000);
}

static void teardown(void)
{
    ck_assert_int_eq(remove_tree(folder), 0);
}

/* Sets the behaviour of the simulated device for the next run. */
static void set_behaviour(const char *spec)
{
    text_file_write(in_folder("spec.json"), spec);
}

/* Makes the simulated device behave as specified. Real step times give the test time to act in the middle of
 * a run, even on a busy machine. */
static void use_behaviour(const char *spec)
{
    char plain[64];
    mf_format(plain, sizeof(plain), "%s", device);
    set_behaviour(spec);
    mf_format(device, sizeof(device), "%s:%s", plain, in_folder("spec.json"));
}

static pid_t start_tune(const char *url, ...)
{
    va_list words;
    va_start(words, url);
    pid_t pid = start_moefarm(url, words);
    va_end(words);
    return pid;
}

#define TUNE(...)                                                                                           \
    "tune", "-i", in_folder("shapes.csv"), "-o", in_folder("table.csv"), "--device", device, "--simulated", \
        __VA_ARGS__

static int count_lines(const char *path)
{
    int n = 0;
    if (access(path, R_OK) != 0)
        return 0;
    for (const char *at = read_file(path); (at = strchr(at, '\n')) != NULL; at++)
        n++;
    return n;
}

/* Returns a number from the database of the running farm, or 0 if there is no such number yet. */
static int query_number(const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    int n = 0;
    if (sqlite3_open_v2(in_folder("table.csv.moefarm/farm/farm.db"), &db, SQLITE_OPEN_READWRITE, NULL) ==
        SQLITE_OK) {
        (void)sqlite3_busy_timeout(db, 5000);
        if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) == SQLITE_OK && sqlite3_step(q) == SQLITE_ROW)
            n = sqlite3_column_int(q, 0);
        (void)sqlite3_finalize(q);
    }
    (void)sqlite3_close(db);
    return n;
}

static void await(const char *sql, int least)
{
    int64_t until = mf_now_ms() + DEADLINE_MS;
    while (query_number(sql) < least) {
        ck_assert_msg(mf_now_ms() < until, "the result of %s stays below %d; output:\n%s", sql, least,
                      read_file(in_folder("out")));
        (void)poll(NULL, 0, 5);
    }
}

/* Waits until the coordinator that moefarm tune started has released its lock. */
static void await_farm_end(void)
{
    int64_t until = mf_now_ms() + DEADLINE_MS;
    int fd = open(in_folder("table.csv.moefarm/farm/lock"), O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        ck_assert_msg(errno == EWOULDBLOCK && mf_now_ms() < until, "moefarmd still runs after moefarm tune");
        (void)poll(NULL, 0, 5);
    }
    (void)close(fd);
}

/* ---- a complete run ---- */

MF_TEST(tunes_missing_rows)
{
    text_file_write(in_folder("shapes.csv"), HEAD ROW(2) ROW(1));
    struct ran r = moefarm("", TUNE("--batch", "1", "--sort", "True", NULL));
    assert_code(r, 0);
    assert_says(r.out, "Not exist tuned file");
    assert_says(r.out, "gfx942/304: 2 shapes to tune");
    assert_says(r.out, "Tuning Finished. tune 2 shapes");
    assert_says(r.out, "Successfully tuned shapes: 2");
    assert_says(r.out, "added");
    /* with --batch 1 each shape is a batch; --sort orders rows by token count */
    ck_assert_int_eq(query_number("SELECT count(*) FROM batch"), 2);
    const char *table = read_file(in_folder("table.csv"));
    ck_assert_ptr_nonnull(strstr(table, "\ngfx942,304,1,2048"));
    ck_assert(strstr(table, "\ngfx942,304,1,2048") < strstr(table, "\ngfx942,304,2,2048"));
    await_farm_end();
    /* csv check reports no problem, and the kernel names are valid */
    r = moefarm("", "csv", "check", in_folder("table.csv"), NULL);
    assert_code(r, 0);
    assert_says(r.out, "1 file, 2 rows: no errors, no warnings\n");

    /* The table has rows in other spellings. AITER's tuner compares text and would tune these rows again. */
    text_file_write(in_folder("shapes.csv"), HEAD DIRTY(1) DIRTY(2));
    r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    assert_says(r.out, "0 shapes to tune, 2 are already tuned");
    assert_says(r.out, "no shapes to be tuned, skip tuning");
    ck_assert_int_eq(query_number("SELECT count(*) FROM batch"), 2);

    /* --all tunes the shape again; the device gives the same times, so the row is kept */
    r = moefarm("", TUNE("--all", "--last", NULL));
    assert_code(r, 0);
    assert_says(r.out, "1 shapes to tune");
    assert_says(r.out, "kept");
    ck_assert_int_eq(query_number("SELECT count(*) FROM batch"), 3);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 3);
}

/* --iters sets the number of samples of a row. With --shape_grouped a single device measures a whole shape.
 * --warmup is passed to the workers. */
MF_TEST(applies_measuring_options)
{
    char two[400];
    use_behaviour("{\"step_ms\":15}");
    mf_format(two, sizeof(two), "%s,sim:gfx942/304:%ld:%s", device, (long)getpid() % 40000 + 40000,
              in_folder("spec.json"));
    text_file_write(in_folder("shapes.csv"), HEAD ROW(2));
    struct ran r =
        moefarm("", "tune", "-i", in_folder("shapes.csv"), "-o", in_folder("table.csv"), "--device", two,
                "--simulated", "--iters", "31", "--warmup", "3", "--shape_grouped", NULL);
    assert_code(r, 0);
    assert_says(read_file(in_folder("table.csv")), ",uniform,1,31,");
    ck_assert_int_eq(
        query_number(
            "SELECT count(DISTINCT worker) FROM result WHERE step IS NOT NULL OR pipeline IS NOT NULL"),
        1);
    ck_assert_int_eq(query_number("SELECT json_extract(options, '$.warmup') FROM batch"), 3);

    /* Without --shape_grouped both devices work on the shape. The shape takes long enough for both devices to
     * start. */
    ck_assert_int_eq(unlink(in_folder("table.csv")), 0);
    set_behaviour("{\"step_ms\":40,\"pipeline_ms\":2}");
    r = moefarm("", "tune", "-i", in_folder("shapes.csv"), "-o", in_folder("table.csv"), "--device", two,
                "--simulated", NULL);
    assert_code(r, 0);
    ck_assert_int_eq(
        query_number("SELECT count(DISTINCT worker) FROM result WHERE step IS NOT NULL AND task = 2"), 2);
}

/* The input has a shape without a correct pipeline and an unreadable row. Both are reported, and the exit
 * code is 1. */
MF_TEST(reports_failures)
{
    use_behaviour("{\"faults\":[{\"match\":\"*\",\"fault\":\"wrong\"}]}");
    text_file_write(in_folder("shapes.csv"), HEAD ROW(2) "x,nan,96" FORM);
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 1);
    assert_says(r.err, "shapes.csv:3: token:");
    assert_says(r.err, "shapes.csv:3: model_dim:"); /* one row with two errors */
    assert_says(r.out, "Failed shapes: 1");
    assert_says(r.out, "unreadable rows: 1");
    assert_says(r.out, "============= Repro CSV (1 failed shapes) =============");
    assert_says(r.out, "\n" HEAD ROW(2));
    assert_says(r.out, "[Tuning not Finished]");
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 0);

    /* a repeated run submits the failed shape again */
    r = moefarm("", TUNE(NULL));
    assert_code(r, 1);
    assert_says(r.out, "Failed shapes: 1");
    ck_assert_int_eq(query_number("SELECT count(*) FROM batch"), 2);
}

/* The input is a tuned table. The shapes of its rows are tuned, even those of failed rows. An invalid device
 * class is an error. */
MF_TEST(reads_shapes_of_a_tuned_table)
{
#define FAILED(class, token)                                                                            \
    class "," token ",2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16," \
          "QuantType.No,1,0,abc,0,-1,,0.0%,-1,,0.0%,nan,0,0,0,1e400,1.0\n"
    text_file_write(in_folder("shapes.csv"), TUNED_COLUMNS "\n" FAILED("gfx942,304", "2")
                                                 FAILED("gfx950,256", "4") FAILED("gfx942,-9", "8"));
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 1);
    assert_says(r.out, "gfx942/304: 1 shapes to tune");
    assert_says(r.out, "Successfully tuned shapes: 1");
    assert_says(r.out, "unreadable rows: 1");
    assert_says(r.err, "shapes.csv:4: cu_num: ");
    assert_says(read_file(in_folder("table.csv")), "\ngfx942,304,2,2048,768,");
}

/* A foreign row is kept unless --all is given. */
MF_TEST(keeps_foreign_rows)
{
    text_file_write(in_folder("shapes.csv"), HEAD ROW(2));
    text_file_write(in_folder("table.csv"), TUNED_COLUMNS
                    "\ngfx942,304,2,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch."
                    "bfloat16,QuantType.No,1,0,32,0,1.0,theirs1,0.0%,1.0,theirs2,0.0%,2.0,0,0,0,1.0,1.0\n");
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    assert_says(r.out, "1 are already tuned");
    r = moefarm("", TUNE("--all", NULL));
    assert_code(r, 0);
    assert_says(r.out, "replaced");
    const char *table = read_file(in_folder("table.csv"));
    ck_assert_ptr_null(strstr(table, "theirs1"));
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 2);
}

/* -o2 appends the measured candidates to a profile table in AITER's format. --compat reports the row that
 * AITER's additive rule selects. The recorded candidates reproduce that row without a farm. */
MF_TEST(reproduces_additive_rule)
{
    static char winner[2048], profiles[160], candidates[160], replayed[160];
    mf_format(profiles, sizeof(profiles), "%s", in_folder("profile.csv"));
    mf_format(candidates, sizeof(candidates), "%s", in_folder("table.csv.moefarm/candidates.csv"));
    mf_format(replayed, sizeof(replayed), "%s", in_folder("replayed.csv"));
    text_file_write(in_folder("shapes.csv"), HEAD ROW(2));
    struct ran r = moefarm("", TUNE("--compat", "-o2", profiles, NULL));
    assert_code(r, 0);
    assert_says(r.out, "============= Additive rule compared with the race =============");
    assert_says(r.out, " us end to end");
    int rows = count_lines(profiles);
    ck_assert_int_gt(rows, 3);
    const char *profile = read_file(profiles);
    ck_assert_ptr_nonnull(strstr(profile, ",run_1stage,xbf16,flat,tflops,bw\n"));
    const char *best = strchr(read_file(in_folder("table.csv.moefarm/compat.csv")), '\n') + 1;
    mf_format(winner, sizeof(winner), "%.*s", (int)strcspn(best, "\n"), best);
    ck_assert_msg(strstr(winner, "gfx942,304,2,2048,") == winner, "%s", winner);

    /* all measured candidates are recorded and give the same row */
    ck_assert_int_gt(count_lines(candidates), 50);
    r = moefarm("", "tune", "--compat", "--candidates", candidates, "-o", replayed, NULL);
    assert_code(r, 0);
    assert_says(r.out, "Successfully tuned shapes: 1");
    assert_says(read_file(replayed), winner);

    r = moefarm("", TUNE("--all", "-o2", profiles, NULL));
    assert_code(r, 0);
    ck_assert_int_eq(count_lines(profiles), 2 * rows - 1);
}

/* tune checks -o and -o2 before it starts a farm. */
MF_TEST(checks_outputs_first)
{
    static char nowhere[160], lock[160];
    mf_format(nowhere, sizeof(nowhere), "%s", in_folder("nodir/t.csv"));
    mf_format(lock, sizeof(lock), "%s", in_folder("table.csv.lock"));
    text_file_write(in_folder("shapes.csv"), HEAD ROW(1));
    struct ran r =
        moefarm("", "tune", "-i", in_folder("shapes.csv"), "-o", nowhere, "--device", device, NULL);
    assert_code(r, 2);
    assert_says(r.err, "nodir/t.csv: its folder does not exist");
    r = moefarm("", TUNE("-o2", nowhere, NULL));
    assert_code(r, 2);
    assert_says(r.err, "-o2: the folder ");
    assert_says(r.err, "nodir does not exist");
    ck_assert_ptr_null(strstr(r.out, "starting a farm"));
    (void)unlink(lock);
    ck_assert_int_eq(mkdir(lock, 0700), 0);
    r = moefarm("", TUNE(NULL));
    assert_code(r, 2);
    assert_says(r.err, "-o: lock ");
    ck_assert_ptr_null(strstr(r.out, "starting a farm"));
}

/* Runs tune, and during the run replaces the lock file of a table by a folder, so that the table cannot be
 * written. The exit code must be 1. */
static void fail_during_run(const char *profiles, const char *lock, int n_before)
{
    int status;
    char sql[128];
    mf_format(sql, sizeof(sql), "SELECT count(*) > %d FROM task", n_before);
    pid_t pid = start_tune("", TUNE("-o2", profiles, NULL));
    await(sql, 1);
    (void)unlink(lock);
    ck_assert_int_eq(mkdir(lock, 0700), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%s", read_file(in_folder("out")));
    assert_says(read_file(in_folder("out")), "Tuning Error");
    ck_assert_int_eq(rmdir(lock), 0);
    await_farm_end();
}

/* If a table cannot be written, the run fails, and a repeated run writes the table. This holds even if all
 * rows are in the table already and only the file of -o2 is incomplete. */
MF_TEST(resumes_after_write_failure)
{
    static char profiles[160], lock[160], profiles_lock[180];
    mf_format(profiles, sizeof(profiles), "%s", in_folder("profile.csv"));
    mf_format(lock, sizeof(lock), "%s", in_folder("table.csv.lock"));
    mf_format(profiles_lock, sizeof(profiles_lock), "%s.lock", profiles);
    use_behaviour("{\"step_ms\":25,\"pipeline_ms\":2}");
    text_file_write(in_folder("shapes.csv"), HEAD ROW(1));
    fail_during_run(profiles, lock, 0);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 0);
    struct ran r = moefarm("", TUNE("-o2", profiles, NULL));
    assert_code(r, 0);
    assert_says(r.out, "resuming batch 1 of an earlier run");
    ck_assert_int_eq(query_number("SELECT count(*) FROM batch"), 1);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 2);

    int rows = count_lines(profiles);
    text_file_write(in_folder("shapes.csv"), HEAD ROW(1) ROW(2));
    fail_during_run(profiles, profiles_lock, 1);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 3);
    ck_assert_int_eq(count_lines(profiles), rows);
    r = moefarm("", TUNE("-o2", profiles, NULL));
    assert_code(r, 0);
    assert_says(r.out, "resuming batch 2 of an earlier run");
    ck_assert_int_gt(count_lines(profiles), rows);
    ck_assert_int_eq(query_number("SELECT count(*) FROM batch"), 2);
}

/* If a submission is refused, no record of it is left that would affect a later run with other options. */
MF_TEST(forgets_refused_submissions)
{
    text_file_write(in_folder("shapes.csv"), HEAD ROW(1));
    struct ran r = moefarm("", TUNE("--routing", "bogus", NULL));
    assert_code(r, 2);
    assert_says(r.err, "routing");
    r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 2);

    /* the record of a run that was killed */
    text_file_write(in_folder("table.csv.moefarm/pending-1.000000001.json"),
                    "{\"farm\":\"own\",\"options\":\"{}\",\"key\":\"k\",\"body\":\"{\\\"csv\\\":\\\"\\\","
                    "\\\"odd\\\":1}\"}");
    r = moefarm("", TUNE("--all", NULL));
    assert_code(r, 0);
    assert_says(r.out, "deleted the record of an earlier run with other options");
    ck_assert_int_ne(access(in_folder("table.csv.moefarm/pending-1.000000001.json"), F_OK), 0);
}

/* An unknown column causes a warning. If the column's name resembles the name of a column that changes the
 * shape, tune fails before it starts a farm. */
MF_TEST(reports_unknown_columns)
{
    text_file_write(in_folder("shapes.csv"), "frm," HEAD "limit:7," ROW(1));
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 2);
    assert_says(r.err, "shapes.csv: unknown column 'frm', and the table has no form");
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 0);
    text_file_write(in_folder("shapes.csv"), "act_limt," HEAD "7," ROW(1));
    r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    assert_says(r.err, "shapes.csv:1: warning: unknown column 'act_limt' is not read");
}

/* --compare without a tuned table fails with the reason. The test repeats the run, because tune frees its
 * state on this path. */
MF_TEST(refuses_compare_without_table)
{
    text_file_write(in_folder("shapes.csv"), HEAD ROW(1));
    text_file_write(in_folder("table.csv"), HEAD ROW(1));
    for (int i = 0; i < 10; i++) {
        struct ran r = moefarm("", TUNE("--compare", NULL));
        assert_code(r, 2);
        assert_says(r.err, "--compare expects a tuned_fmoe.csv");
    }
}

/* A batch gets the known rows of its own shapes, with their lines in the table. With --compare but without a
 * table the batch gets no known rows, because the rows that the farm itself knows are not the deployed rows.
 */
MF_TEST(compares_with_known_rows)
{
    text_file_write(in_folder("shapes.csv"), HEAD ROW(1) ROW(2));
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    r = moefarm("", TUNE("--all", "--compare", "--batch", "1", NULL));
    assert_code(r, 0);
    ck_assert_int_eq(query_number("SELECT count(*) FROM batch"), 3);
    ck_assert_int_eq(query_number("SELECT count(DISTINCT batch) FROM baseline_row"), 2);
    ck_assert_int_eq(query_number("SELECT sum(line) FROM baseline_row"), 2 + 3);
    ck_assert_int_eq(query_number("SELECT count(*) FROM promotion WHERE source = 'line 3 of the baseline'"),
                     1);

    ck_assert_int_eq(unlink(in_folder("table.csv")), 0);
    r = moefarm("", TUNE("--last", "--compare", NULL));
    assert_code(r, 0);
    assert_says(r.out, "no known row for this key");
}

/* --compare compares the known row with the new row. The table is written only with --update_improved, and
 * only improved rows are replaced. */
MF_TEST(compares_and_updates)
{
    static char before[4096], damaged[4096];
    text_file_write(in_folder("shapes.csv"), HEAD ROW(2));
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    mf_format(before, sizeof(before), "%s", read_file(in_folder("table.csv")));

    r = moefarm("", TUNE("--all", "--compare", "--update_improved", NULL));
    assert_code(r, 0);
    assert_says(r.out, "============= Compare Report =============");
    assert_says(r.out, "\nkept  gfx942/304  T2 H2048 I768 E128 k8 bf16: ");
    ck_assert_str_eq(read_file(in_folder("table.csv")), before);

    /* A known row that no longer runs loses the comparison. Without --update_improved the table still stays
     * unchanged. */
    mf_format(damaged, sizeof(damaged), "%s", before);
    char *step = strstr(damaged, "sim:sim_");
    ck_assert_ptr_nonnull(step);
    step[4] = 'x';
    text_file_write(in_folder("table.csv"), damaged);
    r = moefarm("", TUNE("--all", "--compare", NULL));
    assert_code(r, 0);
    assert_says(r.out, "\npromoted  gfx942/304");
    assert_says(r.out, "Final tuned CSV was not updated");
    ck_assert_str_eq(read_file(in_folder("table.csv")), damaged);
    assert_says(read_file(in_folder("table.csv.moefarm/compare.candidate.csv")), "moefarm:promoted");
    r = moefarm("", TUNE("--all", "--compare", "--update_improved", NULL));
    assert_code(r, 0);
    assert_says(r.out, "replaced");
    assert_says(read_file(in_folder("table.csv")), "moefarm:promoted");
}

/* A row of AITER cannot be compared. tune reports this before tuning starts, does not measure the shape,
 * keeps the row, and tunes the other shapes. */
MF_TEST(skips_rows_of_aiter)
{
    static const char table[] = TUNED_COLUMNS
        "\ngfx942,304,2,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
        "QuantType.No,1,0,32,0,3.0000,ck_one,0.0%,4.0000,ck_two,0.0%,7.0000,0,0,0,1.00,1.00\n";
    text_file_write(in_folder("shapes.csv"), HEAD ROW(1) ROW(2));
    text_file_write(in_folder("table.csv"), table);
    struct ran r = moefarm("", TUNE("--all", "--compare", "--update_improved", NULL));
    assert_code(r, 1);
    assert_says(r.out, "table.csv:2: gfx942/304  T2 H2048 I768 E128 k8 bf16: ck_one\n");
    const char *notice = strstr(r.out, "1 of 2 shapes will not be tuned"),
               *begun = strstr(r.out, "starting a farm");
    ck_assert_msg(notice && begun && notice < begun, "%s", r.out);
    assert_says(r.out, "Successfully tuned shapes: 1");
    assert_says(r.out, "untuned shapes: 1\ngfx942/304  T2 H2048 I768 E128 k8 bf16: no config: the known row "
                       "names no pipeline");
    assert_says(r.out, "\nundecided  gfx942/304  T2 H2048 I768 E128 k8 bf16: old -, new -: the known row");
    assert_says(read_file(in_folder("table.csv")), "ck_one");
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 3);
    ck_assert_int_eq(
        query_number("SELECT count(*) FROM unit u JOIN task g ON g.id = u.task JOIN shape s ON s.id = g.shape"
                     " WHERE s.token = 2"),
        0);
    /* without --compare, --all replaces the row */
    r = moefarm("", TUNE("--all", NULL));
    assert_code(r, 0);
    ck_assert_ptr_null(strstr(read_file(in_folder("table.csv")), "ck_one"));
}

/* With the address of a farm, tune starts no farm of its own. A repeated run continues the batch of a killed
 * run. */
MF_TEST(uses_an_existing_farm)
{
    struct farm farm;
    char url[64], spec[400], state[160];
    int status;
    mf_format(spec, sizeof(spec), "%s:%s", device, in_folder("spec.json"));
    set_behaviour("{\"step_ms\":15,\"pipeline_ms\":2}");
    text_file_write(in_folder("shapes.csv"), HEAD ROW(1) ROW(2));
    farm_start(&farm, 200);
    farm_start_worker(&farm, 0, (const char *const[]){"--device", spec, NULL});
    farm_wait_workers(&farm, 1);
    mf_format(url, sizeof(url), "http://127.0.0.1:%d", farm.http);
    mf_format(state, sizeof(state), "%s", in_folder("state"));

    pid_t pid = start_tune(url, "tune", "-i", in_folder("shapes.csv"), "-o", in_folder("table.csv"),
                           "--simulated", "--state", state, NULL);
    ck_assert(farm_wait_batch(&farm, 1, "measured", 10));
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    struct ran r = moefarm(url, "tune", "-i", in_folder("shapes.csv"), "-o", in_folder("table.csv"),
                           "--simulated", "--state", state, "--classes", "gfx942/304", NULL);
    assert_code(r, 0);
    assert_says(r.out, "resuming batch 1 of an earlier run");
    ck_assert_ptr_null(strstr(r.out, "starting a farm"));
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 3);
    ck_assert_int_ne(access(in_folder("table.csv.moefarm"), F_OK), 0);
    farm_stop(&farm);
}

/* Returns the number of the task's steps or rejections with split-K. message: substring that the reason must
 * contain; NULL for any reason. */
static int count_split_k(struct farm *f, int task, const char *list, const char *message)
{
    int n = 0;
    _cleanup_(cJSON_Deletep) cJSON *page = farm_get(f, "/api/v1/tasks/%d/%s?limit=1000", task, list);
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_array(page, "items")) {
        const char *name = farm_text(item, strcmp(list, "steps") == 0 ? "name" : "kernel");
        n += strstr(name, "_sk") && (!message || strstr(farm_text(item, "reason"), message));
    }
    return n;
}

/* split_k=0 (--no-splitK) as a batch option, on the CPU, whose tile family offers split-K. */
MF_TEST(omits_split_k)
{
    static const char csv[] = HEAD
        "1,4096,64,8,1,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n";
    struct farm farm;
    farm_start(&farm, 200);
    farm_start_worker(&farm, 0, (const char *const[]){"--device", "cpu:0", "--families", "tile", NULL});
    farm_wait_workers(&farm, 1);
    (void)farm_run(&farm, csv, "&search=enumerate");
    int with = count_split_k(&farm, 1, "steps", NULL);
    ck_assert_int_gt(with, 0);
    ck_assert_int_eq(count_split_k(&farm, 1, "rejections", "(split_k)"), 0);
    (void)farm_run(&farm, csv, "&search=enumerate&split_k=0");
    ck_assert_int_eq(count_split_k(&farm, 2, "rejections", "(split_k)"), with);
    /* An option of one batch does not appear as a reason in other batches that share the enumeration. */
    (void)farm_run(&farm, csv, "&search=enumerate&no_fuse=gemm1%2Bact");
    (void)farm_run(&farm, csv, "&search=enumerate&split_k=0&seed=2");
    ck_assert_int_eq(count_split_k(&farm, 1, "rejections", "batch "), 0);
    ck_assert_int_eq(count_split_k(&farm, 2, "rejections", "is disabled for batch 2 (split_k)"), with);
    ck_assert_int_eq(count_split_k(&farm, 3, "rejections", "(split_k)"), 0);
    ck_assert_int_eq(count_split_k(&farm, 4, "rejections", "is disabled for batch 4 (split_k)"), with);
    ck_assert_int_eq(count_split_k(&farm, 4, "rejections", "batch 2"), 0);
    farm_stop(&farm);
}

/* ---- killed and interrupted runs ---- */

/* A repeated run continues the same batch. Only the steps that were running at the kill are measured again.
 */
MF_TEST(resumes_after_kill)
{
    static const char measured[] = "SELECT count(*) FROM result WHERE step IS NOT NULL";
    int status;

    use_behaviour("{\"step_ms\":40,\"pipeline_ms\":2}");
    text_file_write(in_folder("shapes.csv"), HEAD ROW(1) ROW(2));
    pid_t pid = start_tune("", TUNE(NULL));
    await(measured, 20);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    await_farm_end();
    int before = query_number(measured);
    ck_assert_int_ge(before, 20);
    ck_assert_msg(query_number("SELECT count(*) FROM config") == 0, "the run ended before the kill");

    set_behaviour("{}");
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    assert_says(r.out, "resuming batch 1 of an earlier run");
    assert_says(r.out, "Successfully tuned shapes: 2");
    ck_assert_int_eq(query_number("SELECT count(*) FROM batch"), 1);
    int again = query_number("SELECT count(*) - count(DISTINCT step) FROM result WHERE step IS NOT NULL");
    ck_assert_msg(again <= 2, "%d of %d steps were measured again", again, before);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 3);
    /* a third run has no batch to continue */
    r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    ck_assert_ptr_null(strstr(r.out, "resuming batch"));
}

/* A row is written as soon as its shape is done. */
MF_TEST(writes_rows_one_by_one)
{
    int64_t until = mf_now_ms() + DEADLINE_MS;
    int status;

    use_behaviour("{\"step_ms\":20,\"pipeline_ms\":2}");
    text_file_write(in_folder("shapes.csv"), HEAD ROW(1) ROW(2) ROW(4));
    pid_t pid = start_tune("", TUNE("--batch", "1", NULL));
    while (count_lines(in_folder("table.csv")) < 2) {
        ck_assert_msg(mf_now_ms() < until, "no row in time; output:\n%s", read_file(in_folder("out")));
        (void)poll(NULL, 0, 5);
    }
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    await_farm_end();
    int rows = count_lines(in_folder("table.csv")) - 1;
    ck_assert_msg(rows < 3, "the run ended before the kill");
    set_behaviour("{}");
    struct ran r = moefarm("", TUNE("--batch", "1", NULL));
    assert_code(r, 0);
    char tuned[64];
    mf_format(tuned, sizeof(tuned), "%d shapes to tune, %d are already tuned", 3 - rows, rows);
    assert_says(r.out, tuned);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 4);
}

/* After SIGINT the finished rows are in the table, the farm has ended, and the same command would continue
 * the batch. A run with other options cancels the batch. */
MF_TEST(resumes_after_sigint)
{
    int status;

    use_behaviour("{\"step_ms\":40,\"pipeline_ms\":2}");
    text_file_write(in_folder("shapes.csv"), HEAD ROW(1) ROW(2));
    pid_t pid = start_tune("", TUNE("--mp", "1", NULL));
    await("SELECT count(*) FROM result WHERE step IS NOT NULL", 5);

    /* while this run continues, a second run on the same table is refused */
    char *argv[] = {(char *)MOEFARM,
                    (char *)"tune",
                    (char *)"-i",
                    (char *)in_folder("shapes.csv"),
                    (char *)"-o",
                    (char *)in_folder("table.csv"),
                    (char *)"--device",
                    device,
                    NULL};
    char *env[] = {NULL};
    posix_spawn_file_actions_t actions;
    pid_t second;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, in_folder("err2"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_eq(posix_spawn(&second, MOEFARM, &actions, NULL, argv, env), 0);
    posix_spawn_file_actions_destroy(&actions);
    ck_assert_int_eq(waitpid(second, &status, 0), second);
    ck_assert_int_eq(WEXITSTATUS(status), 1);
    assert_says(read_file(in_folder("err2")), "locked by another moefarm tune, process ");

    ck_assert_int_eq(kill(pid, SIGINT), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_says(read_file(in_folder("out")), "Tuning Interrupted");
    assert_says(read_file(in_folder("out")), "run the same command again to continue");
    await_farm_end();

    set_behaviour("{}");
    struct ran r = moefarm("", TUNE("--errRatio", "0.05", NULL));
    assert_code(r, 0);
    assert_says(r.out, "cancelling batch 1 of an earlier run, which had other options");
    ck_assert_int_eq(query_number("SELECT count(*) FROM batch WHERE state = 'cancelled'"), 1);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 3);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 150, .setup = setup, .teardown = teardown});
}
