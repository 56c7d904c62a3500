#include "server/hub.h"

#include "common/array.h"
#include "common/buf.h"
#include "common/text.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

/* A turn's answers: at most 512 messages' worth, of which a unit may be large. */
#define OUTBOX_MAX (256u << 20)
#define PEER_QUEUE 10000
/* Of a connection until its handshake is done: who does not get through must not stay. */
#define HANDSHAKE_MS 10000
#define ZAP_DOMAIN   "moefarm"

struct post {
    struct mf_peer to;
    enum mf_message type;
    size_t at, len; /* of the body, in outbox */
};

struct mf_hub {
    void *socket;
    char endpoint[128];
    zmq_msg_t body;
    bool has_body;
    uint64_t sequence;
    struct mf_buf outbox;
    struct post *posts;
    size_t n_posts, cap_posts;
};

uint64_t mf_peer_hash(const struct mf_peer *p)
{
    uint64_t h = mf_hash64(p->user, strlen(p->user), mf_hash64(p->id, p->len, MF_HASH_SEED));
    return h ? h : 1;
}

static int set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value)) < 0 ? -errno : 0;
}

static int set_keys(void *socket, const struct mf_key_pair *keys)
{
    if (zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN)) < 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret, MF_KEY_SIZE) < 0)
        return -errno;
    return set_int(socket, ZMQ_CURVE_SERVER, 1);
}

static int set_options(void *socket, bool keys)
{
    int64_t max = MF_WIRE_BODY_MAX;
    int r = zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max, sizeof(max)) < 0 ? -errno : 0;
    const struct {
        int option, value;
    } ints[] = {
        {ZMQ_SNDHWM, PEER_QUEUE},
        {ZMQ_RCVHWM, PEER_QUEUE},
        {ZMQ_LINGER, 200},
        {ZMQ_ROUTER_MANDATORY, 1},
        /* A worker that comes back under a routing id of its own takes it over from its dead connection. With keys
         * nobody may take over what is another's. */
        {ZMQ_ROUTER_HANDOVER, !keys},
        {ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS},
        {ZMQ_TCP_KEEPALIVE, 1},
        {ZMQ_BACKLOG, 1024},
    };
    for (size_t i = 0; r == 0 && i < MF_ARRAY_LEN(ints); i++)
        r = set_int(socket, ints[i].option, ints[i].value);
    return r;
}

int mf_hub_new(void *zmq, const char *endpoint, const struct mf_key_pair *keys, struct mf_hub **ret)
{
    _cleanup_(mf_hub_freep) struct mf_hub *h = calloc(1, sizeof(*h));
    if (!h)
        return -ENOMEM;
    mf_buf_init(&h->outbox, OUTBOX_MAX);
    h->socket = zmq_socket(zmq, ZMQ_ROUTER);
    if (!h->socket)
        return -errno;
    int r = set_options(h->socket, keys != NULL);
    if (r == 0 && keys)
        r = set_keys(h->socket, keys);
    if (r < 0)
        return r;
    if (zmq_bind(h->socket, endpoint) < 0)
        return -errno;
    size_t len = sizeof(h->endpoint);
    if (zmq_getsockopt(h->socket, ZMQ_LAST_ENDPOINT, h->endpoint, &len) < 0)
        return -errno;
    *ret = MF_TAKE(h);
    return 0;
}

struct mf_hub *mf_hub_free(struct mf_hub *h)
{
    if (!h)
        return NULL;
    if (h->has_body)
        (void)zmq_msg_close(&h->body);
    if (h->socket)
        (void)zmq_close(h->socket);
    mf_buf_release(&h->outbox);
    free(h->posts);
    free(h);
    return NULL;
}

void *mf_hub_socket(const struct mf_hub *h)
{
    return h->socket;
}

const char *mf_hub_endpoint(const struct mf_hub *h)
{
    return h->endpoint;
}

/* Drops the frames of a message that are left. */
static void drop_rest(struct mf_hub *h, bool more)
{
    while (more) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        int n = zmq_msg_recv(&frame, h->socket, ZMQ_DONTWAIT);
        more = n >= 0 && zmq_msg_more(&frame);
        zmq_msg_close(&frame);
    }
}

