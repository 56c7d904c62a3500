#include "worker/agent/agent_socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/net/wire_bounds.h"

#define QUEUE_MAX        1000
#define RECONNECT_MS     100
#define RECONNECT_MAX_MS 2000
#define FAILED_EVENTS                                                        \
    (ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | \
     ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL)

static int set_options(void *socket)
{
    static const struct {
        int option, value;
    } options[] = {
        {ZMQ_SNDHWM, QUEUE_MAX},
        {ZMQ_RCVHWM, QUEUE_MAX},
        {ZMQ_LINGER, 0},
        {ZMQ_RECONNECT_IVL, RECONNECT_MS},
        {ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS},
        /* do not queue while disconnected, because a reconnect would then send a flood of old beats and
         * results */
        {ZMQ_IMMEDIATE, 1},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(options); i++) {
        if (zmq_setsockopt(socket, options[i].option, &options[i].value, sizeof(options[i].value)) < 0)
            return -errno;
    }
    const int64_t max = MF_WIRE_BODY_MAX;
    return zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max, sizeof(max)) < 0 ? -errno : 0;
}

static int set_keys(void *socket, const struct mf_link_keys *k)
{
    if (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, k->coordinator, MF_KEY_SIZE) < 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, k->own.public, MF_KEY_SIZE) < 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, k->own.secret, MF_KEY_SIZE) < 0)
        return -errno;
    return 0;
}

/* libzmq retries after a failed handshake and reports it only through a socket monitor. */
static int open_monitor(struct mf_agent_socket *s, void *socket)
{
    char endpoint[64];
    mf_format(endpoint, sizeof(endpoint), "inproc://handshakes-%p", socket);
    if (zmq_socket_monitor(socket, endpoint, FAILED_EVENTS) < 0)
        return -errno;
    s->monitor = zmq_socket(s->zmq, ZMQ_PAIR);
    if (!s->monitor || zmq_connect(s->monitor, endpoint) < 0)
        return -errno;
    return 0;
}

int mf_agent_socket_open(struct mf_agent_socket *s)
{
    mf_agent_socket_close(s, 0);
    s->socket = zmq_socket(s->zmq, ZMQ_DEALER);
    int r = s->socket ? set_options(s->socket) : -errno;
    if (r == 0 && s->keys)
        r = set_keys(s->socket, s->keys);
    if (r == 0 && s->watch_handshake)
        r = open_monitor(s, s->socket);
    if (r == 0 && zmq_connect(s->socket, s->endpoint) < 0)
        r = -errno;
    if (r < 0)
        mf_agent_socket_close(s, 0);
    return r;
}

bool mf_agent_socket_handshake_failed(struct mf_agent_socket *s)
{
    bool away = false;
    char event[64];
    /* An event has two frames; the content of the frames does not matter. */
    while (s->monitor && zmq_recv(s->monitor, event, sizeof(event), ZMQ_DONTWAIT) >= 0)
        away = true;
    return away;
}

