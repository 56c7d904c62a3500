/* moefarm tune in real processes, over a simulated device: twice, killed between, interrupted, side by side. */
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

#define HEAD       SHAPE_COLUMNS "\n"
#define FORM       ",128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n"
#define ROW(token) #token ",2048,768" FORM
#define DIRTY(token) \
#    token ",2048,768,128,8,Silu,dtypes.bf16,dtypes.bf16,dtypes.bf16,QuantType.No,True,False\n"

/* The lock of a device is one of the machine, and tests run side by side: the ordinal is this process's. */
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

/* What the device does in the next run. */
static void replant(const char *spec)
{
    write_file(in_folder("spec.json"), spec);
}

/* Steps really take that long, so that there is a middle to be killed in, however late a busy machine lets the test see that
 * it has come; some go wrong. */
static void plant(const char *spec)
{
    char plain[64];
    mf_format(plain, sizeof(plain), "%s", device);
    replant(spec);
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

/* A number out of the farm's database, which is read beside its writer; 0 while there is none. */
static int ask(const char *sql)
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
    while (ask(sql) < least) {
        ck_assert_msg(mf_now_ms() < until, "%s stays below %d; it said:\n%s", sql, least,
                      read_file(in_folder("out")));
        (void)poll(NULL, 0, 5);
    }
}

/* The coordinator of a tune has gone once its lock is free. */
static void await_farm_gone(void)
{
    int64_t until = mf_now_ms() + DEADLINE_MS;
    int fd = open(in_folder("table.csv.moefarm/farm/lock"), O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        ck_assert_msg(errno == EWOULDBLOCK && mf_now_ms() < until, "moefarmd outlives its tune");
        (void)poll(NULL, 0, 5);
    }
    (void)close(fd);
}

/* ---- a whole run ---- */

START_TEST(tunes_what_is_missing)
{
    write_file(in_folder("shapes.csv"), HEAD ROW(2) ROW(1));
    struct ran r = moefarm("", TUNE("--batch", "1", "--sort", "True", NULL));
    assert_code(r, 0);
    assert_says(r.out, "Not exist tuned file");
    assert_says(r.out, "gfx942/304: 2 shapes to tune");
    assert_says(r.out, "Tuning Finished. tune 2 shapes");
    assert_says(r.out, "Successfully tuned shapes: 2");
    assert_says(r.out, "added");
    /* --batch 1: one after the other, each a batch; --sort: by token */
    ck_assert_int_eq(ask("SELECT count(*) FROM batch"), 2);
    const char *table = read_file(in_folder("table.csv"));
    ck_assert_ptr_nonnull(strstr(table, "\ngfx942,304,1,2048"));
    ck_assert(strstr(table, "\ngfx942,304,1,2048") < strstr(table, "\ngfx942,304,2,2048"));
    await_farm_gone();
    /* Who checks it, its kernels' names too, finds nothing. */
    r = moefarm("", "csv", "check", in_folder("table.csv"), NULL);
    assert_code(r, 0);
    assert_says(r.out, "1 file, 2 rows: nothing wrong\n");

    /* Rows that AITER's tuner would tune for ever, for it compares their text */
    write_file(in_folder("shapes.csv"), HEAD DIRTY(1) DIRTY(2));
    r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    assert_says(r.out, "0 shapes to tune, 2 are tuned already");
    assert_says(r.out, "no shapes to be tuned, skip tuning");
    ck_assert_int_eq(ask("SELECT count(*) FROM batch"), 2);

    /* --all tunes them anew; the same device says the same, and the row stays */
    r = moefarm("", TUNE("--all", "--last", NULL));
    assert_code(r, 0);
    assert_says(r.out, "1 shapes to tune");
    assert_says(r.out, "kept");
    ck_assert_int_eq(ask("SELECT count(*) FROM batch"), 3);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 3);
}
END_TEST

