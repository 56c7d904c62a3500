/* Tests untrusted or faulty peers of a farm: peers with another protocol version, a second worker for a
 * device or a name, floods of messages, silent connections, and ten thousand connections. The farm must
 * refuse each of them with a reason and keep serving legitimate clients. Uses real processes, and fake peers
 * for other protocol versions. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/net/wire.h"
#include "support/farm/farm_audit.h"
#include "support/farm/http_client.h"
#include "support/mf_check.h"

#define BEAT_MS       20000 /* long enough that the coordinator does not lose its worker on a busy machine */
#define N_CONNECTIONS 10000
#define HTTP_LIMIT    512 /* limit of server/http/http.c */

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(16);

static struct farm farm;

static void start_worker(int place, const char *device, const char *name)
{
    const char *const args[] = {"--device", device, name ? "--name" : NULL, name, NULL};
    farm_start_worker(&farm, place, args);
}

static void run_batch(const char *query)
{
    int batch = farm_run(&farm, csv, query);
    farm_audit(&farm, batch, &(struct farm_keys){0});
}

/* ---- versions ---- */

static const int versions[] = {MF_WIRE_VERSION - 1, MF_WIRE_VERSION + 1};

/* Sends a HELLO of another protocol version, in which only the magic number and the version have known
 * offsets. */
static void send_other(void *socket, int version)
{
    const unsigned char header[] = {'M', 'F', (unsigned char)version, 0, 1, 2, 3};
    ck_assert_int_ge(zmq_send(socket, header, sizeof(header), ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(socket, "{}", 2, 0), 0);
}

MF_TEST(refuses_other_worker_version, .rows = MF_ARRAY_LEN(versions))
{
    char endpoint[64], expected[96], answer[512] = "";
    int wait_ms = 20000, none = 0;
    farm_start(&farm, BEAT_MS);
    start_worker(0, "sim:gfx942/304:0", NULL);
    farm_wait_workers(&farm, 1);
    void *zmq = zmq_ctx_new(), *socket = zmq_socket(zmq, ZMQ_DEALER);
    (void)zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms));
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof(none));
    (void)snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%d", farm.hub);
    ck_assert_int_eq(zmq_connect(socket, endpoint), 0);
    for (int i = 0; i < 100; i++)
        send_other(socket, versions[_i]);
    uint8_t header[MF_WIRE_HEADER_SIZE];
    struct mf_wire_header decoded;
    int version;
    int n = zmq_recv(socket, header, sizeof(header), 0);
    ck_assert_int_eq(mf_wire_decode(header, (size_t)n, &decoded, &version), 0);
    ck_assert_int_eq(decoded.type, MF_MESSAGE_REFUSE);
    ck_assert_int_gt(zmq_recv(socket, answer, sizeof(answer) - 1, 0), 0);
    ck_assert_msg(strstr(answer, "\"version\"") && strstr(answer, "speaks protocol version 1 only"), "%s",
                  answer);
    (void)snprintf(expected, sizeof(expected), "refused a worker that speaks protocol version %d",
                   versions[_i]);
    farm_wait_log(&farm, "moefarmd.log", expected);
    ck_assert_int_eq(farm_log_count(&farm, "moefarmd.log", expected), 1);
    run_batch("&classes=gfx942/304");
    (void)zmq_close(socket);
    (void)zmq_ctx_term(zmq);
}

