/* What crashes cost.
 *
 *   crashers_s       100 steps of 50 ms of which 10 crash their runner, on a real farm of two simulated workers: from
 *                    the submission until every step has its result. Each crasher is tried on both workers before it
 *                    is in quarantine. Were nothing lost it would take 2.75 s. (Three further steps fail at once.)
 *   death_seen_ms    from the signal that a runner dies of in a step to the worker's knowing it: the worst of 20. .sim and
 *                    .cpu: SIGSEGV, as of a kernel gone wrong; .cpu_killed: SIGKILL, which is seen only when the kernel
 *                    has taken the runner's memory apart
 *   next_step_ms     from the same signal to the begin of the next step in another runner: likewise; .context is the part
 *                    of it until that runner has the device, .data the rest, of the worst
 *
 * Prints `name value unit`. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "support/farm/farm_harness.h"
#include "support/farm/runner_pool_wait.h"
#include "support/mf_check.h"

#define WORKER   MF_BINARY_DIR "/worker/moefarm-worker"
#define N_DEATHS 20
#define WAIT_MS  60000
#define SHAPE \
    "16,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define N_STEPS 103 /* three of which fail before they take any time */

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "bench_crashers: %s\n", what);
    exit(EXIT_FAILURE);
}

/* ---- crashers_s ---- */

/* Two widths of tile and four blocks are legal: 96 GEMMs, 7 moves, and no one-launch step for so many tokens. */
static const char csv[] = FARM_CSV_HEAD
    "1536,2048,192,512,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n";

static const char spec[] = "{\"step_ms\":50,\"faults\":["
                           "{\"match\":\"sim_sort_m16\",\"fault\":\"no_memory\"},{\"match\":\"sim_sort_m32\","
                           "\"fault\":\"no_memory\"},"
                           "{\"match\":\"sim_sort_m256\",\"fault\":\"no_memory\"},"
                           "{\"match\":\"sim_s2_m16_n32_*\",\"fault\":\"crash\"},{\"match\":\"sim_s1_m16_n32_"
                           "row_*\",\"fault\":\"crash\"}]}";

static void crashers(void)
{
    struct farm f;
    farm_start(&f, 1000);
    for (int i = 0; i < 2; i++) {
        char device[256];
        (void)snprintf(device, sizeof(device), "sim:gfx942/304:%d:%s", i, farm_file(&f, "spec.json", spec));
        const char *const args[] = {"--device", device, NULL};
        farm_start_worker(&f, i, args);
    }
    farm_wait_workers(&f, 2);
    int64_t from = mf_now_ms();
    int batch = farm_submit(&f, csv, "&classes=gfx942/304");
    if (!farm_wait_batch(&f, batch, "measured", N_STEPS))
        die("the batch was done before all its steps were seen to be");
    printf("crashers_s %.3f s\n", (double)(mf_now_ms() - from) / 1e3);
    cJSON *list = farm_get(&f, "/api/v1/quarantine");
    if (cJSON_GetArraySize(mf_json_array(list, "items")) != 10)
        die("there are not ten crashers in quarantine");
    cJSON_Delete(list);
    farm_stop(&f);
}

/* ---- death_seen_ms, next_step_ms ---- */

struct target {
    struct mf_runner_pool *runner_pool;
    cJSON *steps;
};

static double now_ms(void)
{
    return (double)mf_now_ns() / 1e6;
}

static enum mf_runner_pool_event wait_crew(struct mf_runner_pool *c, cJSON **ret)
{
    int64_t until = mf_now_ms() + WAIT_MS;
    while (mf_now_ms() < until) {
        enum mf_runner_pool_event event = runner_pool_turn(c, ret, until);
        if (event != MF_RUNNER_POOL_NOTHING)
            return event;
    }
    die("a runner says nothing");
}

/* Messages until one of that op, which the caller owns. */
static cJSON *hear(struct mf_runner_pool *c, const char *op)
{
    for (;;) {
        cJSON *m = NULL;
        enum mf_runner_pool_event event = wait_crew(c, &m);
        if (event == MF_RUNNER_POOL_READY)
            continue;
        if (event != MF_RUNNER_POOL_MESSAGE)
            die(mf_runner_pool_why(c));
        if (strcmp(cJSON_GetObjectItem(m, "op")->valuestring, op) == 0)
            return m;
        cJSON_Delete(m);
    }
}

static void say(struct mf_runner_pool *c, const cJSON *m)
{
    if (mf_runner_pool_send(c, m) < 0)
        die("a runner takes no message");
}