/* --iters: the samples behind a row's time; --shape_grouped: one device measures all of a shape, of two that are there;
 * --warmup goes to the workers. */
START_TEST(measures_as_told)
{
    char two[400];
    plant("{\"step_ms\":15}");
    mf_format(two, sizeof(two), "%s,sim:gfx942/304:%ld:%s", device, (long)getpid() % 40000 + 40000,
              in_folder("spec.json"));
    write_file(in_folder("shapes.csv"), HEAD ROW(2));
    struct ran r =
        moefarm("", "tune", "-i", in_folder("shapes.csv"), "-o", in_folder("table.csv"), "--device", two,
                "--simulated", "--iters", "31", "--warmup", "3", "--shape_grouped", NULL);
    assert_code(r, 0);
    assert_says(read_file(in_folder("table.csv")), ",uniform,1,31,");
    ck_assert_int_eq(
        ask("SELECT count(DISTINCT worker) FROM result WHERE step IS NOT NULL OR pipeline IS NOT NULL"), 1);
    ck_assert_int_eq(ask("SELECT json_extract(options, '$.warmup') FROM batch"), 3);

    /* Without, both work on it: it is long enough for one of them to come late */
    ck_assert_int_eq(unlink(in_folder("table.csv")), 0);
    replant("{\"step_ms\":40,\"pipeline_ms\":2}");
    r = moefarm("", "tune", "-i", in_folder("shapes.csv"), "-o", in_folder("table.csv"), "--device", two,
                "--simulated", NULL);
    assert_code(r, 0);
    ck_assert_int_eq(ask("SELECT count(DISTINCT worker) FROM result WHERE step IS NOT NULL AND task = 2"), 2);
}
END_TEST

/* A shape that nothing right covers, and a row that is none: both are said, and the exit code is 1. */
START_TEST(failures_are_told)
{
    plant("{\"faults\":[{\"match\":\"*\",\"fault\":\"wrong\"}]}");
    write_file(in_folder("shapes.csv"), HEAD ROW(2) "x,nan,96" FORM);
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 1);
    assert_says(r.err, "shapes.csv:3: token:");
    assert_says(r.err, "shapes.csv:3: model_dim:"); /* two findings, one row */
    assert_says(r.out, "Failed shapes: 1");
    assert_says(r.out, "unreadable rows: 1");
    assert_says(r.out, "============= Repro CSV (1 failed shapes) =============");
    assert_says(r.out, "\n" HEAD ROW(2));
    assert_says(r.out, "[Tuning not Finished]");
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 0);

    /* Handed in again it is tried again */
    r = moefarm("", TUNE(NULL));
    assert_code(r, 1);
    assert_says(r.out, "Failed shapes: 1");
    ck_assert_int_eq(ask("SELECT count(*) FROM batch"), 2);
}
END_TEST

/* A tuned table handed in: the shapes of its rows, also of those that its tuner could not tune; but of a device class there is none. */
START_TEST(shapes_of_a_tuned_table)
{
#define FAILED(class, token)                                                                            \
    class "," token ",2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16," \
          "QuantType.No,1,0,abc,0,-1,,0.0%,-1,,0.0%,nan,0,0,0,1e400,1.0\n"
    write_file(in_folder("shapes.csv"), TUNED_COLUMNS "\n" FAILED("gfx942,304", "2") FAILED("gfx950,256", "4")
                                            FAILED("gfx942,-9", "8"));
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 1);
    assert_says(r.out, "gfx942/304: 1 shapes to tune");
    assert_says(r.out, "Successfully tuned shapes: 1");
    assert_says(r.out, "unreadable rows: 1");
    assert_says(r.err, "shapes.csv:4: cu_num: ");
    assert_says(read_file(in_folder("table.csv")), "\ngfx942,304,2,2048,768,");
}
END_TEST

