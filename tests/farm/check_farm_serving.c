/* Tests the full cycle with real processes and libfmoe: a service reports a miss, the farm tunes it, a
 * release with the row is frozen, approved and pulled, and the same service then uses the row. Runs on the
 * CPU, or on the device named by MOEFARM_TEST_DEVICE. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "support/farm/farm_harness.h"
#include "support/farm/serving.h"
#include "support/mf_check.h"
#include "support/run_program.h"
#include "support/text_file.h"

#define BEAT_MS 300
#define TOKENS  2

static struct farm farm;
static struct mf_device *device;
static const char *name;

static void stop(void)
{
    farm_stop(&farm);
    device = mf_device_close(device);
}

static void moefarm(const char *const *words)
{
    static const char *const program[] = {MF_BINARY_DIR "/cli/moefarm", NULL};
    struct ran r = run_program(program, words);
    ck_assert_msg(r.code == 0, "moefarm %s: %d: %s", words[0], r.code, r.text);
}
#define RUN(...) moefarm((const char *const[]){__VA_ARGS__, NULL})

static struct fmoe_layer *must_open_layer(struct fmoe *f, const struct mf_shape *shape)
{
    struct fmoe_layer_model model = serving_model(shape, shape->token);
    struct fmoe_error error = {""};
    model.workspace_bytes = 16u << 20; /* large enough for the rows that are tuned later */
    struct fmoe_layer *l = NULL;
    ck_assert_msg(fmoe_layer_open(f, &model, &error, &l) == 0, "%s", error.text);
    return l;
}

/* Runs one call and compares it with the reference. */
static void serve(struct fmoe_layer *l, const struct mf_shape *shape)
{
    struct serving s;
    serving_make(&s, device, l, shape);
    const struct fmoe_call call = serving_call(&s, TOKENS, NULL);
    serving_poison(&s);
    ck_assert_int_eq(fmoe_run(l, &call), 0);
    ck_assert_int_eq(device->ops->sync(device), 0);
    ck_assert(serving_matches(&s, TOKENS));
    serving_release(&s);
}

static void wait_tuned(void)
{
    int64_t end = mf_now_ms() + FARM_DEADLINE_MS;
    for (int n = 0; n == 0;) {
        _cleanup_(cJSON_Deletep) cJSON *list = farm_get(&farm, "/api/v1/misses?state=tuned");
        n = cJSON_GetArraySize(mf_json_array(list, "items"));
        if (mf_now_ms() < end)
            continue;
        _cleanup_(cJSON_Deletep) cJSON *all = farm_get(&farm, "/api/v1/misses"),
                                       *tasks = farm_get(&farm, "/api/v1/batches/1/tasks");
        _cleanup_(mf_freep) char *misses = mf_json_print(all), *what = mf_json_print(tasks);
        ck_abort_msg("the miss was not tuned in time; misses: %s; tasks: %s", misses, what);
    }
}

MF_TEST(serves_a_tuned_miss)
{
    static const char *const more[] = {"--tune-misses", "1", NULL};
    struct fmoe_error error = {""};
    struct fmoe_served served;
    struct mf_shape shape;
    struct fmoe *f = NULL;
    char url[64], file[128];
    name = serving_device(&device);
    const char *const args[] = {"--device", name, NULL};
    const char *const tables[] = {file};
    ck_assert_int_eq(mf_shape_parse("4,64,32,4,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch."
                                    "bfloat16,QuantType.No,1,0",
                                    &shape),
                     0);
    farm_start_with(&farm, BEAT_MS, more);
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%d", farm.http);
    (void)snprintf(file, sizeof(file), "%s/tuned_fmoe.csv", farm.folder);
    ck_assert_int_eq(setenv("MOEFARM_URL", url, 1), 0);

    ck_assert_msg(fmoe_open(name, NULL, 0, &error, &f) == 0, "%s", error.text);
    struct fmoe_layer *l = must_open_layer(f, &shape);
    serve(l, &shape);
    ck_assert_uint_eq(fmoe_n_misses(f), 1);
    ck_assert_msg(fmoe_report_start(f, url, NULL, 1, &error) == 0, "%s", error.text);
    wait_tuned();

    RUN("release", "freeze", "--name", "first");
    RUN("release", "stage", "stable", "first");
    RUN("release", "approve", "stable", "first");
    RUN("pull", "stable", "-o", file);
    /* the reported miss names the weight layouts, so the new row uses the layouts of the loaded layer */
    ck_assert_msg(fmoe_reload(f, tables, 1, &error) == 0, "%s", error.text);
    ck_assert_int_eq(fmoe_served(l, TOKENS, &served), 0);
    ck_assert_int_eq(served.tuned, 1);
    ck_assert_int_eq(served.line, 2);
    uint64_t misses = fmoe_n_misses(f);
    serve(l, &shape);
    ck_assert_uint_eq(fmoe_n_misses(f), misses);
    fmoe_layer_close(l);
    fmoe_close(f);
}

/* ---- examples/serve_layer.c ---- */

static struct {
    pid_t pid;
    char log[160];
} example;

