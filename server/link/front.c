#include "server/link/front.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "server/link/map.h"
#include "server/link/meter.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG         1024
#define CONNECTIONS_MAX 8192
#define CONNECTIONS_MIN 64
#define FDS_RESERVED    1024         /* descriptors for the rest of moefarmd */
#define FDS_PER_PEER    3            /* the front's two and libzmq's one */
#define CHUNK           (64u << 10)  /* bytes copied at a time */
#define CHUNKS_PER_TURN 4            /* so that a fast peer does not keep the others waiting */
#define HUB_SNDBUF      (16 << 10)   /* bytes that wait in the kernel are held too, so keep them few */
#define CURVE_OVERHEAD  35           /* bytes by which CURVE lengthens a frame, rounded up */
#define RETRY_MS        100          /* interval of tick(), and of accepting after descriptors ran out */
#define CLOSE_MS        500          /* time for the last replies when the hub closes */
#define PAUSE_MIN       (256u << 10) /* a connection that holds less is never paused */
#define PAUSE_MS        5000         /* longest pause without a credit */
#define LOG_INTERVAL_MS 10000
#define CROWDED_MAX     (16u << 10) /* limit of an untrusted connection while all of them hold much */
#define FREE_MIN        (4u << 10)  /* a closed connection that holds less, such as a handshake, is free */
#define FREE_MS         1000        /* time for the mailroom to receive the last messages of a connection */

enum side { PEER, HUB };

/* The epoll keys of the listening socket and of the control socket. A connection's keys are 2 * id + side. */
enum { KEY_LISTENER, KEY_CONTROL };

struct connection {
    uint64_t id; /* from 1 */
    int fds[2];
    bool blocked[2]; /* this side takes no more bytes for now; bytes for it wait in the other side */
    bool trusted;
    bool closing;        /* the peer is closed; libzmq may still hold its messages */
    int64_t free_ms;     /* end of its charge; 0: libzmq has not closed its end */
    bool paused;         /* nothing is read from the peer, because all connections together hold much */
    int64_t credited_ms; /* time of the last credit, or of the pause if that is later */
    uint32_t watched[2]; /* events that epoll waits for */
    struct mf_meter meter;
    uint64_t held; /* cost of the bytes passed to libzmq that the mailroom has not received */
};

struct mf_front {
    char endpoint[128], name[MF_FRONT_NAME_MAX];
    struct mf_front_limits limits;
    int listener, epoll, control[2]; /* control: [0] the front's end, [1] the other thread's end */
    pthread_t thread;
    bool started, listening;
    int64_t stop_ms; /* end of the time for closing; 0: the front is not closing */
    struct mf_map connections;
    size_t connections_max, n_paused, n_closing;
    uint64_t last_id;
    uint64_t held, held_closing; /* sums over the open and over the closing connections */
    int64_t logged_ms, scanned_ms;
    uint8_t chunk[CHUNK];
};

/* A message on the control socket. connection 0: stop. */
struct control {
    uint64_t connection, cost;
    bool trust;
};

/* ---- addresses ---- */

int mf_front_make_name(char ret[MF_FRONT_NAME_MAX])
{
    uint8_t random[8];
    char hex[2 * sizeof(random) + 1];
    if (sodium_init() < 0)
        return -EIO;
    randombytes_buf(random, sizeof(random));
    mf_format(ret, MF_FRONT_NAME_MAX, "moefarm-hub-%s",
              sodium_bin2hex(hex, sizeof(hex), random, sizeof(random)));
    return 0;
}

/* Fills in an abstract address: the name, and the connection's id unless it is 0. Returns its length. */
static socklen_t abstract_address(const struct mf_front *f, uint64_t id, struct sockaddr_un *ret)
{
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    char text[sizeof(ret->sun_path) - 1];
    if (id)
        mf_format(text, sizeof(text), "%s-%" PRIu64, f->name, id);
    else
        mf_format(text, sizeof(text), "%s", f->name);
    memcpy(ret->sun_path + 1, text, strlen(text));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(text));
}

