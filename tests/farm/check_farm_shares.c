/* Tests how batches share the workers. A batch that is added while another batch runs gets its share of the
 * workers from then on, even after a restart of the coordinator. A batch with a higher priority goes first.
 * Within a layer, the shapes with the most tokens go first. A single fake worker runs one unit at a time, so
 * units arrive in the order in which they are granted. Also tests the removal of old samples. */
#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "support/farm/fake_worker.h"
#include "support/farm/farm_process.h"
#include "support/mf_check.h"
#include "support/table_columns.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define BEAT_MS  20000
#define LIMIT_MS 30000
#define MANY     12
#define FEW      2
#define BEFORE   4 /* probes of the first batch that are answered before the second batch is submitted */

/* The model_dim of a shape identifies its batch. */
enum { FIRST_DIM = 1024, SECOND_DIM = 8192, URGENT_DIM = 16384 };

static struct farm_process farm;
static struct fake_worker worker;
static void *zmq;

static void begin_table(struct mf_buf *csv)
{
    mf_buf_init(csv, 1u << 16);
    (void)mf_buf_adds(csv, SHAPE_COLUMNS "\n");
}

static void add_shape(struct mf_buf *csv, int token, int dim)
{
    (void)mf_buf_addf(csv,
                      "%d,%d,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
                      "QuantType.No,1,0\n",
                      token, dim);
}

static void submit_table(struct mf_buf *csv, const char *query)
{
    int status = 0;
    char path[80];
    mf_format(path, sizeof(path), "/api/v1/batches?name=t%s", query);
    _cleanup_(mf_freep) char *answer = farm_process_http(&farm, "POST", path, "text/csv", csv->data, &status);
    mf_buf_release(csv);
    ck_assert_msg(status == 201, "%d %s", status, answer ? answer : "");
}

static void submit(int n, int dim, const char *query)
{
    struct mf_buf csv;
    begin_table(&csv);
    for (int i = 0; i < n; i++) /* each shape has its own layer model, so the tasks are independent */
        add_shape(&csv, 4, dim + 128 * i);
    submit_table(&csv, query);
}

static void greet(void)
{
    ck_assert_int_eq(fake_worker_greet(&worker, "[]", LIMIT_MS), 0);
    ck_assert_int_eq(fake_worker_ready(&worker), 0);
}

static const char *const *options; /* options of the coordinator; NULL: none */

static void start(void)
{
    farm = (struct farm_process){.more = options};
    zmq = zmq_ctx_new();
    farm_process_start(&farm, BEAT_MS);
    ck_assert_int_eq(fake_worker_open(&worker, zmq, farm.hub, "w"), 0);
    greet();
}

static void stop(void)
{
    fake_worker_close(&worker);
    (void)farm_process_kill(&farm, SIGTERM);
    farm_process_remove(&farm);
    (void)zmq_ctx_term(zmq);
}

struct answered {
    int token, dim; /* token count and model_dim of the unit's shape */
    bool probe;     /* true if the unit measures steps */
};

/* Answers the next unit. */
static struct answered answer_one(void)
{
    struct answered a;
    const char *shape = "", *kind = "";
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&worker, MF_MESSAGE_UNIT, LIMIT_MS);
    ck_assert_msg(unit, "no unit received");
    (void)mf_json_text(unit, "shape", &shape);
    (void)mf_json_text(unit, "kind", &kind);
    ck_assert_int_eq(sscanf(shape, "%d,%d", &a.token, &a.dim), 2);
    ck_assert_int_eq(fake_worker_answer(&worker, unit), 0);
    ck_assert_int_eq(fake_worker_ready(&worker), 0);
    a.probe = strcmp(kind, "probe") == 0;
    return a;
}

/* Answers units until n probes of shapes with model_dim >= dim have been answered. Returns the number of
 * other probes answered. */
static int answer_until(int n, int dim)
{
    int others = 0;
    for (int seen = 0; seen < n;) {
        struct answered a = answer_one();
        seen += a.probe && a.dim >= dim;
        others += a.probe && a.dim < dim;
    }
    return others;
}

/* Number of probes that one shape takes. */
static int n_probes;