/* The first steps of the shape that have stage 2: GEMMs, so that a kill meets one. */
static cJSON *some_steps(struct mf_runner_pool *c)
{
    cJSON *m = cJSON_Parse("{\"op\":\"enumerate\",\"shape\":\"" SHAPE "\"}"), *steps = cJSON_CreateArray();
    say(c, m);
    cJSON_Delete(m);
    for (;;) {
        m = NULL;
        if (wait_crew(c, &m) != MF_RUNNER_POOL_MESSAGE)
            die("it does not enumerate");
        const char *op = cJSON_GetObjectItem(m, "op")->valuestring;
        bool end = strcmp(op, "enumerated") == 0;
        if (strcmp(op, "step") == 0 && cJSON_GetArraySize(steps) < 4) {
            cJSON *step = cJSON_DetachItemFromObject(m, "step");
            if (strcmp(farm_text(step, "stage"), "stage2") == 0) {
                mf_json_add_i64(step, "id", cJSON_GetArraySize(steps) + 1);
                cJSON_AddItemToArray(steps, step);
            } else {
                cJSON_Delete(step);
            }
        }
        cJSON_Delete(m);
        if (end)
            return steps;
    }
}

static void ask_probe(struct target *t)
{
    cJSON *m =
        cJSON_Parse("{\"op\":\"unit\",\"kind\":\"probe\",\"shape\":\"" SHAPE "\",\"options\":{\"seed\":1}}");
    cJSON_AddItemToObject(m, "steps", cJSON_Duplicate(t->steps, true));
    say(t->runner_pool, m);
    cJSON_Delete(m);
}

/* One kill in a step, and on to the next begin. */
static void kill_once(struct target *t, int signal_number, double *ret_seen, double *ret_ready,
                      double *ret_next)
{
    cJSON *m = NULL;
    ask_probe(t);
    cJSON_Delete(hear(t->runner_pool, "begin"));
    double from = now_ms();
    if (kill(mf_runner_pool_pid(t->runner_pool), signal_number) < 0)
        die("the runner is gone");
    while (wait_crew(t->runner_pool, &m) != MF_RUNNER_POOL_DIED) {
        cJSON_Delete(m);
        m = NULL;
    }
    *ret_seen = now_ms() - from;
    while (wait_crew(t->runner_pool, &m) != MF_RUNNER_POOL_READY)
        die("no runner follows");
    *ret_ready = now_ms() - from;
    ask_probe(t);
    cJSON_Delete(hear(t->runner_pool, "begin"));
    *ret_next = now_ms() - from;
    cJSON_Delete(hear(t->runner_pool, "end"));
}

static void deaths(const char *kind, const char *device, int signal_number)
{
    const char *const argv[] = {WORKER, "--runner-child", "--device", device, NULL};
    struct mf_runner_pool_options o = {.argv = argv, .keep_bytes = UINT64_C(2) << 30, .reserve = true};
    struct target t = {0};
    cJSON *m = NULL;
    if (mf_runner_pool_new(&o, &t.runner_pool) < 0 || wait_crew(t.runner_pool, &m) != MF_RUNNER_POOL_READY)
        die("no runner starts");
    t.steps = some_steps(t.runner_pool);
    double worst_seen = 0, worst_ready = 0, worst_next = 0;
    for (int i = 0; i <= N_DEATHS; i++) {
        double seen, ready, next;
        kill_once(&t, signal_number, &seen, &ready, &next);
        if (i == 0)
            continue; /* makes the data that later ones are handed */
        worst_seen = MF_MAX(worst_seen, seen);
        worst_ready = next > worst_next ? ready : worst_ready;
        worst_next = MF_MAX(worst_next, next);
    }
    printf("death_seen_ms.%s %.2f ms\n", kind, worst_seen);
    printf("next_step_ms.%s %.2f ms\n", kind, worst_next);
    printf("next_step_ms.%s.context %.2f ms\n", kind, worst_ready);
    printf("next_step_ms.%s.data %.2f ms\n", kind, worst_next - worst_ready);
    cJSON_Delete(t.steps);
    mf_runner_pool_free(t.runner_pool);
}

/* The harness reports through check, so the benchmark runs as its test. */
START_TEST(all)
{
    crashers();
    deaths("sim", "sim:gfx942/304:0", SIGSEGV);
    deaths("cpu", "cpu:0", SIGSEGV);
    deaths("cpu_killed", "cpu:0", SIGKILL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench_crashers");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, all);
    tcase_set_timeout(tc, 300);
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
