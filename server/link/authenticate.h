/* Who knocks at the hub: ZeroMQ's authentication protocol (RFC 27). libzmq asks here for each CURVE handshake, before
 * anything of the peer is heard, and waits for the answer; whom nobody answers for gets nothing.
 *
 * It has to be there before the hub is bound, and until the hub is closed: without it libzmq 4.3 lets every key in.
 * Belongs to the writing thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/base/secret.h"

struct mf_auth;

struct mf_knock {
    uint8_t from[255], id[16];
    size_t from_len, id_len;
    uint8_t key[MF_KEY_SIZE]; /* that the peer has proven to hold the secret half of */
};

int mf_auth_new(void *zmq, struct mf_auth **ret);
struct mf_auth *mf_auth_free(struct mf_auth *z);
void *mf_auth_socket(const struct mf_auth *z);
/* 1: one; 0: none waits. What is no request of CURVE's is dropped, and with it the peer's handshake. */
int mf_auth_recv(struct mf_auth *z, struct mf_knock *ret);
/* user: what each message of the connection carries as User-Id; NULL: it is not let in. */
void mf_auth_answer(struct mf_auth *z, const struct mf_knock *k, const char *user);
