/* Tests a worker on hip:amd:0 with a fake HIP runtime that emulates kernels (emulator/hip/runtime.h). Covers
 * the device lists of three runtime releases, a whole batch through a farm, a pipeline of several kernels in
 * a runner, and a device that faults, hangs or refuses calls. Results carry the model name of the emulator.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "measure/session/precompile.h"
#include "support/farm/farm_harness.h"
#include "support/kernels/hip_release.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/run_program.h"
#include "support/text_file.h"
#include "worker/agent/runner_pool.h"
#include "worker/runner/device_info.h"
#include "worker/runner/runner_wire.h"
#include "worker/sandbox/sandbox.h"
#include "worker/sandbox/scratch_folder.h"

#define WORKER      MF_BINARY_DIR "/worker/moefarm-worker"
#define MOEFARM     MF_BINARY_DIR "/cli/moefarm"
#define CLASS       "gfx90a/2"
#define MODEL       "gfx90a of the tests' emulator"
#define COMPILER    "hiprtc 9.0 libamdhip64.so.6.0.emulated"
#define DEADLINE_MS 60000
#define WIDTHS      ",64,32,4,2,ActivationType.Silu,torch.bfloat16,"
#define BF16        "1" WIDTHS "torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define BF16_2      "2" WIDTHS "torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define BF16_3      "3" WIDTHS "torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define BF16_4      "4" WIDTHS "torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define FP8_B       "1" WIDTHS "torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_Token,1,0,b1+b2"

static char folder[] = "/tmp/check_amd_worker.XXXXXX", plan[64];
static struct farm farm;

/* ---- device list ---- */

static const struct {
    int release;
    const char *message;
} releases[] = {
    {5, "HIP 5.2.21153, compiler hiprtc 9.0 libamdhip64.so.5.0.emulated, 0000:e0:00.0"},
    {6, "HIP 6.0.32831, compiler " COMPILER ", 0000:e0:00.0"},
    {7, "HIP 7.0.51831, compiler hiprtc 9.0 libhiprtc.so.7.0.emulated, 0000:e0:00.0"},
};

MF_TEST(lists_releases, .rows = MF_ARRAY_LEN(releases))
{
    const char *const program[] = {WORKER, "--list-devices", "--no-sandbox", NULL}, *const none[] = {NULL};

    hip_release_use(releases[_i].release);
    struct ran r = run_program(program, none);
    ck_assert_int_eq(r.code, 0);
    assert_says(r, "hip:amd:0     " CLASS ": " MODEL ", gfx90a\n");
    assert_says(r, releases[_i].message);
}

static const struct {
    const char *variable, *value, *message;
} missing_devices[] = {
    {"FAKE_HIP_DEVICES", "0",
     "hip:amd       not usable: the amd runtime reports no device: no ROCm-capable device"},
    {"FAKE_HIP_FAULT", "abort hipInit 1", "hip:amd       not usable: the GPU runtime crashed: signal 6"},
};

MF_TEST(lists_why_a_device_is_missing, .rows = MF_ARRAY_LEN(missing_devices))
{
    const char *const program[] = {WORKER, "--list-devices", "--no-sandbox", NULL}, *const none[] = {NULL};

    hip_release_use(6);
    if (strcmp(missing_devices[_i].variable, "FAKE_HIP_FAULT") == 0)
        hip_release_plan(plan, missing_devices[_i].value);
    else
        ck_assert_int_eq(setenv(missing_devices[_i].variable, missing_devices[_i].value, 1), 0);
    struct ran r = run_program(program, none);
    ck_assert_int_eq(r.code, 0);
    assert_says(r, missing_devices[_i].message);
    assert_says(r, "cpu:0 ");
}

/* ---- a pipeline of several kernels in a runner ---- */

static cJSON *next_message(struct mf_runner_pool *c)
{
    int64_t until = mf_now_ms() + DEADLINE_MS;
    while (mf_now_ms() < until) {
        cJSON *m = NULL;
        enum mf_runner_pool_event event = mf_runner_pool_iterate(c, &m, until);
        if (event == MF_RUNNER_POOL_MESSAGE && strcmp(mf_channel_op(m), "phase") != 0)
            return m;
        cJSON_Delete(m);
        ck_assert_msg(event != MF_RUNNER_POOL_DIED, "%s", mf_runner_pool_why(c));
        if (event == MF_RUNNER_POOL_READY)
            return NULL;
    }
    ck_abort_msg("no message within %d ms", DEADLINE_MS);
}

