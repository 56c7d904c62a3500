/* The hub: the writer thread's interface to the workers. It receives messages one by one and sends its
 * replies in batches. The mailroom thread (mailroom.h) owns the ROUTER socket that workers connect to.
 *
 * Call mf_hub_flush() after COMMIT to send the posted messages. A worker never resends an acknowledged
 * result, so an acknowledgement must not be sent before the result is durable. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/cleanup.h"
#include "common/base/secret.h"
#include "server/link/mail.h"

struct mf_hub;

/* Binds endpoint, such as "tcp://127.0.0.1:7070"; port 0 or "*" selects a free port. keys: key pair of the
 * coordinator. A client then needs the coordinator's public key and must pass the check of
 * server/link/authenticate.h. keys NULL: unencrypted, open to every client. */
int mf_hub_new(void *zmq, const char *endpoint, const struct mf_key_pair *keys, struct mf_hub **ret);
struct mf_hub *mf_hub_free(struct mf_hub *h);
MF_DEFINE_CLEANUP(struct mf_hub *, mf_hub_free);
void *mf_hub_socket(const struct mf_hub *h);
/* Returns the bound address, with the actual port. */
const char *mf_hub_endpoint(const struct mf_hub *h);

/* Returns 1 and a message that stays valid until the next flush or drop; 0 if no message is waiting; -errno
 * if the mailroom has ended. */
int mf_hub_recv(struct mf_hub *h, const struct mf_mail **ret);
/* Waits at most ns for more messages, after mf_hub_recv() returned 0. Returns false on timeout. */
bool mf_hub_wait(const struct mf_hub *h, uint64_t ns);
/* Queues a message and copies its body. Returns 0, -ENOMEM or -EFBIG. */
int mf_hub_post(struct mf_hub *h, const struct mf_peer *to, enum mf_message type, const char *body);
/* Sends the queued messages on the mailroom thread. Messages to a peer that is gone or has a full queue are
 * lost; leases and resending recover from this. */
void mf_hub_flush(struct mf_hub *h);
/* Discards the queued messages, after a rollback. */
void mf_hub_drop(struct mf_hub *h);
