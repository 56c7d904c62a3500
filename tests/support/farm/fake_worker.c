#include "support/farm/fake_worker.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

int fake_worker_open(struct fake_worker *w, void *zmq, int port, const char *name)
{
    return fake_worker_open_keys(w, zmq, port, name, NULL);
}

static int set_keys(void *socket, const struct fake_keys *k)
{
    if (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, k->coordinator, MF_KEY_SIZE) < 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, k->own.public, MF_KEY_SIZE) < 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, k->own.secret, MF_KEY_SIZE) < 0)
        return -errno;
    if (k->routing_id && zmq_setsockopt(socket, ZMQ_ROUTING_ID, k->routing_id, strlen(k->routing_id)) < 0)
        return -errno;
    return 0;
}

int fake_worker_open_keys(struct fake_worker *w, void *zmq, int port, const char *name,
                          const struct fake_keys *keys)
{
    char endpoint[64];
    int linger = 0, queue = 0;
    *w = (struct fake_worker){.n_variants = 4,
                              .class = "gfx942/304",
                              .revision = "r1",
                              .model = "m",
                              .gap_us = 0.5,
                              .flops = 1e6,
                              .bytes = 1e5};
    mf_format(w->name, sizeof(w->name), "%s", name);
    mf_format(w->instance, sizeof(w->instance), "i%" PRIu64, mf_now_ns());
    mf_format(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%d", port);
    w->socket = zmq_socket(zmq, ZMQ_DEALER);
    if (!w->socket)
        return -errno;
    (void)zmq_setsockopt(w->socket, ZMQ_LINGER, &linger, sizeof(linger));
    (void)zmq_setsockopt(w->socket, ZMQ_SNDHWM, &queue, sizeof(queue));
    (void)zmq_setsockopt(w->socket, ZMQ_RCVHWM, &queue, sizeof(queue));
    int r = keys ? set_keys(w->socket, keys) : 0;
    return r < 0 ? r : zmq_connect(w->socket, endpoint) < 0 ? -errno : 0;
}

void fake_worker_close(struct fake_worker *w)
{
    if (w->socket)
        (void)zmq_close(w->socket);
    w->socket = NULL;
}

static int send_body(struct fake_worker *w, enum mf_message type, const char *body, size_t len)
{
    uint8_t header[MF_WIRE_HEADER_SIZE];
    mf_wire_encode(&(struct mf_wire_header){.type = type, .sequence = ++w->sequence}, header);
    if (zmq_send(w->socket, header, sizeof(header), ZMQ_SNDMORE) < 0 || zmq_send(w->socket, body, len, 0) < 0)
        return -errno;
    return 0;
}

int fake_worker_send(struct fake_worker *w, enum mf_message type, const char *format, ...)
{
    struct mf_buf b;
    va_list args;
    mf_buf_init(&b, MF_WIRE_BODY_MAX);
    va_start(args, format);
    int r = mf_buf_addv(&b, format, args);
    va_end(args);
    if (r == 0)
        r = send_body(w, type, b.data, b.len);
    mf_buf_release(&b);
    return r;
}

int fake_worker_hello(struct fake_worker *w, const char *running)
{
    /* A simulated device is fast enough for every time, because times do not depend on the shape */
    const struct {
        double peak_gflops, mem_read_gbs;
    } initial = {w->real ? 1.5e6 : 1e8, w->real ? 8000 : 1e6};
    char families[300];
    if (w->families)
        mf_format(families, sizeof(families), "%s", w->families);
    else
        mf_format(families, sizeof(families), "{\"fake\":\"%s\"}", w->revision);
    return fake_worker_send(
        w, MF_MESSAGE_HELLO,
        "{\"worker\":\"%s\",\"instance\":\"%s\",\"host\":\"h\",\"pid\":1,\"version\":"
        "\"0\",\"class\":\"%s\","
        "\"model\":\"%s\","
        "\"device\":{\"class\":\"%s\",\"model\":\"%s\",\"gap_us\":%.9g,\"peak_gflops\":{\"bf16\":%g},\"mem_"
        "read_gbs\":%g,\"llc\":256000000},\"revision\":\"%s\",\"families\":%s,\"refused_families\":%s,"
        "\"simulated\":%s,\"running\":%s}",
        w->name, w->instance, w->class, w->model, w->class, w->model, w->gap_us,
        w->peak_gflops > 0 ? w->peak_gflops : initial.peak_gflops,
        w->mem_read_gbs > 0 ? w->mem_read_gbs : initial.mem_read_gbs, w->revision, families,
        w->refused_families ? w->refused_families : "[]", w->real ? "false" : "true", running);
}

int fake_worker_recv(struct fake_worker *w, int timeout_ms, enum mf_message *ret_type, cJSON **ret)
{
    zmq_pollitem_t item = {.socket = w->socket, .events = ZMQ_POLLIN};
    struct mf_wire_header head = {0};
    int version, n = 0, more = 1;
    if (timeout_ms > 0 && zmq_poll(&item, 1, timeout_ms) <= 0)
        return 0;
    cJSON *json = NULL;
    for (; more; n++) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, w->socket, n == 0 ? ZMQ_DONTWAIT : 0) < 0)
            return 0;
        if (n == 0 && mf_wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), &head, &version) < 0)
            n = 100;
        else if (n == 1)
            json = mf_json_parse(zmq_msg_data(&frame), zmq_msg_size(&frame), MF_WIRE_BODY_MAX);
        more = zmq_msg_more(&frame);
        zmq_msg_close(&frame);
    }
    if (n != 2 || !json) {
        cJSON_Delete(json);
        return 0;
    }
    if (head.type == MF_MESSAGE_WELCOME)
        (void)mf_json_i64(json, "epoch", 1, INT64_MAX, &w->epoch);
    *ret_type = head.type;
    *ret = json;
    return 1;
}