/* A row of somebody else's stays unless --all asks for it. */
START_TEST(foreign_rows)
{
    write_file(in_folder("shapes.csv"), HEAD ROW(2));
    write_file(in_folder("table.csv"), TUNED_COLUMNS
               "\ngfx942,304,2,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch."
               "bfloat16,QuantType.No,1,0,32,0,1.0,theirs1,0.0%,1.0,theirs2,0.0%,2.0,0,0,0,1.0,1.0\n");
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    assert_says(r.out, "1 are tuned already");
    r = moefarm("", TUNE("--all", NULL));
    assert_code(r, 0);
    assert_says(r.out, "replaced");
    const char *table = read_file(in_folder("table.csv"));
    ck_assert_ptr_null(strstr(table, "theirs1"));
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 2);
}
END_TEST

/* -o2 has AITER's merged table, appended to; --compat its winner, which the recorded candidates give again without a farm. */
START_TEST(additive_rule)
{
    static char winner[2048], profiles[160], candidates[160], replayed[160];
    mf_format(profiles, sizeof(profiles), "%s", in_folder("profile.csv"));
    mf_format(candidates, sizeof(candidates), "%s", in_folder("table.csv.moefarm/candidates.csv"));
    mf_format(replayed, sizeof(replayed), "%s", in_folder("replayed.csv"));
    write_file(in_folder("shapes.csv"), HEAD ROW(2));
    struct ran r = moefarm("", TUNE("--compat", "-o2", profiles, NULL));
    assert_code(r, 0);
    assert_says(r.out, "============= Additive rule beside the race =============");
    assert_says(r.out, " us end to end");
    int rows = count_lines(profiles);
    ck_assert_int_gt(rows, 3);
    const char *profile = read_file(profiles);
    ck_assert_ptr_nonnull(strstr(profile, ",run_1stage,xbf16,flat,tflops,bw\n"));
    const char *best = strchr(read_file(in_folder("table.csv.moefarm/compat.csv")), '\n') + 1;
    mf_format(winner, sizeof(winner), "%.*s", (int)strcspn(best, "\n"), best);
    ck_assert_msg(strstr(winner, "gfx942,304,2,2048,") == winner, "%s", winner);

    /* Every measured candidate is in the recorded table; that gives the same row */
    ck_assert_int_gt(count_lines(candidates), 50);
    r = moefarm("", "tune", "--compat", "--candidates", candidates, "-o", replayed, NULL);
    assert_code(r, 0);
    assert_says(r.out, "Successfully tuned shapes: 1");
    assert_says(read_file(replayed), winner);

    r = moefarm("", TUNE("--all", "-o2", profiles, NULL));
    assert_code(r, 0);
    ck_assert_int_eq(count_lines(profiles), 2 * rows - 1);
}
END_TEST

/* What -o and -o2 name is tried before a farm is started. */
START_TEST(an_output_that_cannot_be_written)
{
    static char nowhere[160], lock[160];
    mf_format(nowhere, sizeof(nowhere), "%s", in_folder("nodir/t.csv"));
    mf_format(lock, sizeof(lock), "%s", in_folder("table.csv.lock"));
    write_file(in_folder("shapes.csv"), HEAD ROW(1));
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
END_TEST

/* A run whose table of that lock cannot be written any more from its middle on: it ends with 1. */
static void fail_midway(const char *profiles, const char *lock, int n_before)
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
    await_farm_gone();
}

/* A table that cannot be written ends the run; nothing is lost, for the same command writes it once it can be: also where
 * every row is in the table by then, and only what -o2 names is missing. */
