/* Tests fake workers of one class that offer different families, or one family at different revisions, in one
 * farm: all of them take part in a batch, no lease goes to a worker without the families that the unit needs,
 * and the batch ends with one table. */
#include "support/mf_check.h"
#include "support/table_columns.h"

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "support/farm/fake_worker.h"
#include "support/farm/farm_process.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define LIMIT_MS  30000
#define BEAT_MS   3000 /* no lease may expire, even on a busy machine */
#define N_SHAPES  2
#define N_WORKERS 2

static const char csv[] = SHAPE_COLUMNS
    "\n"
    "1,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n"
    "4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n";

static struct farm_process process;
static void *zmq;
static struct fake_worker workers[N_WORKERS];
/* units that each worker got, by kind */
static struct {
    int enumerate, probe, race;
} units[N_WORKERS];

static void start(void)
{
    process = (struct farm_process){.pid = 0};
    zmq = zmq_ctx_new();
    farm_process_start(&process, BEAT_MS);
}

static void stop(void)
{
    for (int i = 0; i < N_WORKERS; i++)
        fake_worker_close(&workers[i]);
    ck_assert_int_eq(farm_process_kill(&process, SIGTERM), 0);
    farm_process_remove(&process);
    (void)zmq_ctx_term(zmq);
}

static char *request(const char *method, const char *path, const char *body)
{
    int status = 0;
    char *answer = farm_process_http(&process, method, path, "text/csv", body, &status);
    ck_assert_msg(answer && (status == 200 || status == 201), "%s: %d %s", path, status,
                  answer ? answer : "");
    return answer;
}

static void check_contains(const char *path, const char *wanted)
{
    _cleanup_(mf_freep) char *answer = request("GET", path, "");
    ck_assert_msg(strstr(answer, wanted) != NULL, "%s lacks '%s': %s", path, wanted, answer);
}

static bool contains(const char *path, const char *wanted)
{
    _cleanup_(mf_freep) char *answer = request("GET", path, "");
    return strstr(answer, wanted) != NULL;
}

/* Connects the worker number `place`. */
static void join(int place, const char *families)
{
    struct fake_worker *w = &workers[place];
    ck_assert_int_eq(fake_worker_open(w, zmq, process.hub, place ? "b" : "a"), 0);
    w->families = families;
}

static void greet(int place)
{
    ck_assert_int_eq(fake_worker_greet(&workers[place], "[]", LIMIT_MS), 0);
    ck_assert_int_eq(fake_worker_ready(&workers[place]), 0);
}

/* Every family that the unit needs must be one that the worker offers, at the same revision. */
static void check_needs(int place, const cJSON *unit)
{
    const char *own = workers[place].families;
    _cleanup_(cJSON_Deletep) cJSON *offered = cJSON_Parse(own);
    const cJSON *family, *needs = mf_json_object(unit, "families");
    ck_assert_int_ge(cJSON_GetArraySize(needs), 1);
    cJSON_ArrayForEach (family, needs)
        ck_assert_msg(cJSON_Compare(cJSON_GetObjectItem(offered, family->string), family, true),
                      "worker %d offers %s and got a unit that needs %s at %s", place, own, family->string,
                      family->valuestring);
}

static void count_unit(int place, const cJSON *unit)
{
    const char *kind = "";
    ck_assert_int_eq(mf_json_text(unit, "kind", &kind), 0);
    units[place].enumerate += strcmp(kind, "enumerate") == 0;
    units[place].probe += strcmp(kind, "probe") == 0;
    units[place].race += strcmp(kind, "race") == 0;
}

/* Lets the worker answer one unit, if it gets one within a short time. fails: enumerations of this family
 * fail. */
static void work(int place, const char *fails)
{
    enum mf_message type;
    _cleanup_(cJSON_Deletep) cJSON *m = NULL;
    struct fake_worker *w = &workers[place];
    if (fake_worker_recv(w, 5, &type, &m) <= 0 || type != MF_MESSAGE_UNIT)
        return;
    check_needs(place, m);
    count_unit(place, m);
    if (fails && !mf_json_array(m, "steps") && cJSON_HasObjectItem(mf_json_object(m, "families"), fails))
        ck_assert_int_eq(fake_worker_fail(w, m, "unsupported", "cannot import torch"), 0);
    else
        ck_assert_int_eq(fake_worker_answer(w, m), 0);
    ck_assert_int_eq(fake_worker_ready(w), 0);
}