cJSON *fake_worker_await(struct fake_worker *w, enum mf_message type, int timeout_ms)
{
    for (int64_t end = mf_now_ms() + timeout_ms; mf_now_ms() <= end;) {
        enum mf_message got;
        cJSON *json;
        if (fake_worker_recv(w, 20, &got, &json) <= 0)
            continue;
        if (got == type)
            return json;
        cJSON_Delete(json);
    }
    return NULL;
}

int fake_worker_greet(struct fake_worker *w, const char *running, int timeout_ms)
{
    int r = fake_worker_hello(w, running);
    if (r < 0)
        return r;
    cJSON *welcome = fake_worker_await(w, MF_MESSAGE_WELCOME, timeout_ms);
    r = welcome ? 0 : -ETIMEDOUT;
    cJSON_Delete(welcome);
    return r;
}

int fake_worker_ready(struct fake_worker *w)
{
    return fake_worker_send(w, MF_MESSAGE_READY, "{\"credit\":1}");
}

void fake_unit_key(const cJSON *unit, char key[FAKE_UNIT_KEY_MAX])
{
    int64_t id = 0, attempt = 0, epoch = 0;
    (void)mf_json_i64(unit, "unit", 1, INT64_MAX, &id);
    (void)mf_json_i64(unit, "attempt", 1, INT64_MAX, &attempt);
    (void)mf_json_i64(unit, "epoch", 1, INT64_MAX, &epoch);
    mf_format(key, FAKE_UNIT_KEY_MAX, "\"unit\":%" PRId64 ",\"attempt\":%" PRId64 ",\"epoch\":%" PRId64, id,
              attempt, epoch);
}

double fake_us(const char *name)
{
    return 10 + (double)(mf_hash64(name, strlen(name), MF_HASH_SEED) % 1000) / 10;
}

struct fake_step {
    const char *name, *stage, *covers, *needs, *gives;
    int block_m;
};

/* Steps of other families than "fake" have the family's name in their names. */
static void add_step(const struct fake_worker *w, struct mf_buf *b, const char *family,
                     const struct fake_step *s)
{
    bool is_fake = strcmp(family, "fake") == 0;
    (void)mf_buf_addf(
        b,
        "%s{\"name\":\"%s%s%s\",\"family\":\"%s\",\"stage\":\"%s\",\"covers\":\"%s\",\"block_m\":%d,"
        "\"ksplit\":0,\"needs\":[%s],\"gives\":[%s],\"workspace\":0,\"flops\":%g,\"bytes\":%g,"
        "\"reorder_tolerance\":0}",
        b->len ? "," : "", s->name, is_fake ? "" : "_", is_fake ? "" : family, family, s->stage, s->covers,
        s->block_m, s->needs, s->gives, w->flops, w->bytes);
}

static void add_grid(const struct fake_worker *w, const char *family, struct mf_buf *b)
{
    char name[80];
    const struct fake_step s = {
        name,
        "one",
        "sort+gather+gemm1+act+gemm2+weight+combine",
        "\"x/bf16/none/token\",\"topk/index/none/token\",\"w1/bf16/none/row\",\"w2/bf16/none/row\"",
        "\"y/bf16/none/token\"",
        0};
    for (int i = 0; i < FAKE_GRID_A * FAKE_GRID_B * FAKE_GRID_C; i++) {
        mf_format(name, sizeof(name), "grid_a%d_b%d_c%d", i % FAKE_GRID_A, i / FAKE_GRID_A % FAKE_GRID_B,
                  i / FAKE_GRID_A / FAKE_GRID_B);
        add_step(w, b, family, &s);
    }
}