uint64_t mf_front_connection(const struct mf_front *f, int fd)
{
    struct sockaddr_un a = {.sun_family = AF_UNSPEC};
    socklen_t len = sizeof(a);
    size_t prefix = strlen(f->name);
    char digits[24] = "";
    int64_t id = 0;
    if (getpeername(fd, (struct sockaddr *)&a, &len) < 0 || a.sun_family != AF_UNIX ||
        len <= offsetof(struct sockaddr_un, sun_path) + 2 + prefix ||
        memcmp(a.sun_path + 1, f->name, prefix) != 0)
        return 0;
    size_t n = len - offsetof(struct sockaddr_un, sun_path) - 2 - prefix;
    mf_format(digits, sizeof(digits), "%.*s", (int)MF_MIN(n, sizeof(digits) - 1), a.sun_path + 2 + prefix);
    return mf_parse_i64(digits, 1, INT64_MAX, &id) < 0 ? 0 : (uint64_t)id;
}

/* Splits "tcp://HOST:PORT"; HOST may be "*" or "[IPv6]", and PORT may be "*". */
static int resolve(const char *endpoint, struct addrinfo **ret)
{
    char host[128], *end;
    const char *text = strncmp(endpoint, "tcp://", 6) == 0 ? endpoint + 6 : endpoint;
    const char *colon = strrchr(text, ':');
    if (!colon || mf_copy(host, sizeof(host), text) < 0)
        return -EINVAL;
    end = host + (colon - text);
    *end = '\0';
    bool bracketed = host[0] == '[' && end > host + 1 && end[-1] == ']';
    if (bracketed)
        end[-1] = '\0';
    const struct addrinfo hints = {.ai_family = bracketed ? AF_INET6 : AF_INET,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    int e = getaddrinfo(strcmp(host, "*") == 0 ? NULL : host + bracketed,
                        strcmp(colon + 1, "*") == 0 ? "0" : colon + 1, &hints, ret);
    return e == 0 ? 0 : e == EAI_MEMORY ? -ENOMEM : e == EAI_SYSTEM ? -errno : -EADDRNOTAVAIL;
}

static int print_address(const struct sockaddr *a, socklen_t len, char *buf, size_t cap)
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getnameinfo(a, len, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return -EINVAL;
    mf_format(buf, cap, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return 0;
}

static int open_listener(struct mf_front *f, const char *endpoint)
{
    struct addrinfo *a = NULL;
    struct sockaddr_storage bound;
    socklen_t len = sizeof(bound);
    char text[sizeof(f->endpoint) - 6];
    int r = resolve(endpoint, &a);
    if (r < 0)
        return r;
    f->listener = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (f->listener < 0 || setsockopt(f->listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) < 0 ||
        bind(f->listener, a->ai_addr, a->ai_addrlen) < 0 || listen(f->listener, BACKLOG) < 0 ||
        getsockname(f->listener, (struct sockaddr *)&bound, &len) < 0)
        r = -errno;
    freeaddrinfo(a);
    if (r == 0)
        r = print_address((struct sockaddr *)&bound, len, text, sizeof(text));
    if (r == 0)
        mf_format(f->endpoint, sizeof(f->endpoint), "tcp://%s", text);
    return r;
}

/* ---- closing connections ---- */

static void set_listening(struct mf_front *f, bool on)
{
    struct epoll_event e = {.events = on ? EPOLLIN : 0, .data.u64 = KEY_LISTENER};
    if (f->listening != on && !f->stop_ms && epoll_ctl(f->epoll, EPOLL_CTL_MOD, f->listener, &e) == 0)
        f->listening = on;
}

static void connection_free(struct connection *c)
{
    mf_closep(&c->fds[PEER]);
    mf_closep(&c->fds[HUB]);
    free(c);
}

static void discharge(struct mf_front *f, struct connection *c, uint64_t cost)
{
    *(c->closing ? &f->held_closing : &f->held) -= cost;
    c->held -= cost;
}

static void forget(struct mf_front *f, struct connection *c)
{
    (void)mf_map_remove(&f->connections, c->id);
    discharge(f, c, c->held);
    f->n_paused -= c->paused;
    f->n_closing -= c->closing;
    connection_free(c);
    set_listening(f, true);
}

/* Closes the peer. The connection stays charged until libzmq has freed what it holds. libzmq frees an
 * unfinished message before it closes its end; see finish(). */
static void drop(struct mf_front *f, struct connection *c)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 2 * c->id + HUB};
    if (c->held <= FREE_MIN || shutdown(c->fds[HUB], SHUT_WR) < 0 ||
        epoll_ctl(f->epoll, EPOLL_CTL_MOD, c->fds[HUB], &e) < 0) {
        forget(f, c);
        return;
    }
    mf_closep(&c->fds[PEER]);
    f->n_paused -= c->paused;
    f->n_closing++;
    f->held -= c->held;
    f->held_closing += c->held;
    c->paused = false;
    c->closing = true;
}