/* Steps in execution order; the first has id 1. */
static const char *const pipeline[] = {
    "sort_m16",
    "quant1_fp8fn_token",
    "s1_fp8fn_token_silu_m16_n128_s2_w4x1",
    "quant2_fp8fn_token_m16",
    "s2_fp8fn_token_m16_n64_s2_w4x1_zw",
    "combine_zw",
};

static cJSON *enumerate(struct mf_runner_pool *c)
{
    cJSON *steps = cJSON_CreateArray();
    _cleanup_(cJSON_Deletep) cJSON *ask = cJSON_Parse("{\"op\":\"enumerate\",\"shape\":\"" FP8_B "\"}");

    for (size_t i = 0; i < MF_ARRAY_LEN(pipeline); i++)
        cJSON_AddItemToArray(steps, cJSON_CreateNull());
    ck_assert_int_eq(mf_runner_pool_send(c, ask), 0);
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *m = next_message(c);
        const cJSON *step = cJSON_GetObjectItem(m, "step");
        if (strcmp(mf_channel_op(m), "enumerated") == 0)
            return steps;
        for (size_t i = 0; step && i < MF_ARRAY_LEN(pipeline); i++) {
            if (strcmp(farm_text(step, "name"), pipeline[i]) != 0)
                continue;
            cJSON *chosen = cJSON_Duplicate(step, true);
            mf_json_add_i64(chosen, "id", (int64_t)i + 1);
            cJSON_ReplaceItemInArray(steps, (int)i, chosen);
        }
    }
}

static const char *text_of(const cJSON *m)
{
    static char text[4096];
    if (!cJSON_PrintPreallocated((cJSON *)(uintptr_t)m, text, (int)sizeof(text), false))
        mf_format(text, sizeof(text), "(message too long to print)");
    return text;
}

/* Returns the number of code objects in the cache. A file that is still being written has a dot in its name.
 */
static int count_codes(void)
{
    DIR *dir = opendir(getenv("MOEFARM_CODE_CACHE"));
    const struct dirent *entry;
    int n = 0;
    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)))
        n += !strchr(entry->d_name, '.');
    (void)closedir(dir);
    return n;
}

/* Sends a unit and checks that it returns n correct results. Nothing may be compiled after the first item
 * begins, because compilation would consume that item's time limit. Returns the last message before `end`;
 * for a race this message holds the outcome. */
static cJSON *run_unit(struct mf_runner_pool *c, cJSON *unit, int n)
{
    cJSON *last = NULL;
    int results = 0, codes = 0;

    ck_assert_int_eq(mf_runner_pool_send(c, unit), 0);
    for (;;) {
        cJSON *m = next_message(c);
        const char *op = mf_channel_op(m);
        ck_assert_str_ne(op, "error");
        if (strcmp(op, "begin") == 0 && codes == 0)
            codes = count_codes();
        if (strcmp(op, "end") == 0) {
            cJSON_Delete(m);
            ck_assert_int_eq(results, n);
            ck_assert_int_eq(count_codes(), codes);
            return last;
        }
        if (strcmp(op, "result") == 0 && !mf_json_object(m, "race")) {
            results++;
            ck_assert_msg(strcmp(farm_text(m, "status"), "ok") == 0, "%s", text_of(m));
            ck_assert_int_gt(cJSON_GetArraySize(mf_json_array(m, "samples")), 0);
            ck_assert_int_eq(farm_number(m, "verified"), 2);
        }
        cJSON_Delete(last);
        last = m;
    }
}

