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

/* With the writing thread at once, in messages and in bytes of memory. A message is let through while there is room for any of
 * it, so the bytes may be passed by one. */
#define AWAY_MAX       1024
#define AWAY_BYTES_MAX (64u << 20)
#define A_TURN         64  /* messages between two looks at what is to be sent */
#define RETRY_MS       100 /* when there was no memory for another */

struct mf_mailroom {
    void *router, *inside, *writer; /* inside and writer: the two ends between the threads */
    pthread_t thread;
    bool runs;
    uint64_t sequence;
    size_t n_away, bytes_away;
    struct mf_mail *spare; /* for the next message: made before that is received, so that none is lost */
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

/* ---- in ---- */

/* Drops the frames of a message that are left. */
static void drop_rest(void *router, bool more)
{
    while (more) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        int n = zmq_msg_recv(&frame, router, ZMQ_DONTWAIT);
        more = n >= 0 && zmq_msg_more(&frame);
        zmq_msg_close(&frame);
    }
}

/* 1: a frame of at most cap bytes was copied; 0: there is none; -EBADMSG: larger. */
static int recv_small(void *router, void *data, size_t cap, size_t *ret_len, bool *ret_more)
{
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    int r = 1;
    if (zmq_msg_recv(&frame, router, ZMQ_DONTWAIT) < 0) {
        r = errno == EAGAIN || errno == EINTR ? 0 : -errno;
    } else {
        *ret_more = zmq_msg_more(&frame);
        *ret_len = zmq_msg_size(&frame);
        if (*ret_len > cap)
            r = -EBADMSG;
        else
            memcpy(data, zmq_msg_data(&frame), *ret_len);
    }
    zmq_msg_close(&frame);
    return r;
}

/* What mail of that text takes: JSON has no more values than signs that begin one or end the one before, and "1," is two bytes
 * of text and a node. */
static size_t weigh(const char *text, size_t len)
{
    size_t n_values = 1;
    for (size_t i = 0; i < len; i++)
        n_values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return len + n_values * sizeof(cJSON);
}

/* The last frame: the body, and what libzmq knows of who sent it. */
static int recv_body(void *router, struct mf_mail *mail)
{
    zmq_msg_t body;
    zmq_msg_init(&body);
    int r = zmq_msg_recv(&body, router, ZMQ_DONTWAIT) < 0 ? -EBADMSG : 0;
    bool more = r == 0 && zmq_msg_more(&body);
    const char *user = r == 0 && !more ? zmq_msg_gets(&body, "User-Id") : NULL;
    if (more || (user && mf_copy(mail->peer.user, sizeof(mail->peer.user), user) < 0))
        r = -EBADMSG;
    if (r == 0) {
        mail->body_len = zmq_msg_size(&body);
        mail->json = mf_json_parse(zmq_msg_data(&body), mail->body_len, MF_WIRE_BODY_MAX);
        if (!mail->json && errno == ENOMEM)
            r = -ENOBUFS;
        mail->weight = mail->json ? weigh(zmq_msg_data(&body), mail->body_len) : 0;
    }
    zmq_msg_close(&body);
    drop_rest(router, more);
    return r;
}

/* What comes behind the routing id. 0, or why it is none of ours. */
static int recv_rest(void *router, bool more, struct mf_mail *mail)
{
    uint8_t bytes[MF_WIRE_HEADER_SIZE];
    struct mf_wire_header header = {0};
    size_t len = 0;
    int r = more && recv_small(router, bytes, sizeof(bytes), &len, &more) > 0
                ? mf_wire_decode(bytes, len, &header, &mail->version)
                : -EBADMSG;
    if (r == 0 && more)
        r = recv_body(router, mail);
    else
        drop_rest(router, more);
    mail->type = header.type;
    mail->sequence = header.sequence;
    return r == 0 && !more ? -EBADMSG : r;
}

/* 1: a message, or what is none (mail->error); 0: none waits. */
static int recv_mail(void *router, struct mf_mail *mail)
{
    size_t len = 0;
    bool more = false;
    int r = recv_small(router, mail->peer.id, sizeof(mail->peer.id), &len, &more);
    if (r <= 0)
        return r;
    mail->peer.len = (uint8_t)len;
    mail->error = recv_rest(router, more, mail);
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
    return m->n_away < AWAY_MAX && m->bytes_away < AWAY_BYTES_MAX && has_spare(m);
}

static int give_spare(struct mf_mailroom *m)
{
    size_t weight = m->spare->weight;
    int r = mf_bus_give(m->inside, m->spare);
    if (r < 0)
        return r;
    m->spare = NULL;
    m->n_away++;
    m->bytes_away += weight;
    return 1;
}