/* Lets the worker answer units until *counter, the number of its units of a kind, is n. */
static void work_until(int place, const int *counter, int n)
{
    for (int64_t until = mf_now_ms() + LIMIT_MS; *counter < n; work(place, NULL))
        ck_assert_int_lt(mf_now_ms(), until);
}

/* Lets the worker answer units until the answer of the API contains the text. */
static void work_until_contains(int place, const char *path, const char *wanted)
{
    for (int64_t until = mf_now_ms() + LIMIT_MS; !contains(path, wanted); work(place, NULL))
        ck_assert_int_lt(mf_now_ms(), until);
}

static void leave(int place)
{
    ck_assert_int_eq(fake_worker_send(&workers[place], MF_MESSAGE_BYE, "{\"reason\":\"preempted\"}"), 0);
}

static void submit_with(const char *options)
{
    char path[120];
    mf_format(path, sizeof(path), "/api/v1/batches?name=t&topk=4&regret=none%s", options);
    free(request("POST", path, csv));
}

static void submit(void)
{
    submit_with("");
}

/* Both workers work until the batch is done. */
static void finish(const char *fails)
{
    int64_t until = mf_now_ms() + LIMIT_MS;
    while (!contains("/api/v1/batches/1", "\"state\":\"done\"")) {
        for (int i = 0; i < 10; i++)
            work(i % N_WORKERS, fails);
        if (mf_now_ms() >= until) {
            _cleanup_(mf_freep) char *batch = request("GET", "/api/v1/batches/1", "");
            ck_abort_msg("the batch is not done: %s", batch);
        }
    }
}

static int count_rows(const char *wanted)
{
    _cleanup_(mf_freep) char *table = request("GET", "/api/v1/export/tuned_fmoe.csv?simulated=1", "");
    int n = 0;
    for (const char *at = table; (at = strstr(at, wanted)); at += strlen(wanted))
        n++;
    return n;
}

/* The table must have a row for each shape. */
static void check_all_rows(void)
{
    ck_assert_int_eq(count_rows("torch.bfloat16,torch.bfloat16,torch.bfloat16"), N_SHAPES);
}

static double fast(const struct fake_worker *w, const char *name)
{
    (void)w;
    return fake_us(name) / 2;
}

/* Worker b offers family torch, too. */
MF_TEST(different_families_share_a_batch)
{
    start();
    join(0, "{\"fake\":\"r1\"}");
    join(1, "{\"fake\":\"r1\",\"torch\":\"t9\"}");
    greet(0);
    greet(1);
    submit();
    finish(NULL);
    ck_assert_int_gt(units[0].probe, 0);
    ck_assert_int_gt(units[1].probe, 0);
    ck_assert_int_gt(units[1].enumerate, 0);
    check_all_rows();
    check_contains("/api/v1/tasks/1/steps?family=torch&status=ok&limit=500", "\"sort_m16_torch\"");
    check_contains("/api/v1/tasks/1/steps?family=fake&status=ok&limit=500", "\"sort_m16\"");
    stop();
}

/* With shape_grouped, one worker measures all steps of a task. A worker that lacks a family of the batch
 * cannot do that, so a task is never pinned to it. */
MF_TEST(grouped_shapes_need_all_families)
{
    start();
    join(0, "{\"fake\":\"r1\"}");
    join(1, "{\"fake\":\"r1\",\"torch\":\"t9\"}");
    ck_assert_int_eq(fake_worker_greet(&workers[0], "[]", LIMIT_MS), 0);
    greet(1);
    submit_with("&shape_grouped=1");
    work_until(1, &units[1].enumerate, 2 * N_SHAPES);
    leave(1);
    ck_assert_int_eq(fake_worker_ready(&workers[0]), 0);
    work_until(0, &units[0].probe, 1);
    greet(1);
    finish(NULL);
    check_all_rows();
    stop();
}