/* Discards what libzmq sends to a closing connection, until libzmq closes its end. */
static void finish(struct mf_front *f, struct connection *c)
{
    ssize_t n = c->fds[HUB] < 0 ? -1 : recv(c->fds[HUB], f->chunk, sizeof(f->chunk), MSG_DONTWAIT);
    if (c->fds[HUB] < 0 || n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    mf_closep(&c->fds[HUB]);
    c->free_ms = mf_now_ms() + FREE_MS;
}

/* Ends the charges of connections whose last messages the mailroom has received by now. */
static void forget_finished(struct mf_front *f)
{
    int64_t now_ms = mf_now_ms();
    for (size_t i = 0; i < f->connections.cap && f->n_closing > 0; i++) {
        struct connection *c = f->connections.entries[i].key ? f->connections.entries[i].value : NULL;
        if (c && c->free_ms && now_ms >= c->free_ms)
            forget(f, c);
    }
}

static void refuse(struct mf_front *f, struct connection *c, const char *why)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    char text[128] = "a closed connection";
    int64_t now_ms = mf_now_ms();
    if (f->logged_ms == 0 || now_ms - f->logged_ms >= LOG_INTERVAL_MS) {
        f->logged_ms = now_ms;
        if (getpeername(c->fds[PEER], (struct sockaddr *)&a, &len) == 0)
            (void)print_address((struct sockaddr *)&a, len, text, sizeof(text));
        log_warn("closed the worker connection of %s: %s", text, why);
    }
    drop(f, c);
}

static uint64_t limit_of(const struct mf_front *f, const struct connection *c)
{
    if (c->trusted)
        return f->limits.connection;
    bool crowded = f->held + f->held_closing > f->limits.pause;
    return crowded ? MF_MIN(f->limits.untrusted, (uint64_t)CROWDED_MAX) : f->limits.untrusted;
}

/* Closes connections while all of them together hold too much: first the untrusted connections, those that
 * hold most first. Pauses keep trusted connections below the limit unless there are very many. */
static void shed(struct mf_front *f)
{
    while (f->held > f->limits.total) {
        struct connection *worst = NULL;
        MF_MAP_EACH(&f->connections, e)
        {
            struct connection *c = e->value;
            if (c->closing)
                continue;
            if (!worst || c->trusted < worst->trusted ||
                (c->trusted == worst->trusted && c->held > worst->held))
                worst = c;
        }
        if (!worst)
            return;
        refuse(f, worst, "all connections together hold too many bytes of unreceived messages");
    }
}

/* ---- events and pauses ---- */