static void count_probes(void)
{
    submit(1, FIRST_DIM, "");
    for (bool race = false; !race;) {
        bool probe = answer_one().probe;
        n_probes += probe;
        race = !probe && n_probes > 0;
    }
    ck_assert_int_ge(n_probes, 2);
}

/* _i: 1 if the coordinator is killed and restarted after the second submission. */
MF_TEST(shares_with_a_later_batch, .rows = 2)
{
    start();
    count_probes();
    submit(MANY, FIRST_DIM + 128, "");
    ck_assert_int_eq(answer_until(BEFORE, FIRST_DIM), 0);
    submit(FEW, SECOND_DIM, "");
    if (_i) {
        (void)farm_process_kill(&farm, SIGKILL);
        farm_process_start(&farm, BEAT_MS);
        greet();
    }
    /* The worker first finishes the units of its current shape; from then on the batches alternate. In FIFO
     * order all units of the first batch would be granted before those of the second. */
    int others = answer_until(FEW * n_probes, SECOND_DIM);
    ck_assert_msg(others <= (FEW + 2) * n_probes, "%d of %d units of the first batch came first", others,
                  MANY * n_probes - BEFORE);
    ck_assert_msg(others > 0 || FEW * n_probes < 2, "the second batch starved the first");
    stop();
}

/* Batches of equal priority alternate to the end, whichever was submitted first. */
MF_TEST(alternates_equal_batches)
{
    start();
    count_probes();
    submit(FEW * 2, FIRST_DIM + 128, "");
    submit(FEW * 2, SECOND_DIM, "");
    int others = answer_until(FEW * n_probes, SECOND_DIM);
    ck_assert_int_ge(others, (FEW - 1) * n_probes);
    ck_assert_int_le(others, (FEW + 1) * n_probes);
    stop();
}

MF_TEST(runs_higher_priority_first)
{
    start();
    count_probes();
    submit(MANY, FIRST_DIM + 128, "");
    submit(FEW, SECOND_DIM, "");
    ck_assert_int_eq(answer_until(1, FIRST_DIM), 0);
    submit(FEW, URGENT_DIM, "&priority=90");
    /* allows for the running unit and for a unit that was granted during the submission */
    ck_assert_int_le(answer_until(FEW * n_probes, URGENT_DIM), 2);
    stop();
}

/* A worker prefers the shape whose data it holds. The farm enumerates all shapes first, but an enumeration
 * makes no data, so the shape that was enumerated last is not preferred. */
MF_TEST(runs_most_tokens_first)
{
    static const int tokens[] = {1, 64, 16384, 4};
    int before = INT_MAX;
    struct mf_buf csv;

    start();
    count_probes();
    begin_table(&csv);
    for (size_t i = 0; i < MF_ARRAY_LEN(tokens); i++)
        add_shape(&csv, tokens[i], FIRST_DIM + 128);
    submit_table(&csv, "");
    for (int i = 0; i < n_probes * (int)MF_ARRAY_LEN(tokens);) {
        struct answered a = answer_one();
        if (!a.probe)
            continue;
        ck_assert_msg(a.token <= before, "a shape with %d tokens runs after a shape with %d", a.token,
                      before);
        before = a.token;
        i++;
    }
    ck_assert_int_eq(before, 1);
    stop();
}

/* The fake worker dates its results months back. With --samples-days 1 the farm removes their samples at once
 * and keeps the median. */
MF_TEST(drops_old_samples)
{
    static const char *const more[] = {"--samples-days", "1", NULL};
    options = more;
    start();
    options = NULL;
    count_probes();
    for (int64_t end = mf_now_ms() + LIMIT_MS;; mf_sleep_ms(20)) {
        int status = 0;
        _cleanup_(mf_freep) char *text =
            farm_process_http(&farm, "GET", "/api/v1/steps/1/results", "", "", &status);
        ck_assert_msg(text && strstr(text, "\"us\":") && !strstr(text, "\"us\":null"), "%s",
                      text ? text : "");
        if (strstr(text, "\"samples\":[]"))
            break;
        ck_assert_msg(mf_now_ms() < end, "%s", text);
    }
    stop();
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
