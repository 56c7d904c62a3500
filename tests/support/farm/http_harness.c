#include "support/farm/http_harness.h"

#include "support/farm/farm_fixture.h"
#include "support/remove_tree.h"

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "server/api/routes.h"
#include "server/farm/access.h"
#include "server/farm/bus.h"
#include "server/farm/channel.h"
#include "server/farm/miss.h"
#include "server/http/problem.h"
#include "server/http/reader.h"
#include "server/http/request.h"
#include "server/store/store_private.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

/* --- fake farm --- */

struct mf_farm {
    struct mf_store *store;
    char last_request[512];
    char key[128], hash[80], *receipt; /* idempotency key, hash and receipt of the last submission */
};

#define WEAK __attribute__((weak))

WEAK const double mf_iteration_bucket_s[MF_ITERATION_BUCKETS] = {0.0005, 0.001, 0.002, 0.005, 0.01,
                                                                 0.02,   0.05,  0.1,   0.2,   0.5};

WEAK int mf_farm_submit(struct mf_farm *f, const struct mf_submission *s, cJSON **ret)
{
    char routing[MF_ROUTING_TEXT_MAX], first[MF_SHAPE_TEXT_MAX];
    if (*s->idempotency_key && strcmp(s->idempotency_key, f->key) == 0) {
        if (strcmp(s->body_hash, f->hash) != 0)
            return -EEXIST;
        *ret = cJSON_Parse(f->receipt);
        return 1;
    }
    mf_routing_print(&s->options.routing, routing);
    mf_shape_print(&s->shapes[0], first);
    mf_format(f->last_request, sizeof(f->last_request),
              "submit %s: %zu shapes, first %s; priority %lld topk %lld err_ratio %g cap %lld routing %s %s "
              "%s seed "
              "%lld classes %d",
              s->name, s->n_shapes, first, (long long)s->options.priority, (long long)s->options.topk,
              s->options.err_ratio, (long long)s->options.time_cap_ms, routing,
              mf_search_name(s->options.search), s->options.layout_free ? "free" : "common",
              (long long)s->options.seed, s->options.n_classes);
    size_t len = strlen(f->last_request);
    if (s->options.has_baseline)
        mf_format(f->last_request + len, sizeof(f->last_request) - len, "; known %zu", s->n_known);
    if (s->n_known > 0)
        mf_format(f->last_request + strlen(f->last_request),
                  sizeof(f->last_request) - strlen(f->last_request), ": line %lld, %s",
                  (long long)s->known[0].line, s->known[0].pipeline);
    *ret = cJSON_CreateObject();
    cJSON_AddNumberToObject(*ret, "batch", 9);
    cJSON_AddNumberToObject(*ret, "shapes", (double)s->n_shapes);
    cJSON_AddItemToObject(*ret, "errors", cJSON_Duplicate(s->errors, true));
    cJSON_AddItemToObject(*ret, "unknown_columns", cJSON_Duplicate(s->unknown_columns, true));
    (void)mf_copy(f->key, sizeof(f->key), s->idempotency_key);
    (void)mf_copy(f->hash, sizeof(f->hash), s->body_hash);
    free(f->receipt);
    f->receipt = cJSON_PrintUnformatted(*ret);
    return 0;
}

WEAK bool mf_farm_submits_later(const struct mf_farm *f, const struct mf_submission *s)
{
    (void)f;
    (void)s;
    return false;
}

WEAK int mf_farm_submit_later(struct mf_farm *f, struct mf_request *request, const struct mf_submission *s,
                              mf_submitted_fn finish)
{
    (void)f;
    (void)request;
    (void)s;
    (void)finish;
    return -ENOSYS;
}

WEAK int mf_farm_cancel(struct mf_farm *f, int64_t batch)
{
    mf_format(f->last_request, sizeof(f->last_request), "cancel %lld", (long long)batch);
    return batch == FIXTURE_BATCH_DONE ? 1 : batch <= FIXTURE_BATCH_WAITING ? 0 : -ENOENT;
}

WEAK int mf_farm_worker_revive(struct mf_farm *f, int64_t worker)
{
    mf_format(f->last_request, sizeof(f->last_request), "revive worker %lld", (long long)worker);
    return worker == 3 ? 0 : -ENOENT;
}

