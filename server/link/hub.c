#include "server/link/hub.h"

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/text.h"
#include "server/farm/bus.h"
#include "server/link/front.h"
#include "server/link/mailroom.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

/* Maximum size of the replies of one event loop iteration, which handles at most 512 messages. A reply may be
 * a large unit. */
#define OUTBOX_MAX (256u << 20)
#define PEER_QUEUE 10000 /* maximum queued messages to a peer */
/* Maximum number of a peer's messages that wait for the mailroom. Further messages stay in the peer's own
 * queue. */
#define PEER_UNREAD 4
/* Longest frame: a body, its encryption, and the rest of a handshake command. */
#define FRAME_MAX (MF_WIRE_WORKER_BODY_MAX + 1024)
/* Limits of the front. A worker that follows the protocol stays below UNTRUSTED_MAX before its WELCOME, and
 * below CONNECTION_MAX later: PEER_UNREAD messages wait, one is arriving, and some bytes wait in the kernel.
 */
#define UNTRUSTED_MAX  (512u << 10)
#define CONNECTION_MAX ((PEER_UNREAD + 1) * FRAME_MAX + UNTRUSTED_MAX)
#define PAUSE_TOTAL    (96u << 20)
#define TOTAL_MAX      (128u << 20)
/* Maximum duration of a handshake; a connection without a complete handshake is then closed. */
#define HANDSHAKE_MS 10000
#define ZAP_DOMAIN   "moefarm"

struct mf_hub {
    struct mf_front *front;
    struct mf_mailroom *mailroom;
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
    int64_t max = MF_WIRE_WORKER_BODY_MAX;
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
        {ZMQ_IPC_FILTER_PID, (int)getpid()},
        {ZMQ_BACKLOG, 1024},
    };
    for (size_t i = 0; r == 0 && i < MF_ARRAY_LEN(ints); i++)
        r = set_int(socket, ints[i].option, ints[i].value);
    return r;
}

/* Creates the ROUTER and binds it to an abstract socket. If this fails, the caller still closes *ret unless
 * it is NULL. */
static int bind_router(void *zmq, const char *name, const struct mf_key_pair *keys, void **ret)
{
    char endpoint[MF_FRONT_NAME_MAX + 8];
    *ret = zmq_socket(zmq, ZMQ_ROUTER);
    if (!*ret)
        return -errno;
    int r = set_options(*ret, keys != NULL);
    if (r == 0 && keys)
        r = set_keys(*ret, keys);
    mf_format(endpoint, sizeof(endpoint), "ipc://@%s", name);
    return r == 0 && zmq_bind(*ret, endpoint) < 0 ? -errno : r;
}

int mf_hub_new(void *zmq, const char *endpoint, const struct mf_key_pair *keys, struct mf_hub **ret)
{
    static const struct mf_front_limits limits = {.frame = FRAME_MAX,
                                                  .untrusted = UNTRUSTED_MAX,
                                                  .connection = CONNECTION_MAX,
                                                  .total = TOTAL_MAX,
                                                  .pause = PAUSE_TOTAL};
    _cleanup_(mf_hub_freep) struct mf_hub *h = calloc(1, sizeof(*h));
    char name[MF_FRONT_NAME_MAX];
    void *router = NULL;
    if (!h)
        return -ENOMEM;
    mf_buf_init(&h->outbox, OUTBOX_MAX);
    int r = mf_front_make_name(name);
    if (r == 0)
        r = bind_router(zmq, name, keys, &router);
    if (r == 0)
        r = mf_front_new(endpoint, name, &limits, &h->front);
    if (r == 0)
        r = mf_mailroom_new(zmq, router, h->front, &h->mailroom);
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
    mf_front_free(h->front);
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
    return mf_front_endpoint(h->front);
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
                        mail->error == -ENOBUFS || mail->error == -E2BIG;
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