static void add_steps(const struct fake_worker *w, const char *family, struct mf_buf *b)
{
    static const char *const layouts[] = {"row", "panel16"};
    char name[80], needs[200], gives[80];
    for (int block_m = 16; block_m <= 32; block_m *= 2) {
        struct fake_step s = {name, "move", "sort", "\"topk/index/none/token\"", gives, block_m};
        mf_format(name, sizeof(name), "sort_m%d", block_m);
        mf_format(gives, sizeof(gives), "\"sorted/index/none/sorted.%d\"", block_m);
        add_step(w, b, family, &s);
        for (int i = 0; i < w->n_variants; i++) {
            mf_format(name, sizeof(name), "one_m%d_%d", block_m, i);
            mf_format(needs, sizeof(needs),
                      "\"sorted/index/none/sorted.%d\",\"x/bf16/none/token\",\"w1/bf16/none/%s\"", block_m,
                      layouts[i % 2]);
            mf_format(gives, sizeof(gives), "\"h/bf16/none/sorted.%d\"", block_m);
            name[0] = 's';
            s = (struct fake_step){name, "stage1", "gather+gemm1+act", needs, gives, block_m};
            add_step(w, b, family, &s);
            name[0] = 't';
            mf_format(needs, sizeof(needs),
                      "\"sorted/index/none/sorted.%d\",\"h/bf16/none/sorted.%d\",\"w2/bf16/none/%s\"",
                      block_m, block_m, layouts[i % 2]);
            s = (struct fake_step){name,   "stage2", "gemm2+weight+combine", needs, "\"y/bf16/none/token\"",
                                   block_m};
            add_step(w, b, family, &s);
        }
    }
}

static const cJSON *items_of(const cJSON *unit)
{
    const cJSON *steps = mf_json_array(unit, "steps");
    return steps ? steps : mf_json_array(unit, "pipelines");
}

int fake_unit_results(const cJSON *unit)
{
    const cJSON *items = items_of(unit);
    return !items ? 1 : cJSON_GetArraySize(items) + (mf_json_array(unit, "pipelines") != NULL);
}

static double us_of(const struct fake_worker *w, const char *name)
{
    return w->us ? w->us(w, name) : fake_us(name);
}

static bool has_step(const cJSON *item, const char *wanted)
{
    const cJSON *step;
    const char *name = "";
    cJSON_ArrayForEach (step, mf_json_array(item, "steps")) {
        if (wanted && mf_json_text(step, "name", &name) == 0 && mf_glob(wanted, name))
            return true;
    }
    return false;
}

static double time_of(const struct fake_worker *w, const cJSON *unit, const cJSON *item)
{
    const cJSON *step;
    const char *name = "";
    double us = 0;
    if (mf_json_text(item, "name", &name) == 0)
        return us_of(w, name);
    cJSON_ArrayForEach (step, mf_json_array(item, "steps")) {
        (void)mf_json_text(step, "name", &name);
        us += us_of(w, name);
    }
    return us * (w->factor ? w->factor(w, unit, item) : 1.01);
}

static void add_samples(struct mf_buf *b, double us)
{
    for (int i = 0; i < 20; i++)
        (void)mf_buf_addf(b, "%s%.3f", i ? "," : "", us * (1 + (i - 9.5) * 1e-4));
}

/* Adds the fastest correct pipeline of a group as members of a JSON object, with a comma before each member.
 * group: -1 for all groups. */
static void add_winner(const struct fake_worker *w, struct mf_buf *b, const cJSON *unit, int64_t group)
{
    const cJSON *item, *winner = NULL;
    int64_t id = 0;
    cJSON_ArrayForEach (item, mf_json_array(unit, "pipelines")) {
        int64_t of = 0;
        (void)mf_json_i64(item, "group", 0, INT32_MAX, &of);
        if ((group >= 0 && of != group) || has_step(item, w->wrong) || has_step(item, w->crash))
            continue;
        if (!winner || time_of(w, unit, item) < time_of(w, unit, winner))
            winner = item;
    }
    if (!winner)
        return;
    (void)mf_json_i64(winner, "id", 1, INT64_MAX, &id);
    (void)mf_buf_addf(b, ",\"winner\":%" PRId64 ",\"ties\":[%" PRId64 "],\"us\":%.3f,\"mad\":%.3f", id, id,
                      time_of(w, unit, winner), w->mad > 0 ? w->mad : 0.1);
}