START_TEST(a_table_that_cannot_be_written)
{
    static char profiles[160], lock[160], profiles_lock[180];
    mf_format(profiles, sizeof(profiles), "%s", in_folder("profile.csv"));
    mf_format(lock, sizeof(lock), "%s", in_folder("table.csv.lock"));
    mf_format(profiles_lock, sizeof(profiles_lock), "%s.lock", profiles);
    plant("{\"step_ms\":25,\"pipeline_ms\":2}");
    write_file(in_folder("shapes.csv"), HEAD ROW(1));
    fail_midway(profiles, lock, 0);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 0);
    struct ran r = moefarm("", TUNE("-o2", profiles, NULL));
    assert_code(r, 0);
    assert_says(r.out, "going on with batch 1 of an earlier run");
    ck_assert_int_eq(ask("SELECT count(*) FROM batch"), 1);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 2);

    int rows = count_lines(profiles);
    write_file(in_folder("shapes.csv"), HEAD ROW(1) ROW(2));
    fail_midway(profiles, profiles_lock, 1);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 3);
    ck_assert_int_eq(count_lines(profiles), rows);
    r = moefarm("", TUNE("-o2", profiles, NULL));
    assert_code(r, 0);
    assert_says(r.out, "going on with batch 2 of an earlier run");
    ck_assert_int_gt(count_lines(profiles), rows);
    ck_assert_int_eq(ask("SELECT count(*) FROM batch"), 2);
}
END_TEST

/* What the farm refuses leaves nothing behind that a later run with other options would stumble over. */
START_TEST(a_refused_submission)
{
    write_file(in_folder("shapes.csv"), HEAD ROW(1));
    struct ran r = moefarm("", TUNE("--routing", "bogus", NULL));
    assert_code(r, 2);
    assert_says(r.err, "routing");
    r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 2);

    /* As a run that was killed in between leaves it */
    write_file(in_folder("table.csv.moefarm/pending-1.000000001.json"),
               "{\"farm\":\"own\",\"options\":\"{}\",\"key\":\"k\",\"body\":\"{\\\"csv\\\":\\\"\\\","
               "\\\"odd\\\":1}\"}");
    r = moefarm("", TUNE("--all", NULL));
    assert_code(r, 0);
    assert_says(r.out, "what the farm does not take; it is forgotten");
    ck_assert_int_ne(access(in_folder("table.csv.moefarm/pending-1.000000001.json"), F_OK), 0);
}
END_TEST

/* A column that nobody knows is told of; one that is near to what makes another shape stops the run before it began. */
START_TEST(a_column_that_there_is_not)
{
    write_file(in_folder("shapes.csv"), "frm," HEAD "limit:7," ROW(1));
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 2);
    assert_says(r.err, "shapes.csv: there is no column 'frm', and the table has no form");
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 0);
    write_file(in_folder("shapes.csv"), "act_limt," HEAD "7," ROW(1));
    r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    assert_says(r.err, "shapes.csv:1: warning: there is no column 'act_limt', it is passed over");
}
END_TEST

/* A batch is told of the rows that its own shapes look up, and where they are in the table; with --compare and none of them, of
 * none: what the farm itself knows of a key is not what is deployed. */
/* The reason it is told is the last thing it does, each time: what it frees then has had a beginning. */
START_TEST(compared_with_no_table)
{
    write_file(in_folder("shapes.csv"), HEAD ROW(1));
    write_file(in_folder("table.csv"), HEAD ROW(1));
    for (int i = 0; i < 10; i++) {
        struct ran r = moefarm("", TUNE("--compare", NULL));
        assert_code(r, 2);
        assert_says(r.err, "--compare expects a tuned_fmoe.csv");
    }
}
END_TEST

START_TEST(compared_with_what_it_looks_up)
{
    write_file(in_folder("shapes.csv"), HEAD ROW(1) ROW(2));
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    r = moefarm("", TUNE("--all", "--compare", "--batch", "1", NULL));
    assert_code(r, 0);
    ck_assert_int_eq(ask("SELECT count(*) FROM batch"), 3);
    ck_assert_int_eq(ask("SELECT count(DISTINCT batch) FROM baseline_row"), 2);
    ck_assert_int_eq(ask("SELECT sum(line) FROM baseline_row"), 2 + 3);
    ck_assert_int_eq(ask("SELECT count(*) FROM promotion WHERE source = 'line 3 of the baseline'"), 1);

    ck_assert_int_eq(unlink(in_folder("table.csv")), 0);
    r = moefarm("", TUNE("--last", "--compare", NULL));
    assert_code(r, 0);
    assert_says(r.out, "nothing is known of this key");
}
END_TEST

