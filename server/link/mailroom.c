#include "server/link/mailroom.h"

#include "common/base/array.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "server/farm/bus.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* Limits of the messages that the writer thread holds. The mailroom receives a message while these limits are
 * not reached, so the last message may exceed the byte limit. */
#define PENDING_MAX       1024
#define PENDING_BYTES_MAX (48u << 20)
/* Limit of a parsed message: small values take up to 32 times their length. */
#define PARSED_BYTES_MAX (16u << 20)
#define RECEIVE_MAX      64  /* maximum number of messages received between two checks for parcels */
#define RETRY_MS         100 /* interval of retries when memory is exhausted */

struct mf_mailroom {
    struct mf_front *front;
    void *router, *mailroom_end, *writer_end; /* *_end: PAIR sockets between the two threads */
    pthread_t thread;
    bool started;
    uint64_t sequence;
    size_t n_pending, bytes_pending;
    struct mf_mail *spare; /* allocated before the next message is received, so that no message is lost */
};

struct mf_mail *mf_mail_free(struct mf_mail *mail)
{
    while (mail) {
        struct mf_mail *next = mail->next;
        cJSON_Delete(mail->json);
        free(mail);
        mail = next;
    }
    return NULL;
}

/* ---- receiving ---- */

/* What was received of a message. The front gets this as credit. */
struct tally {
    size_t bytes, frames;
    int fd; /* descriptor of the connection in libzmq; -1: unknown */
};

/* Receives a frame that a peer has sent. Returns 0 or -errno; the caller closes the frame in both cases. */
static int recv_frame(void *router, zmq_msg_t *frame, struct tally *t)
{
    zmq_msg_init(frame);
    if (zmq_msg_recv(frame, router, ZMQ_DONTWAIT) < 0)
        return -errno;
    t->bytes += zmq_msg_size(frame);
    t->frames++;
    t->fd = zmq_msg_get(frame, ZMQ_SRCFD);
    return 0;
}

/* Receives and drops the remaining frames of a message. */
static void drop_rest(void *router, bool more, struct tally *t)
{
    while (more) {
        zmq_msg_t frame;
        more = recv_frame(router, &frame, t) == 0 && zmq_msg_more(&frame);
        zmq_msg_close(&frame);
    }
}

/* Returns 1 and a copy of the frame; 0 if no frame is waiting; -EBADMSG if the frame exceeds cap bytes. */
static int recv_small(void *router, void *data, size_t cap, size_t *ret_len, bool *ret_more, struct tally *t)
{
    zmq_msg_t frame;
    int r = recv_frame(router, &frame, t);
    if (r < 0) {
        r = r == -EAGAIN || r == -EINTR ? 0 : r;
    } else {
        *ret_more = zmq_msg_more(&frame);
        *ret_len = zmq_msg_size(&frame);
        r = *ret_len > cap ? -EBADMSG : 1;
        if (r > 0)
            memcpy(data, zmq_msg_data(&frame), *ret_len);
    }
    zmq_msg_close(&frame);
    return r;
}

/* Estimates an upper bound of the memory of a parsed message. Each JSON value takes one cJSON node, and each
 * value except the first follows ',', '[' or '{'. */
static size_t estimate_memory(const char *text, size_t len)
{
    size_t n_values = 1;
    for (size_t i = 0; i < len; i++)
        n_values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return len + n_values * sizeof(cJSON);
}

/* Parses the body. Returns 0, -ENOBUFS or -E2BIG. */
static int parse_body(zmq_msg_t *body, struct mf_mail *mail)
{
    mail->body_len = zmq_msg_size(body);
    size_t memory_bytes = estimate_memory(zmq_msg_data(body), mail->body_len);
    if (memory_bytes > PARSED_BYTES_MAX)
        return -E2BIG;
    mail->json = mf_json_parse(zmq_msg_data(body), mail->body_len, MF_WIRE_WORKER_BODY_MAX);
    if (!mail->json && errno == ENOMEM)
        return -ENOBUFS;
    mail->memory_bytes = mail->json ? memory_bytes : 0;
    return 0;
}

/* Receives the last frame: the body, and the User-Id that libzmq attaches to it. */
static int recv_body(void *router, struct mf_mail *mail, struct tally *t)
{
    zmq_msg_t body;
    int r = recv_frame(router, &body, t) < 0 ? -EBADMSG : 0;
    bool more = r == 0 && zmq_msg_more(&body);
    const char *user = r == 0 && !more ? zmq_msg_gets(&body, "User-Id") : NULL;
    if (more || (user && mf_copy(mail->peer.user, sizeof(mail->peer.user), user) < 0))
        r = -EBADMSG;
    if (r == 0)
        r = parse_body(&body, mail);
    zmq_msg_close(&body);
    drop_rest(router, more, t);
    return r;
}