MF_TEST(logs_other_coordinator_version, .rows = MF_ARRAY_LEN(versions))
{
    char endpoint[64], expected[96], id[64], rest[4096];
    int wait_ms = 20000, none = 0;
    size_t len = sizeof(endpoint);
    farm_make(&farm);
    void *zmq = zmq_ctx_new(), *socket = zmq_socket(zmq, ZMQ_ROUTER);
    (void)zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms));
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof(none));
    ck_assert_int_eq(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
    ck_assert_int_eq(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &len), 0);
    farm.hub = (int)strtol(strrchr(endpoint, ':') + 1, NULL, 10);
    start_worker(0, "sim:gfx942/304:0", NULL);
    /* Answers two HELLOs: the worker does not exit, repeats HELLO, and logs the reason once. */
    for (int i = 0; i < 2; i++) {
        int n = zmq_recv(socket, id, sizeof(id), 0);
        ck_assert_int_gt(n, 0);
        ck_assert_int_gt(zmq_recv(socket, rest, sizeof(rest), 0), 0);
        ck_assert_int_gt(zmq_recv(socket, rest, sizeof(rest), 0), 0);
        ck_assert_int_ge(zmq_send(socket, id, (size_t)n, ZMQ_SNDMORE), 0);
        send_other(socket, versions[_i]);
    }
    (void)snprintf(expected, sizeof(expected), "speaks protocol version %d, this worker version %d",
                   versions[_i], MF_WIRE_VERSION);
    farm_wait_log(&farm, "worker0.log", expected);
    ck_assert_int_eq(farm_log_count(&farm, "worker0.log", expected), 1);
    ck_assert_int_eq(farm_end(&farm.workers[0]), 0);
    (void)zmq_close(socket);
    (void)zmq_ctx_term(zmq);
}

/* ---- device and name conflicts ---- */

/* Two workers on one host have the same device or the same name. The second worker exits and names the first.
 */
MF_TEST(refuses_second_worker)
{
    char holder[64];
    farm_start(&farm, BEAT_MS);
    start_worker(0, "sim:gfx942/304:0", NULL);
    farm_wait_workers(&farm, 1);
    (void)snprintf(holder, sizeof(holder), "is in use by the worker with pid %ld", (long)farm.workers[0]);
    start_worker(1, "sim:gfx942/304:0", NULL);
    ck_assert_int_eq(farm_wait_end(&farm.workers[1]), 1);
    farm_wait_log(&farm, "worker1.log", holder);
    start_worker(2, "sim:gfx942/304:2", "w0");
    ck_assert_int_eq(farm_wait_end(&farm.workers[2]), 1);
    farm_wait_log(&farm, "worker2.log", "in use by another worker of this name");
    run_batch("&classes=gfx942/304");
    ck_assert_int_eq(farm_query_number(&farm, "SELECT count(*) FROM worker"), 1);
}

/* ---- floods ---- */

#define N_FLOOD 20000
/* AddressSanitizer makes parsing slow. Memory is not checked in builds with AddressSanitizer. */
#ifdef __SANITIZE_ADDRESS__
#    define N_LONGEST 100
#else
#    define N_LONGEST 1000
#endif
/* Limit of the coordinator's memory during a flood. It is more than the batches themselves use, but buffering
 * 10,000 of the small messages would take another 160 MiB. */
#define FLOOD_KIB_MAX (192 << 10)

/* Returns the peak resident memory of a process in KiB. */
static long peak_kib(pid_t pid)
{
    char path[64], line[256];
    long kib = 0;
    (void)snprintf(path, sizeof(path), "/proc/%ld/status", (long)pid);
    _cleanup_(mf_fclosep) FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof(line), f)) {
        if (strncmp(line, "VmHWM:", 6) == 0)
            kib = strtol(line + 6, NULL, 10);
    }
    ck_assert_int_gt(kib, 0);
    return kib;
}

/* Floods of meaningless messages of a peer that has not joined: 312 MiB in messages of 16 KiB, and 250 MiB in
 * long messages, which take far longer to parse than to send. A parsed message takes 32 times its length. */
static const struct {
    size_t len;
    int n;
    long most_kib;
} floods[] = {{16 << 10, N_FLOOD, FLOOD_KIB_MAX}, {256 << 10, N_LONGEST, FLOOD_KIB_MAX}};

/* During the flood, another peer sends a message above the maximum length, which ends its connection. The hub
 * reads and drops the flood as fast as it can, and the worker continues. */
