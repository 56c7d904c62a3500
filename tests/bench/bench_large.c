/* What a large database costs: a farm of a hundred thousand measurements, then of ten million, asked the same things.
 *
 *   large_start_ms     from the start of moefarmd until it serves
 *   large_list_ms.NAME one page of a list, or one number, the median of several
 *   large_rank_ms      a small batch by one worker of cardboard, from its submission to its last config: enumerated, measured,
 *                      ranked, raced
 *   large_export_ms    the table of one batch
 *
 * Each is printed as NAME.small, NAME.large and NAME.ratio. The small database is a real one: a batch of 400 shapes, tuned
 * through the protocol. The large one has the same batch many times over, each copy with ids of its own.
 *
 * Prints `name value unit`.   bench_large [MILLIONS]   (10) */
#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "support/farm/fake_worker.h"
#include "support/farm/farm_process.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define MODELS   40
#define LADDER   10
#define VARIANTS 60 /* 242 steps a shape */
#define TRIES    9
#define STARTS   5
#define TUNE_MS  300000

static const struct {
    const char *name, *path;
} lists[] = {
    {"batches", "/api/v1/batches?limit=1"},
    {"batch", "/api/v1/batches/1"},
    {"tasks", "/api/v1/batches/1/tasks?limit=100"},
    {"timeline", "/api/v1/batches/1/timeline"},
    {"shapes", "/api/v1/shapes?limit=20"},
    {"task", "/api/v1/tasks/1"},
    {"pipelines", "/api/v1/tasks/1/pipelines?limit=100"},
    {"race", "/api/v1/tasks/1/race"},
    {"steps", "/api/v1/tasks/1/steps?limit=100"},
    {"rejections", "/api/v1/tasks/1/rejections"},
    {"results", "/api/v1/steps/1/results?limit=20"},
    {"workers", "/api/v1/workers"},
    {"metrics", "/metrics"},
};

#define N_LISTS MF_ARRAY_LEN(lists)

struct figures {
    double start_ms, list_ms[N_LISTS], rank_ms, export_ms;
    double results;
};

static struct farm_process farm = {.log = "moefarmd.log"};

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "bench_large: %s; the farm's folder is %s\n", what, farm.folder);
    (void)farm_process_kill(&farm, SIGTERM);
    exit(EXIT_FAILURE);
}

