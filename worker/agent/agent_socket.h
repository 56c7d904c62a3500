/* The DEALER of an agent: messages of docs/protocol.md section 1 in and out, without blocking. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/secret.h"
#include "common/net/wire.h"

/* What a worker with keys knows. */
struct mf_link_keys {
    uint8_t coordinator[MF_KEY_SIZE]; /* its public key */
    struct mf_key_pair own;
};

struct mf_agent_socket {
    void *zmq; /* context */
    const char *endpoint;
    const struct mf_link_keys *keys; /* NULL: none, in the clear */
    bool watch;                      /* say when it is turned away; costs two sockets more */
    void *socket, *monitor;
    uint64_t sequence;  /* of the last message sent */
    uint64_t n_refused; /* messages received that were none */
    int other_version;  /* that the last of them was of; -1: none was */
};

/* Connects anew, closing what was there with nothing left in its queues. */
int mf_agent_socket_open(struct mf_agent_socket *s);
void mf_agent_socket_close(struct mf_agent_socket *s, int linger_ms);
/* While it is watched: the coordinator has turned it away since it was asked last: it does not take this key, or one takes
 * keys and the other has none. */
bool mf_agent_socket_turned_away(struct mf_agent_socket *s);
/* -EAGAIN: not connected, or its queue is full. */
int mf_agent_socket_send(struct mf_agent_socket *s, enum mf_message type, const char *body, size_t len);
int mf_agent_socket_send_json(struct mf_agent_socket *s, enum mf_message type, const cJSON *body);
/* 1: a message, its body (an object) is the caller's; 0: none. What does not decode is dropped and counted. */
int mf_agent_socket_receive(struct mf_agent_socket *s, enum mf_message *ret_type, cJSON **ret);