/* --compare measures the known row beside the new one; only --update_improved writes, and only what won. */
START_TEST(compared)
{
    static char before[4096], damaged[4096];
    write_file(in_folder("shapes.csv"), HEAD ROW(2));
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    mf_format(before, sizeof(before), "%s", read_file(in_folder("table.csv")));

    r = moefarm("", TUNE("--all", "--compare", "--update_improved", NULL));
    assert_code(r, 0);
    assert_says(r.out, "============= Compare Report =============");
    assert_says(r.out, "\nkept  gfx942/304  T2 H2048 I768 E128 k8 bf16: ");
    ck_assert_str_eq(read_file(in_folder("table.csv")), before);

    /* A known row that does not run any more loses; without --update_improved the table stays */
    mf_format(damaged, sizeof(damaged), "%s", before);
    char *step = strstr(damaged, "sim:sim_");
    ck_assert_ptr_nonnull(step);
    step[4] = 'x';
    write_file(in_folder("table.csv"), damaged);
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
END_TEST

/* A row of AITER's own can be compared with nothing. That is said before anything is tuned, its shape costs nothing, its row stays, and
 * the rest is tuned. */
START_TEST(compared_with_somebody_elses_row)
{
    static const char table[] = TUNED_COLUMNS
        "\ngfx942,304,2,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
        "QuantType.No,1,0,32,0,3.0000,ck_one,0.0%,4.0000,ck_two,0.0%,7.0000,0,0,0,1.00,1.00\n";
    write_file(in_folder("shapes.csv"), HEAD ROW(1) ROW(2));
    write_file(in_folder("table.csv"), table);
    struct ran r = moefarm("", TUNE("--all", "--compare", "--update_improved", NULL));
    assert_code(r, 1);
    assert_says(r.out, "table.csv:2: gfx942/304  T2 H2048 I768 E128 k8 bf16: ck_one\n");
    const char *told = strstr(r.out, "1 of 2 shapes will not be tuned"),
               *begun = strstr(r.out, "starting a farm");
    ck_assert_msg(told && begun && told < begun, "%s", r.out);
    assert_says(r.out, "Successfully tuned shapes: 1");
    assert_says(r.out, "untuned shapes: 1\ngfx942/304  T2 H2048 I768 E128 k8 bf16: no config: the known row "
                       "names no pipeline");
    assert_says(r.out, "\nundecided  gfx942/304  T2 H2048 I768 E128 k8 bf16: old -, new -: the known row");
    assert_says(read_file(in_folder("table.csv")), "ck_one");
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 3);
    ck_assert_int_eq(
        ask("SELECT count(*) FROM unit u JOIN task g ON g.id = u.task JOIN shape s ON s.id = g.shape"
            " WHERE s.token = 2"),
        0);
    /* As was said: */
    r = moefarm("", TUNE("--all", NULL));
    assert_code(r, 0);
    ck_assert_ptr_null(strstr(read_file(in_folder("table.csv")), "ck_one"));
}
END_TEST

/* A farm that is there: nothing is started, and a run that was killed follows its batch again, which went on. */
START_TEST(on_a_named_farm)
{
    struct farm farm;
    char url[64], spec[400], state[160];
    int status;
    mf_format(spec, sizeof(spec), "%s:%s", device, in_folder("spec.json"));
    replant("{\"step_ms\":15,\"pipeline_ms\":2}");
    write_file(in_folder("shapes.csv"), HEAD ROW(1) ROW(2));
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
    assert_says(r.out, "going on with batch 1 of an earlier run");
    ck_assert_ptr_null(strstr(r.out, "starting a farm"));
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 3);
    ck_assert_int_ne(access(in_folder("table.csv.moefarm"), F_OK), 0);
    farm_stop(&farm);
}
END_TEST