/* Tells epoll what the connection waits for. Returns false if it has closed the connection. */
static bool watch(struct mf_front *f, struct connection *c, int operation)
{
    for (enum side side = PEER; side <= HUB; side++) {
        bool reads = !c->blocked[!side] && !(side == PEER && c->paused);
        uint32_t events = (reads ? EPOLLIN : 0u) | (c->blocked[side] ? EPOLLOUT : 0u);
        struct epoll_event e = {.events = events, .data.u64 = 2 * c->id + side};
        if (operation == EPOLL_CTL_MOD && c->watched[side] == events)
            continue;
        c->watched[side] = events;
        if (epoll_ctl(f->epoll, operation, c->fds[side], &e) < 0) {
            drop(f, c);
            return false;
        }
    }
    return true;
}

/* Pauses the connection if it and all connections together hold much. */
static bool pause_if_full(struct mf_front *f, struct connection *c)
{
    if (f->held <= f->limits.pause || c->held <= PAUSE_MIN)
        return false;
    c->paused = true;
    c->credited_ms = mf_now_ms();
    f->n_paused++;
    return true;
}

static void resume_all(struct mf_front *f)
{
    /* watch() may close a connection, which changes the map */
    for (size_t i = 0; i < f->connections.cap && f->n_paused > 0; i++) {
        struct connection *c = f->connections.entries[i].key ? f->connections.entries[i].value : NULL;
        if (c && c->paused) {
            c->paused = false;
            f->n_paused--;
            (void)watch(f, c, EPOLL_CTL_MOD);
        }
    }
}

/* Closes paused connections of which the mailroom has received nothing for PAUSE_MS: they hold unfinished
 * messages. */
static void close_stuck(struct mf_front *f)
{
    int64_t now_ms = mf_now_ms();
    for (size_t i = 0; i < f->connections.cap && f->n_paused > 0; i++) {
        struct connection *c = f->connections.entries[i].key ? f->connections.entries[i].value : NULL;
        if (c && c->paused && now_ms - c->credited_ms > PAUSE_MS)
            refuse(f, c, "its unfinished messages block other connections");
    }
}

/* Ends pauses and charges that have lasted too long; at most once per RETRY_MS. */
static void tick(struct mf_front *f)
{
    int64_t now_ms = mf_now_ms();
    if (now_ms - f->scanned_ms < RETRY_MS)
        return;
    f->scanned_ms = now_ms;
    close_stuck(f);
    forget_finished(f);
}

/* ---- passing bytes ---- */

/* Checks the next bytes of the peer. Returns the reason why the connection must be closed, or NULL. */
static const char *check(const struct mf_front *f, const struct connection *c, size_t n)
{
    struct mf_meter meter = c->meter;
    uint64_t cost = 0;
    int r = mf_meter_read(&meter, f->chunk, n, f->limits.frame, &cost);
    if (r == -EPROTO)
        return "it does not speak ZMTP 3";
    if (r == -E2BIG)
        return "a message has too many frames";
    if (r < 0)
        return "a frame is longer than the limit of a message";
    if (c->held + cost > limit_of(f, c))
        return c->trusted ? "its unreceived messages exceed the limit of a connection"
                          : "its unreceived messages exceed the limit before WELCOME";
    return NULL;
}

static void charge(struct mf_front *f, struct connection *c, size_t n)
{
    uint64_t cost = 0;
    (void)mf_meter_read(&c->meter, f->chunk, n, f->limits.frame, &cost);
    c->held += cost;
    f->held += cost;
}

/* Passes bytes from one side to the other until one of them blocks. Returns false if it has closed the
 * connection. A byte is removed from the source only after the target has taken it, so the front needs no
 * buffer. */