MF_TEST(survives_a_flood, .rows = MF_ARRAY_LEN(floods))
{
    static char large[MF_WIRE_WORKER_BODY_MAX + 1025], flooding[256 << 10];
    uint8_t header[MF_WIRE_HEADER_SIZE];
    char endpoint[64];
    uint8_t event[6] = {0};
    int none = 0, wait_ms = FARM_DEADLINE_MS;
    farm_start(&farm, BEAT_MS);
    start_worker(0, "sim:gfx942/304:0", NULL);
    farm_wait_workers(&farm, 1);
    run_batch("&classes=gfx942/304");
    long before = peak_kib(farm.daemon);
    void *zmq = zmq_ctx_new(), *socket = zmq_socket(zmq, ZMQ_DEALER);
    void *other = zmq_socket(zmq, ZMQ_DEALER), *monitor = zmq_socket(zmq, ZMQ_PAIR);
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof(none));
    (void)zmq_setsockopt(other, ZMQ_LINGER, &none, sizeof(none));
    (void)zmq_setsockopt(socket, ZMQ_SNDTIMEO, &wait_ms, sizeof(wait_ms));
    (void)zmq_setsockopt(monitor, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms));
    ck_assert_int_eq(zmq_socket_monitor(other, "inproc://events", ZMQ_EVENT_DISCONNECTED), 0);
    ck_assert_int_eq(zmq_connect(monitor, "inproc://events"), 0);
    (void)snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%d", farm.hub);
    ck_assert_int_eq(zmq_connect(socket, endpoint), 0);
    ck_assert_int_eq(zmq_connect(other, endpoint), 0);
    flooding[0] = '[';
    for (size_t i = 1; i < floods[_i].len; i++)
        flooding[i] = i % 2 ? '1' : ',';
    flooding[floods[_i].len - 1] = ']';
    mf_wire_encode(&(struct mf_wire_header){.type = MF_MESSAGE_BEAT}, header);
    for (int i = 0; i < floods[_i].n; i++) {
        ck_assert_int_eq(zmq_send(socket, header, sizeof(header), ZMQ_SNDMORE), sizeof(header));
        ck_assert_int_eq(zmq_send(socket, flooding, floods[_i].len, 0), (int)floods[_i].len);
    }
    run_batch("&classes=gfx942/304&seed=2");
    ck_assert_int_eq(zmq_send(other, large, sizeof(large), 0), sizeof(large));
    ck_assert_int_eq(zmq_recv(monitor, event, sizeof(event), 0), sizeof(event));
    run_batch("&classes=gfx942/304&seed=3");
    ck_assert(!farm_log_has(&farm, "moefarmd.log", "is lost"));
    long more = peak_kib(farm.daemon) - before;
#ifdef __SANITIZE_ADDRESS__
    printf("not checked: %ld KiB more, which includes freed memory kept by AddressSanitizer\n", more);
#else
    printf("flood %d: %ld KiB more\n", _i, more);
    ck_assert_msg(more < floods[_i].most_kib, "the peak memory grew by %ld KiB", more);
#endif
    (void)zmq_close(monitor);
    (void)zmq_close(other);
    (void)zmq_close(socket);
    (void)zmq_ctx_term(zmq);
}

/* ---- silent connections ---- */

/* Number of bytes of the ZeroMQ greeting that a peer sends before it falls silent: a part of the greeting, or
 * all of it. */
static const unsigned char greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
static const size_t sent_bytes[] = {0, 5, 12, sizeof(greeting)};

/* The hub closes connections that do not complete the handshake. The worker is not affected. */
MF_TEST(closes_silent_connections)
{
    int fds[MF_ARRAY_LEN(sent_bytes)];
    char received[256];
    farm_start(&farm, BEAT_MS);
    start_worker(0, "sim:gfx942/304:0", NULL);
    farm_wait_workers(&farm, 1);
    for (size_t i = 0; i < MF_ARRAY_LEN(sent_bytes); i++) {
        fds[i] = http_connect(farm.hub);
        ck_assert_int_ge(fds[i], 0);
        ck_assert_int_eq(send(fds[i], greeting, sent_bytes[i], MSG_NOSIGNAL), (ssize_t)sent_bytes[i]);
    }
    run_batch("&classes=gfx942/304");
    for (size_t i = 0; i < MF_ARRAY_LEN(sent_bytes); i++) {
        ssize_t n;
        do { /* the hub sends its own greeting before it closes */
            struct pollfd p = {.fd = fds[i], .events = POLLIN};
            ck_assert_msg(poll(&p, 1, FARM_DEADLINE_MS) == 1, "the connection with %zu bytes is still open",
                          sent_bytes[i]);
            n = recv(fds[i], received, sizeof(received), 0);
        } while (n > 0);
        ck_assert_msg(n == 0 || errno == ECONNRESET, "%s", strerror(errno));
        (void)close(fds[i]);
    }
    farm_wait_workers(&farm, 1);
    ck_assert(!farm_log_has(&farm, "moefarmd.log", "is lost"));
}

