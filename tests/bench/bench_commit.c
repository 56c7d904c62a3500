/* Measures how many results moefarmd commits per second. Runs a real moefarmd with the real schema and
 * synchronous=FULL, and W logical workers (DEALER sockets over TCP) in this process. RESULT messages have 20
 * samples and at least 400 bytes.
 *
 *   commit_rr_wW      request-reply: each worker waits for the ACK before it sends the next result
 *   commit_stream_wW  each worker keeps a window of unacknowledged results full, like a spool
 *
 * Prints `name value unit`; the unit is acknowledged results per second. */
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#define WORKERS_MAX    64
#define SHAPES         48
#define STEPS          2048 /* steps per shape */
#define STEPS_A_RESULT 256
#define MEASURE_MS     1500
#define PREPARE_MS     60000
#define WINDOW         256 /* unacknowledged results per worker */
#define UNIT_STEPS_MAX 256
#define UNITS_AHEAD    2 /* units that a worker holds before it stops asking for more */
#define COMMITS_METRIC "moefarm_iteration_duration_seconds_count"

struct unit {
    int64_t id, attempt, epoch;
    int n, sent;
    int64_t steps[UNIT_STEPS_MAX];
};

struct client {
    struct fake_worker w;
    struct unit units[4]; /* ring buffer; the first unit is in progress */
    int first, n_units;
    int in_flight;
    bool has_mail;
    bool asked; /* READY was sent, and the unit has not arrived */
};

static struct client clients[WORKERS_MAX];
static char samples[400];

static void die(const char *what)
{
    fprintf(stderr, "bench_commit: %s\n", what);
    exit(EXIT_FAILURE);
}

static int64_t number(const cJSON *json, const char *key)
{
    int64_t value = 0;
    (void)mf_json_i64(json, key, 1, INT64_MAX, &value);
    return value;
}

/* ---- enumeration: not measured ---- */

static void add_steps(struct mf_buf *b, int from)
{
    for (int i = from; i < from + STEPS_A_RESULT; i++)
        (void)mf_buf_addf(
            b,
            "%s{\"name\":\"tile_s1_bf16_m16_n64_k64_t%d\",\"family\":\"two_stage\",\"stage\":\"stage1\","
            "\"covers\":\"gather+gemm1+act\",\"block_m\":16,\"ksplit\":0,"
            "\"needs\":[\"x/bf16/none/token\",\"sorted/index/none/sorted.16\",\"w1/bf16/none/row\"],"
            "\"gives\":[\"h/bf16/none/sorted.16\"],\"workspace\":0,\"flops\":1e6,\"bytes\":1e5,"
            "\"reorder_tolerance\":0}",
            i > from ? "," : "", i);
}

static void enumerate(struct client *c, const cJSON *unit)
{
    for (int from = 0; from < STEPS; from += STEPS_A_RESULT) {
        struct mf_buf b;
        mf_buf_init(&b, 4u << 20);
        add_steps(&b, from);
        if (fake_worker_send(&c->w, MF_MESSAGE_RESULT,
                             "{\"unit\":%" PRId64 ",\"attempt\":%" PRId64 ",\"epoch\":%" PRId64
                             ",\"seq\":%d,\"status\":\"ok\",\"steps\":[%s],\"rejections\":[],\"last\":%s}",
                             number(unit, "unit"), number(unit, "attempt"), number(unit, "epoch"),
                             from / STEPS_A_RESULT + 1, b.data,
                             from + STEPS_A_RESULT == STEPS ? "true" : "false") < 0)
            die("cannot send an enumeration");
        mf_buf_release(&b);
    }
}

/* ---- probing ---- */

static void take_unit(struct client *c, const cJSON *json)
{
    const cJSON *step;
    struct unit *u = &c->units[(c->first + c->n_units) % 4];
    if (c->n_units == 4)
        die("received more units than requested");
    *u = (struct unit){
        .id = number(json, "unit"), .attempt = number(json, "attempt"), .epoch = number(json, "epoch")};
    cJSON_ArrayForEach (step, mf_json_array(json, "steps")) {
        if (u->n < UNIT_STEPS_MAX)
            u->steps[u->n++] = number(step, "id");
    }
    c->n_units++;
}