WEAK int mf_farm_drain(struct mf_farm *f, int64_t worker)
{
    mf_format(f->last_request, sizeof(f->last_request), "drain %lld", (long long)worker);
    return worker <= 5 ? 0 : -ENOENT;
}

WEAK int mf_farm_revive(struct mf_farm *f, int64_t kernel, const struct mf_device_class *class)
{
    char text[MF_DEVICE_CLASS_TEXT_MAX];
    mf_device_class_print(class, text);
    mf_format(f->last_request, sizeof(f->last_request), "revive %lld on %s", (long long)kernel, text);
    return kernel < 1000 ? 0 : -ENOENT;
}

WEAK int mf_farm_token_add(struct mf_farm *f, const struct mf_token_request *token_request, int64_t *ret_id,
                           char ret_text[MF_TOKEN_TEXT_MAX])
{
    static const uint8_t secret[MF_KEY_SIZE] = {1, 2, 3};
    mf_format(f->last_request, sizeof(f->last_request), "token %s %s %s", mf_role_name(token_request->role),
              token_request->name, token_request->expires_ms ? "for a time" : "for ever");
    *ret_id = 3;
    mf_access_token_print(3, secret, ret_text);
    return token_request->role == MF_ROLE_WORKER ? -ENOTSUP : 0;
}

WEAK int mf_farm_token_revoke(struct mf_farm *f, int64_t id)
{
    return mf_store_token_revoke(f->store, id, mf_wall_ms());
}

WEAK int mf_farm_key_revoke(struct mf_farm *f, int64_t id)
{
    uint8_t key[MF_KEY_SIZE];
    return mf_store_key_revoke(f->store, id, mf_wall_ms(), key);
}

WEAK int mf_farm_release_add(struct mf_farm *f, const struct mf_release *release, int64_t *ret)
{
    return mf_store_release_add(f->store, release, ret);
}

WEAK int mf_farm_channel_move(struct mf_farm *f, const struct mf_channel_move *m, struct mf_channel *ret)
{
    return mf_store_channel_move(f->store, m, ret);
}

WEAK int mf_farm_token_name(struct mf_farm *f, int64_t token, char ret[MF_RELEASE_NAME_MAX])
{
    return mf_store_token_name(f->store, token, ret);
}

WEAK int mf_farm_misses_add(struct mf_farm *f, const struct mf_miss_report *report, cJSON **ret)
{
    char first[MF_SHAPE_TEXT_MAX];
    mf_shape_print(&report->rows[0].shape, first);
    mf_format(f->last_request, sizeof(f->last_request), "misses of %s on %s: %zu rows, first %lld times %s",
              report->source, report->class.gfx, report->n_rows, (long long)report->rows[0].count, first);
    *ret = cJSON_CreateObject();
    cJSON_AddItemToObject(*ret, "errors", cJSON_Duplicate(report->errors, true));
    return 0;
}

WEAK int mf_farm_misses_submit(struct mf_farm *f, const struct mf_miss_filter *filter, int priority,
                               cJSON **ret)
{
    mf_format(f->last_request, sizeof(f->last_request), "submit misses of %s from %lld on%s, priority %d",
              filter->class ? filter->class->gfx : "any", (long long)filter->min_count,
              filter->failed ? ", failed too" : "", priority);
    *ret = cJSON_CreateArray();
    return 0;
}

WEAK void mf_farm_get_stats(const struct mf_farm *f, struct mf_farm_stats *ret)
{
    (void)f;
    *ret = (struct mf_farm_stats){.ready = true,
                                  .iterations = 3,
                                  .iteration_buckets = {1, 1, 1},
                                  .iteration_s = 0.004,
                                  .messages = 12,
                                  .results = 7};
}

/* --- harness --- */

struct http_harness {
    void *zmq, *control, *control_in, *requests, *replies, *events;
    char path[64];
    struct http_harness_options options;
    struct mf_farm farm;
    struct mf_readers *readers;
    struct mf_http *http;
    pthread_t writer;
    bool stop; /* tells the writer thread to stop */
};