/* Receives the frames after the routing id. Returns 0, or the value of mail->error. */
static int recv_rest(void *router, bool more, struct mf_mail *mail, struct tally *t)
{
    uint8_t bytes[MF_WIRE_HEADER_SIZE];
    struct mf_wire_header header = {0};
    size_t len = 0;
    int r = more && recv_small(router, bytes, sizeof(bytes), &len, &more, t) > 0
                ? mf_wire_decode(bytes, len, &header, &mail->version)
                : -EBADMSG;
    if (r == 0 && more)
        r = recv_body(router, mail, t);
    else
        drop_rest(router, more, t);
    mail->type = header.type;
    mail->sequence = header.sequence;
    return r == 0 && !more ? -EBADMSG : r;
}

/* Returns 1 and a message (mail->error is set if the message is invalid), or 0 if no message is waiting. */
static int recv_mail(struct mf_mailroom *m, struct mf_mail *mail)
{
    size_t len = 0;
    bool more = false;
    struct tally t = {.fd = -1};
    int r = recv_small(m->router, mail->peer.id, sizeof(mail->peer.id), &len, &more, &t);
    if (r <= 0)
        return r;
    t = (struct tally){.fd = -1}; /* the ROUTER has added the routing id */
    mail->peer.len = (uint8_t)len;
    mail->error = recv_rest(m->router, more, mail, &t);
    mail->peer.connection = mf_front_connection(m->front, t.fd);
    mf_front_credit(m->front, mail->peer.connection, t.bytes, t.frames);
    return 1;
}

static bool has_spare(struct mf_mailroom *m)
{
    if (!m->spare)
        m->spare = calloc(1, sizeof(*m->spare));
    return m->spare != NULL;
}

static bool has_room(struct mf_mailroom *m)
{
    return m->n_pending < PENDING_MAX && m->bytes_pending < PENDING_BYTES_MAX && has_spare(m);
}

static int forward_spare(struct mf_mailroom *m)
{
    size_t memory_bytes = m->spare->memory_bytes;
    int r = mf_bus_send_pointer(m->mailroom_end, m->spare);
    if (r < 0)
        return r;
    m->spare = NULL;
    m->n_pending++;
    m->bytes_pending += memory_bytes;
    return 1;
}

static int receive_messages(struct mf_mailroom *m)
{
    int r = 1;
    for (int n = 0; r > 0 && n < RECEIVE_MAX && has_room(m); n++) {
        r = recv_mail(m, m->spare);
        if (r > 0)
            r = forward_spare(m);
    }
    return r;
}

/* ---- sending ---- */