static void run_pipeline(const char *const *argv, const char *sandbox)
{
    const struct mf_runner_pool_options o = {.argv = argv, .keep_bytes = 64 << 20};
    struct mf_runner_pool *c = NULL;

    hip_release_use(6);
    ck_assert_int_eq(mf_runner_pool_new(&o, &c), 0);
    while (next_message(c))
        ;
    ck_assert_str_eq(farm_text(mf_runner_pool_described(c), "compiler"), COMPILER);
    const char *within = farm_text(mf_runner_pool_hello(c), "sandbox");
    ck_assert_msg(strncmp(within, sandbox, strlen(sandbox)) == 0, "%s", within);
    _cleanup_(cJSON_Deletep) cJSON *steps = enumerate(c);
    /* The runner has not probed these steps, so their code is first needed by the race. */
    _cleanup_(cJSON_Deletep) cJSON *race =
        cJSON_Parse("{\"op\":\"unit\",\"kind\":\"race\",\"shape\":\"" FP8_B
                    "\",\"options\":{\"seed\":7,\"time_cap_ms\":20000},"
                    "\"plan\":{\"rounds\":[{\"rounds\":2,\"keep\":1}],\"fresh\":3,\"alpha\":0.05},"
                    "\"pipelines\":[{\"id\":9,\"forecast_us\":1000}]}");
    cJSON_AddItemToObject(cJSON_GetArrayItem(cJSON_GetObjectItem(race, "pipelines"), 0), "steps",
                          cJSON_Duplicate(steps, true));
    _cleanup_(cJSON_Deletep) cJSON *won = run_unit(c, race, 1);
    const cJSON *outcome = mf_json_object(won, "race");
    ck_assert_msg(outcome && farm_number(outcome, "winner") == 9, "%s", text_of(won));
    ck_assert(cJSON_GetObjectItem(outcome, "us")->valuedouble > 0);
    ck_assert_int_gt(farm_number(outcome, "active_experts"), 0);

    _cleanup_(cJSON_Deletep) cJSON *probe =
        cJSON_Parse("{\"op\":\"unit\",\"kind\":\"probe\",\"shape\":\"" FP8_B
                    "\",\"options\":{\"seed\":7,\"time_cap_ms\":20000}}");
    cJSON_AddItemToObject(probe, "steps", MF_TAKE(steps));
    cJSON_Delete(run_unit(c, probe, (int)MF_ARRAY_LEN(pipeline)));
    mf_runner_pool_free(c);
}

static bool has_landlock(void)
{
    return syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) >= 1;
}

#define RUNNER WORKER, "--runner-child", "--keep=64", "--device", "hip:amd:0"

MF_TEST(runs_a_pipeline)
{
    run_pipeline((const char *const[]){RUNNER, "--no-sandbox", NULL}, "none");
}

/* Runs the pipeline in the sandbox of a GPU runner. The sandbox forbids starting programs, which the
 * emulator's compiler does, so a first run without the sandbox fills the code cache. */
MF_TEST(runs_a_pipeline_in_the_sandbox)
{
    char scratch[64];
    mf_format(scratch, sizeof(scratch), "%s/scratch", folder);
    ck_assert_int_eq(mf_scratch_make(scratch), 0);
    run_pipeline((const char *const[]){RUNNER, "--no-sandbox", NULL}, "none");
    run_pipeline((const char *const[]){RUNNER, "--scratch", scratch, NULL},
                 has_landlock() ? "no pid namespace, landlock" : "no pid namespace, no landlock");
}

/* Returns the number of code objects that family one_stage needs for a shape. */
static int count_codes_of(const struct mf_runner_pool *c, const char *row)
{
    struct mf_device_info info;
    struct mf_shape shape;
    const char *field;
    size_t n_steps;
    _cleanup_(mf_ahead_release) struct mf_ahead ahead = {.device = &info, .kind = "hip", .shape = &shape};

    ck_assert_int_eq(mf_device_info_parse(mf_runner_pool_described(c), &info, &field), 0);
    ck_assert_int_eq(mf_shape_parse(row, &shape), 0);
    ck_assert_int_eq(mf_ahead_add_shape(&ahead, "one_stage", &n_steps), 0);
    ck_assert_uint_ge(n_steps, 8);
    return (int)ahead.n;
}

/* Returns a probe of all steps that the runner offers for a shape. */
static cJSON *probe_of(struct mf_runner_pool *c, const char *row)
{
    cJSON *probe =
        cJSON_Parse("{\"op\":\"unit\",\"kind\":\"probe\",\"options\":{\"seed\":7,\"time_cap_ms\":20000}}");
    cJSON *steps = cJSON_AddArrayToObject(probe, "steps");
    _cleanup_(cJSON_Deletep) cJSON *ask = cJSON_Parse("{\"op\":\"enumerate\"}");

    cJSON_AddStringToObject(probe, "shape", row);
    cJSON_AddStringToObject(ask, "shape", row);
    ck_assert_int_eq(mf_runner_pool_send(c, ask), 0);
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *m = next_message(c);
        cJSON *step = cJSON_DetachItemFromObject(m, "step");
        if (strcmp(mf_channel_op(m), "enumerated") == 0)
            return probe;
        if (!step)
            continue;
        mf_json_add_i64(step, "id", cJSON_GetArraySize(steps) + 1);
        cJSON_AddItemToArray(steps, step);
    }
}