static int take_in(struct mf_mailroom *m)
{
    int r = 1;
    for (int n = 0; r > 0 && n < A_TURN && has_room(m); n++) {
        r = recv_mail(m->router, m->spare);
        if (r > 0)
            r = give_spare(m);
    }
    return r;
}

/* ---- out ---- */

static void send_posts(struct mf_mailroom *m, const struct mf_parcel *p)
{
    for (size_t i = 0; i < p->n_posts; i++) {
        const struct mf_post *post = &p->posts[i];
        uint8_t header[MF_WIRE_HEADER_SIZE];
        mf_wire_encode(&(struct mf_wire_header){.type = post->type, .sequence = ++m->sequence}, header);
        /* With ROUTER_MANDATORY the first frame fails when the peer is gone or full; then none is sent. */
        if (zmq_send(m->router, post->to.id, post->to.len, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
            continue;
        (void)zmq_send(m->router, header, sizeof(header), ZMQ_DONTWAIT | ZMQ_SNDMORE);
        (void)zmq_send(m->router, p->bodies.data + post->at, post->len, ZMQ_DONTWAIT);
    }
}

static void take_back(struct mf_mailroom *m, struct mf_mail *done)
{
    for (const struct mf_mail *mail = done; mail; mail = mail->next) {
        m->n_away--;
        m->bytes_away -= mail->weight;
    }
    mf_mail_free(done);
}

static void parcel_free(struct mf_parcel *p)
{
    free(p->posts);
    mf_buf_release(&p->bodies);
    free(p);
}

/* 1: sent one; 0: none waits; -ECANCELED: that was the last. */
static int take_out(struct mf_mailroom *m)
{
    struct mf_parcel *p;
    int r = mf_bus_take(m->inside, &p);
    if (r <= 0)
        return r;
    send_posts(m, p);
    take_back(m, p->done);
    if (p->stop)
        r = -ECANCELED;
    parcel_free(p);
    return r;
}

/* ---- the thread ---- */

/* What is to be sent goes before what comes in: it makes room. */
static int turn(struct mf_mailroom *m)
{
    bool room = has_room(m);
    zmq_pollitem_t items[] = {{.socket = m->inside, .events = ZMQ_POLLIN},
                              {.socket = m->router, .events = ZMQ_POLLIN}};
    if (zmq_poll(items, room ? 2 : 1, room ? -1 : RETRY_MS) < 0)
        return errno == EINTR ? 0 : -errno;
    int r = items[0].revents ? 1 : 0;
    while (r > 0)
        r = take_out(m);
    return r == 0 && items[1].revents ? take_in(m) : r;
}

static void *thread_main(void *arg)
{
    struct mf_mailroom *m = arg;
    int r;
    do
        r = turn(m);
    while (r >= 0);
    if (r == -ECANCELED)
        return NULL;
    /* The writing thread hears of it as of mail, and ends */
    log_err(r, "speak with workers");
    if (has_spare(m)) {
        m->spare->error = r;
        (void)give_spare(m);
    }
    return NULL;
}

/* A pipe without a ceiling of its own: mail has one above, and a turn gives one parcel. */
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

int mf_mailroom_new(void *zmq, void *router, struct mf_mailroom **ret)
{
    _cleanup_(mf_mailroom_freep) struct mf_mailroom *m = calloc(1, sizeof(*m));
    if (!m) {
        (void)zmq_close(router);
        return -ENOMEM;
    }
    m->router = router;
    int r = open_end(zmq, true, &m->inside);
    if (r == 0)
        r = open_end(zmq, false, &m->writer);
    if (r == 0)
        r = -pthread_create(&m->thread, NULL, thread_main, m);
    if (r < 0)
        return r;
    m->runs = true;
    *ret = MF_TAKE(m);
    return 0;
}

struct mf_mailroom *mf_mailroom_free(struct mf_mailroom *m)
{
    struct mf_mail *mail;
    struct mf_parcel *parcel;
    if (!m)
        return NULL;
    if (m->runs) {
        while (mf_mailroom_give(m, &(struct mf_parcel){.stop = true}) < 0)
            (void)poll(NULL, 0, RETRY_MS);
        (void)pthread_join(m->thread, NULL);
    }
    while (m->writer && mf_bus_take(m->writer, &mail) > 0)
        mf_mail_free(mail);
    while (m->inside && mf_bus_take(m->inside, &parcel) > 0)
        parcel_free(parcel);
    void *sockets[] = {m->router, m->inside, m->writer};
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
    return m->writer;
}

int mf_mailroom_give(struct mf_mailroom *m, const struct mf_parcel *p)
{
    struct mf_parcel *copy = malloc(sizeof(*copy));
    if (!copy)
        return -ENOMEM;
    *copy = *p;
    int r = mf_bus_give(m->writer, copy);
    if (r < 0)
        free(copy);
    return r;
}
