/* Tests rankings per consumer on a simulated device whose families `aiter` and `sim` compete. */
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/farm_harness.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"

#define ROW(token)                                                                                          \
#    token ",6144,4096,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fnuz,torch.float8_e4m3fnuz," \
           "QuantType.per_Token,1,0\n"
#define ROWS   FARM_CSV_HEAD ROW(16) ROW(32) ROW(64) ROW(128) ROW(512)
#define N_ROWS 5

static struct farm farm;

static void start(void)
{
    const char *const args[] = {"--device", "sim:gfx942/304:0", "--families", "aiter,sim", NULL};
    farm_start(&farm, 1000);
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
}

static void stop(void)
{
    farm_stop(&farm);
}

/* Number of rows in the table of a consumer. The caller frees *ret. */
static int export_rows(int batch, const char *consumer, char **ret)
{
    char path[160];
    int n = 0;
    (void)snprintf(path, sizeof(path), "/api/v1/export/tuned_fmoe.csv?batch=%d&simulated=1&consumer=%s",
                   batch, consumer);
    *ret = farm_call(&farm, "GET", path, "text/plain", "", 200);
    for (const char *at = strchr(*ret, '\n'); at && at[1]; at = strchr(at + 1, '\n'))
        n++;
    return n;
}

/* Every shape has pipelines of AITER's kernels only, so every shape has a row for AITER, even if other
 * pipelines are faster. */
MF_TEST(aiter_gets_a_row_for_each_shape)
{
    _cleanup_(mf_freep) char *table = NULL;
    start();
    int batch = farm_run(&farm, ROWS, "&consumer=aiter");
    int n = export_rows(batch, "aiter", &table);
    ck_assert_msg(n == N_ROWS, "%d of %d rows:\n%s", n, N_ROWS, table);
}

static bool is_aiter(const cJSON *names)
{
    const cJSON *name;
    cJSON_ArrayForEach (name, names) {
        if (strncmp(cJSON_GetStringValue(name), "sim:", 4) == 0)
            return false;
    }
    return true;
}

/* One probe serves both consumers. Each has its own race, config and table; AITER's pipelines contain AITER's
 * kernels only, and no pipeline is faster than the best of all. */
MF_TEST(two_consumers_share_a_batch)
{
    _cleanup_(mf_freep) char *aiter = NULL, *own = NULL;
    int n_slower = 0;
    start();
    int batch = farm_run(&farm, ROWS, "&consumer=aiter,moefarm");
    ck_assert_int_eq(export_rows(batch, "aiter", &aiter), N_ROWS);
    ck_assert_int_eq(export_rows(batch, "moefarm", &own), N_ROWS);
    ck_assert_ptr_null(strstr(aiter, "sim_"));
    _cleanup_(cJSON_Deletep) cJSON *tasks = farm_get(&farm, "/api/v1/batches/%d/tasks", batch);
    const cJSON *row;
    cJSON_ArrayForEach (row, mf_json_array(tasks, "items")) {
        int id = farm_number(row, "id");
        _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/%d", id);
        _cleanup_(cJSON_Deletep) cJSON *other = farm_get(&farm, "/api/v1/tasks/%d?consumer=aiter", id);
        _cleanup_(cJSON_Deletep) cJSON *race = farm_get(&farm, "/api/v1/tasks/%d/race?consumer=aiter", id);
        _cleanup_(cJSON_Deletep) cJSON *list =
            farm_get(&farm, "/api/v1/tasks/%d/pipelines?consumer=aiter", id);
        const cJSON *a = farm_consumer(task, "aiter"), *m = farm_consumer(task, "moefarm"), *p;
        ck_assert_str_eq(farm_text(task, "consumer"), "moefarm");
        ck_assert_str_eq(farm_text(other, "consumer"), "aiter");
        ck_assert_double_eq(farm_double(other, "us"), farm_double(a, "us"));
        ck_assert_int_eq(farm_number(race, "winner"), farm_number(a, "pipeline"));
        ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(task, "consumers")), 2);
        ck_assert_int_ne(farm_number(a, "pipeline"), farm_number(m, "pipeline"));
        ck_assert(is_aiter(cJSON_GetObjectItem(a, "winner")));
        cJSON_ArrayForEach (p, mf_json_array(list, "items"))
            ck_assert(is_aiter(cJSON_GetObjectItem(p, "names")));
        n_slower += farm_double(a, "ratio") > 1;
    }
    ck_assert_int_gt(n_slower, 0);
}