/* A separate runner compiles all code of a unit ahead, so nothing is compiled when the unit runs. */
MF_TEST(compiles_ahead)
{
    static const char *const argv[] = {RUNNER, "--families", "one_stage", "--no-sandbox", NULL};
    const struct mf_runner_pool_options o = {.argv = argv, .keep_bytes = 64 << 20};
    struct mf_runner_pool *c = NULL;
    char cache[64];

    mf_format(cache, sizeof(cache), "%s/ahead", folder);
    ck_assert_int_eq(setenv("MOEFARM_CODE_CACHE", cache, 1), 0);
    hip_release_use(6);
    ck_assert_int_eq(mf_runner_pool_new(&o, &c), 0);
    while (next_message(c))
        ;
    int n = count_codes() + count_codes_of(c, BF16);
    ck_assert_int_eq(mf_runner_pool_compile_ahead(c, BF16), 0);
    for (int64_t until = mf_now_ms() + DEADLINE_MS; count_codes() < n;) {
        cJSON *none = NULL;
        ck_assert_int_lt(mf_now_ms(), until);
        ck_assert_int_eq(mf_runner_pool_iterate(c, &none, mf_now_ms() + 20), MF_RUNNER_POOL_NOTHING);
    }
    _cleanup_(cJSON_Deletep) cJSON *probe = probe_of(c, BF16);
    ck_assert_int_eq(mf_runner_pool_send(c, probe), 0);
    for (const char *op = ""; strcmp(op, "end") != 0;) {
        _cleanup_(cJSON_Deletep) cJSON *m = next_message(c);
        op = strcmp(mf_channel_op(m), "end") == 0 ? "end" : "";
        ck_assert_str_ne(mf_channel_op(m), "error");
    }
    ck_assert_int_eq(count_codes(), n);
    mf_runner_pool_free(c);
}

/* ---- a batch, from shapes to a config ---- */

static void start_worker(void)
{
    /* no sandbox, because the runtime compiler is g++, which starts other programs */
    const char *const args[] = {"--device",     "hip:amd:0",   "--families", "one_stage",
                                "--no-sandbox", "--log-level", "debug",      NULL};

    hip_release_use(6);
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
}

static void start_farm(void)
{
    farm_start(&farm, 300);
    start_worker();
}

static void stop_farm(void)
{
    farm_stop(&farm);
}

static void submit(const char *shape, const char *query)
{
    char csv[512];
    mf_format(csv, sizeof(csv), "%s%s\n", FARM_CSV_HEAD, shape);
    (void)farm_run(&farm, csv, query);
}

static void tune(const char *shape)
{
    submit(shape, "&classes=" CLASS "&topk=1&regret=none");
}

static cJSON *steps_of_task(int task)
{
    cJSON *json = farm_get(&farm, "/api/v1/tasks/%d/steps?limit=100", task);
    ck_assert_int_ge(cJSON_GetArraySize(mf_json_array(json, "items")), 8);
    return json;
}

/* Checks that every step was measured, which means that its status is ok or slow. At most one step may have
 * the status `but` instead. */
static void check_measured(int task, const char *but)
{
    _cleanup_(cJSON_Deletep) cJSON *steps = steps_of_task(task);
    const cJSON *step;
    int n_ok = 0, n_other = 0;

    cJSON_ArrayForEach (step, mf_json_array(steps, "items")) {
        const char *status = farm_text(step, "status");
        bool ok = strcmp(status, "ok") == 0;
        n_ok += ok;
        if (ok || strcmp(status, "slow") == 0)
            ck_assert_int_ge(farm_number(step, "verified"), 1);
        else
            n_other++;
        ck_assert_msg(ok || strcmp(status, "slow") == 0 || strcmp(status, but) == 0, "%s", text_of(step));
    }
    ck_assert_int_ge(n_ok, 1);
    ck_assert_int_le(n_other, 1);
}

/* Checks that the config exists and that its provenance names the class, the model and the compiler. */
static void check_config(void)
{
    _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/1");
    const cJSON *config = mf_json_object(task, "config"), *p = mf_json_object(config, "provenance");

    ck_assert_str_eq(farm_text(task, "state"), "done");
    ck_assert(config && p);
    ck_assert_str_eq(farm_text(p, "class"), CLASS);
    ck_assert_str_eq(farm_text(p, "model"), MODEL);
    ck_assert_str_eq(farm_text(p, "compiler"), COMPILER);
}

