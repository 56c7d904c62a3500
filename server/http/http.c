#include "server/http/http_private.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/secret.h"
#include "common/base/text.h"
#include "server/farm/bus.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

/* Capacity of the ring of events. A stream that falls further behind reads the table `event`. */
#define RING_EVENTS 8192
#define RING_BYTES  (2u << 20)
/* Maximum number of requests in the queue to the writer, and in the queue to the readers. */
#define BUS_HWM 1000
/* Memory per connection. If a header block does not fit, libmicrohttpd answers with 431. */
#define CONNECTION_MEMORY (32u << 10)
/* TLS 1.2 and 1.3 with ephemeral keys and authenticated ciphers only: no RSA key exchange, no CBC */
#define TLS_PRIORITIES                                                                     \
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA:-MAC-ALL:" \
    "+AEAD:-CIPHER-ALL:+AES-256-GCM:+CHACHA20-POLY1305:+AES-128-GCM"
#define STREAMS_CHECK_MS 500

static int open_socket(void *zmq, int type, const char *bind, const char *connect, void **ret)
{
    int hwm = BUS_HWM, linger = 0;
    void *s = zmq_socket(zmq, type);
    if (!s)
        return -errno;
    *ret = s;
    if (type == ZMQ_SUB) {
        hwm = RING_EVENTS;
        if (zmq_setsockopt(s, ZMQ_SUBSCRIBE, "", 0) < 0)
            return -errno;
    }
    if (zmq_setsockopt(s, ZMQ_SNDHWM, &hwm, sizeof(hwm)) < 0 ||
        zmq_setsockopt(s, ZMQ_RCVHWM, &hwm, sizeof(hwm)) < 0 ||
        zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof(linger)) < 0)
        return -errno;
    if (bind ? zmq_bind(s, bind) < 0 : zmq_connect(s, connect) < 0)
        return -errno;
    return 0;
}

static int open_bus(struct mf_http *h)
{
    void *zmq = h->options.zmq;
    int r = open_socket(zmq, ZMQ_PUSH, NULL, MF_BUS_REQUESTS, &h->requests);
    if (r == 0)
        r = open_socket(zmq, ZMQ_PUSH, MF_BUS_READS, NULL, &h->reads);
    if (r == 0)
        r = open_socket(zmq, ZMQ_PULL, MF_BUS_REPLIES, NULL, &h->replies);
    if (r == 0)
        r = open_socket(zmq, ZMQ_SUB, NULL, MF_BUS_EVENTS, &h->events_in);
    return r;
}

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/* Returns -EINVAL unless text is an IPv4 or IPv6 address. */
static int parse_address(const char *text, int port, union address *ret, socklen_t *ret_len,
                         bool *ret_loopback)
{
    memset(ret, 0, sizeof(*ret));
    if (inet_pton(AF_INET, text, &ret->v4.sin_addr) == 1) {
        ret->v4.sin_family = AF_INET;
        ret->v4.sin_port = htons((uint16_t)port);
        *ret_len = sizeof(ret->v4);
        *ret_loopback = ntohl(ret->v4.sin_addr.s_addr) >> 24 == 127;
        return 0;
    }
    if (inet_pton(AF_INET6, text, &ret->v6.sin6_addr) == 1) {
        ret->v6.sin6_family = AF_INET6;
        ret->v6.sin6_port = htons((uint16_t)port);
        *ret_len = sizeof(ret->v6);
        *ret_loopback = IN6_IS_ADDR_LOOPBACK(&ret->v6.sin6_addr);
        return 0;
    }
    return -EINVAL;
}

