/* Non-blocking DEALER socket of a worker: sends and receives the messages of docs/protocol.md section 1. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/secret.h"
#include "common/net/wire.h"

/* CURVE keys of a worker. */
struct mf_link_keys {
    uint8_t coordinator[MF_KEY_SIZE]; /* public key of the coordinator */
    struct mf_key_pair own;
};

struct mf_agent_socket {
    void *zmq; /* ZeroMQ context */
    const char *endpoint;
    const struct mf_link_keys *keys; /* NULL: no CURVE, plain text */
    bool watch_handshake;            /* true: detect failed handshakes, which needs two more sockets */
    void *socket, *monitor;
    uint64_t sequence;  /* sequence number of the last message sent */
    uint64_t n_invalid; /* invalid messages received */
    int peer_version;   /* protocol version of the last message that had another version; -1: none */
};

/* Closes the old socket, if there is one, discards its queues, and connects with a new socket. */
int mf_agent_socket_open(struct mf_agent_socket *s);
void mf_agent_socket_close(struct mf_agent_socket *s, int linger_ms);
/* True if a handshake has failed since the last call. A handshake fails if the coordinator rejects the key or
 * if only one side uses keys. Always false without watch_handshake. */
bool mf_agent_socket_handshake_failed(struct mf_agent_socket *s);
/* Returns -EAGAIN if the socket is not connected or the send queue is full. */
int mf_agent_socket_send(struct mf_agent_socket *s, enum mf_message type, const char *body, size_t len);
int mf_agent_socket_send_json(struct mf_agent_socket *s, enum mf_message type, const cJSON *body);
/* Returns 1 with a message, whose body (an object) the caller owns, or 0 if there is no message. Drops
 * invalid messages and counts them in n_invalid. If a message has a valid header but an unreadable body,
 * returns an object with the member `unreadable` (the reason) and, for a UNIT whose body starts with its key,
 * the members unit, attempt and epoch: the worker must answer it. */
int mf_agent_socket_receive(struct mf_agent_socket *s, enum mf_message *ret_type, cJSON **ret);