static void start_example(const char *table)
{
    const char *const argv[] = {MF_BINARY_DIR "/tests/serve_layer", table, "64", "32", "4", "2", "16", NULL};
    posix_spawn_file_actions_t actions;

    (void)snprintf(example.log, sizeof(example.log), "%s/serve.log", farm.folder);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, example.log, O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    ck_assert_int_eq(
        posix_spawn(&example.pid, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
}

/* Waits until the example has listed its table n times, and returns its output. The caller frees the output.
 */
static char *example_output(int n)
{
    for (int64_t end = mf_now_ms() + FARM_DEADLINE_MS;;) {
        FILE *f = fopen(example.log, "re");
        char *text = calloc(1, 1 << 16);
        int times = 0;

        if (f) {
            (void)fread(text, 1, (1 << 16) - 1, f);
            (void)fclose(f);
        }
        for (const char *at = text; (at = strstr(at, " misses\n")) != NULL; at++)
            times++;
        if (times >= n)
            return text;
        ck_assert_msg(mf_now_ms() < end && waitpid(example.pid, NULL, WNOHANG) == 0,
                      "output of the example: %s", text);
        free(text);
    }
}

static void tune_and_release(const char *csv, const char *release, const char *baseline, const char *file)
{
    char path[160];

    (void)snprintf(path, sizeof(path), "%s/%s.csv", farm.folder, release);
    text_file_write(path, csv);
    /* On a busy machine steps may be dropped as slow after their first run. This may leave a token count
     * without a pipeline in the known rows' layout, so measure each step fully. */
    if (baseline)
        RUN("submit", path, "--watch", "--search", "exhaustive", "--baseline", baseline);
    else
        RUN("submit", path, "--watch");
    RUN("release", "freeze", "--name", release);
    RUN("release", "stage", "stable", release);
    RUN("release", "approve", "stable", release);
    RUN("pull", "stable", "-o", file);
}

#define LAYER ",64,32,4,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n"

/* The example keeps serving while the farm tunes further token counts. It then reloads the approved table. No
 * call fails, and later calls use the new rows. */
MF_TEST(example_reloads_a_promoted_table)
{
    static const char header[] = SHAPE_COLUMNS "\n";
    const char *const args[] = {"--device", "cpu:0", NULL};
    char url[64], file[128], csv[1024];
    int status, n_calls = 0, n_failed = -1;

    farm_start(&farm, BEAT_MS);
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%d", farm.http);
    (void)snprintf(file, sizeof(file), "%s/tuned_fmoe.csv", farm.folder);
    ck_assert_int_eq(setenv("MOEFARM_URL", url, 1), 0);
    (void)snprintf(csv, sizeof(csv), "%s4" LAYER, header);
    tune_and_release(csv, "first", NULL, file);
    start_example(file);
    _cleanup_(mf_freep) char *first = example_output(1);
    ck_assert_msg(strstr(first, "\n4: tuned ") && strstr(first, "\n16: miss "), "%s", first);

    (void)snprintf(csv, sizeof(csv), "%s4" LAYER "8" LAYER "16" LAYER, header);
    tune_and_release(csv, "second", file, file);
    ck_assert_int_eq(kill(example.pid, SIGHUP), 0);
    _cleanup_(mf_freep) char *second = example_output(2);
    const char *after = strstr(second, " misses\n");
    ck_assert_msg(strstr(after, "\n4: tuned ") && strstr(after, "\n8: tuned ") &&
                      strstr(after, "\n16: tuned "),
                  "%s", second);
    ck_assert_int_eq(kill(example.pid, SIGTERM), 0);
    ck_assert_int_eq(waitpid(example.pid, &status, 0), example.pid);
    _cleanup_(mf_freep) char *whole = example_output(2);
    ck_assert_msg(status == 0, "the example ended with wait status %d: …%s", status,
                  whole + strlen(whole) - MF_MIN(strlen(whole), (size_t)2000));
    const char *last = whole;
    for (const char *at = whole; (at = strchr(at, '\n')) != NULL && at[1]; at++)
        last = at + 1;
    ck_assert_msg(sscanf(last, "%d calls, %d failed", &n_calls, &n_failed) == 2, "%s", last);
    ck_assert_int_gt(n_calls, 0);
    ck_assert_int_eq(n_failed, 0);
}

/* The example reads its table when it receives SIGHUP. It must neither exit nor ignore the signal. The table
 * is a FIFO, so the test can open it for writing only once the example has opened it. */
MF_TEST(example_handles_sighup_during_start)
{
    char table[128], header[128];
    int status, fd;

    farm_make(&farm);
    (void)snprintf(table, sizeof(table), "%s/table", farm.folder);
    (void)snprintf(header, sizeof(header), "%s/header", farm.folder);
    ck_assert_int_eq(mkfifo(table, 0600), 0);
    start_example(table);
    fd = open(table, O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(write(fd, TUNED_COLUMNS "\n", strlen(TUNED_COLUMNS "\n")),
                     (ssize_t)strlen(TUNED_COLUMNS "\n"));
    ck_assert_int_eq(kill(example.pid, SIGHUP), 0);

    text_file_write(header, TUNED_COLUMNS "\n"); /* replaces the FIFO for the reload */
    ck_assert_int_eq(rename(header, table), 0);
    (void)close(fd);
    free(example_output(2));
    ck_assert_int_eq(kill(example.pid, SIGTERM), 0);
    ck_assert_int_eq(waitpid(example.pid, &status, 0), example.pid);
    ck_assert_int_eq(status, 0);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
