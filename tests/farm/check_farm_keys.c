/* Tests a real moefarmd whose hub uses CURVE keys: authentication, enrolment, revocation, and the identity of
 * workers. Each test of a refused action also checks that the action succeeds with the right key. */
#include "support/mf_check.h"
#include "support/table_columns.h"

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "support/farm/fake_worker.h"
#include "support/farm/farm_process.h"
#include "support/run_program.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <zmq.h>

#define BEAT_MS  3000
#define LIMIT_MS 30000
#define LOOK_MS  10

static const char csv[] = SHAPE_COLUMNS
    "\n4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n";

static const char *const keyed[] = {"--keys", NULL};

struct farm {
    struct farm_process process;
    void *zmq;
};

static void farm_start(struct farm *f)
{
    *f = (struct farm){.zmq = zmq_ctx_new(), .process = {.more = keyed}};
    farm_process_start(&f->process, BEAT_MS);
}

static void farm_stop(struct farm *f)
{
    (void)zmq_ctx_term(f->zmq);
    (void)farm_process_kill(&f->process, SIGKILL);
    farm_process_remove(&f->process);
}

static cJSON *call(struct farm *f, const char *method, const char *path, int status)
{
    int got = 0;
    _cleanup_(mf_freep) char *body = farm_process_http(&f->process, method, path, "text/csv", "", &got);
    ck_assert_msg(got == status, "%s %s: status %d, expected %d: %s", method, path, got, status,
                  body ? body : "");
    cJSON *json = mf_json_parse(body, strlen(body), 1u << 20);
    ck_assert_ptr_nonnull(json);
    return json;
}

static void post(struct farm *f, const char *path, int status)
{
    cJSON_Delete(call(f, "POST", path, status));
}

static int64_t number(const cJSON *json, const char *key)
{
    int64_t n = -1;
    (void)mf_json_i64(json, key, 0, INT64_C(1) << 53, &n);
    return n;
}

/* Creates an enrolment token. Returns its id, and in *ret the keys that a worker with this token connects
 * with. */
static int64_t make_token(struct farm *f, const char *more, struct fake_keys *ret)
{
    char path[128];
    const char *text = "";
    mf_format(path, sizeof(path), "/api/v1/tokens?role=worker&name=t%s", more);
    _cleanup_(cJSON_Deletep) cJSON *json = call(f, "POST", path, 201);
    uint8_t secret[MF_KEY_SIZE];
    ck_assert_int_eq(mf_json_text(json, "token", &text), 0);
    *ret = (struct fake_keys){0};
    ck_assert_int_eq(mf_enrol_token_parse(text, secret, ret->coordinator), 0);
    ck_assert_int_eq(mf_key_pair_from_secret(secret, &ret->own), 0);
    return number(json, "id");
}

static int send_enrol(struct fake_worker *w, const char *name, const struct mf_key_pair *pair)
{
    char key[MF_KEY_TEXT_MAX];
    mf_key_print(pair->public, key);
    return fake_worker_send(w, MF_MESSAGE_ENROL, "{\"worker\":\"%s\",\"key\":\"%s\"}", name, key);
}

static void assert_answer(struct fake_worker *w, enum mf_message type)
{
    _cleanup_(cJSON_Deletep) cJSON *json = fake_worker_await(w, type, LIMIT_MS);
    ck_assert_msg(json != NULL, "no %s received", mf_message_name(type));
}

static void assert_refused(struct fake_worker *w, const char *expected)
{
    const char *code = "";
    _cleanup_(cJSON_Deletep) cJSON *json = fake_worker_await(w, MF_MESSAGE_REFUSE, LIMIT_MS);
    ck_assert_msg(json != NULL, "no REFUSE with code %s received", expected);
    (void)mf_json_text(json, "code", &code);
    ck_assert_str_eq(code, expected);
}

/* Enrols a worker and returns its keys. */
static void enrol(struct farm *f, const char *name, struct fake_keys *ret)
{
    struct fake_worker w;
    struct fake_keys token;
    (void)make_token(f, "", &token);
    *ret = token;
    ck_assert_int_eq(mf_key_pair_make(&ret->own), 0);
    ck_assert_int_eq(fake_worker_open_keys(&w, f->zmq, f->process.hub, name, &token), 0);
    ck_assert_int_eq(send_enrol(&w, name, &ret->own), 0);
    assert_answer(&w, MF_MESSAGE_ENROLLED);
    fake_worker_close(&w);
}