/* What cuts K of a task's steps, and of its rejections, by name. */
static int count_cutting(struct farm *f, int task, const char *list, const char *says)
{
    char path[128];
    int n = 0;
    (void)snprintf(path, sizeof(path), "/api/v1/tasks/%d/%s?limit=1000", task, list);
    _cleanup_(cJSON_Deletep) cJSON *page = farm_get(f, path);
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_array(page, "items")) {
        const char *name = farm_text(item, strcmp(list, "steps") == 0 ? "name" : "kernel");
        n += strstr(name, "_sk") && (!says || strstr(farm_text(item, "reason"), says));
    }
    return n;
}

/* --no-splitK, as the batch has it: on the CPU, whose tiled kernels come with K cut where that may pay. */
START_TEST(split_k_is_left_out)
{
    static const char csv[] = HEAD
        "1,4096,64,8,1,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n";
    struct farm farm;
    farm_start(&farm, 200);
    farm_start_worker(&farm, 0, (const char *const[]){"--device", "cpu:0", "--families", "tile", NULL});
    farm_wait_workers(&farm, 1);
    farm_wait_done(&farm, farm_submit(&farm, csv, "&search=enumerate"));
    int with = count_cutting(&farm, 1, "steps", NULL);
    ck_assert_int_gt(with, 0);
    ck_assert_int_eq(count_cutting(&farm, 1, "rejections", "leaves that out (split_k)"), 0);
    farm_wait_done(&farm, farm_submit(&farm, csv, "&search=enumerate&split_k=0"));
    ck_assert_int_eq(count_cutting(&farm, 2, "rejections", "leaves that out (split_k)"), with);
    /* What a batch leaves out is no reason of others that share what the shape is offered, before or after it */
    farm_wait_done(&farm, farm_submit(&farm, csv, "&search=enumerate&no_fuse=gemm1%2Bact"));
    farm_wait_done(&farm, farm_submit(&farm, csv, "&search=enumerate&split_k=0&seed=2"));
    ck_assert_int_eq(count_cutting(&farm, 1, "rejections", "batch "), 0);
    ck_assert_int_eq(count_cutting(&farm, 2, "rejections", "batch 2 leaves that out (split_k)"), with);
    ck_assert_int_eq(count_cutting(&farm, 3, "rejections", "(split_k)"), 0);
    ck_assert_int_eq(count_cutting(&farm, 4, "rejections", "batch 4 leaves that out (split_k)"), with);
    ck_assert_int_eq(count_cutting(&farm, 4, "rejections", "batch 2"), 0);
    farm_stop(&farm);
}
END_TEST

/* ---- killed, interrupted ---- */

/* It goes on at the candidate: the batch is the same, and no step is measured again but what was on its way. */
START_TEST(resumes_where_it_was_killed)
{
    static const char measured[] = "SELECT count(*) FROM result WHERE step IS NOT NULL";
    int status;

    plant("{\"step_ms\":40,\"pipeline_ms\":2}");
    write_file(in_folder("shapes.csv"), HEAD ROW(1) ROW(2));
    pid_t pid = start_tune("", TUNE(NULL));
    await(measured, 20);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    await_farm_gone();
    int before = ask(measured);
    ck_assert_int_ge(before, 20);
    ck_assert_msg(ask("SELECT count(*) FROM config") == 0, "it was over before it was killed");

    replant("{}");
    struct ran r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    assert_says(r.out, "going on with batch 1 of an earlier run");
    assert_says(r.out, "Successfully tuned shapes: 2");
    ck_assert_int_eq(ask("SELECT count(*) FROM batch"), 1);
    int again = ask("SELECT count(*) - count(DISTINCT step) FROM result WHERE step IS NOT NULL");
    ck_assert_msg(again <= 2, "%d of %d steps were measured again", again, before);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 3);
    /* Nothing is left to go on with */
    r = moefarm("", TUNE(NULL));
    assert_code(r, 0);
    ck_assert_ptr_null(strstr(r.out, "going on"));
}
END_TEST