/* ---- connections ---- */

static int n_descriptors(pid_t pid)
{
    char path[64];
    int n = 0;
    (void)snprintf(path, sizeof(path), "/proc/%ld/fd", (long)pid);
    DIR *folder = opendir(path);
    ck_assert_ptr_nonnull(folder);
    for (const struct dirent *entry; (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    (void)closedir(folder);
    return n;
}

/* Sends a request on an open connection. Call this regularly, because moefarmd closes a connection that is
 * idle for 30 s (server/http/http.c). */
static void check_connection(int fd)
{
    http_sends(fd, "GET /api/v1/batches HTTP/1.1\r\nHost: localhost\r\n\r\n");
    struct http_reply r = http_read(fd, 0);
    ck_assert_int_eq(r.status, 200);
    http_reply_free(&r);
}

/* Opens all connections without waiting; connections that the server does not accept stay pending. Meanwhile
 * the server must serve the connection `kept`. */
static void connect_all(int port, int *fds, int kept)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((unsigned short)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < N_CONNECTIONS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        ck_assert_msg(fds[i] >= 0, "connection %d: %s", i, strerror(errno));
        ck_assert(connect(fds[i], (struct sockaddr *)&a, sizeof(a)) == 0 || errno == EINPROGRESS);
        if (i % 500 == 0)
            check_connection(kept);
    }
}

static void close_all(int *fds)
{
    for (int i = 0; i < N_CONNECTIONS; i++)
        (void)close(fds[i]);
}

static void set_descriptors(rlim_t n)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = n < limit.rlim_max ? n : limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void stop(void)
{
    farm_stop(&farm);
}

static const struct mf_test_group optional_tests = {.timeout_s = 120, .teardown = stop, .optional = true};

/* Opens 10000 connections to the HTTP port or to the hub's port. The connection limit holds, open connections
 * are served, and all requests are served afterwards. The farm starts with the default descriptor limit of a
 * login shell. */
MF_TEST(survives_10000_connections, .rows = 2, .group = &optional_tests)
{
    static int fds[N_CONNECTIONS];
    bool http = _i == 0;
    struct rlimit limit;

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < 2 * N_CONNECTIONS) {
        mf_check_skip("needs %d open files; the hard limit is %lu (ulimit -Hn)", 2 * N_CONNECTIONS,
                      limit.rlim_max);
        return;
    }
    set_descriptors(1024);
    farm_start(&farm, BEAT_MS);
    start_worker(0, "sim:gfx942/304:0", NULL);
    set_descriptors(2 * N_CONNECTIONS);
    farm_wait_workers(&farm, 1);
    int batch = farm_submit(&farm, csv, "&classes=gfx942/304");
    int kept = http_connect(farm.http);
    ck_assert_int_ge(kept, 0);
    check_connection(kept);
    connect_all(http ? farm.http : farm.hub, fds, kept);
    for (int i = 0; i < 20; i++)
        check_connection(kept);
    if (http)
        ck_assert_int_le(n_descriptors(farm.daemon), HTTP_LIMIT + 100);
    check_connection(kept);
    (void)close(kept);
    if (!http)
        farm_wait_done(&farm, batch); /* HTTP works while the 10000 connections occupy the hub's port */
    close_all(fds);
    farm_wait_done(&farm, batch);
    farm_audit(&farm, batch, &(struct farm_keys){0});
    run_batch("&classes=gfx942/304&seed=2");
    ck_assert(!farm_log_has(&farm, "moefarmd.log", "is lost"));
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
