#include "server/link/authenticate.h"

#include "common/base/cleanup.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define ENDPOINT "inproc://zeromq.zap.01"
#define VERSION  "1.0"

/* Frames of a ZAP request. The ROUTER socket adds the first frame FROM, the routing id of the requester. */
enum { FROM, EMPTY, REQUEST_VERSION, REQUEST_ID, DOMAIN, ADDRESS, ROUTING_ID, MECHANISM, KEY, N_FRAMES };

struct mf_auth {
    void *socket;
};

int mf_auth_new(void *zmq, struct mf_auth **ret)
{
    struct mf_auth *z = calloc(1, sizeof(*z));
    int zero = 0;
    if (!z)
        return -ENOMEM;
    z->socket = zmq_socket(zmq, ZMQ_ROUTER);
    if (!z->socket || zmq_setsockopt(z->socket, ZMQ_LINGER, &zero, sizeof(zero)) < 0 ||
        zmq_bind(z->socket, ENDPOINT) < 0) {
        int r = -errno;
        mf_auth_free(z);
        return r;
    }
    *ret = z;
    return 0;
}

struct mf_auth *mf_auth_free(struct mf_auth *z)
{
    if (z && z->socket)
        (void)zmq_close(z->socket);
    free(z);
    return NULL;
}

void *mf_auth_socket(const struct mf_auth *z)
{
    return z->socket;
}

static bool copy_frame(zmq_msg_t *frame, uint8_t *to, size_t cap, size_t *ret_len)
{
    *ret_len = zmq_msg_size(frame);
    if (*ret_len > cap)
        return false;
    memcpy(to, zmq_msg_data(frame), *ret_len);
    return true;
}

static bool frame_is(zmq_msg_t *frame, const char *text)
{
    return zmq_msg_size(frame) == strlen(text) && memcmp(zmq_msg_data(frame), text, strlen(text)) == 0;
}

static bool take_frame(struct mf_auth_request *k, int i, zmq_msg_t *frame)
{
    size_t len = 0;
    switch (i) {
    case FROM:
        return copy_frame(frame, k->from, sizeof(k->from), &k->from_len);
    case REQUEST_VERSION:
        return frame_is(frame, VERSION);
    case REQUEST_ID:
        return copy_frame(frame, k->id, sizeof(k->id), &k->id_len);
    case MECHANISM:
        return frame_is(frame, "CURVE");
    case KEY:
        return copy_frame(frame, k->key, sizeof(k->key), &len) && len == sizeof(k->key);
    default:
        return i < N_FRAMES;
    }
}

/* Receives one whole message. Returns 1; 0 if no message is waiting; -EBADMSG if the message is malformed. */
static int recv_one(struct mf_auth *z, struct mf_auth_request *k)
{
    bool good = true, more = true;
    int n = 0;
    for (; more; n++) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, z->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&frame);
            return n == 0 ? 0 : -EBADMSG;
        }
        good = good && take_frame(k, n, &frame);
        more = zmq_msg_more(&frame);
        zmq_msg_close(&frame);
    }
    return good && n == N_FRAMES ? 1 : -EBADMSG;
}

int mf_auth_recv(struct mf_auth *z, struct mf_auth_request *ret)
{
    int r;
    while ((r = recv_one(z, ret)) == -EBADMSG)
        ;
    return r;
}

void mf_auth_answer(struct mf_auth *z, const struct mf_auth_request *k, const char *user)
{
    const struct {
        const void *data;
        size_t len;
    } frames[] = {
        {k->from, k->from_len},
        {"", 0},
        {VERSION, strlen(VERSION)},
        {k->id, k->id_len},
        {user ? "200" : "400", 3},
        {user ? "OK" : "unknown key", user ? 2 : 11},
        {user ? user : "", user ? strlen(user) : 0},
        {"", 0}, /* no further properties */
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(frames); i++) {
        int flags = ZMQ_DONTWAIT | (i + 1 < MF_ARRAY_LEN(frames) ? ZMQ_SNDMORE : 0);
        if (zmq_send(z->socket, frames[i].data, frames[i].len, flags) < 0)
            return; /* libzmq has given up the handshake */
    }
}