void mf_agent_socket_close(struct mf_agent_socket *s, int linger_ms)
{
    if (!s->socket)
        return;
    if (s->monitor) {
        /* Stop the monitor before its PAIR peer is closed, because the next monitor event would otherwise
         * block forever. */
        (void)zmq_socket_monitor(s->socket, NULL, 0);
        (void)zmq_close(s->monitor);
        s->monitor = NULL;
    }
    (void)zmq_setsockopt(s->socket, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
    (void)zmq_close(s->socket);
    s->socket = NULL;
}

int mf_agent_socket_send(struct mf_agent_socket *s, enum mf_message type, const char *body, size_t len)
{
    uint8_t header[MF_WIRE_HEADER_SIZE];
    if (!s->socket)
        return -EAGAIN;
    if (len > MF_WIRE_BODY_MAX)
        return -EMSGSIZE;
    mf_wire_encode(&(struct mf_wire_header){.type = type, .sequence = s->sequence + 1}, header);
    if (zmq_send(s->socket, header, sizeof(header), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return -errno;
    /* ZeroMQ accepts the remaining frames of a message after it has accepted the first frame. */
    if (zmq_send(s->socket, body, len, 0) < 0)
        return -errno;
    s->sequence++;
    return 0;
}

int mf_agent_socket_send_json(struct mf_agent_socket *s, enum mf_message type, const cJSON *body)
{
    _cleanup_(mf_freep) char *text = body ? mf_json_print(body) : NULL;
    return text ? mf_agent_socket_send(s, type, text, strlen(text)) : -ENOMEM;
}

/* Receives one frame. *ret_more is true if another frame of the message follows. Returns -EAGAIN if there is
 * no frame. */
static int receive_frame(void *socket, zmq_msg_t *frame, int *ret_more)
{
    zmq_msg_init(frame);
    while (zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) < 0) {
        if (errno == EINTR)
            continue;
        int r = -errno;
        zmq_msg_close(frame);
        return r;
    }
    *ret_more = zmq_msg_more(frame);
    return 0;
}

#define KEY_TEXT_MAX 256

/* Copies the integer after "name": at the start of an unreadable body, if there is one. */
static void add_key(cJSON *to, const char *head, const char *name)
{
    char wanted[24];
    mf_format(wanted, sizeof(wanted), "\"%s\":", name);
    const char *at = strstr(head, wanted);
    if (!at)
        return;
    errno = 0;
    long long value = strtoll(at + strlen(wanted), NULL, 10);
    if (errno == 0 && value > 0)
        (void)mf_json_add_i64(to, name, value);
}

/* Describes a message whose body cannot be read. text: the body. Returns NULL if out of memory. */
static cJSON *describe_unreadable(const char *why, const char *text, size_t len)
{
    char head[KEY_TEXT_MAX];
    cJSON *body = cJSON_CreateObject();
    if (!body)
        return NULL;
    mf_format(head, sizeof(head), "%.*s", (int)MF_MIN(len, sizeof(head) - 1), text);
    cJSON_AddStringToObject(body, "unreadable", why);
    add_key(body, head, "unit");
    add_key(body, head, "attempt");
    add_key(body, head, "epoch");
    return body;
}

/* Parses a body and checks its numbers. If it is unreadable, returns its description. */
static cJSON *read_body(const char *text, size_t len)
{
    char why[MF_REASON_MAX] = "not a JSON object";
    _cleanup_(cJSON_Deletep) cJSON *body = mf_json_parse(text, len, MF_WIRE_BODY_MAX);
    if (cJSON_IsObject(body) && mf_wire_bounds_check(body, why) == 0)
        return MF_TAKE(body);
    return describe_unreadable(why, text, len);
}

/* Receives one message. Drops all frames after the second. Returns -EBADMSG if the message is invalid. */
static int receive_one(struct mf_agent_socket *s, enum mf_message *ret_type, cJSON **ret)
{
    zmq_msg_t frame;
    int more = 0, n = 0, version;
    struct mf_wire_header header = {0};
    _cleanup_(cJSON_Deletep) cJSON *body = NULL;
    bool good = true;
    do {
        int r = receive_frame(s->socket, &frame, &more);
        if (r < 0)
            return r;
        if (n == 0) {
            int decoded = mf_wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), &header, &version);
            good = decoded == 0;
            if (decoded == -EPROTONOSUPPORT)
                s->peer_version = version;
        }
        if (n == 1 && good)
            body = read_body(zmq_msg_data(&frame), zmq_msg_size(&frame));
        n++;
        zmq_msg_close(&frame);
    } while (more);
    if (!good || n != 2 || !body)
        return -EBADMSG;
    *ret_type = header.type;
    *ret = MF_TAKE(body);
    return 0;
}

int mf_agent_socket_receive(struct mf_agent_socket *s, enum mf_message *ret_type, cJSON **ret)
{
    while (s->socket) {
        int r = receive_one(s, ret_type, ret);
        if (r == 0)
            return 1;
        if (r != -EBADMSG)
            return 0;
        s->n_invalid++;
    }
    return 0;
}