static double since_ms(uint64_t from_ns)
{
    return (double)(mf_now_ns() - from_ns) * 1e-6;
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* ---- the farm ---- */

static double get_ms(const char *path)
{
    double ms[TRIES];
    for (int i = 0; i < TRIES; i++) {
        int status;
        uint64_t from = mf_now_ns();
        _cleanup_(mf_freep) char *text = farm_process_http(&farm, "GET", path, "text/plain", "", &status);
        ms[i] = since_ms(from);
        if (!text || status != 200)
            die(path);
    }
    qsort(ms, TRIES, sizeof(*ms), by_size);
    return ms[TRIES / 2];
}

static double ask(const char *path, const char *key)
{
    int status;
    double value = NAN;
    _cleanup_(mf_freep) char *text = farm_process_http(&farm, "GET", path, "text/plain", "", &status);
    _cleanup_(cJSON_Deletep) cJSON *json = text ? cJSON_Parse(text) : NULL;
    if (mf_json_double(json, key, &value) < 0)
        die(path);
    return value;
}

static void answer_unit(struct fake_worker *w, const cJSON *unit)
{
    int n = fake_unit_results(unit);
    for (int i = 0; i < n; i++) {
        if (fake_worker_result(w, unit, i) < 0)
            die("send a result");
    }
    (void)fake_worker_send(w, MF_MESSAGE_READY, "{\"credit\":2}");
}

/* Works until the batch has no task left. */
static void work(struct fake_worker *w, int batch)
{
    char path[64];
    int64_t end = mf_now_ms() + TUNE_MS, look = 0;
    mf_format(path, sizeof(path), "/api/v1/batches/%d", batch);
    (void)fake_worker_send(w, MF_MESSAGE_READY, "{\"credit\":2}");
    for (; mf_now_ms() < end;) {
        enum mf_message type;
        cJSON *json;
        if (fake_worker_recv(w, 5, &type, &json) > 0) {
            if (type == MF_MESSAGE_UNIT)
                answer_unit(w, json);
            cJSON_Delete(json);
            continue;
        }
        if (mf_now_ms() < look)
            continue;
        if (ask(path, "done") + ask(path, "failed") >= ask(path, "tasks"))
            return;
        look = mf_now_ms() + 20;
    }
    die("the batch does not end");
}

static int submit(int models, int first_dim)
{
    struct mf_buf csv;
    int status;
    double batch = 0;
    mf_buf_init(&csv, 1u << 20);
    (void)mf_buf_adds(
        &csv, "token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,"
              "doweight_stage1\n");
    for (int i = 0; i < models * LADDER; i++)
        (void)mf_buf_addf(&csv,
                          "%d,%d,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
                          "QuantType.No,1,0\n",
                          1 << (i % LADDER), first_dim + 128 * (i / LADDER));
    _cleanup_(mf_freep) char *answer =
        farm_process_http(&farm, "POST", "/api/v1/batches?name=large", "text/csv", csv.data, &status);
    _cleanup_(cJSON_Deletep) cJSON *json = answer ? cJSON_Parse(answer) : NULL;
    mf_buf_release(&csv);
    if (status != 201 || mf_json_double(json, "batch", &batch) < 0)
        die(answer ? answer : "submit");
    return (int)batch;
}

static void tune(void *zmq, int models, int first_dim)
{
    struct fake_worker w;
    if (fake_worker_open(&w, zmq, farm.hub, "cardboard") < 0)
        die("connect a worker");
    w.n_variants = VARIANTS;
    if (fake_worker_hello(&w, "[]") < 0)
        die("say HELLO");
    cJSON *welcome = fake_worker_await(&w, MF_MESSAGE_WELCOME, 10000);
    if (!welcome)
        die("no WELCOME");
    cJSON_Delete(welcome);
    work(&w, submit(models, first_dim));
    (void)fake_worker_send(&w, MF_MESSAGE_BYE, "{\"reason\":\"done\"}");
    fake_worker_close(&w);
}

static struct figures measure(void *zmq, int first_dim)
{
    struct figures f = {0};
    double start_ms[STARTS];
    uint64_t from;
    for (int i = 0; i < STARTS; i++) {
        if (i > 0)
            (void)farm_process_kill(&farm, SIGTERM);
        from = mf_now_ns();
        farm_process_start(&farm, 60000);
        start_ms[i] = since_ms(from);
    }
    qsort(start_ms, STARTS, sizeof(*start_ms), by_size);
    f.start_ms = start_ms[STARTS / 2];
    for (size_t i = 0; i < N_LISTS; i++)
        f.list_ms[i] = get_ms(lists[i].path);
    f.export_ms = get_ms("/api/v1/export/tuned_fmoe.csv?batch=1&simulated=1");
    from = mf_now_ns();
    tune(zmq, 1, first_dim);
    f.rank_ms = since_ms(from);
    (void)farm_process_kill(&farm, SIGTERM);
    return f;
}

/* ---- copies of the batch ---- */

static void run_sql(sqlite3 *db, const char *sql)
{
    char *error = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &error) != SQLITE_OK) {
        (void)fprintf(stderr, "bench_large: %s: %s\n", sql, error);
        die("write the copies");
    }
}

static int64_t number(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK || sqlite3_step(q) != SQLITE_ROW)
        die(sql);
    int64_t n = sqlite3_column_int64(q, 0);
    (void)sqlite3_finalize(q);
    return n;
}

/* Copy k: k is ?1. Ids are counted on by the base's largest; steps, shapes and workers are the same ones. */
static const char *const copies[] = {
    "INSERT INTO batch SELECT ?1 + 1000, name, state, priority, options, NULL, body_hash, receipt,"
    " created_ms + ?1 * 1000, ended_ms + ?1 * 1000 FROM batch WHERE id = 1",
    "INSERT INTO task (id, batch, shape, class, state, reason, enumeration, model, n_steps, n_measured, "
    "ended_ms)"
    " SELECT id + ?1 * 100000, ?1 + 1000, shape, class, state, reason, enumeration, model, "
    "n_steps,"
    " n_measured, ended_ms FROM task WHERE batch = 1",
    "INSERT INTO unit (id, task, class, kind, state, priority, body, avoid_worker, attempt, epoch, worker, "
    "deadline_ms, created_ms, turn)"
    " SELECT id + ?1 * 100000, task + ?1 * 100000, class, kind, state, priority, body, avoid_worker,"
    " attempt, epoch, worker, deadline_ms, created_ms, turn FROM unit WHERE task IN (SELECT id FROM task "
    "WHERE "
    "batch = 1)",
    "INSERT INTO pipeline SELECT id + ?1 * 100000, task + ?1 * 100000, place, steps, structure, block_m, "
    "layout,"
    " sum_us, forecast_us, finalist FROM pipeline WHERE task IN (SELECT id FROM task WHERE batch = 1)",
    "INSERT INTO result (unit, attempt, seq, step, pipeline, task, worker, status, reason, us, mad, err, "
    "row_err,"
    " verified, late, final, samples, extra, at_ms) SELECT unit + ?1 * 100000, attempt, seq, step,"
    " pipeline + ?1 * 100000, task + ?1 * 100000, worker, status, reason, us, mad, err, row_err, verified, "
    "late,"
    " final, samples, extra, at_ms + ?1 * 1000 FROM result WHERE task IN (SELECT id FROM task WHERE batch = "
    "1)",
    "INSERT INTO config (task, shape, class, model, pipeline, us, us1, us2, err1, err2, ties, provenance, "
    "at_ms,"
    " regret) SELECT task + ?1 * 100000, shape, class, model, pipeline + ?1 * 100000, us, us1, us2, err1, "
    "err2, '[]',"
    " provenance, at_ms + ?1 * 1000, regret FROM config WHERE task IN (SELECT id FROM task WHERE batch = 1)",
};