static void add_race(const struct fake_worker *w, struct mf_buf *b, const cJSON *unit)
{
    const cJSON *first = cJSON_GetArrayItem(mf_json_array(unit, "pipelines"), 0);
    bool grouped = !w->no_groups && cJSON_HasObjectItem(first, "group");
    (void)mf_buf_adds(b, ",\"race\":{\"rounds\":20,\"calls\":99,\"seed\":1");
    add_winner(w, b, unit, -1);
    for (int64_t k = 0; grouped && k < 4; k++) {
        (void)mf_buf_addf(b, "%s{\"group\":%" PRId64, k ? "," : ",\"groups\":[", k);
        add_winner(w, b, unit, k);
        (void)mf_buf_adds(b, k < 3 ? "}" : "}]");
    }
    (void)mf_buf_adds(b, "}");
}

int fake_worker_result(struct fake_worker *w, const cJSON *unit, int i)
{
    struct mf_buf b, steps;
    char key[FAKE_UNIT_KEY_MAX];
    int n = fake_unit_results(unit);
    const cJSON *items = items_of(unit), *item = cJSON_GetArrayItem(items, i);
    const char *status = has_step(item, w->wrong) ? "wrong" : has_step(item, w->crash) ? "crash" : "ok";
    fake_unit_key(unit, key);
    mf_buf_init(&b, MF_WIRE_BODY_MAX);
    (void)mf_buf_addf(&b, "{%s,\"seq\":%d,\"status\":\"%s\",\"reason\":\"%s\"", key, i + 1, status,
                      *status == 'o' ? "" : "planted");
    if (!items) {
        mf_buf_init(&steps, MF_WIRE_BODY_MAX);
        (w->grid ? add_grid : add_steps)(w, mf_json_object(unit, "families")->child->string, &steps);
        (void)mf_buf_addf(&b,
                          ",\"steps\":[%s],\"rejections\":[{\"family\":\"fake\",\"kernel\":\"x*\",\"rule\":"
                          "\"dtype\",\"reason\":\"no\"}]",
                          steps.data);
        mf_buf_release(&steps);
    } else if (item) {
        double us = time_of(w, unit, item);
        int64_t item_id = 0;
        (void)mf_json_i64(item, "id", 1, INT64_MAX, &item_id);
        (void)mf_buf_addf(
            &b,
            ",\"%s\":%" PRId64
            ",\"us\":%.3f,\"mad\":0.5,\"err\":0.001,\"row_err\":0.002,\"row_limit\":0.01,\"verified\":2,"
            "\"mode\":\"cold\",\"canary\":1.003,\"at_ms\":1790000000000,\"samples\":[",
            mf_json_array(unit, "pipelines") ? "pipeline" : "step", item_id, us);
        add_samples(&b, us);
        (void)mf_buf_adds(&b, "]");
    } else {
        add_race(w, &b, unit);
    }
    (void)mf_buf_adds(&b, i == n - 1 ? ",\"last\":true}" : "}");
    int r = mf_buf_error(&b);
    if (r == 0)
        r = send_body(w, MF_MESSAGE_RESULT, b.data, b.len);
    mf_buf_release(&b);
    return r;
}

int fake_worker_answer(struct fake_worker *w, const cJSON *unit)
{
    int r = 0;
    for (int i = 0; i < fake_unit_results(unit) && r == 0; i++)
        r = fake_worker_result(w, unit, i);
    return r;
}

int fake_worker_fail(struct fake_worker *w, const cJSON *unit, const char *status, const char *reason)
{
    char key[FAKE_UNIT_KEY_MAX];
    fake_unit_key(unit, key);
    return fake_worker_send(w, MF_MESSAGE_RESULT,
                            "{%s,\"seq\":1,\"status\":\"%s\",\"reason\":\"%s\",\"last\":true}", key, status,
                            reason);
}

cJSON *fake_worker_work_until(struct fake_worker *w, const char *kind, int timeout_ms)
{
    while (fake_worker_ready(w) == 0) {
        const char *is = "";
        cJSON *unit = fake_worker_await(w, MF_MESSAGE_UNIT, timeout_ms);
        (void)mf_json_text(unit, "kind", &is);
        if (!unit || strcmp(is, kind) == 0)
            return unit;
        int r = fake_worker_answer(w, unit);
        cJSON_Delete(unit);
        if (r < 0)
            break;
    }
    return NULL;
}