/* 1: a frame of at most cap bytes was copied; -EBADMSG: larger. */
static int recv_small(struct mf_hub *h, void *data, size_t cap, size_t *ret_len, bool *ret_more)
{
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    int r = 1;
    if (zmq_msg_recv(&frame, h->socket, ZMQ_DONTWAIT) < 0) {
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

int mf_hub_recv(struct mf_hub *h, struct mf_mail *ret)
{
    uint8_t header[MF_WIRE_HEADER_SIZE];
    size_t len = 0;
    bool more = false;
    ret->peer.user[0] = 0;
    int r = recv_small(h, ret->peer.id, sizeof(ret->peer.id), &len, &more);
    if (r <= 0)
        return r;
    ret->peer.len = (uint8_t)len;
    if (!more)
        return -EBADMSG;
    r = recv_small(h, header, sizeof(header), &len, &more);
    if (r <= 0) {
        drop_rest(h, more);
        return -EBADMSG;
    }
    struct mf_wire_header head;
    r = mf_wire_decode(header, len, &head, &ret->version);
    if (r < 0 || !more) {
        drop_rest(h, more);
        return r < 0 ? r : -EBADMSG;
    }
    if (h->has_body)
        (void)zmq_msg_close(&h->body);
    zmq_msg_init(&h->body);
    h->has_body = true;
    if (zmq_msg_recv(&h->body, h->socket, ZMQ_DONTWAIT) < 0)
        return -EBADMSG;
    if (zmq_msg_more(&h->body)) {
        drop_rest(h, true);
        return -EBADMSG;
    }
    const char *user = zmq_msg_gets(&h->body, "User-Id");
    if (user && mf_copy(ret->peer.user, sizeof(ret->peer.user), user) < 0)
        return -EBADMSG;
    ret->type = head.type;
    ret->sequence = head.sequence;
    ret->body = zmq_msg_data(&h->body);
    ret->body_len = zmq_msg_size(&h->body);
    return 1;
}

bool mf_hub_wait(const struct mf_hub *h, uint64_t ns)
{
    struct pollfd item = {.events = POLLIN};
    const struct timespec timeout = {.tv_sec = (time_t)(ns / 1000000000u),
                                     .tv_nsec = (long)(ns % 1000000000u)};
    size_t len = sizeof(item.fd);
    if (zmq_getsockopt(h->socket, ZMQ_FD, &item.fd, &len) < 0)
        return false;
    return ppoll(&item, 1, &timeout, NULL) > 0;
}

int mf_hub_post(struct mf_hub *h, const struct mf_peer *to, enum mf_message type, const char *body)
{
    int r = mf_array_grow(&h->posts, h->n_posts, &h->cap_posts, sizeof(*h->posts));
    if (r < 0)
        return r;
    size_t at = h->outbox.len, len = strlen(body);
    r = mf_buf_add(&h->outbox, body, len);
    if (r < 0)
        return r;
    h->posts[h->n_posts++] = (struct post){.to = *to, .type = type, .at = at, .len = len};
    return 0;
}

void mf_hub_flush(struct mf_hub *h)
{
    for (size_t i = 0; i < h->n_posts; i++) {
        const struct post *p = &h->posts[i];
        uint8_t header[MF_WIRE_HEADER_SIZE];
        mf_wire_encode(&(struct mf_wire_header){.type = p->type, .sequence = ++h->sequence}, header);
        /* With ROUTER_MANDATORY the first frame fails when the peer is gone or full; then none is sent. */
        if (zmq_send(h->socket, p->to.id, p->to.len, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
            continue;
        (void)zmq_send(h->socket, header, sizeof(header), ZMQ_DONTWAIT | ZMQ_SNDMORE);
        (void)zmq_send(h->socket, h->outbox.data + p->at, p->len, ZMQ_DONTWAIT);
    }
    mf_hub_drop(h);
}

void mf_hub_drop(struct mf_hub *h)
{
    h->n_posts = 0;
    mf_buf_clear(&h->outbox);
}