/* A consumer that no step serves gets a reason; the task succeeds for the others. */
MF_TEST(a_consumer_without_pipelines_gets_a_reason)
{
    _cleanup_(mf_freep) char *own = NULL;
    start();
    int batch = farm_run(&farm, FARM_CSV_HEAD ROW(16), "&consumer=moefarm,vllm");
    ck_assert_int_eq(export_rows(batch, "moefarm", &own), 1);
    _cleanup_(cJSON_Deletep) cJSON *tasks = farm_get(&farm, "/api/v1/batches/%d/tasks", batch);
    const cJSON *row = cJSON_GetArrayItem(mf_json_array(tasks, "items"), 0);
    ck_assert_str_eq(farm_text(row, "state"), "done");
    _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/%d", farm_number(row, "id"));
    const char *reason = farm_text(farm_consumer(task, "vllm"), "reason");
    ck_assert_msg(strstr(reason, "vLLM dispatches steps of family vllm only"), "%s", reason);
}

/* If no consumer of the batch dispatches a step, the task fails before anything is measured. */
MF_TEST(steps_without_a_consumer_are_not_probed)
{
    start();
    int batch = farm_run(&farm, FARM_CSV_HEAD ROW(16), "&consumer=vllm");
    _cleanup_(cJSON_Deletep) cJSON *tasks = farm_get(&farm, "/api/v1/batches/%d/tasks", batch);
    const cJSON *row = cJSON_GetArrayItem(mf_json_array(tasks, "items"), 0);
    ck_assert_str_eq(farm_text(row, "state"), "failed");
    ck_assert_int_eq(farm_number(row, "measured"), 0);
    ck_assert_ptr_nonnull(strstr(farm_text(row, "reason"), "vLLM dispatches steps of family vllm only"));
    _cleanup_(cJSON_Deletep) cJSON *why = farm_task_list(&farm, batch, "rejections?limit=1000");
    const cJSON *item;
    int n = 0;
    cJSON_ArrayForEach (item, mf_json_array(why, "items"))
        n += strcmp(farm_text(item, "rule"), "consumer") == 0;
    ck_assert_int_gt(n, 0);
}

#define FP8_1X128(token)                                                                                    \
#    token ",6144,4096,8,2,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fnuz,torch.float8_e4m3fnuz," \
           "QuantType.per_1x128,1,0\n"

/* AITER looks a call of 56 tokens up as 64. Both keys are tuned, each for its consumer. */
MF_TEST(keys_of_aiter_are_tuned_too)
{
    _cleanup_(mf_freep) char *aiter = NULL, *own = NULL;
    start();
    int batch = farm_run(&farm, FARM_CSV_HEAD FP8_1X128(56), "&consumer=moefarm,aiter");
    ck_assert_msg(export_rows(batch, "aiter", &aiter) == 1 && strstr(aiter, ",64,6144,"), "%s", aiter);
    ck_assert_msg(export_rows(batch, "moefarm", &own) == 1 && strstr(own, ",56,6144,"), "%s", own);
}

static const struct {
    const char *submit;   /* consumers of the batch; NULL: no batch */
    const char *words[6]; /* of moefarm */
    int code;
    const char *out, *err; /* parts */
} commands[] = {
    {"moefarm,aiter", {"rank", "1", "--consumer", "aiter"}, 0, "  aiter   ", ""},
    {"moefarm", {"rank", "1", "--consumer", "hf"}, 2, "", "--consumer 'hf': expected moefarm"},
    {"moefarm", {"export", "--simulated", "--consumer", "aiter"}, 1, "", "batch 1 does not tune for aiter"},
    {"moefarm",
     {"export", "--simulated", "--consumer", "aiter", "--left-out"},
     0,
     "aiter  gfx942/304  16,",
     ""},
    {"moefarm,aiter", {"export", "--simulated", "--consumer", "aiter"}, 0, "gfx942,304,16,", ""},
    {NULL, {"export", "--consumer", "aiter"}, 1, "", "no batch was tuned with these filters"},
};

MF_TEST(commands_by_consumer, .rows = MF_ARRAY_LEN(commands))
{
    const char *const *w = commands[_i].words;
    char query[64], url[64];
    start();
    (void)snprintf(query, sizeof(query), "&consumer=%s", commands[_i].submit);
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%d", farm.http);
    if (commands[_i].submit)
        farm_run(&farm, FARM_CSV_HEAD ROW(16), query);
    make_folder();
    struct ran r = moefarm(url, w[0], w[1], w[2], w[3], w[4], w[5], NULL);
    ck_assert_msg(r.code == commands[_i].code && strstr(r.out, commands[_i].out) &&
                      strstr(r.err, commands[_i].err),
                  "exit code %d\n%s\n%s", r.code, r.out, r.err);
    remove_folder();
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 240, .teardown = stop});
}