MF_TEST(tunes_a_shape)
{
    start_farm();
    tune(BF16);
    check_measured(1, "ok");
    check_config();
    _cleanup_(cJSON_Deletep) cJSON *workers = farm_get(&farm, "/api/v1/workers");
    const cJSON *worker = cJSON_GetArrayItem(mf_json_array(workers, "items"), 0);
    ck_assert_str_eq(farm_text(worker, "class"), CLASS);
    ck_assert_int_eq(farm_number(worker, "n_deaths"), 0);
}

static bool log_says(const char *words)
{
    char path[96];
    mf_format(path, sizeof(path), "%s/worker0.log", farm.folder);
    _cleanup_(mf_freep) char *text = text_file_read(path);
    return strstr(text, words) != NULL;
}

/* The worker does not compile ahead for a shape if its batch only enumerates. */
MF_TEST(compiles_ahead_only_for_measured_shapes)
{
    start_farm();
    submit(BF16_2, "&classes=" CLASS "&search=enumerate");
    tune(BF16);
    ck_assert(log_says("compiling ahead for " BF16));
    ck_assert(!log_says("compiling ahead for " BF16_2));
}

/* The worker compiles ahead for a batch that waits behind a more urgent batch. The worker begins with the
 * batch's last shape (fewest tokens), before that shape is enumerated. A worker holds two units; its second
 * unit may belong to the waiting batch while the urgent batch is not enumerated yet. */
MF_TEST(compiles_ahead_for_a_waiting_batch)
{
    char csv[512];
    farm_start(&farm, 300);
    mf_format(csv, sizeof(csv), "%s%s\n", FARM_CSV_HEAD, BF16);
    (void)farm_submit(&farm, csv, "&classes=" CLASS "&topk=1&regret=none&priority=60");
    mf_format(csv, sizeof(csv), "%s%s\n%s\n%s\n", FARM_CSV_HEAD, BF16_2, BF16_3, BF16_4);
    (void)farm_submit(&farm, csv, "&classes=" CLASS "&topk=1&regret=none");
    start_worker();
    for (int64_t until = mf_now_ms() + DEADLINE_MS; !log_says("compiling ahead for " BF16_2);) {
        ck_assert_msg(mf_now_ms() < until, "the waiting shape was not compiled ahead");
        mf_sleep_ms(5);
    }
    _cleanup_(cJSON_Deletep) cJSON *first = farm_get(&farm, "/api/v1/tasks/1"),
                                   *last = farm_get(&farm, "/api/v1/tasks/2");
    ck_assert_str_ne(farm_text(first, "state"), "done");
    ck_assert_str_eq(farm_text(last, "state"), "enumerating");
}

/* The tuned table also runs without a farm: the commands run-config and compare both check its rows and time
 * them on the device. */
static void run_table(const char *const *command, const char *message)
{
    static const char *const more[] = {"--device", "hip:amd:0", "--rounds", "2", NULL};
    struct ran r = run_program(command, more);

    ck_assert_msg(r.code == 0, "exit code %d: %s", r.code, r.text);
    assert_says(r, message);
}

MF_TEST(runs_its_table)
{
    start_farm();
    tune(BF16);
    tune(BF16_2);
    _cleanup_(mf_freep) char *csv = farm_export_query(&farm, "");
    const char *table = farm_file(&farm, "tuned.csv", csv);
    run_table((const char *const[]){MOEFARM, "run-config", table, "--slack", "1000", NULL},
              "2 rows: 2 OK, 0 not");
    run_table((const char *const[]){MOEFARM, "compare", "--aa", table, "--max-rounds", "2", NULL},
              "2 rows in both: 0 SAME, 0 FASTER, 0 SLOWER, 2 AMBIGUOUS, 0 WRONG");
}

/* ---- a failing device ---- */

/* clang-format off */
static const struct {
    const char *fault, *status, *reason;
    bool dies;
} faults[] = {
    {"illegal mf_one 5", "crash",
     "exit code 86; stderr: device failure in running a step: an illegal memory access", true},
    {"abort mf_one 5", "crash", "signal 6 (Aborted); stderr: Memory access fault by GPU node-1", true},
    {"hang mf_one 5", "hang", "silent for more than", true},
    {"refused load:mf_one 2", "unsupported", "the family failed to open a step that it offered", false},
};
/* clang-format on */

