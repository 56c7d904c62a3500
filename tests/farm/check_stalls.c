/* The longest transaction of a real moefarmd while it does work for thousands of tasks. A worker's lease must
 * not end because the coordinator was busy, so long work is done in slices. */
#include "support/mf_check.h"
#include "support/table_columns.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "support/farm/fake_worker.h"
#include "support/farm/farm_process.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#define BEAT_MS  20000
#define LIMIT_MS 120000
#define LOOK_MS  50
#define N_SHAPES 20000
/* A slice takes 10 ms. The rest is for a slow disk, and for the other processes of a busy machine. */
#define LONGEST_S 0.3

static struct farm_process process;

static void stop(void)
{
    (void)farm_process_kill(&process, SIGKILL);
    farm_process_remove(&process);
}

static char *call(const char *method, const char *path, const char *body, int expected)
{
    int status = 0;
    char *answer = farm_process_http(&process, method, path, "text/csv", body, &status);
    ck_assert_msg(status == expected, "%s %s: status %d: %.300s", method, path, status, answer ? answer : "");
    return answer;
}

static double longest_s(void)
{
    static const char name[] = "\nmoefarm_iteration_longest_seconds ";
    _cleanup_(mf_freep) char *page = call("GET", "/metrics", "", 200);
    const char *at = strstr(page, name);
    ck_assert_ptr_nonnull(at);
    return strtod(at + sizeof(name) - 1, NULL);
}

/* Waits until the list of the batch's tasks in a state is empty. */
static void await_none(int64_t batch, const char *state)
{
    int64_t end_ms = mf_now_ms() + LIMIT_MS;
    char path[128];
    mf_format(path, sizeof(path), "/api/v1/batches/%" PRId64 "/tasks?limit=1&state=%s", batch, state);
    for (bool found = true; found;) {
        _cleanup_(mf_freep) char *text = call("GET", path, "", 200);
        _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(text, strlen(text), 1u << 20);
        found = cJSON_GetArraySize(mf_json_array(json, "items")) > 0;
        ck_assert_msg(!found || mf_now_ms() < end_ms, "batch %" PRId64 " still has tasks that are %s", batch,
                      state);
        (void)poll(NULL, 0, found ? LOOK_MS : 0);
    }
}

/* Returns a submission, which the caller frees. */
static char *make_csv(void)
{
    struct mf_buf csv;
    mf_buf_init(&csv, 8u << 20);
    (void)mf_buf_adds(&csv, SHAPE_COLUMNS "\n");
    for (int i = 0; i < N_SHAPES; i++)
        (void)mf_buf_addf(&csv,
                          "%d,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
                          "torch.bfloat16,QuantType.No,1,0\n",
                          i + 1);
    ck_assert_int_eq(mf_buf_error(&csv), 0);
    return csv.data;
}

static int64_t submit(int status)
{
    int64_t batch = 0;
    _cleanup_(mf_freep) char *csv = make_csv();
    _cleanup_(mf_freep) char *text = call("POST", "/api/v1/batches?classes=gfx942/304", csv, status);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(text, strlen(text), 1u << 20);
    ck_assert_int_eq(mf_json_i64(json, "batch", 1, INT64_MAX, &batch), 0);
    return batch;
}

MF_TEST(long_work_is_sliced)
{
    struct fake_worker w;
    char path[64];
    void *zmq = zmq_ctx_new();
    farm_process_start(&process, BEAT_MS);
    ck_assert_int_eq(fake_worker_open(&w, zmq, process.hub, "w"), 0);
    ck_assert_int_eq(fake_worker_greet(&w, "[]", LIMIT_MS), 0);
    int64_t batch = submit(201);
    double submitted_s = longest_s();
    await_none(batch, "waiting");
    double started_s = longest_s();
    mf_format(path, sizeof(path), "/api/v1/batches/%" PRId64 "/cancel", batch);
    free(call("POST", path, "", 200));
    await_none(batch, "enumerating");
    double cancelled_s = longest_s();
    printf("longest transaction: submit %.3f s, start %.3f s, cancel %.3f s\n", submitted_s, started_s,
           cancelled_s);
    (void)fflush(stdout);
    ck_assert_double_lt(cancelled_s, LONGEST_S);
    fake_worker_close(&w);
    (void)zmq_ctx_term(zmq);
}

/* Returns the state of the only batch, which the caller frees; NULL if there is no batch. */
static char *batch_state(void)
{
    const char *state;
    _cleanup_(mf_freep) char *text = call("GET", "/api/v1/batches", "", 200);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(text, strlen(text), 1u << 20);
    return mf_json_text(cJSON_GetArrayItem(mf_json_array(json, "items"), 0), "state", &state) == 0
               ? strdup(state)
               : NULL;
}

/* A crash in the middle of a submission leaves no half batch. */
MF_TEST(crash_removes_incomplete_batch)
{
    process = (struct farm_process){.headers = "Idempotency-Key: k\r\n"};
    farm_process_start(&process, BEAT_MS);
    pid_t client = fork();
    ck_assert_int_ge(client, 0);
    if (client == 0) {
        int status;
        char *csv = make_csv();
        free(farm_process_http(&process, "POST",
                               "/api/v1/batches?classes=gfx942/304,gfx950/256,sm_90/132,sm_80/108",
                               "text/csv", csv, &status));
        _exit(0);
    }
    int64_t end_ms = mf_now_ms() + LIMIT_MS;
    for (bool seen = false; !seen;) {
        _cleanup_(mf_freep) char *state = batch_state();
        ck_assert_msg(mf_now_ms() < end_ms, "no batch appeared");
        seen = state != NULL;
        ck_assert(!seen || strcmp(state, "submitting") == 0);
    }
    (void)farm_process_kill(&process, SIGKILL);
    ck_assert_int_eq(waitpid(client, NULL, 0), client);
    farm_process_start(&process, BEAT_MS);
    ck_assert_ptr_null(batch_state());
    int64_t batch = submit(201);
    ck_assert_int_gt(batch, 0);
    ck_assert_int_eq(submit(200), batch); /* the same key gives the same receipt */
    _cleanup_(mf_freep) char *state = batch_state();
    ck_assert_str_eq(state, "open");
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 300, .teardown = stop});
}
