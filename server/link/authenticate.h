/* Who knocks at the hub: ZeroMQ's authentication protocol (RFC 27). libzmq asks here for each CURVE handshake, before
 * anything of the peer is heard, and waits for the answer; whom nobody answers for gets nothing.
 *
 * It has to be there before the hub is bound, and until the hub is closed: without it libzmq 4.3 lets every key in.
 * Belongs to the writing thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/base/secret.h"

struct mf_zap;

struct mf_knock {
    uint8_t from[255], id[16];
    size_t from_len, id_len;
    uint8_t key[MF_KEY_SIZE]; /* that the peer has proven to hold the secret half of */
};

int mf_zap_new(void *zmq, struct mf_zap **ret);
struct mf_zap *mf_zap_free(struct mf_zap *z);
void *mf_zap_socket(const struct mf_zap *z);
/* 1: one; 0: none waits. What is no request of CURVE's is dropped, and with it the peer's handshake. */
int mf_zap_recv(struct mf_zap *z, struct mf_knock *ret);
/* user: what each message of the connection carries as User-Id; NULL: it is not let in. */
void mf_zap_answer(struct mf_zap *z, const struct mf_knock *k, const char *user);
