/* The mailroom: a thread of its own at the ROUTER that workers connect to. It takes messages apart and reads their JSON
 * while the writing thread works, and sends what a turn has said. It knows envelopes and routing ids, no meaning.
 *
 *   workers ─► ROUTER ─► mailroom ── mail (a pointer each) ──────────────► hub, of the writing thread
 *   workers ◄─ ROUTER ◄─ mailroom ◄─ parcel (a pointer each turn): what to send, and the turn's mail back to be freed
 *
 * What is with the writing thread has a ceiling, in messages and in bytes; beyond it messages wait at the ROUTER. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "server/link/hub.h"

struct mf_mailroom;

struct mf_post {
    struct mf_peer to;
    enum mf_message type;
    size_t at, len; /* of the body, in bodies */
};

struct mf_parcel {
    struct mf_post *posts;
    size_t n_posts;
    struct mf_buf bodies;
    struct mf_mail *done; /* by next */
    bool stop;            /* the last one */
};

/* Starts the thread. router: bound, and the mailroom's from now, also when this fails. */
int mf_mailroom_new(void *zmq, void *router, struct mf_mailroom **ret);
/* Sends what was given before, then ends. The writing thread's socket is closed with it. */
struct mf_mailroom *mf_mailroom_free(struct mf_mailroom *m);
MF_DEFINE_CLEANUP(struct mf_mailroom *, mf_mailroom_free);
/* The writing thread's: mail comes in here (mf_bus_take), parcels go out (mf_mailroom_give). */
void *mf_mailroom_socket(const struct mf_mailroom *m);
/* Takes over what the parcel holds. -errno: it is still the caller's. */
int mf_mailroom_give(struct mf_mailroom *m, const struct mf_parcel *p);
/* It, and what follows by next. */
struct mf_mail *mf_mail_free(struct mf_mail *mail);
