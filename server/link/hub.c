#include "server/link/hub.h"

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/text.h"
#include "server/farm/bus.h"
#include "server/link/mailroom.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

/* Maximum size of the replies of one event loop iteration, which handles at most 512 messages. A reply may be
 * a large unit. */
#define OUTBOX_MAX (256u << 20)
#define PEER_QUEUE 10000 /* maximum queued messages to a peer */
/* Maximum number of a peer's messages that wait for the mailroom: at most 64 MiB at the maximum message size.
 * Further messages stay in the peer's own queue. */
#define PEER_UNREAD 8
/* Maximum duration of a handshake; a connection without a complete handshake is then closed. */
#define HANDSHAKE_MS 10000
#define ZAP_DOMAIN   "moefarm"

struct mf_hub {
    struct mf_mailroom *mailroom;
    char endpoint[128];
    struct mf_mail *received; /* messages received after the last flush, linked by next */
    struct mf_buf outbox;
    struct mf_post *posts;
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
        {ZMQ_RCVHWM, PEER_UNREAD},
        {ZMQ_LINGER, 200},
        {ZMQ_ROUTER_MANDATORY, 1},
        /* A worker that reconnects with a self-chosen routing id takes the id over from its dead connection.
         * With keys this is off, so that no peer can take over the id of another peer. */
        {ZMQ_ROUTER_HANDOVER, !keys},
        {ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS},
        {ZMQ_TCP_KEEPALIVE, 1},
        {ZMQ_BACKLOG, 1024},
    };
    for (size_t i = 0; r == 0 && i < MF_ARRAY_LEN(ints); i++)
        r = set_int(socket, ints[i].option, ints[i].value);
    return r;
}

/* Creates and binds the ROUTER. If this fails, the caller still closes *ret unless it is NULL. */
static int bind_router(void *zmq, const char *endpoint, const struct mf_key_pair *keys, char bound[128],
                       void **ret)
{
    *ret = zmq_socket(zmq, ZMQ_ROUTER);
    if (!*ret)
        return -errno;
    int r = set_options(*ret, keys != NULL);
    if (r == 0 && keys)
        r = set_keys(*ret, keys);
    size_t len = 128;
    if (r == 0 && (zmq_bind(*ret, endpoint) < 0 || zmq_getsockopt(*ret, ZMQ_LAST_ENDPOINT, bound, &len) < 0))
        r = -errno;
    return r;
}

int mf_hub_new(void *zmq, const char *endpoint, const struct mf_key_pair *keys, struct mf_hub **ret)
{
    _cleanup_(mf_hub_freep) struct mf_hub *h = calloc(1, sizeof(*h));
    void *router = NULL;
    if (!h)
        return -ENOMEM;
    mf_buf_init(&h->outbox, OUTBOX_MAX);
    int r = bind_router(zmq, endpoint, keys, h->endpoint, &router);
    if (r == 0)
        r = mf_mailroom_new(zmq, router, &h->mailroom);
    else if (router)
        (void)zmq_close(router);
    if (r < 0)
        return r;
    *ret = MF_TAKE(h);
    return 0;
}

struct mf_hub *mf_hub_free(struct mf_hub *h)
{
    if (!h)
        return NULL;
    mf_hub_drop(h);
    mf_mailroom_free(h->mailroom);
    mf_mail_free(h->received);
    mf_buf_release(&h->outbox);
    free(h->posts);
    free(h);
    return NULL;
}

void *mf_hub_socket(const struct mf_hub *h)
{
    return mf_mailroom_socket(h->mailroom);
}

const char *mf_hub_endpoint(const struct mf_hub *h)
{
    return h->endpoint;
}

int mf_hub_recv(struct mf_hub *h, const struct mf_mail **ret)
{
    struct mf_mail *mail;
    int r = mf_bus_recv_pointer(mf_hub_socket(h), &mail);
    if (r <= 0)
        return r;
    mail->next = h->received;
    h->received = mail;
    *ret = mail;
    bool is_from_peer = mail->error == 0 || mail->error == -EBADMSG || mail->error == -EPROTONOSUPPORT ||
                        mail->error == -ENOBUFS;
    return is_from_peer ? 1 : mail->error;
}

bool mf_hub_wait(const struct mf_hub *h, uint64_t ns)
{
    struct pollfd item = {.events = POLLIN};
    const struct timespec timeout = {.tv_sec = (time_t)(ns / 1000000000u),
                                     .tv_nsec = (long)(ns % 1000000000u)};
    size_t len = sizeof(item.fd);
    if (zmq_getsockopt(mf_hub_socket(h), ZMQ_FD, &item.fd, &len) < 0)
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
    h->posts[h->n_posts++] = (struct mf_post){.to = *to, .type = type, .at = at, .len = len};
    return 0;
}

/* Passes the processed messages to the mailroom. posts: true: passes the posts too; false: discards the
 * posts. If memory runs out, the posts are lost, and the next call passes the processed messages. */
static void hand_over(struct mf_hub *h, bool posts)
{
    struct mf_parcel p = {.done = h->received};
    if (posts) {
        p.posts = h->posts;
        p.n_posts = h->n_posts;
        p.bodies = h->outbox;
    }
    if ((p.done || p.n_posts) && mf_mailroom_give(h->mailroom, &p) == 0) {
        h->received = NULL;
        if (posts) {
            h->posts = NULL;
            h->cap_posts = 0;
            mf_buf_init(&h->outbox, OUTBOX_MAX);
        }
    }
    h->n_posts = 0;
    mf_buf_clear(&h->outbox);
}

void mf_hub_flush(struct mf_hub *h)
{
    hand_over(h, true);
}

void mf_hub_drop(struct mf_hub *h)
{
    hand_over(h, false);
}