static bool pass(struct mf_front *f, struct connection *c, enum side from)
{
    enum side to = from == PEER ? HUB : PEER;
    for (int i = 0; i < CHUNKS_PER_TURN; i++) {
        ssize_t n = recv(c->fds[from], f->chunk, sizeof(f->chunk), MSG_PEEK | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        const char *why = from == PEER && n > 0 ? check(f, c, (size_t)n) : NULL;
        if (why) {
            refuse(f, c, why);
            return false;
        }
        ssize_t sent = n > 0 ? send(c->fds[to], f->chunk, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) : -1;
        if (n > 0 && sent < 0 && errno == EAGAIN) {
            c->blocked[to] = true;
            return true;
        }
        if (sent <= 0 || recv(c->fds[from], f->chunk, (size_t)sent, MSG_DONTWAIT) != sent) {
            drop(f, c);
            return false;
        }
        if (from == PEER)
            charge(f, c, (size_t)sent);
        if (from == PEER && pause_if_full(f, c))
            return true;
    }
    return true;
}

static void handle_connection(struct mf_front *f, uint64_t key, uint32_t events)
{
    struct connection *c = mf_map_get(&f->connections, key / 2);
    enum side side = key % 2 ? HUB : PEER, other = side == PEER ? HUB : PEER;
    if (!c)
        return;
    if (c->closing) {
        finish(f, c);
        return;
    }
    if ((events & EPOLLOUT) && c->blocked[side]) {
        c->blocked[side] = false;
        if (!(other == PEER && c->paused) && !pass(f, c, other))
            return;
    }
    if (c->watched[side] & events & EPOLLIN) {
        if (!pass(f, c, side))
            return;
    } else if (events & (EPOLLHUP | EPOLLERR)) {
        drop(f, c);
        return;
    }
    (void)watch(f, c, EPOLL_CTL_MOD);
}

/* ---- accepting ---- */

static int connect_hub(const struct mf_front *f, uint64_t id, int *ret_fd)
{
    struct sockaddr_un own, hub;
    socklen_t own_len = abstract_address(f, id, &own), hub_len = abstract_address(f, 0, &hub);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), size = HUB_SNDBUF;
    *ret_fd = fd;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) < 0 ||
        bind(fd, (struct sockaddr *)&own, own_len) < 0 || connect(fd, (struct sockaddr *)&hub, hub_len) < 0)
        return -errno;
    return 0;
}

static int accept_one(struct mf_front *f)
{
    int fd = accept4(f->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return -errno;
    struct connection *c = calloc(1, sizeof(*c));
    if (!c) {
        (void)close(fd);
        return -ENOMEM;
    }
    *c = (struct connection){.id = ++f->last_id, .fds = {fd, -1}};
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
    int r = connect_hub(f, c->id, &c->fds[HUB]);
    if (r == 0)
        r = mf_map_put(&f->connections, c->id, c);
    if (r < 0)
        connection_free(c);
    else
        (void)watch(f, c, EPOLL_CTL_ADD);
    return r;
}

/* Accepts a few connections. If it cannot accept more for now, new connections wait in the kernel until a
 * connection ends or RETRY_MS have passed. */
static void accept_some(struct mf_front *f)
{
    for (int i = 0; i < 16; i++) {
        bool full = f->connections.n >= f->connections_max || f->held + f->held_closing > f->limits.total;
        int r = full ? -EMFILE : accept_one(f);
        if (r == -EMFILE || r == -ENFILE || r == -ENOBUFS || r == -ENOMEM || r == -EAGAIN) {
            set_listening(f, r == -EAGAIN);
            return;
        }
    }
}

/* ---- thread ---- */

static void handle_control(struct mf_front *f)
{
    struct control m;
    while (recv(f->control[0], &m, sizeof(m), MSG_DONTWAIT) == sizeof(m)) {
        if (!m.connection) {
            set_listening(f, false);
            f->stop_ms = mf_now_ms() + CLOSE_MS;
            return;
        }
        struct connection *c = mf_map_get(&f->connections, m.connection);
        if (!c)
            continue;
        uint64_t cost = MF_MIN(m.cost, c->held);
        discharge(f, c, cost);
        c->trusted |= m.trust;
        if (cost)
            c->credited_ms = mf_now_ms();
    }
    if (f->n_paused > 0 && f->held <= f->limits.pause)
        resume_all(f);
}

static bool has_ended(const struct mf_front *f)
{
    return f->stop_ms && (f->connections.n == f->n_closing || mf_now_ms() >= f->stop_ms);
}

static void *thread_main(void *arg)
{
    struct mf_front *f = arg;
    struct epoll_event events[64];
    while (!has_ended(f)) {
        bool idle = f->listening && !f->n_paused && !f->n_closing;
        int n = epoll_wait(f->epoll, events, MF_ARRAY_LEN(events), idle ? -1 : RETRY_MS);
        if (n == 0)
            set_listening(f, true);
        for (int i = 0; i < n; i++) {
            uint64_t key = events[i].data.u64;
            if (key == KEY_LISTENER)
                accept_some(f);
            else if (key == KEY_CONTROL)
                handle_control(f);
            else
                handle_connection(f, key, events[i].events);
            shed(f);
        }
        tick(f);
    }
    return NULL;
}

static int add_fd(const struct mf_front *f, int fd, uint64_t key)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = key};
    return epoll_ctl(f->epoll, EPOLL_CTL_ADD, fd, &e) < 0 ? -errno : 0;
}

