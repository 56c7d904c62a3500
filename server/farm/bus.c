#include "server/farm/bus.h"

#include "common/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* Tells ThreadSanitizer that the sender's writes happen before the receipt of the message. ThreadSanitizer
 * cannot see this if libzmq was built without it. */
#ifdef __SANITIZE_THREAD__
#    include <sanitizer/tsan_interface.h>
#    define TSAN_RELEASE(pointer) __tsan_release(pointer)
#    define TSAN_ACQUIRE(pointer) __tsan_acquire(pointer)
#else
#    define TSAN_RELEASE(pointer) (void)(pointer)
#    define TSAN_ACQUIRE(pointer) (void)(pointer)
#endif

int mf_bus_send_pointer(void *socket, void *pointer)
{
    TSAN_RELEASE(pointer);
    return zmq_send(socket, &pointer, sizeof(pointer), ZMQ_DONTWAIT) < 0 ? -errno : 0;
}

int mf_bus_recv_pointer(void *socket, void *ret)
{
    void *pointer = NULL;
    int n = zmq_recv(socket, &pointer, sizeof(pointer), ZMQ_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    if (n != (int)sizeof(pointer))
        return -EBADMSG;
    TSAN_ACQUIRE(pointer);
    memcpy(ret, &pointer, sizeof(pointer));
    return 1;
}

int mf_bus_set_no_drop(void *pub)
{
    return zmq_setsockopt(pub, ZMQ_XPUB_NODROP, &(int){1}, sizeof(int)) < 0 ? -errno : 0;
}

int mf_bus_send_event(void *socket, int64_t id, int64_t batch, const char *kind, const char *body)
{
    char id_text[24], batch_text[24] = "";
    (void)snprintf(id_text, sizeof(id_text), "%" PRId64, id);
    if (batch > 0)
        (void)snprintf(batch_text, sizeof(batch_text), "%" PRId64, batch);
    const char *frames[] = {id_text, batch_text, kind, body};
    for (int i = 0; i < 4; i++) {
        if (zmq_send(socket, frames[i], strlen(frames[i]), ZMQ_DONTWAIT | (i < 3 ? ZMQ_SNDMORE : 0)) < 0)
            return -errno;
    }
    return 0;
}

static int recv_frame(void *socket, int i, struct mf_bus_event *e)
{
    zmq_msg_t msg;
    zmq_msg_init(&msg);
    if (zmq_msg_recv(&msg, socket, ZMQ_DONTWAIT) < 0) {
        int r = errno == EAGAIN || errno == EINTR ? 0 : -errno;
        zmq_msg_close(&msg);
        return r;
    }
    int r = zmq_msg_more(&msg) == (i < 3) ? 1 : -EBADMSG;
    char *text = strndup(zmq_msg_data(&msg), zmq_msg_size(&msg));
    if (!text)
        r = -ENOMEM;
    if (r > 0 && i == 0 && mf_parse_i64(text, 1, INT64_MAX, &e->id) < 0)
        r = -EBADMSG;
    if (r > 0 && i == 1 && *text && mf_parse_i64(text, 1, INT64_MAX, &e->batch) < 0)
        r = -EBADMSG;
    if (r > 0 && i == 2 && mf_copy(e->kind, sizeof(e->kind), text) < 0)
        r = -EBADMSG;
    if (r > 0 && i == 3) {
        e->body = text;
        text = NULL;
    }
    free(text);
    zmq_msg_close(&msg);
    return r;
}

/* Discards the remaining frames of a malformed message. */
static void drain_frames(void *socket)
{
    int more = 0;
    size_t size = sizeof(more);
    while (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) == 0 && more) {
        if (zmq_recv(socket, NULL, 0, ZMQ_DONTWAIT) < 0)
            return;
    }
}

int mf_bus_recv_event(void *socket, struct mf_bus_event *ret)
{
    struct mf_bus_event e = {0};
    for (int i = 0; i < 4; i++) {
        int r = recv_frame(socket, i, &e);
        if (r <= 0) {
            free(e.body);
            if (i > 0 || r < 0)
                drain_frames(socket);
            return i > 0 && r == 0 ? -EBADMSG : r;
        }
    }
    *ret = e;
    return 1;
}