/* A worker reconnects without a family of its grouped shape. Another worker completes the shape. */
MF_TEST(grouped_shape_leaves_a_worker_without_its_families)
{
    start();
    for (int i = 0; i < N_WORKERS; i++) {
        join(i, "{\"fake\":\"r1\",\"torch\":\"t9\"}");
        ck_assert_int_eq(fake_worker_greet(&workers[i], "[]", LIMIT_MS), 0);
    }
    ck_assert_int_eq(fake_worker_ready(&workers[0]), 0);
    submit_with("&shape_grouped=1");
    work_until(0, &units[0].probe, 1);
    workers[0].families = "{\"fake\":\"r1\"}";
    greet(0);
    ck_assert_int_eq(fake_worker_ready(&workers[1]), 0);
    finish(NULL);
    check_all_rows();
    stop();
}

/* Each worker has a family that the other one lacks, so no pipeline may mix these two. */
MF_TEST(pipelines_use_families_of_one_worker)
{
    start();
    join(0, "{\"fake\":\"r1\",\"cutlass\":\"c1\"}");
    join(1, "{\"fake\":\"r1\",\"torch\":\"t9\"}");
    workers[1].us = fast;
    greet(0);
    greet(1);
    submit();
    finish(NULL);
    ck_assert_int_gt(units[0].probe, 0);
    ck_assert_int_gt(units[1].probe, 0);
    check_all_rows();
    check_contains("/api/v1/tasks/1/rejections?limit=500", "\"offer_set\"");
    stop();
}

/* Two workers have two versions of a framework. Both revisions are measured; the faster one wins. */
MF_TEST(two_revisions_share_a_batch)
{
    start();
    join(0, "{\"torch\":\"t8\"}");
    join(1, "{\"torch\":\"t9\"}");
    workers[1].us = fast;
    greet(0);
    greet(1);
    submit();
    finish(NULL);
    ck_assert_int_gt(units[0].probe, 0);
    ck_assert_int_gt(units[1].probe, 0);
    ck_assert_int_eq(units[0].race, 0);
    ck_assert_int_eq(units[1].race, N_SHAPES);
    ck_assert_int_eq(count_rows(",t9,"), N_SHAPES);
    check_contains("/api/v1/tasks/1/rejections?limit=500",
                   "no connected worker offers family torch at revision t8 together with");
    stop();
}

/* Stage 1 is fast in family torch, all other steps in family fake. */
static double mixed(const struct fake_worker *w, const char *name)
{
    (void)w;
    bool is_torch = strstr(name, "torch") != NULL, is_stage1 = strncmp(name, "sne_", 4) == 0;
    return (is_torch == is_stage1 ? 1 : 100) + fake_us(name) / 100;
}

/* A row names the revision of each family of its pipeline. */
MF_TEST(rows_name_the_revisions)
{
    start();
    for (int i = 0; i < N_WORKERS; i++) {
        join(i, "{\"fake\":\"r1\",\"torch\":\"t9\"}");
        workers[i].us = mixed;
        greet(i);
    }
    submit();
    finish(NULL);
    ck_assert_int_eq(count_rows(",fake=r1+torch=t9,"), N_SHAPES);
    check_contains("/api/v1/tasks/1", "\"families\":{\"fake\":\"r1\",\"torch\":\"t9\"}");
    stop();
}

/* Worker b leaves during the batch. The batch waits for its family and says so. */
MF_TEST(waits_for_a_family)
{
    start();
    join(0, "{\"fake\":\"r1\"}");
    join(1, "{\"torch\":\"t9\"}");
    greet(0);
    greet(1);
    submit();
    work_until(1, &units[1].enumerate, 1);
    leave(1);
    work_until_contains(0, "/api/v1/batches/1",
                        "waits for a worker of class gfx942/304 with family torch at revision t9\"");
    greet(1);
    finish(NULL);
    check_all_rows();
    stop();
}

/* A rolling upgrade: the node that began a batch leaves, and a node with a newer revision joins. The batch
 * keeps its revision and waits; a later batch uses the new one. The first node returns and completes its
 * batch. */
