/* The front: the thread that accepts the workers' TCP connections and passes their bytes to the ROUTER
 * socket, within limits.
 *
 *   worker ── TCP ──► front ── abstract Unix socket ──► ROUTER ──► mailroom ── credit ──► front
 *
 * libzmq buffers a message until its last frame has arrived, without a limit on the number of frames, and it
 * has no limit on the sum over all connections. So the front counts what it passed to libzmq and what the
 * mailroom has received, per connection (meter.h). It closes a connection whose difference exceeds a limit. A
 * connection has a small limit until mf_front_trust() is called. If all connections together hold much, the
 * front reads nothing more from the connections that hold most, until the mailroom has caught up.
 *
 * The front checks bytes before it passes them. libzmq frees the messages of a closed connection later, so
 * the connection stays charged for that time. While all connections together hold much, an untrusted
 * connection has a smaller limit, and the front accepts no connection above the total limit.
 *
 * Each connection of the front has its own connection to the ROUTER. Only this process can connect to the
 * ROUTER directly (ZMQ_IPC_FILTER_PID). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/base/cleanup.h"

struct mf_front;

struct mf_front_limits {
    uint64_t frame;                 /* longest frame in bytes */
    uint64_t untrusted, connection; /* bytes that a connection may hold, without and with trust */
    uint64_t total;                 /* bytes that all connections may hold */
    uint64_t pause;                 /* above this sum, nothing more is read from connections that hold much */
};

#define MF_FRONT_NAME_MAX 64
/* Chooses the name of an abstract Unix socket for the ROUTER; "ipc://@NAME" is its endpoint. */
int mf_front_make_name(char ret[MF_FRONT_NAME_MAX]);
/* Listens at endpoint, such as "tcp://127.0.0.1:7070"; port 0 or "*" selects a free port. Starts the thread.
 * The ROUTER must already be bound to the name. */
int mf_front_new(const char *endpoint, const char *name, const struct mf_front_limits *limits,
                 struct mf_front **ret);
/* Waits a moment for the ROUTER to close its connections, so that the last replies are sent. Close the ROUTER
 * before. */
struct mf_front *mf_front_free(struct mf_front *f);
MF_DEFINE_CLEANUP(struct mf_front *, mf_front_free);
/* Returns the bound address, with the actual port. */
const char *mf_front_endpoint(const struct mf_front *f);

/* The following calls may come from one other thread. */

/* Returns the id of the connection behind a descriptor of the ROUTER (ZMQ_SRCFD); 0 if it is closed. */
uint64_t mf_front_connection(const struct mf_front *f, int fd);
/* The mailroom has received this many bytes in this many frames. */
void mf_front_credit(struct mf_front *f, uint64_t connection, size_t bytes, size_t frames);
void mf_front_trust(struct mf_front *f, uint64_t connection);
