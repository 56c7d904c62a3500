/* The inproc ZeroMQ sockets between moefarmd's threads. The sockets share one context; bind and connect may
 * come in any order.
 *
 *   requests  HTTP thread PUSH connects ─► writer PULL binds       requests that change state
 *   reads     HTTP thread PUSH binds ─► readers PULL connect       read requests, shared by all readers
 *   replies   writer and readers PUSH connect ─► HTTP thread PULL binds
 *   events    writer PUB binds ─► HTTP thread SUB connects         after COMMIT
 *   mail      mailroom PAIR binds ◄─► writer PAIR connects         messages of workers (mailroom.h)
 *
 * A request is sent as one frame that holds a pointer to the request, and the receiver then owns the request.
 * The objects that mailroom and writer exchange are sent in the same way. An event has four text frames: id,
 * batch (empty for an event of the whole farm), kind, body (JSON). Event ids increase by one; a subscriber
 * that sees a gap in the ids reads the missing events from the table `event`. */
#pragma once

#include <stdint.h>

#define MF_BUS_REQUESTS "inproc://requests"
#define MF_BUS_READS    "inproc://reads"
#define MF_BUS_REPLIES  "inproc://replies"
#define MF_BUS_EVENTS   "inproc://events"
#define MF_BUS_MAIL     "inproc://mail"

/* Sends the pointer and passes ownership to the receiver. Never blocks. On error (-errno, -EAGAIN if the
 * queue is full) the caller keeps ownership. */
int mf_bus_send_pointer(void *socket, void *pointer);
/* Returns 1 and a pointer, which the caller then owns, or 0 if no message is waiting. `ret` is the address of
 * a pointer variable of the sent type. */
int mf_bus_recv_pointer(void *socket, void *ret);
/* Makes sends on a PUB socket fail with EAGAIN while a subscriber's queue is full, instead of dropping the
 * message. Returns 0 or -errno. */
int mf_bus_set_no_drop(void *pub);
/* Publishes an event; batch 0: an event of the whole farm. Never blocks. Returns -EAGAIN if the subscriber's
 * queue is full. The caller must then send the latest event again, so that the subscriber sees the gap and
 * reads the missing events from the table. */
int mf_bus_send_event(void *socket, int64_t id, int64_t batch, const char *kind, const char *body);

struct mf_bus_event {
    int64_t id, batch;
    char kind[24];
    char *body; /* heap; the receiver frees it */
};
/* Returns 1 and an event, 0 if no event is waiting, or -EBADMSG for a malformed message. */
int mf_bus_recv_event(void *socket, struct mf_bus_event *ret);