static void copy(sqlite3 *db, int64_t k)
{
    run_sql(db, "BEGIN");
    for (size_t i = 0; i < MF_ARRAY_LEN(copies); i++) {
        sqlite3_stmt *q = NULL;
        if (sqlite3_prepare_v2(db, copies[i], -1, &q, NULL) != SQLITE_OK ||
            sqlite3_bind_int64(q, 1, k) != SQLITE_OK)
            die(sqlite3_errmsg(db));
        if (sqlite3_step(q) != SQLITE_DONE)
            die(sqlite3_errmsg(db));
        (void)sqlite3_finalize(q);
    }
    run_sql(db, "COMMIT");
}

static double enlarge(double millions)
{
    char path[320];
    sqlite3 *db = NULL;
    mf_format(path, sizeof(path), "%s/state/farm.db", farm.folder);
    if (sqlite3_open(path, &db) != SQLITE_OK)
        die("open the database");
    run_sql(db, "PRAGMA synchronous = OFF; PRAGMA cache_size = -262144; PRAGMA wal_autocheckpoint = 20000");
    int64_t base =
        number(db, "SELECT count(*) FROM result JOIN task ON task.id = result.task WHERE batch = 1");
    if (number(db, "SELECT max(max((SELECT max(id) FROM task), (SELECT max(id) FROM unit)),"
                   " (SELECT max(id) FROM pipeline))") >= 100000)
        die("the small batch has too many rows to be copied");
    uint64_t from = mf_now_ns();
    int64_t n = (int64_t)(millions * 1e6 / (double)base);
    for (int64_t k = 1; k < n; k++) {
        copy(db, k);
        if (k % 10 == 0)
            (void)fprintf(stderr, "bench_large: %" PRId64 " of %" PRId64 " copies, %.0f s\n", k, n,
                          since_ms(from) / 1e3);
    }
    double results = (double)number(db, "SELECT count(*) FROM result");
    run_sql(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    (void)sqlite3_close(db);
    return results;
}

static void print(const char *name, const char *of, double small, double large)
{
    printf("%s%s.small %.2f ms\n%s%s.large %.2f ms\n%s%s.ratio %.2f x\n", name, of, small, name, of, large,
           name, of, large / small);
}

int main(int argc, char **argv)
{
    double millions = argc > 1 ? strtod(argv[1], NULL) : 10;
    void *zmq = zmq_ctx_new();
    if (!(millions > 0) || millions > 1000)
        die("MILLIONS is a number above 0");
    farm_process_start(&farm, 60000);
    tune(zmq, MODELS, 1024);
    (void)farm_process_kill(&farm, SIGTERM);
    struct figures small = measure(zmq, 16384);
    double results = enlarge(millions);
    struct figures large = measure(zmq, 32768);
    printf("large_results %.0f results\n", results);
    print("large_start_ms", "", small.start_ms, large.start_ms);
    for (size_t i = 0; i < N_LISTS; i++) {
        char of[40];
        mf_format(of, sizeof(of), ".%s", lists[i].name);
        print("large_list_ms", of, small.list_ms[i], large.list_ms[i]);
    }
    print("large_rank_ms", "", small.rank_ms, large.rank_ms);
    print("large_export_ms", "", small.export_ms, large.export_ms);
    farm_process_remove(&farm);
    (void)zmq_ctx_term(zmq);
    return EXIT_SUCCESS;
}