static void join(struct farm *f, const char *name, const struct fake_keys *keys, struct fake_worker *w)
{
    ck_assert_int_eq(fake_worker_open_keys(w, f->zmq, f->process.hub, name, keys), 0);
    ck_assert_int_eq(fake_worker_hello(w, "[]"), 0);
    assert_answer(w, MF_MESSAGE_WELCOME);
}

/* Connects and waits until the handshake ends. Returns 0 if it succeeded, else the event of the socket
 * monitor. */
static int try_handshake(struct farm *f, const struct fake_keys *keys)
{
    char endpoint[64];
    const int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                       ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
    void *socket = zmq_socket(f->zmq, ZMQ_DEALER), *monitor = zmq_socket(f->zmq, ZMQ_PAIR);
    int zero = 0, limit = LIMIT_MS;
    uint16_t event = 0;
    uint8_t frame[64];
    mf_format(endpoint, sizeof(endpoint), "inproc://handshake-%p", socket);
    ck_assert_int_eq(zmq_socket_monitor(socket, endpoint, events), 0);
    ck_assert_int_eq(zmq_connect(monitor, endpoint), 0);
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
    (void)zmq_setsockopt(monitor, ZMQ_RCVTIMEO, &limit, sizeof(limit));
    if (keys) {
        (void)zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, keys->coordinator, MF_KEY_SIZE);
        (void)zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, keys->own.public, MF_KEY_SIZE);
        (void)zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->own.secret, MF_KEY_SIZE);
    }
    mf_format(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%d", f->process.hub);
    ck_assert_int_eq(zmq_connect(socket, endpoint), 0);
    ck_assert_msg(zmq_recv(monitor, frame, sizeof(frame), 0) == 6, "the handshake did not end in time");
    memcpy(&event, frame, sizeof(event));
    (void)zmq_recv(monitor, frame, sizeof(frame), 0);
    (void)zmq_socket_monitor(socket, NULL, 0);
    (void)zmq_close(monitor);
    (void)zmq_close(socket);
    return event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED ? 0 : event;
}

MF_TEST(refuses_unknown_keys)
{
    struct farm f;
    struct fake_keys known, unknown, other_server;
    farm_start(&f);
    enrol(&f, "w", &known);
    ck_assert_int_eq(try_handshake(&f, &known), 0);
    unknown = other_server = known;
    ck_assert_int_eq(mf_key_pair_make(&unknown.own), 0);
    ck_assert_int_eq(try_handshake(&f, &unknown), ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
    /* a peer that has a worker's public key but not its secret key */
    unknown = known;
    unknown.own.secret[5] ^= 1;
    ck_assert_int_ne(try_handshake(&f, &unknown), 0);
    /* a peer that expects another public key of the coordinator */
    other_server.coordinator[0] ^= 1;
    ck_assert_int_ne(try_handshake(&f, &other_server), 0);
    /* a peer without keys */
    ck_assert_int_ne(try_handshake(&f, NULL), 0);
    ck_assert_int_eq(try_handshake(&f, &known), 0);
    int status = 0;
    _cleanup_(mf_freep) char *metrics = farm_process_http(&f.process, "GET", "/metrics", "", "", &status);
    ck_assert_ptr_nonnull(strstr(metrics, "\nmoefarm_handshakes_refused_total "));
    ck_assert_ptr_null(strstr(metrics, "\nmoefarm_handshakes_refused_total 0\n"));
    farm_stop(&f);
}

MF_TEST(enrols_one_key_per_token)
{
    struct farm f;
    struct fake_worker w;
    struct fake_keys token, other_token;
    struct mf_key_pair first, second;
    farm_start(&f);
    (void)make_token(&f, "", &token);
    ck_assert_int_eq(mf_key_pair_make(&first), 0);
    ck_assert_int_eq(mf_key_pair_make(&second), 0);
    ck_assert_int_eq(fake_worker_open_keys(&w, f.zmq, f.process.hub, "w", &token), 0);
    /* a peer that connects with a token is not a registered worker */
    ck_assert_int_eq(fake_worker_hello(&w, "[]"), 0);
    assert_refused(&w, "unknown_key");
    ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_ENROL, "{\"worker\":\"a b\",\"key\":\"\"}"), 0);
    assert_refused(&w, "malformed");
    ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_ENROL, "{\"worker\":\"w\",\"key\":\"12\"}"), 0);
    assert_refused(&w, "malformed");
    /* the zero key, which belongs to no secret key */
    ck_assert_int_eq(send_enrol(&w, "w", &(struct mf_key_pair){0}), 0);
    assert_refused(&w, "malformed");
    ck_assert_int_eq(send_enrol(&w, "w", &first), 0);
    assert_answer(&w, MF_MESSAGE_ENROLLED);
    /* A worker may repeat its request if the answer was lost, but may not enrol another key or name. */
    ck_assert_int_eq(send_enrol(&w, "w", &first), 0);
    assert_answer(&w, MF_MESSAGE_ENROLLED);
    ck_assert_int_eq(send_enrol(&w, "w2", &second), 0);
    assert_refused(&w, "token_used");
    ck_assert_int_eq(send_enrol(&w, "w2", &first), 0);
    assert_refused(&w, "token_used");
    fake_worker_close(&w);

    (void)make_token(&f, "", &other_token);
    ck_assert_int_eq(fake_worker_open_keys(&w, f.zmq, f.process.hub, "w", &other_token), 0);
    ck_assert_int_eq(send_enrol(&w, "w", &second), 0);
    assert_refused(&w, "name_taken");
    ck_assert_int_eq(send_enrol(&w, "w2", &first), 0);
    assert_refused(&w, "key_known");
    ck_assert_int_eq(send_enrol(&w, "w2", &second), 0);
    assert_answer(&w, MF_MESSAGE_ENROLLED);
    fake_worker_close(&w);
    /* a registered worker cannot enrol another worker */
    struct fake_keys worker = token;
    worker.own = first;
    join(&f, "w", &worker, &w);
    ck_assert_int_eq(send_enrol(&w, "w3", &second), 0);
    assert_refused(&w, "malformed");
    fake_worker_close(&w);
    farm_stop(&f);
}

