/* The mailroom: the thread that owns the ROUTER socket of the workers. It receives messages and parses their
 * JSON while the writer thread works, and sends what the writer has posted. It handles headers and routing
 * ids and does not interpret messages.
 *
 *   front ───► ROUTER ─► mailroom ── struct mf_mail (pointer) ──────► hub, on the writer thread
 *   front ◄─── ROUTER ◄─ mailroom ◄─ struct mf_parcel (pointer) ◄─ per iteration: posts to send, mail to free
 *
 * The number and the memory of messages held by the writer are limited. Beyond these limits, messages wait in
 * the ROUTER socket. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "server/link/front.h"
#include "server/link/mail.h"

struct mf_mailroom;

struct mf_post {
    struct mf_peer to;
    enum mf_message type;
    size_t at, len; /* body: offset and length in mf_parcel.bodies */
};

struct mf_parcel {
    struct mf_post *posts;
    size_t n_posts;
    struct mf_buf bodies;
    struct mf_mail *done; /* processed messages, linked by next */
    bool stop;            /* ends the thread after this parcel */
};

/* Starts the thread. router: bound socket; the mailroom takes ownership, also on failure. front: gets a
 * credit for each received message, and must outlive the mailroom. */
int mf_mailroom_new(void *zmq, void *router, struct mf_front *front, struct mf_mailroom **ret);
/* Sends all parcels that mf_mailroom_give has accepted, then ends the thread and closes all sockets. */
struct mf_mailroom *mf_mailroom_free(struct mf_mailroom *m);
MF_DEFINE_CLEANUP(struct mf_mailroom *, mf_mailroom_free);
/* Returns the writer's end: receive mail with mf_bus_recv_pointer, send parcels with mf_mailroom_give. */
void *mf_mailroom_socket(const struct mf_mailroom *m);
/* Takes ownership of the parcel's contents. On -errno the caller keeps the ownership. */
int mf_mailroom_give(struct mf_mailroom *m, const struct mf_parcel *p);
/* Frees the whole list. */
struct mf_mail *mf_mail_free(struct mf_mail *mail);