static void ask(struct client *c)
{
    if (c->asked || c->n_units >= UNITS_AHEAD)
        return;
    c->asked = true;
    (void)fake_worker_send(&c->w, MF_MESSAGE_READY, "{\"credit\":1}");
}

static void send_result(struct client *c)
{
    struct unit *u = &c->units[c->first];
    int i = u->sent++;
    if (fake_worker_send(
            &c->w, MF_MESSAGE_RESULT,
            "{\"unit\":%" PRId64 ",\"attempt\":%" PRId64 ",\"epoch\":%" PRId64 ",\"seq\":%d,\"step\":%" PRId64
            ",\"status\":\"ok\",\"reason\":\"\",\"us\":411.2,\"mad\":3.1,\"samples\":[%s],\"mode\":\"cold\","
            "\"err\":0.0001,\"row_err\":0.0012,\"row_limit\":0.01,\"verified\":2,\"canary\":1.003,"
            "\"at_ms\":1790000000000%s}",
            u->id, u->attempt, u->epoch, i + 1, u->steps[i], samples,
            u->sent == u->n ? ",\"last\":true" : "") < 0)
        die("cannot send a result");
    c->in_flight++;
    if (u->sent == u->n) {
        c->first = (c->first + 1) % 4;
        c->n_units--;
        ask(c);
    }
}

static void pump(struct client *c, int window)
{
    while (c->n_units > 0 && c->in_flight < window)
        send_result(c);
}

/* Handles all received messages; returns the number of acknowledged results. */
static int take_all(struct client *c)
{
    int acks = 0;
    enum mf_message type;
    cJSON *json;
    while (fake_worker_recv(&c->w, 0, &type, &json) > 0) {
        const char *kind = "";
        if (type == MF_MESSAGE_ACK) {
            acks += cJSON_GetArraySize(mf_json_array(json, "acks"));
        } else if (type == MF_MESSAGE_UNIT) {
            (void)mf_json_text(json, "kind", &kind);
            c->asked = false;
            if (strcmp(kind, "enumerate") == 0)
                enumerate(c, json);
            else
                take_unit(c, json);
            ask(c);
        } else if (type == MF_MESSAGE_REFUSE) {
            _cleanup_(mf_freep) char *text = mf_json_print(json);
            die(text);
        }
        cJSON_Delete(json);
    }
    return acks;
}

/* Waits for messages and marks the clients that have one. */
static void wait_any(int n, int timeout_ms)
{
    zmq_pollitem_t items[WORKERS_MAX] = {{0}};
    for (int i = 0; i < n; i++)
        items[i] = (zmq_pollitem_t){.socket = clients[i].w.socket, .events = ZMQ_POLLIN};
    (void)zmq_poll(items, n, timeout_ms);
    for (int i = 0; i < n; i++)
        clients[i].has_mail = items[i].revents != 0;
}

static void submit(const struct farm_process *p)
{
    int status;
    struct mf_buf csv;
    mf_buf_init(&csv, 1u << 20);
    (void)mf_buf_adds(
        &csv, "token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,"
              "doweight_stage1\n");
    /* each shape belongs to its own layer model */
    for (int i = 0; i < SHAPES; i++)
        (void)mf_buf_addf(&csv,
                          "16,%d,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
                          "QuantType.No,1,0\n",
                          1024 + 128 * i);
    _cleanup_(mf_freep) char *answer =
        farm_process_http(p, "POST", "/api/v1/batches?name=bench", "text/csv", csv.data, &status);
    mf_buf_release(&csv);
    if (!answer || status != 201)
        die(answer ? answer : "cannot submit the batch");
}