/* An expired or revoked token is refused, both on an open connection and on a new connection. */
MF_TEST(refuses_an_ended_token, .rows = 2)
{
    struct farm f;
    struct fake_worker w;
    struct fake_keys token;
    struct mf_key_pair pair;
    char path[64];
    farm_start(&f);
    int64_t id = make_token(&f, _i ? "&expires_s=1" : "", &token);
    ck_assert_int_eq(mf_key_pair_make(&pair), 0);
    if (_i == 0) {
        ck_assert_int_eq(fake_worker_open_keys(&w, f.zmq, f.process.hub, "w", &token), 0);
        ck_assert_int_eq(fake_worker_hello(&w, "[]"), 0);
        assert_refused(&w, "unknown_key"); /* this answer shows that the connection is open */
        mf_format(path, sizeof(path), "/api/v1/tokens/%" PRId64 "/revoke", id);
        post(&f, path, 200);
        post(&f, path, 404);
        ck_assert_int_eq(send_enrol(&w, "w", &pair), 0);
        assert_refused(&w, "unknown_key");
        fake_worker_close(&w);
    }
    int64_t end = mf_now_ms() + LIMIT_MS;
    while (try_handshake(&f, &token) == 0)
        ck_assert_msg(mf_now_ms() < end, "the token did not expire in time");
    ck_assert_int_eq(try_handshake(&f, &token), ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
    farm_stop(&f);
}

MF_TEST(binds_a_name_to_its_key)
{
    struct farm f;
    struct fake_worker a, b;
    struct fake_keys of_a, of_b;
    farm_start(&f);
    enrol(&f, "a", &of_a);
    enrol(&f, "b", &of_b);
    ck_assert_int_eq(fake_worker_open_keys(&a, f.zmq, f.process.hub, "b", &of_a), 0);
    ck_assert_int_eq(fake_worker_hello(&a, "[]"), 0);
    assert_refused(&a, "not_its_name");
    fake_worker_close(&a);
    /* If a peer uses another worker's routing id, it receives no messages of that worker and cannot send
     * messages in its name. */
    of_a.routing_id = of_b.routing_id = "same";
    join(&f, "b", &of_b, &b);
    ck_assert_int_eq(fake_worker_open_keys(&a, f.zmq, f.process.hub, "a", &of_a), 0);
    ck_assert_int_eq(fake_worker_send(&a, MF_MESSAGE_BYE, "{\"reason\":\"\"}"), 0);
    /* the hub processes handshakes in order, so after this handshake it has also processed the handshake of
     * `a` */
    ck_assert_int_eq(try_handshake(&f, &of_a), 0);
    ck_assert_int_eq(fake_worker_send(&b, MF_MESSAGE_BEAT, "{\"running\":[],\"busy\":{}}"), 0);
    assert_answer(&b, MF_MESSAGE_BEAT);
    enum mf_message type;
    cJSON *json = NULL;
    ck_assert_int_eq(fake_worker_recv(&a, 0, &type, &json), 0);
    fake_worker_close(&a);
    ck_assert_int_eq(fake_worker_send(&b, MF_MESSAGE_BEAT, "{\"running\":[],\"busy\":{}}"), 0);
    assert_answer(&b, MF_MESSAGE_BEAT);
    fake_worker_close(&b);
    /* If a peer reuses the routing id of a worker that has gone, it does not inherit that worker's session.
     */
    ck_assert_int_eq(fake_worker_open_keys(&a, f.zmq, f.process.hub, "a", &of_a), 0);
    int64_t end = mf_now_ms() + LIMIT_MS;
    /* wait longer each time, because a busy machine may answer late */
    for (int wait_ms = 200; mf_now_ms() < end; wait_ms *= 2) {
        ck_assert_int_eq(fake_worker_ready(&a), 0);
        if (fake_worker_recv(&a, wait_ms, &type, &json) > 0)
            break;
        fake_worker_close(&a); /* a missing answer means that the hub has not noticed yet that b has gone */
        ck_assert_int_eq(fake_worker_open_keys(&a, f.zmq, f.process.hub, "a", &of_a), 0);
    }
    const char *code = "";
    ck_assert_ptr_nonnull(json);
    ck_assert_int_eq((int)type, MF_MESSAGE_REFUSE);
    (void)mf_json_text(json, "code", &code);
    ck_assert_str_eq(code, "unknown_worker");
    cJSON_Delete(json);
    fake_worker_close(&a);
    farm_stop(&f);
}

/* Returns the worker of this name from the API, or NULL if there is no such worker. */
static cJSON *find_worker(struct farm *f, const char *name)
{
    cJSON *list = call(f, "GET", "/api/v1/workers", 200), *item, *found = NULL;
    cJSON_ArrayForEach (item, mf_json_array(list, "items")) {
        const char *text = "";
        (void)mf_json_text(item, "name", &text);
        if (strcmp(text, name) == 0)
            found = cJSON_Duplicate(item, true);
    }
    cJSON_Delete(list);
    return found;
}

MF_TEST(refuses_a_revoked_key_at_once)
{
    struct farm f;
    struct fake_worker a, b;
    struct fake_keys of_a, of_b;
    const char *state = "";
    int status = 0;
    farm_start(&f);
    enrol(&f, "a", &of_a);
    enrol(&f, "b", &of_b);
    join(&f, "a", &of_a, &a);
    ck_assert_int_eq(fake_worker_ready(&a), 0);
    _cleanup_(mf_freep) char *receipt =
        farm_process_http(&f.process, "POST", "/api/v1/batches?name=t", "text/csv", csv, &status);
    ck_assert_int_eq(status, 201);
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&a, MF_MESSAGE_UNIT, LIMIT_MS);
    ck_assert_ptr_nonnull(unit);
    post(&f, "/api/v1/keys/1/revoke", 200);
    post(&f, "/api/v1/keys/1/revoke", 404);
    /* Every message on the open connection is refused, even a result. */
    ck_assert_int_eq(fake_worker_result(&a, unit, 0), 0);
    assert_refused(&a, "unknown_key");
    ck_assert_int_eq(fake_worker_hello(&a, "[]"), 0);
    assert_refused(&a, "unknown_key");
    ck_assert_int_eq(try_handshake(&f, &of_a), ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
    _cleanup_(cJSON_Deletep) cJSON *gone = find_worker(&f, "a");
    (void)mf_json_text(gone, "state", &state);
    ck_assert_str_eq(state, "gone");
    ck_assert_int_eq(number(gone, "n_results"), 0);
    /* The unit of the revoked worker is granted to another worker. */
    join(&f, "b", &of_b, &b);
    ck_assert_int_eq(fake_worker_ready(&b), 0);
    _cleanup_(cJSON_Deletep) cJSON *again = fake_worker_await(&b, MF_MESSAGE_UNIT, LIMIT_MS);
    ck_assert_int_eq(number(again, "unit"), number(unit, "unit"));
    ck_assert_int_eq(number(again, "attempt"), number(unit, "attempt") + 1);
    /* A new key may be enrolled under the name; the old key stays revoked. */
    struct fake_keys new_a;
    enrol(&f, "a", &new_a);
    ck_assert_int_eq(try_handshake(&f, &new_a), 0);
    ck_assert_int_eq(try_handshake(&f, &of_a), ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
    fake_worker_close(&a);
    fake_worker_close(&b);
    farm_stop(&f);
}

/* Submits a batch and returns the next unit of the worker, which the caller owns. */
static cJSON *submit_and_await(struct farm *f, struct fake_worker *w, const char *path)
{
    int status = 0;
    _cleanup_(mf_freep) char *receipt =
        farm_process_http(&f->process, "POST", path, "text/csv", csv, &status);
    ck_assert_int_eq(status, 201);
    ck_assert_int_eq(fake_worker_ready(w), 0);
    cJSON *unit = fake_worker_await(w, MF_MESSAGE_UNIT, LIMIT_MS);
    ck_assert_ptr_nonnull(unit);
    return unit;
}

static const char *kind_of(const cJSON *unit)
{
    const char *kind = "";
    (void)mf_json_text(unit, "kind", &kind);
    return kind;
}

/* Tasks that begin after a key was revoked do not use the steps that its worker listed. */
MF_TEST(steps_of_a_revoked_worker_are_listed_again)
{
    struct farm f;
    struct fake_worker a, b;
    struct fake_keys of_a, of_b;
    farm_start(&f);
    enrol(&f, "a", &of_a);
    enrol(&f, "b", &of_b);
    join(&f, "a", &of_a, &a);
    _cleanup_(cJSON_Deletep) cJSON *first =
        submit_and_await(&f, &a, "/api/v1/batches?name=t&search=enumerate");
    ck_assert_str_eq(kind_of(first), "enumerate");
    ck_assert_int_eq(fake_worker_answer(&a, first), 0);
    /* while the key is valid, another task uses the list */
    _cleanup_(cJSON_Deletep) cJSON *second = submit_and_await(&f, &a, "/api/v1/batches?name=u");
    ck_assert_str_eq(kind_of(second), "probe");
    post(&f, "/api/v1/batches/2/cancel", 200);
    post(&f, "/api/v1/keys/1/revoke", 200);
    join(&f, "b", &of_b, &b);
    _cleanup_(cJSON_Deletep) cJSON *third = submit_and_await(&f, &b, "/api/v1/batches?name=v");
    ck_assert_str_eq(kind_of(third), "enumerate");
    fake_worker_close(&a);
    fake_worker_close(&b);
    farm_stop(&f);
}

/* ---- programs ---- */

static pid_t start_worker(struct farm *f, const char *name, const char *token)
{
    char coordinator[64], log[320];
    pid_t parent = getpid();
    mf_format(coordinator, sizeof(coordinator), "tcp://127.0.0.1:%d", f->process.hub);
    mf_format(log, sizeof(log), "%s/worker.log", f->process.folder);
    const char *const argv[] = {MF_BINARY_DIR "/worker/moefarm-worker",
                                "--coordinator",
                                coordinator,
                                "--device",
                                "sim:gfx942/304:0",
                                "--name",
                                name,
                                "--spool",
                                f->process.folder,
                                "--lock-dir",
                                f->process.folder,
                                token ? "--enrol" : NULL,
                                token,
                                NULL};
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (getppid() != parent || fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
            _exit(126);
        (void)execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    return pid;
}

static void end_worker(pid_t pid)
{
    (void)kill(pid, SIGTERM);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

static void await_state(struct farm *f, const char *name, const char *state)
{
    for (int64_t end = mf_now_ms() + LIMIT_MS;;) {
        const char *text = "";
        _cleanup_(cJSON_Deletep) cJSON *worker = find_worker(f, name);
        (void)mf_json_text(worker, "state", &text);
        if (strcmp(text, state) == 0)
            return;
        ck_assert_msg(mf_now_ms() < end, "worker %s is %s, expected %s", name, text, state);
        (void)poll(NULL, 0, LOOK_MS);
    }
}

static char *read_text(const struct farm *f, const char *name)
{
    static char text[1 << 16];
    char path[320];
    mf_format(path, sizeof(path), "%s/%s", f->process.folder, name);
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    text[n] = 0;
    if (file)
        (void)fclose(file);
    return text;
}

MF_TEST(enrols_a_real_worker)
{
    struct farm f;
    char url[64], token[320], key[320], public[MF_KEY_TEXT_MAX] = "";
    struct stat status;
    farm_start(&f);
    mf_format(url, sizeof(url), "http://127.0.0.1:%d", f.process.http);
    mf_format(token, sizeof(token), "%s/token", f.process.folder);
    mf_format(key, sizeof(key), "%s/w.key", f.process.folder);
    const char *const moefarm[] = {MF_BINARY_DIR "/cli/moefarm", NULL};
    struct ran made = run_program(
        moefarm, (const char *const[]){"--url", url, "token", "worker", "rack-7", "-o", token, NULL});
    ck_assert_msg(made.code == 0, "%s", made.text);
    ck_assert_int_eq(stat(token, &status), 0);
    ck_assert_int_eq((int)(status.st_mode & 0777), 0600);
    pid_t worker = start_worker(&f, "w", token);
    await_state(&f, "w", "idle");
    ck_assert_int_eq(stat(key, &status), 0);
    ck_assert_int_eq((int)(status.st_mode & 0777), 0600);
    end_worker(worker);
    /* After a restart neither program needs the token. */
    (void)farm_process_kill(&f.process, SIGTERM);
    farm_process_start(&f.process, BEAT_MS);
    worker = start_worker(&f, "w", NULL);
    await_state(&f, "w", "idle");
    struct ran keys = run_program(moefarm, (const char *const[]){"--url", url, "keys", NULL});
    ck_assert_int_eq(sscanf(read_text(&f, "w.key"), "%*s %*s %*s %64s", public), 1);
    assert_says(keys, public);
    struct ran revoked = run_program(moefarm, (const char *const[]){"--url", url, "revoke-key", "1", NULL});
    assert_says(revoked, "key 1 is revoked");
    await_state(&f, "w", "gone");
    end_worker(worker);
    /* A worker with a used token logs the reason, and so does a worker without a token. */
    char *text = read_text(&f, "token");
    text[strcspn(text, "_")] = 0; /* the secret begins after the underscore */
    ck_assert_str_eq(text, "moefarm-enrol");
    char secret[65];
    mf_format(secret, sizeof(secret), "%.64s", text + strlen(text) + 1);
    worker = start_worker(&f, "w2", token);
    int code = 0;
    ck_assert_int_eq(waitpid(worker, &code, 0), worker);
    ck_assert_int_ne(WEXITSTATUS(code), 0);
    ck_assert_ptr_nonnull(strstr(read_text(&f, "worker.log"), "the enrolment token has been used"));
    worker = start_worker(&f, "w3", NULL);
    for (int64_t end = mf_now_ms() + LIMIT_MS; !strstr(read_text(&f, "worker.log"), "--enrol");) {
        ck_assert_msg(mf_now_ms() < end, "the worker log does not mention --enrol");
        (void)poll(NULL, 0, LOOK_MS);
    }
    end_worker(worker);
    ck_assert_ptr_null(strstr(read_text(&f, "worker.log"), secret));
    farm_stop(&f);
}

/* If the hub listens beyond loopback, it requires keys by default. */
MF_TEST(requires_keys_beyond_loopback)
{
    struct farm f = {.zmq = zmq_ctx_new(), .process = {.hub_address = "0.0.0.0"}};
    struct fake_keys known;
    farm_process_start(&f.process, BEAT_MS);
    ck_assert_int_ne(try_handshake(&f, NULL), 0);
    enrol(&f, "w", &known);
    ck_assert_int_eq(try_handshake(&f, &known), 0);
    farm_stop(&f);
}

/* If the hub listens on loopback, it uses no keys by default, and enrolment tokens cannot be created. */
MF_TEST(needs_no_keys_on_loopback)
{
    struct farm f = {.zmq = zmq_ctx_new()};
    farm_process_start(&f.process, BEAT_MS);
    ck_assert_int_eq(try_handshake(&f, NULL), 0);
    post(&f, "/api/v1/tokens?role=worker&name=t", 409);
    farm_stop(&f);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
