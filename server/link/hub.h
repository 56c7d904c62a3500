/* The hub: the writing thread's end of what workers say and hear, one message in, many out. The ROUTER that they connect to is
 * the mailroom's (mailroom.h), a thread of its own.
 *
 * What is posted goes out with mf_hub_flush(), after the turn's COMMIT: a worker that saw its result
 * acknowledged never sends it again, so nothing may be said before it is durable. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "common/base/cleanup.h"
#include "common/base/secret.h"
#include "common/net/wire.h"

struct mf_hub;

/* Who speaks, and by which way to answer. A routing id is never who it is: ours is 5 bytes, a peer may choose up to 255.
 * user: the message's User-Id (server/farm/access.c), "" where the hub has no keys. */
#define MF_PEER_USER_MAX MF_KEY_TEXT_MAX
struct mf_peer {
    uint8_t len;
    uint8_t id[255];
    char user[MF_PEER_USER_MAX];
};
uint64_t mf_peer_hash(const struct mf_peer *p); /* never 0 */

struct mf_mail {
    struct mf_peer peer;
    int error; /* 0; -EBADMSG: no message of ours, -EPROTONOSUPPORT: of another version; then the rest is not set. -ENOBUFS: no memory for
                * its body, of body_len bytes */
    int version; /* of the protocol; set with -EPROTONOSUPPORT too */
    enum mf_message type;
    uint64_t sequence;
    size_t body_len;
    cJSON *json;   /* of the body; NULL: it is none */
    size_t weight; /* bytes of memory that json takes, about: the mailroom's ceiling */
    struct mf_mail *next;
};

/* Binds "tcp://127.0.0.1:7070"; port 0 or "*" takes any. keys: of the coordinator, and only who knows the public one and
 * is let in by server/link/authenticate.h gets through; NULL: everybody does, in the clear. */
int mf_hub_new(void *zmq, const char *endpoint, const struct mf_key_pair *keys, struct mf_hub **ret);
struct mf_hub *mf_hub_free(struct mf_hub *h);
MF_DEFINE_CLEANUP(struct mf_hub *, mf_hub_free);
void *mf_hub_socket(const struct mf_hub *h);
/* The address really bound. */
const char *mf_hub_endpoint(const struct mf_hub *h);

/* 1: a message, the hub's until the next flush or drop; 0: none waiting; -errno: the mailroom has ended, none will come. */
int mf_hub_recv(struct mf_hub *h, const struct mf_mail **ret);
/* Waits for more, after mf_hub_recv() said that none waits. false: nothing came in time. */
bool mf_hub_wait(const struct mf_hub *h, uint64_t ns);
/* Queues a message; the body is copied. -ENOMEM, -EFBIG. */
int mf_hub_post(struct mf_hub *h, const struct mf_peer *to, enum mf_message type, const char *body);
/* Sends what is queued, by another thread. A peer that is gone or full loses its messages; leases and re-sending make up for it. */
void mf_hub_flush(struct mf_hub *h);
/* Forgets what is queued: the turn was undone. */
void mf_hub_drop(struct mf_hub *h);
