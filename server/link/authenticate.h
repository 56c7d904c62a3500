/* ZAP handler of the hub: ZeroMQ's authentication protocol (RFC 27). For each CURVE handshake, libzmq sends a
 * request to this handler and waits for the reply before it accepts any message of the peer. A handshake
 * without a reply never completes.
 *
 * Create the handler before the hub is bound and free it after the hub is closed, because libzmq 4.3 accepts
 * every key while there is no handler. Used by the writer thread only. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/base/secret.h"

struct mf_auth;

struct mf_auth_request {
    uint8_t from[255], id[16];
    size_t from_len, id_len;
    uint8_t key[MF_KEY_SIZE]; /* public key; the peer has proven that it holds the corresponding secret key */
};

int mf_auth_new(void *zmq, struct mf_auth **ret);
struct mf_auth *mf_auth_free(struct mf_auth *z);
void *mf_auth_socket(const struct mf_auth *z);
/* Returns 1 and a request, or 0 if no request is waiting. Drops malformed requests; the handshake of a
 * dropped request never completes. */
int mf_auth_recv(struct mf_auth *z, struct mf_auth_request *ret);
/* Answers a request. user: User-Id of all messages of the connection; NULL rejects the peer. */
void mf_auth_answer(struct mf_auth *z, const struct mf_auth_request *k, const char *user);