static size_t connections_max(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < FDS_RESERVED)
        return CONNECTIONS_MIN;
    size_t n = (limit.rlim_cur - FDS_RESERVED) / FDS_PER_PEER;
    return MF_MIN(MF_MAX(n, (size_t)CONNECTIONS_MIN), (size_t)CONNECTIONS_MAX);
}

int mf_front_new(const char *endpoint, const char *name, const struct mf_front_limits *limits,
                 struct mf_front **ret)
{
    _cleanup_(mf_front_freep) struct mf_front *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->listener = f->control[0] = f->control[1] = -1;
    f->limits = *limits;
    f->listening = true;
    f->connections_max = connections_max();
    f->epoll = epoll_create1(EPOLL_CLOEXEC);
    int r = f->epoll < 0 ? -errno : mf_copy(f->name, sizeof(f->name), name);
    if (r == 0)
        r = open_listener(f, endpoint);
    if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, f->control) < 0)
        r = -errno;
    if (r == 0)
        r = add_fd(f, f->listener, KEY_LISTENER);
    if (r == 0)
        r = add_fd(f, f->control[0], KEY_CONTROL);
    if (r == 0)
        r = -pthread_create(&f->thread, NULL, thread_main, f);
    if (r < 0)
        return r;
    f->started = true;
    *ret = MF_TAKE(f);
    return 0;
}

/* The front never waits for the sender, so this blocks only until the front has read earlier messages. */
static void send_control(const struct mf_front *f, const struct control *m)
{
    while (send(f->control[1], m, sizeof(*m), MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

struct mf_front *mf_front_free(struct mf_front *f)
{
    if (!f)
        return NULL;
    if (f->started) {
        send_control(f, &(struct control){0});
        (void)pthread_join(f->thread, NULL);
    }
    MF_MAP_EACH(&f->connections, e)
    connection_free(e->value);
    mf_map_release(&f->connections);
    int *fds[] = {&f->listener, &f->epoll, &f->control[0], &f->control[1]};
    for (size_t i = 0; i < MF_ARRAY_LEN(fds); i++)
        mf_closep(fds[i]);
    free(f);
    return NULL;
}

const char *mf_front_endpoint(const struct mf_front *f)
{
    return f->endpoint;
}

void mf_front_credit(struct mf_front *f, uint64_t connection, size_t bytes, size_t frames)
{
    if (connection)
        send_control(f, &(struct control){.connection = connection,
                                          .cost = bytes + frames * (MF_METER_FRAME_COST + CURVE_OVERHEAD)});
}

void mf_front_trust(struct mf_front *f, uint64_t connection)
{
    if (connection)
        send_control(f, &(struct control){.connection = connection, .trust = true});
}