/* Returns the number of results with the status, over all steps, and checks their reasons. */
static int count_results(const char *status, const char *reason)
{
    _cleanup_(cJSON_Deletep) cJSON *steps = steps_of_task(1);
    const cJSON *step, *result;
    int n = 0;

    cJSON_ArrayForEach (step, mf_json_array(steps, "items")) {
        _cleanup_(cJSON_Deletep) cJSON *results =
            farm_get(&farm, "/api/v1/steps/%d/results?task=1", farm_number(step, "id"));
        cJSON_ArrayForEach (result, mf_json_array(results, "items")) {
            if (strcmp(farm_text(result, "status"), status) != 0)
                continue;
            ck_assert_msg(strstr(farm_text(result, "reason"), reason) != NULL, "%s", text_of(result));
            n++;
        }
    }
    return n;
}

/* The running step gets the status of the fault. The next runner measures the other steps, and the log
 * reports how long each phase of the recovery took. */
MF_TEST(continues_after_a_fault, .rows = MF_ARRAY_LEN(faults))
{
    hip_release_plan(plan, faults[_i].fault);
    start_farm();
    tune(BF16);
    ck_assert_int_ne(access(plan, F_OK), 0);
    ck_assert_int_eq(count_results(faults[_i].status, faults[_i].reason), 1);
    check_measured(1, faults[_i].dies ? "ok" : faults[_i].status);
    check_config();
    if (faults[_i].dies) {
        ck_assert(log_says(" ms after a runner died: context "));
        ck_assert(log_says(" + data "));
        ck_assert(log_says(" + step "));
    }
}

/* While another process holds the device memory, all steps of the shape get the status no_memory. The next
 * shape is tuned as usual. */
MF_TEST(continues_after_no_memory)
{
    /* refuses call 4 and later, because opening the device makes the first three calls */
    hip_release_plan(plan, "refused hipMalloc 4+");
    start_farm();
    tune(BF16);
    _cleanup_(cJSON_Deletep) cJSON *steps = steps_of_task(1);
    ck_assert_int_eq(count_results("no_memory", "Cannot allocate memory"),
                     cJSON_GetArraySize(mf_json_array(steps, "items")));
    ck_assert_int_eq(unlink(plan), 0);
    tune(BF16_2);
    check_measured(2, "ok");
}

/* ---- an unusable code cache ---- */

/* Mounts a file system without free space. Returns false if the host does not allow mounts. */
static bool mount_full(const char *path)
{
    char file[96];
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mkdir(path, 0700) < 0 || mount("none", path, "tmpfs", 0, "size=64k") < 0) {
        mf_check_skip("the kernel refuses a mount namespace: %s", strerror(errno));
        return false;
    }
    mf_format(file, sizeof(file), "%s/filler", path);
    _cleanup_(mf_closep) int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    while (write(fd, file, sizeof(file)) > 0)
        ;
    ck_assert_int_eq(errno, ENOSPC);
    return true;
}

/* An unusable code cache is logged and makes no step fail. */
static void tune_without_cache(const char *cache, const char *message)
{
    ck_assert_int_eq(setenv("MOEFARM_CODE_CACHE", cache, 1), 0);
    start_farm();
    tune(BF16);
    check_measured(1, "ok");
    check_config();
    ck_assert(log_says(message));
}

MF_TEST(works_without_a_code_cache)
{
    tune_without_cache("/proc/moefarm", "code cache /proc/moefarm is not writable");
}

static const struct mf_test_group optional_tests = {
    .timeout_s = 120, .teardown = stop_farm, .optional = true};

MF_TEST(works_with_a_full_code_cache, .group = &optional_tests)
{
    char full[64];
    mf_format(full, sizeof(full), "%s/full", folder);
    if (!mount_full(full))
        return;
    tune_without_cache(full, "is not writable: No space left on device");
    (void)umount2(full, MNT_DETACH);
}

int main(void)
{
    if (!mkdtemp(folder) || setenv("MOEFARM_CODE_CACHE", folder, 1) < 0)
        return EXIT_FAILURE;
    mf_format(plan, sizeof(plan), "%s/plan", folder);
    int failed = mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop_farm});
    (void)remove_tree(folder);
    return failed;
}
