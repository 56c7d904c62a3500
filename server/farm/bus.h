/* The sockets between moefarmd's threads: inproc, one ZeroMQ context, bind and connect in any order.
 *
 *   requests  HTTP thread PUSH connects ─► writer PULL binds        a request that changes something
 *   reads     HTTP thread PUSH binds    ─► readers PULL connects    a request that only reads: one socket, one queue for all of them
 *   replies   writer and readers PUSH connect ─► HTTP thread PULL binds
 *   events    writer PUB binds ─► HTTP thread SUB connects          after COMMIT
 *   mail      mailroom PAIR binds ─◄► writer PAIR connects          messages of workers, and what they are told (mailroom.h)
 *
 * A request, and what goes between mailroom and writer, travels as one frame that holds its pointer; whoever received it last owns it. An event is four
 * text frames: id, batch (empty: of the farm), kind, body (JSON). Ids rise by one; a subscriber that sees a
 * gap reads what it missed from the table `event`. */
#pragma once

#include <stdint.h>

#define MF_BUS_REQUESTS "inproc://requests"
#define MF_BUS_READS    "inproc://reads"
#define MF_BUS_REPLIES  "inproc://replies"
#define MF_BUS_EVENTS   "inproc://events"
#define MF_BUS_MAIL     "inproc://mail"

/* Sends the pointer and gives up ownership. -errno: still the caller's. Never blocks: -EAGAIN when full. */
int mf_bus_give(void *socket, void *what);
/* 1: one received, now the caller's; 0: none waiting. ret: the address of a pointer to what travels there. */
int mf_bus_take(void *socket, void *ret);
/* Of a PUB socket: what finds its subscriber full is not lost in silence, but refused. -errno. */
int mf_bus_tells_full(void *pub);
/* batch 0: of the farm. Never blocks; -EAGAIN: the subscriber is full. It finds the event in the table once it sees the gap before a
 * later one, so the last event is sent again. */
int mf_bus_send_event(void *socket, int64_t id, int64_t batch, const char *kind, const char *body);

struct mf_bus_event {
    int64_t id, batch;
    char kind[24];
    char *body; /* heap; the receiver frees it */
};
/* 1: one received; 0: none waiting; -EBADMSG: not an event. */
int mf_bus_recv_event(void *socket, struct mf_bus_event *ret);
