/* A message of a worker, and its sender. */
#pragma once

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/secret.h"
#include "common/net/wire.h"

/* The sender of a message, who also gets the replies. The routing id does not identify a worker: ids that
 * libzmq assigns have 5 bytes, but a peer may choose any id of up to 255 bytes. user: the message's User-Id
 * (server/farm/access.c); "" if the hub has no keys. */
#define MF_PEER_USER_MAX MF_KEY_TEXT_MAX
struct mf_peer {
    uint64_t connection; /* the front's id of the connection (front.h); 0: unknown */
    uint8_t len;
    uint8_t id[255];
    char user[MF_PEER_USER_MAX];
};
uint64_t mf_peer_hash(const struct mf_peer *p); /* never 0 */

struct mf_mail {
    struct mf_peer peer;
    /* 0 or an error. -EBADMSG: the message is malformed. -EPROTONOSUPPORT: the message has another protocol
     * version. After these two errors the fields below are unset, except for `version`. -ENOBUFS: no memory
     * to parse the body of body_len bytes. -E2BIG: the body has too many values */
    int error;
    int version; /* protocol version; also set with -EPROTONOSUPPORT */
    enum mf_message type;
    uint64_t sequence;
    size_t body_len;
    cJSON *json;         /* parsed body; NULL if it is not valid JSON */
    size_t memory_bytes; /* approximate memory of json, for the mailroom's limit */
    struct mf_mail *next;
};