static int open_listener(struct mf_http *h, char *why, size_t why_cap)
{
    const char *text = h->options.address ? h->options.address : "127.0.0.1";
    union address address;
    socklen_t len;
    bool loopback = false;
    int r = parse_address(text, h->options.port, &address, &len, &loopback);
    if (r < 0) {
        mf_format(why, why_cap, "%s is not an IP address; use 127.0.0.1 or ::1, for example", text);
        return r;
    }
    if (!loopback && (!h->gate || (!h->options.certificate && !h->options.plain))) {
        mf_format(
            why, why_cap,
            "%s is not a loopback address and requires tokens and TLS: configure a certificate and its key",
            text);
        return -EPERM;
    }
    h->listen_fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1;
    if (h->listen_fd < 0 || setsockopt(h->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
        bind(h->listen_fd, &address.any, len) < 0 || listen(h->listen_fd, 128) < 0 ||
        getsockname(h->listen_fd, &address.any, &len) < 0) {
        r = -errno;
        mf_format(why, why_cap, "listen on %s port %d: %s", text, h->options.port, strerror(-r));
        return r;
    }
    h->port = ntohs(address.any.sa_family == AF_INET ? address.v4.sin_port : address.v6.sin6_port);
    return 0;
}

__attribute__((format(printf, 2, 0))) static void daemon_log(void *cls, const char *format, va_list args)
{
    char line[512];
    struct mf_http *h = cls;
    (void)vsnprintf(line, sizeof(line), format, args);
    line[strcspn(line, "\n")] = 0;
    log_debug("http: %s", line);
    if (!h->daemon && !h->start_error[0])
        (void)mf_copy(h->start_error, sizeof(h->start_error), line);
}

/* Explains why libmicrohttpd did not start. libmicrohttpd does not set errno reliably. Its first log message
 * states the cause; later messages only name the place in the code. */
static int refuse_daemon(const struct mf_http *h, char *why, size_t why_cap)
{
    mf_format(why, why_cap, "%s%s", h->tls ? "expected a PEM certificate and its PEM key: " : "",
              h->start_error[0] ? h->start_error : "libmicrohttpd failed to start");
    return -EIO;
}

static int open_daemon(struct mf_http *h, char *why, size_t why_cap)
{
    struct mf_http_options *o = &h->options;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)o->certificate},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)o->key},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)TLS_PRIORITIES},
        {MHD_OPTION_END, 0, NULL},
    };
    h->tls = o->certificate != NULL;
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    h->daemon = MHD_start_daemon(
        flags | (h->tls ? MHD_USE_TLS : 0), 0, mf_connection_admit, h, mf_exchange_handle, h,
        MHD_OPTION_EXTERNAL_LOGGER, daemon_log, h, MHD_OPTION_LISTEN_SOCKET, (MHD_socket)h->listen_fd,
        MHD_OPTION_NOTIFY_COMPLETED, mf_exchange_completed, h, MHD_OPTION_URI_LOG_CALLBACK,
        mf_connection_see_target, h, MHD_OPTION_NOTIFY_CONNECTION, mf_connection_notify, h,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->options.connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)h->options.idle_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
        MHD_OPTION_ARRAY, h->tls ? tls : tls + 3, MHD_OPTION_END);
    /* the caller owns these texts and may free them after mf_http_start returns */
    o->certificate = o->key = NULL;
    if (!h->daemon)
        return refuse_daemon(h, why, why_cap);
    h->listen_fd = -1;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info)
        return -ENOTSUP;
    h->epoll_fd = info->epoll_fd;
    return 0;
}

static void take_replies(struct mf_http *h)
{
    struct mf_request *r;
    while (mf_bus_recv_pointer(h->replies, &r) > 0)
        mf_exchange_return(h, r);
}

static void take_events(struct mf_http *h)
{
    struct mf_bus_event event;
    int r;
    while ((r = mf_bus_recv_event(h->events_in, &event)) != 0) {
        if (r == -EBADMSG)
            continue;
        if (r < 0)
            return;
        (void)mf_events_push(h->ring, &event);
        free(event.body);
    }
}

static long poll_timeout(struct mf_http *h)
{
    unsigned long long ms;
    /* MHD_get_timeout does not cover keepalive comments and connections that wait for a free slot. */
    long longest = MF_MIN(500, MF_MAX(10, h->options.keepalive_ms / 4));
    if (MHD_get_timeout(h->daemon, &ms) == MHD_YES && ms < (unsigned long long)longest)
        return (long)ms;
    return longest;
}

/* Finishes the requests in progress. All connections must be resumed before MHD_stop_daemon. */
static void wind_down(struct mf_http *h)
{
    uint64_t n;
    /* synchronises with mf_http_stop, so that stop_wait_ms is visible here */
    (void)!read(h->stop_fd, &n, sizeof(n));
    h->stopping = true;
    int64_t until = mf_now_ms() + h->stop_wait_ms;
    while (h->n_forwarded > 0 && mf_now_ms() < until) {
        zmq_pollitem_t item = {h->replies, 0, ZMQ_POLLIN, 0};
        (void)zmq_poll(&item, 1, 10);
        take_replies(h);
        (void)MHD_run(h->daemon);
    }
    for (struct mf_exchange *x = h->exchanges; x; x = x->next)
        if (x->state == MF_EXCHANGE_FORWARDED || (x->stream && x->stream->idle))
            MHD_resume_connection(x->connection);
    (void)MHD_run(h->daemon);
}