MF_TEST(batch_keeps_its_revision)
{
    start();
    join(0, "{\"fake\":\"r1\"}");
    join(1, "{\"fake\":\"r2\"}");
    greet(0);
    submit();
    work_until(0, &units[0].enumerate, 1);
    leave(0);
    greet(1);
    submit();
    work_until_contains(1, "/api/v1/batches/2", "\"state\":\"done\"");
    check_contains("/api/v1/batches/1",
                   "waits for a worker of class gfx942/304 with family fake at revision r1\"");
    ck_assert_int_eq(count_rows(",r2,"), N_SHAPES);
    greet(0);
    finish(NULL);
    check_contains("/api/v1/tasks/1", "\"families\":{\"fake\":\"r1\"}");
    check_contains("/api/v1/tasks/3", "\"families\":{\"fake\":\"r2\"}");
    stop();
}

/* A batch tunes two classes, whose workers have different revisions. */
MF_TEST(classes_have_their_own_revisions)
{
    start();
    join(0, "{\"fake\":\"r1\"}");
    join(1, "{\"fake\":\"r2\"}");
    workers[1].class = "gfx950/256";
    greet(0);
    greet(1);
    submit_with("&classes=gfx942/304,gfx950/256");
    finish(NULL);
    ck_assert_int_eq(count_rows(",r1,"), N_SHAPES);
    ck_assert_int_eq(count_rows(",r2,"), N_SHAPES);
    stop();
}

/* A family that does not enumerate is left out, and the reason is among the rejections. */
MF_TEST(goes_on_without_a_failing_family)
{
    start();
    join(0, "{\"fake\":\"r1\"}");
    join(1, "{\"fake\":\"r1\",\"torch\":\"t9\"}");
    greet(0);
    greet(1);
    submit();
    finish("torch");
    check_all_rows();
    check_contains("/api/v1/tasks/1/rejections?limit=500", "cannot import torch");
    stop();
}

/* Times of two device models are never compared, so a task runs on the model with the most families. */
MF_TEST(models_with_different_families)
{
    start();
    join(0, "{\"fake\":\"r1\"}");
    join(1, "{\"fake\":\"r1\",\"torch\":\"t9\"}");
    workers[1].model = "n";
    greet(0);
    greet(1);
    submit();
    finish(NULL);
    ck_assert_int_eq(units[0].probe, 0);
    ck_assert_int_gt(units[1].probe, 0);
    check_all_rows();
    stop();
}

/* The worker of the model with more families is away when the probes of a task are planned. The task waits
 * for it. If the other model got the task, no worker could ever run the units of family torch. */
MF_TEST(model_returns_after_planning)
{
    start();
    join(0, "{\"fake\":\"r1\"}");
    join(1, "{\"torch\":\"t9\",\"fake\":\"r1\"}");
    workers[1].model = "n";
    greet(1);
    ck_assert_int_eq(fake_worker_greet(&workers[0], "[]", LIMIT_MS), 0);
    submit();
    work_until(1, &units[1].enumerate, 2 * N_SHAPES - 1);
    leave(1);
    ck_assert_int_eq(fake_worker_ready(&workers[0]), 0);
    work_until_contains(0, "/api/v1/batches/1",
                        "waits for a worker of class gfx942/304 and model n with family ");
    greet(1);
    finish(NULL);
    ck_assert_int_eq(units[0].probe, 0);
    check_all_rows();
    stop();
}

/* A worker that could not load a family serves its other families. */
MF_TEST(shows_refused_families)
{
    start();
    join(0, "{\"fake\":\"r1\"}");
    workers[0].refused_families = "[{\"name\":\"torch\",\"why\":\"no module named torch\"}]";
    greet(0);
    check_contains("/api/v1/workers",
                   "\"refused_families\":[{\"name\":\"torch\",\"why\":\"no module named torch\"}]");
    check_contains("/api/v1/workers", "\"families\":{\"fake\":\"r1\"}");
    submit();
    finish(NULL);
    check_contains("/api/v1/tasks/1/rejections?limit=500",
                   "worker a could not load the family: no module named torch");
    stop();
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