/* A row is in the table as soon as its shape is done: what comes after loses nothing of it. */
START_TEST(rows_come_one_by_one)
{
    int64_t until = mf_now_ms() + DEADLINE_MS;
    int status;

    plant("{\"step_ms\":20,\"pipeline_ms\":2}");
    write_file(in_folder("shapes.csv"), HEAD ROW(1) ROW(2) ROW(4));
    pid_t pid = start_tune("", TUNE("--batch", "1", NULL));
    while (count_lines(in_folder("table.csv")) < 2) {
        ck_assert_msg(mf_now_ms() < until, "no row comes; it said:\n%s", read_file(in_folder("out")));
        (void)poll(NULL, 0, 5);
    }
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    await_farm_gone();
    int rows = count_lines(in_folder("table.csv")) - 1;
    ck_assert_msg(rows < 3, "it was over before it was killed");
    replant("{}");
    struct ran r = moefarm("", TUNE("--batch", "1", NULL));
    assert_code(r, 0);
    char tuned[64];
    mf_format(tuned, sizeof(tuned), "%d shapes to tune, %d are tuned already", 3 - rows, rows);
    assert_says(r.out, tuned);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 4);
}
END_TEST

/* Ctrl-C: what is done is in the table, the farm has ended, and the same command goes on. Another set of options does not. */
START_TEST(interrupted)
{
    int status;

    plant("{\"step_ms\":40,\"pipeline_ms\":2}");
    write_file(in_folder("shapes.csv"), HEAD ROW(1) ROW(2));
    pid_t pid = start_tune("", TUNE("--mp", "1", NULL));
    await("SELECT count(*) FROM result WHERE step IS NOT NULL", 5);

    /* A second one on the same table is refused while the first works */
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
    assert_says(read_file(in_folder("err2")), "another moefarm tune, process ");

    ck_assert_int_eq(kill(pid, SIGINT), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_says(read_file(in_folder("out")), "Tuning Interrupted");
    assert_says(read_file(in_folder("out")), "the same command goes on where this one stopped");
    await_farm_gone();

    replant("{}");
    struct ran r = moefarm("", TUNE("--errRatio", "0.05", NULL));
    assert_code(r, 0);
    assert_says(r.out, "batch 1 of an earlier run had other options; it is cancelled");
    ck_assert_int_eq(ask("SELECT count(*) FROM batch WHERE state = 'cancelled'"), 1);
    ck_assert_int_eq(count_lines(in_folder("table.csv")), 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tune");
    TCase *tc = tcase_create("tune");
    tcase_set_timeout(tc, 150);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, tunes_what_is_missing);
    tcase_add_test(tc, measures_as_told);
    tcase_add_test(tc, failures_are_told);
    tcase_add_test(tc, shapes_of_a_tuned_table);
    tcase_add_test(tc, foreign_rows);
    tcase_add_test(tc, additive_rule);
    tcase_add_test(tc, an_output_that_cannot_be_written);
    tcase_add_test(tc, a_table_that_cannot_be_written);
    tcase_add_test(tc, a_refused_submission);
    tcase_add_test(tc, a_column_that_there_is_not);
    tcase_add_test(tc, compared_with_no_table);
    tcase_add_test(tc, compared_with_what_it_looks_up);
    tcase_add_test(tc, compared_with_somebody_elses_row);
    tcase_add_test(tc, compared);
    tcase_add_test(tc, on_a_named_farm);
    tcase_add_test(tc, split_k_is_left_out);
    tcase_add_test(tc, resumes_where_it_was_killed);
    tcase_add_test(tc, rows_come_one_by_one);
    tcase_add_test(tc, interrupted);
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