static void *http_main(void *arg)
{
    struct mf_http *h = arg;
    zmq_pollitem_t items[] = {
        {NULL, h->stop_fd, ZMQ_POLLIN, 0},
        {NULL, h->epoll_fd, ZMQ_POLLIN, 0},
        {h->replies, 0, ZMQ_POLLIN, 0},
        {h->events_in, 0, ZMQ_POLLIN, 0},
    };
    while (zmq_poll(items, (int)MF_ARRAY_LEN(items), poll_timeout(h)) >= 0 || errno == EINTR) {
        if (items[0].revents)
            break;
        take_replies(h);
        take_events(h);
        if (h->gate && mf_now_ms() - h->gate_ms >= STREAMS_CHECK_MS)
            mf_streams_check(h);
        mf_streams_wake(h, true);
        mf_connections_check(h);
        if (MHD_run(h->daemon) != MHD_YES)
            break;
    }
    wind_down(h);
    return NULL;
}

static void set_defaults(struct mf_http *h)
{
    struct mf_http_options *o = &h->options;
    o->connections = o->connections > 0 ? o->connections : 512;
    o->streams = o->streams > 0 ? o->streams : 128;
    o->idle_s = o->idle_s > 0 ? o->idle_s : 30;
    o->header_ms = o->header_ms > 0 ? o->header_ms : 10000;
    o->body_ms = o->body_ms > 0 ? o->body_ms : 30000;
    o->spare_ms = o->spare_ms > 0 ? o->spare_ms : 2000;
    o->keepalive_ms = o->keepalive_ms > 0 ? o->keepalive_ms : 15000;
}

int mf_http_start(const struct mf_http_options *options, struct mf_http **ret, char *why, size_t why_cap)
{
    struct mf_http *h = calloc(1, sizeof(*h));
    if (!h)
        return -ENOMEM;
    h->options = *options;
    h->listen_fd = h->epoll_fd = h->stop_fd = -1;
    h->counters.start_ms = mf_wall_ms();
    set_defaults(h);
    *why = 0;

    uint8_t seed[MF_KEY_SIZE];
    int r = mf_secret_make(seed);
    memcpy(&h->seed, seed, sizeof(h->seed));
    if (r == 0 && options->tokens)
        r = mf_gate_new(options->tokens, options->rate, &h->gate);
    h->options.tokens = NULL;
    if (r == 0)
        r = open_listener(h, why, why_cap);
    if (r == 0 && (h->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        r = -errno;
    if (r == 0)
        r = mf_events_new(RING_EVENTS, RING_BYTES, &h->ring);
    if (r == 0)
        r = open_bus(h);
    if (r == 0)
        r = open_daemon(h, why, why_cap);
    if (r == 0)
        r = -pthread_create(&h->thread, NULL, http_main, h);
    if (r < 0) {
        if (!*why)
            mf_format(why, why_cap, "start the HTTP thread: %s", strerror(-r));
        (void)mf_http_stop(h, 0);
        return r;
    }
    h->started = true;
    *ret = h;
    return 0;
}

int mf_http_port(const struct mf_http *h)
{
    return h->port;
}

static void close_bus(struct mf_http *h)
{
    void *sockets[] = {h->requests, h->reads, h->replies, h->events_in};
    for (size_t i = 0; i < MF_ARRAY_LEN(sockets); i++)
        if (sockets[i])
            (void)zmq_close(sockets[i]);
}

struct mf_http *mf_http_stop(struct mf_http *h, int wait_ms)
{
    if (!h)
        return NULL;
    if (h->started) {
        uint64_t one = 1;
        h->stop_wait_ms = wait_ms;
        (void)!write(h->stop_fd, &one, sizeof(one));
        (void)pthread_join(h->thread, NULL);
    }
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    /* Only exchanges whose request never came back are left */
    while (h->exchanges) {
        struct mf_exchange *x = h->exchanges;
        h->exchanges = x->next;
        if (x->stream)
            mf_stream_free(x);
        free(x);
    }
    close_bus(h);
    mf_closep(&h->listen_fd);
    mf_closep(&h->stop_fd);
    (void)mf_events_free(h->ring);
    (void)mf_gate_free(h->gate);
    free(h);
    return NULL;
}