static void publish(struct http_harness *h, char *frames[4])
{
    struct mf_store *s = h->farm.store;
    int64_t batch = strtoll(frames[0], NULL, 10);
    ck_assert_int_ge(mf_store_begin(s), 0);
    if (*frames[3])
        ck_assert_msg(sqlite3_exec(mf_store_db(s), frames[3], NULL, NULL, NULL) == SQLITE_OK, "%s",
                      sqlite3_errmsg(mf_store_db(s)));
    ck_assert_int_eq(mf_sql_run(s, "INSERT INTO event (batch, kind, body, at_ms) VALUES (?, ?, ?, ?)", "Itti",
                                batch, frames[1], frames[2], mf_wall_ms()),
                     1);
    int64_t id = mf_store_last_id(s);
    ck_assert_int_ge(mf_store_commit(s), 0);
    (void)mf_bus_send_event(h->events, id, batch, frames[1], frames[2]);
}

/* Stores n events of about 1 KiB, {"i":1,…} to {"i":n,…}, in one transaction, then publishes them. */
static void publish_burst(struct http_harness *h, const char *batch_text, const char *n_text)
{
    struct mf_store *s = h->farm.store;
    int64_t batch = strtoll(batch_text, NULL, 10), n = strtoll(n_text, NULL, 10), first = 0;
    char body[1200];
    for (int step = 0; step < 2; step++) {
        if (step == 0)
            ck_assert_int_ge(mf_store_begin(s), 0);
        for (int64_t i = 1; i <= n; i++) {
            mf_format(body, sizeof(body), "{\"i\":%lld,\"filler\":\"%01000d\"}", (long long)i, 0);
            if (step == 0) {
                ck_assert_int_eq(
                    mf_sql_run(s, "INSERT INTO event (batch, kind, body, at_ms) VALUES (?, 'task', ?, 0)",
                               "It", batch, body),
                    1);
                first = i == 1 ? mf_store_last_id(s) : first;
            } else {
                /* Like mf_events_publish(): events that meet a full queue may be dropped, except for the last
                 * event. */
                while (mf_bus_send_event(h->events, first + i - 1, batch, "task", body) == -EAGAIN && i == n)
                    (void)zmq_poll(&(zmq_pollitem_t){h->events, 0, ZMQ_POLLOUT, 0}, 1, 10);
            }
        }
        if (step == 0)
            ck_assert_int_ge(mf_store_commit(s), 0);
    }
}

static void take_control(struct http_harness *h)
{
    char *frames[4] = {NULL};
    for (int i = 0; i < 4; i++) {
        zmq_msg_t msg;
        zmq_msg_init(&msg);
        ck_assert_int_ge(zmq_msg_recv(&msg, h->control_in, 0), 0);
        frames[i] = strndup(zmq_msg_data(&msg), zmq_msg_size(&msg));
        zmq_msg_close(&msg);
    }
    h->stop = strcmp(frames[1], "stop") == 0;
    if (strcmp(frames[1], "burst") == 0)
        publish_burst(h, frames[0], frames[2]);
    else if (!h->stop)
        publish(h, frames);
    for (int i = 0; i < 4; i++)
        free(frames[i]);
}

static void take_request(struct http_harness *h)
{
    struct mf_request *r;
    while (!h->options.no_writer && mf_bus_recv_pointer(h->requests, &r) > 0) {
        ck_assert_int_ge(mf_store_begin(h->farm.store), 0);
        if (mf_request_run(r, &h->farm) < 0)
            mf_store_rollback(h->farm.store);
        else
            ck_assert_int_ge(mf_store_commit(h->farm.store), 0);
        if (mf_bus_send_pointer(h->replies, r) < 0)
            (void)mf_request_free(r);
    }
}

