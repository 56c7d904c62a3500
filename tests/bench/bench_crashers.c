/* Measures the cost of crashes.
 *
 *   crashers_s       time from submission until every step has its result, on a real farm with two simulated
 *                    workers. There are 100 steps of 50 ms, 10 of which crash their runner, and three steps
 *                    that fail immediately. Each crashing step runs on both workers before it is quarantined.
 *                    Without overhead the time is 2.75 s.
 *   death_seen_ms    time from the signal that kills a runner during a step until the worker notices, maximum
 *                    of 20. For .sim and .cpu the signal is SIGSEGV, as from a faulty kernel. For .cpu_killed
 *                    it is SIGKILL, which the worker notices only after the operating system has freed the
 *                    runner's memory.
 *   next_step_ms     time from the same signal until the next step begins in another runner, maximum of 20.
 *                    .context is the part of this maximum until that runner has opened the device, and .data
 *                    is the rest.
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
#include "support/mf_check.h"
#include "worker/agent/runner_pool.h"

#define WORKER   MF_BINARY_DIR "/worker/moefarm-worker"
#define N_DEATHS 20
#define WAIT_MS  60000
#define SHAPE \
    "16,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define N_STEPS 103 /* three of them fail immediately */

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "bench_crashers: %s\n", what);
    exit(EXIT_FAILURE);
}

/* ---- crashers_s ---- */

/* Two tile widths and four block_m values are legal, which makes 96 GEMMs and 7 moves. One-launch steps are
 * not offered for so large a token count. */
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
        die("the batch ended before all its steps were reported as measured");
    printf("crashers_s %.3f s\n", (double)(mf_now_ms() - from) / 1e3);
    cJSON *list = farm_get(&f, "/api/v1/quarantine");
    if (cJSON_GetArraySize(mf_json_array(list, "items")) != 10)
        die("expected ten quarantined steps");
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

static enum mf_runner_pool_event wait_runner(struct mf_runner_pool *c, cJSON **ret)
{
    int64_t until = mf_now_ms() + WAIT_MS;
    while (mf_now_ms() < until) {
        enum mf_runner_pool_event event = mf_runner_pool_iterate(c, ret, until);
        if (event != MF_RUNNER_POOL_NOTHING)
            return event;
    }
    die("timeout waiting for a runner");
}

/* Returns the next message with that op and skips other messages. The caller frees it. */
static cJSON *wait_message(struct mf_runner_pool *c, const char *op)
{
    for (;;) {
        cJSON *m = NULL;
        enum mf_runner_pool_event event = wait_runner(c, &m);
        if (event == MF_RUNNER_POOL_READY)
            continue;
        if (event != MF_RUNNER_POOL_MESSAGE)
            die(mf_runner_pool_why(c));
        if (strcmp(cJSON_GetObjectItem(m, "op")->valuestring, op) == 0)
            return m;
        cJSON_Delete(m);
    }
}

static void send_message(struct mf_runner_pool *c, const cJSON *m)
{
    if (mf_runner_pool_send(c, m) < 0)
        die("cannot send to the runner");
}

/* Returns the first four steps of the shape that cover stage 2. They are GEMMs, so the kill hits a running
 * kernel. */
static cJSON *some_steps(struct mf_runner_pool *c)
{
    cJSON *m = cJSON_Parse("{\"op\":\"enumerate\",\"shape\":\"" SHAPE "\"}"), *steps = cJSON_CreateArray();
    send_message(c, m);
    cJSON_Delete(m);
    for (;;) {
        m = NULL;
        if (wait_runner(c, &m) != MF_RUNNER_POOL_MESSAGE)
            die("the enumeration failed");
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
    send_message(t->runner_pool, m);
    cJSON_Delete(m);
}

/* Kills the runner during a step and waits until the next step begins. */
static void kill_once(struct target *t, int signal_number, double *ret_seen, double *ret_ready,
                      double *ret_next)
{
    cJSON *m = NULL;
    ask_probe(t);
    cJSON_Delete(wait_message(t->runner_pool, "begin"));
    double from = now_ms();
    if (kill(mf_runner_pool_pid(t->runner_pool), signal_number) < 0)
        die("the runner has already exited");
    while (wait_runner(t->runner_pool, &m) != MF_RUNNER_POOL_DIED) {
        cJSON_Delete(m);
        m = NULL;
    }
    *ret_seen = now_ms() - from;
    while (wait_runner(t->runner_pool, &m) != MF_RUNNER_POOL_READY)
        die("the reserve runner did not take over");
    *ret_ready = now_ms() - from;
    ask_probe(t);
    cJSON_Delete(wait_message(t->runner_pool, "begin"));
    *ret_next = now_ms() - from;
    cJSON_Delete(wait_message(t->runner_pool, "end"));
}

static void deaths(const char *kind, const char *device, int signal_number)
{
    const char *const argv[] = {WORKER, "--runner-child", "--device", device, NULL};
    struct mf_runner_pool_options o = {.argv = argv, .keep_bytes = UINT64_C(2) << 30, .reserve = true};
    struct target t = {0};
    cJSON *m = NULL;
    if (mf_runner_pool_new(&o, &t.runner_pool) < 0 || wait_runner(t.runner_pool, &m) != MF_RUNNER_POOL_READY)
        die("cannot start a runner");
    t.steps = some_steps(t.runner_pool);
    double worst_seen = 0, worst_ready = 0, worst_next = 0;
    for (int i = 0; i <= N_DEATHS; i++) {
        double seen, ready, next;
        kill_once(&t, signal_number, &seen, &ready, &next);
        if (i == 0)
            continue; /* the first iteration creates data that later runners reuse */
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

/* The farm harness reports through Check, so the benchmark runs as a Check test. */
MF_TEST(all)
{
    crashers();
    deaths("sim", "sim:gfx942/304:0", SIGSEGV);
    deaths("cpu", "cpu:0", SIGSEGV);
    deaths("cpu_killed", "cpu:0", SIGKILL);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 300});
}