static void send_posts(struct mf_mailroom *m, const struct mf_parcel *p)
{
    for (size_t i = 0; i < p->n_posts; i++) {
        const struct mf_post *post = &p->posts[i];
        uint8_t header[MF_WIRE_HEADER_SIZE];
        mf_wire_encode(&(struct mf_wire_header){.type = post->type, .sequence = ++m->sequence}, header);
        /* With ROUTER_MANDATORY, sending the first frame fails if the peer is gone or its queue is full. */
        if (zmq_send(m->router, post->to.id, post->to.len, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
            continue;
        if (post->type == MF_MESSAGE_WELCOME)
            mf_front_trust(m->front, post->to.connection);
        (void)zmq_send(m->router, header, sizeof(header), ZMQ_DONTWAIT | ZMQ_SNDMORE);
        (void)zmq_send(m->router, p->bodies.data + post->at, post->len, ZMQ_DONTWAIT);
    }
}

static void release_mail(struct mf_mailroom *m, struct mf_mail *done)
{
    for (const struct mf_mail *mail = done; mail; mail = mail->next) {
        m->n_pending--;
        m->bytes_pending -= mail->memory_bytes;
    }
    mf_mail_free(done);
}

static void parcel_free(struct mf_parcel *p)
{
    free(p->posts);
    mf_buf_release(&p->bodies);
    free(p);
}

/* Returns 1 if a parcel was sent, 0 if no parcel is waiting, -ECANCELED after the last parcel. */
static int send_parcel(struct mf_mailroom *m)
{
    struct mf_parcel *p;
    int r = mf_bus_recv_pointer(m->mailroom_end, &p);
    if (r <= 0)
        return r;
    send_posts(m, p);
    release_mail(m, p->done);
    if (p->stop)
        r = -ECANCELED;
    parcel_free(p);
    return r;
}

/* ---- thread ---- */

/* Sends first, because a parcel returns processed messages and so makes room for new ones. */
static int run_once(struct mf_mailroom *m)
{
    bool room = has_room(m);
    zmq_pollitem_t items[] = {{.socket = m->mailroom_end, .events = ZMQ_POLLIN},
                              {.socket = m->router, .events = ZMQ_POLLIN}};
    if (zmq_poll(items, room ? 2 : 1, room ? -1 : RETRY_MS) < 0)
        return errno == EINTR ? 0 : -errno;
    int r = items[0].revents ? 1 : 0;
    while (r > 0)
        r = send_parcel(m);
    return r == 0 && items[1].revents ? receive_messages(m) : r;
}

static void *thread_main(void *arg)
{
    struct mf_mailroom *m = arg;
    int r;
    do
        r = run_once(m);
    while (r >= 0);
    if (r == -ECANCELED)
        return NULL;
    /* Pass the error to the writer thread as a message; moefarmd then exits. */
    log_err(r, "exchange messages with workers");
    if (has_spare(m)) {
        m->spare->error = r;
        (void)forward_spare(m);
    }
    return NULL;
}

/* Opens one end of the pipe. The pipe has no high-water mark, because PENDING_MAX limits the mail, and the
 * writer sends only one parcel per iteration. */
static int open_end(void *zmq, bool first, void **ret)
{
    int zero = 0;
    *ret = zmq_socket(zmq, ZMQ_PAIR);
    if (!*ret || zmq_setsockopt(*ret, ZMQ_SNDHWM, &zero, sizeof(zero)) < 0 ||
        zmq_setsockopt(*ret, ZMQ_RCVHWM, &zero, sizeof(zero)) < 0 ||
        zmq_setsockopt(*ret, ZMQ_LINGER, &zero, sizeof(zero)) < 0 ||
        (first ? zmq_bind(*ret, MF_BUS_MAIL) : zmq_connect(*ret, MF_BUS_MAIL)) < 0)
        return -errno;
    return 0;
}

int mf_mailroom_new(void *zmq, void *router, struct mf_front *front, struct mf_mailroom **ret)
{
    _cleanup_(mf_mailroom_freep) struct mf_mailroom *m = calloc(1, sizeof(*m));
    if (!m) {
        (void)zmq_close(router);
        return -ENOMEM;
    }
    m->front = front;
    m->router = router;
    int r = open_end(zmq, true, &m->mailroom_end);
    if (r == 0)
        r = open_end(zmq, false, &m->writer_end);
    if (r == 0)
        r = -pthread_create(&m->thread, NULL, thread_main, m);
    if (r < 0)
        return r;
    m->started = true;
    *ret = MF_TAKE(m);
    return 0;
}

struct mf_mailroom *mf_mailroom_free(struct mf_mailroom *m)
{
    struct mf_mail *mail;
    struct mf_parcel *parcel;
    if (!m)
        return NULL;
    if (m->started) {
        while (mf_mailroom_give(m, &(struct mf_parcel){.stop = true}) < 0)
            (void)poll(NULL, 0, RETRY_MS);
        (void)pthread_join(m->thread, NULL);
    }
    while (m->writer_end && mf_bus_recv_pointer(m->writer_end, &mail) > 0)
        mf_mail_free(mail);
    while (m->mailroom_end && mf_bus_recv_pointer(m->mailroom_end, &parcel) > 0)
        parcel_free(parcel);
    void *sockets[] = {m->router, m->mailroom_end, m->writer_end};
    for (size_t i = 0; i < MF_ARRAY_LEN(sockets); i++) {
        if (sockets[i])
            (void)zmq_close(sockets[i]);
    }
    mf_mail_free(m->spare);
    free(m);
    return NULL;
}

void *mf_mailroom_socket(const struct mf_mailroom *m)
{
    return m->writer_end;
}

int mf_mailroom_give(struct mf_mailroom *m, const struct mf_parcel *p)
{
    struct mf_parcel *copy = malloc(sizeof(*copy));
    if (!copy)
        return -ENOMEM;
    *copy = *p;
    int r = mf_bus_send_pointer(m->writer_end, copy);
    if (r < 0)
        free(copy);
    return r;
}