static void open_sockets(struct http_harness *h)
{
    int linger = 0;
    h->requests = zmq_socket(h->zmq, ZMQ_PULL);
    h->replies = zmq_socket(h->zmq, ZMQ_PUSH);
    h->events = zmq_socket(h->zmq, ZMQ_PUB);
    ck_assert_int_eq(mf_bus_set_no_drop(h->events), 0);
    h->control_in = zmq_socket(h->zmq, ZMQ_PAIR);
    ck_assert_int_eq(zmq_bind(h->requests, MF_BUS_REQUESTS), 0);
    ck_assert_int_eq(zmq_connect(h->replies, MF_BUS_REPLIES), 0);
    ck_assert_int_eq(zmq_bind(h->events, MF_BUS_EVENTS), 0);
    ck_assert_int_eq(zmq_connect(h->control_in, "inproc://harness"), 0);
    (void)zmq_setsockopt(h->replies, ZMQ_LINGER, &linger, sizeof(linger));
    (void)zmq_setsockopt(h->events, ZMQ_LINGER, &linger, sizeof(linger));
}

static void *writer_main(void *arg)
{
    struct http_harness *h = arg;
    ck_assert_int_eq(mf_store_open(h->path, &h->farm.store), 0);
    open_sockets(h);
    zmq_pollitem_t items[] = {{h->control_in, 0, ZMQ_POLLIN, 0}, {h->requests, 0, ZMQ_POLLIN, 0}};
    while (!h->stop) {
        (void)zmq_poll(items, h->options.no_writer ? 1 : 2, -1);
        if (items[0].revents)
            take_control(h);
        else
            take_request(h);
    }
    struct mf_request *r;
    while (mf_bus_recv_pointer(h->requests, &r) > 0)
        (void)mf_request_free(r);
    void *sockets[] = {h->requests, h->replies, h->events, h->control_in};
    for (size_t i = 0; i < MF_ARRAY_LEN(sockets); i++)
        (void)zmq_close(sockets[i]);
    h->farm.store = mf_store_free(h->farm.store);
    return NULL;
}

static void fill(struct http_harness *h)
{
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    ck_assert_int_eq(mf_store_open(h->path, &s), 0);
    if (h->options.fixture)
        farm_fixture_fill(s, mf_wall_ms());
    if (h->options.second_model)
        farm_fixture_second_model(s);
    if (h->options.configs)
        farm_fixture_configs(s);
}

struct http_harness *http_harness_start(const struct http_harness_options *options)
{
    struct http_harness *h = calloc(1, sizeof(*h));
    char why[256], folder[] = "/tmp/moefarm-http-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    h->options = *options;
    mf_format(h->path, sizeof(h->path), "%s/farm.db", folder);
    fill(h);
    h->zmq = zmq_ctx_new();
    h->control = zmq_socket(h->zmq, ZMQ_PAIR);
    ck_assert_int_eq(zmq_bind(h->control, "inproc://harness"), 0);
    ck_assert_int_eq(pthread_create(&h->writer, NULL, writer_main, h), 0);
    ck_assert_int_eq(mf_readers_start(h->zmq, h->path, 2, &h->readers), 0);
    h->options.http.zmq = h->zmq;
    ck_assert_msg(mf_http_start(&h->options.http, &h->http, why, sizeof(why)) == 0, "%s", why);
    return h;
}

void http_harness_event(struct http_harness *h, int64_t batch, const char *kind, const char *body,
                        const char *sql)
{
    char number[24];
    mf_format(number, sizeof(number), "%lld", (long long)batch);
    const char *frames[] = {number, kind, body, sql ? sql : ""};
    for (int i = 0; i < 4; i++)
        ck_assert_int_ge(zmq_send(h->control, frames[i], strlen(frames[i]), i < 3 ? ZMQ_SNDMORE : 0), 0);
}

int http_harness_port(const struct http_harness *h)
{
    return mf_http_port(h->http);
}

const char *http_harness_last_request(const struct http_harness *h)
{
    return h->farm.last_request;
}

void http_harness_stop(struct http_harness *h)
{
    h->http = mf_http_stop(h->http, h->options.no_writer ? 50 : 2000);
    h->readers = mf_readers_stop(h->readers);
    http_harness_event(h, 0, "stop", "", NULL);
    (void)pthread_join(h->writer, NULL);
    (void)zmq_close(h->control);
    (void)zmq_ctx_term(h->zmq);
    free(h->farm.receipt);
    *strrchr(h->path, '/') = '\0';
    ck_assert_int_eq(remove_tree(h->path), 0);
    free(h);
}