/* Returns the number of iterations of the writer's loop that have ended; each iteration is one commit. */
static double commits_so_far(const struct farm_process *p)
{
    int status;
    _cleanup_(mf_freep) char *text = farm_process_http(p, "GET", "/metrics", "text/plain", "", &status);
    const char *at = text ? strstr(text, "\n" COMMITS_METRIC " ") : NULL;
    return at ? strtod(at + sizeof(COMMITS_METRIC) + 1, NULL) : 0;
}

static void measure(void *zmq, const char *name, int n, int window)
{
    struct farm_process p = {0};
    char worker[20];
    farm_process_start(&p, 60000);
    memset(clients, 0, sizeof(clients));
    for (int i = 0; i < n; i++) {
        mf_format(worker, sizeof(worker), "b%d", i);
        if (fake_worker_open(&clients[i].w, zmq, p.hub, worker) < 0 ||
            fake_worker_hello(&clients[i].w, "[]") < 0)
            die("cannot connect a worker");
        cJSON *welcome = fake_worker_await(&clients[i].w, MF_MESSAGE_WELCOME, 10000);
        if (!welcome)
            die("no WELCOME received");
        cJSON_Delete(welcome);
        ask(&clients[i]);
    }
    submit(&p);
    /* Enumerations come first. All enumerations have ended once each worker holds steps to measure. */
    int64_t end_ms = mf_now_ms() + PREPARE_MS;
    for (int ready = 0; ready < n;) {
        wait_any(n, 100);
        ready = 0;
        for (int i = 0; i < n; i++) {
            (void)take_all(&clients[i]);
            ready += clients[i].n_units > 1;
        }
        if (mf_now_ms() > end_ms)
            die("the farm creates no units");
    }
    int64_t acks = 0;
    double start_cpu_s = farm_process_cpu_s(&p), start_commits = commits_so_far(&p);
    uint64_t start_ns = mf_now_ns(), now_ns = start_ns;
    for (int i = 0; i < n; i++)
        pump(&clients[i], window);
    while (now_ns - start_ns < (uint64_t)MEASURE_MS * 1000000u && acks < (int64_t)SHAPES * STEPS) {
        wait_any(n, 100);
        for (int i = 0; i < n; i++) {
            int got = clients[i].has_mail ? take_all(&clients[i]) : 0;
            clients[i].in_flight -= got;
            acks += got;
            pump(&clients[i], window);
        }
        now_ns = mf_now_ns();
    }
    printf("%s_w%d %.0f results/s\n", name, n, (double)acks / ((double)(now_ns - start_ns) * 1e-9));
    (void)fflush(stdout);
    fprintf(stderr, "%s_w%d: %.1f us of CPU time per result, %.1f results per commit\n", name, n,
            (farm_process_cpu_s(&p) - start_cpu_s) * 1e6 / (double)(acks ? acks : 1),
            (double)acks / fmax(commits_so_far(&p) - start_commits, 1));
    for (int i = 0; i < n; i++)
        fake_worker_close(&clients[i].w);
    (void)farm_process_kill(&p, SIGTERM);
    farm_process_remove(&p);
}

/* bench_commit [W [rr|stream]]: measures only W workers and only that mode */
int main(int argc, char **argv)
{
    static const int counts[] = {1, 8, 64};
    const char *kind = argc > 2 ? argv[2] : "";
    void *zmq = zmq_ctx_new();
    size_t len = 0;
    for (int i = 0; i < 20; i++)
        len +=
            (size_t)snprintf(samples + len, sizeof(samples) - len, "%s%.3f", i ? "," : "", 410.9 + i * 0.317);
    for (size_t i = 0; i < MF_ARRAY_LEN(counts); i++) {
        int64_t only = 0;
        if (argc > 1 && (mf_parse_i64(argv[1], 1, WORKERS_MAX, &only) < 0 || only != counts[i]))
            continue;
        if (strcmp(kind, "stream") != 0)
            measure(zmq, "commit_rr", counts[i], 1);
        if (strcmp(kind, "rr") != 0)
            measure(zmq, "commit_stream", counts[i], WINDOW);
    }
    (void)zmq_ctx_term(zmq);
    return EXIT_SUCCESS;
}
