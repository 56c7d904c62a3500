/* Messages between worker and coordinator: two ZeroMQ frames, a fixed header and a JSON body.
 * docs/protocol.md specifies the bodies.
 *
 *   header, 16 bytes: 'M' 'F' version(1) type(1) reserved(4, zero) sequence(8, little-endian)
 *   type: index in MF_MESSAGE_MAP, from 0; append new types at the end
 *   body: UTF-8 JSON object, at most MF_WIRE_BODY_MAX bytes, may be empty */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"

#define MF_WIRE_VERSION     1
#define MF_WIRE_HEADER_SIZE 16
#define MF_WIRE_BODY_MAX    (8u << 20)
/* Limit of a body from a worker. The longest one is a RESULT with 256 candidates of an enumeration. */
#define MF_WIRE_WORKER_BODY_MAX (2u << 20)
#define MF_WORKER_NAME_MAX      64 /* worker name or instance, with the terminator */

/* clang-format off */
#define MF_MESSAGE_MAP(X, P)                                                                            \
    X(P, HELLO, "HELLO")       /* from worker: identity and current work */                             \
    X(P, READY, "READY")       /* from worker: credit for n more units */                               \
    X(P, RESULT, "RESULT")     /* from worker: one result of a unit; spooled until the ACK */           \
    X(P, BEAT, "BEAT")         /* from both: heartbeat; a worker adds its unit and step */              \
    X(P, BYE, "BYE")           /* from worker: the worker exits and returns its units */                \
    X(P, WELCOME, "WELCOME")   /* from coordinator: reply to HELLO; epoch, heartbeat interval */        \
    X(P, UNIT, "UNIT")         /* from coordinator: a leased unit */                                    \
    X(P, ACK, "ACK")           /* from coordinator: results committed */                                \
    X(P, CANCEL, "CANCEL")     /* from coordinator: stop this unit */                                   \
    X(P, DRAIN, "DRAIN")       /* from coordinator: finish current units, request no more */            \
    X(P, REFUSE, "REFUSE")     /* from coordinator: message rejected, with the reason */                \
    X(P, ENROL, "ENROL")       /* from holder of enrolment token: new worker's public key */            \
    X(P, ENROLLED, "ENROLLED") /* from coordinator: public key registered */
/* clang-format on */
MF_NAMES_DECLARE(mf_message, MF_MESSAGE_, MF_MESSAGE_MAP);

struct mf_wire_header {
    enum mf_message type;
    uint64_t sequence;
};

void mf_wire_encode(const struct mf_wire_header *h, uint8_t out[MF_WIRE_HEADER_SIZE]);
/* Decodes the header of a message. -EBADMSG: the data is not a message of this protocol, or its type is
 * unknown. -EPROTONOSUPPORT: the message has another protocol version. Sets *ret_version on success and with
 * -EPROTONOSUPPORT. */
int mf_wire_decode(const void *data, size_t len, struct mf_wire_header *ret, int *ret_version);
