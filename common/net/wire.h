/* The messages between worker and coordinator: a fixed header and a JSON body, two ZeroMQ frames.
 * docs/protocol.md is the contract; this is the envelope.
 *
 *   header, 16 bytes: 'M' 'F' version(1) type(1) reserved(4, zero) sequence(8, little-endian)
 *   type: its place in MF_MESSAGE_MAP, from 0; new ones go to the end
 *   body: UTF-8 JSON object, at most MF_WIRE_BODY_MAX bytes, may be empty */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"

#define MF_WIRE_VERSION     1
#define MF_WIRE_HEADER_SIZE 16
#define MF_WIRE_BODY_MAX    (8u << 20)
#define MF_WORKER_NAME_MAX  64 /* of a worker's name or instance, with its end */

/* clang-format off */
#define MF_MESSAGE_MAP(X, P)                                                                          \
    X(P, HELLO, "HELLO")     /* worker: who I am, what I run now */                                   \
    X(P, READY, "READY")     /* worker: credit for n more units */                                    \
    X(P, RESULT, "RESULT")   /* worker: one result of a unit, kept in the spool until acknowledged */ \
    X(P, BEAT, "BEAT")       /* both: alive; the worker's carries its unit and step */                \
    X(P, BYE, "BYE")         /* worker: leaves, gives its units back */                               \
    X(P, WELCOME, "WELCOME") /* coordinator: answer to HELLO, with epoch and beat interval */         \
    X(P, UNIT, "UNIT")       /* coordinator: a leased unit */                                         \
    X(P, ACK, "ACK")         /* coordinator: results committed */                                     \
    X(P, CANCEL, "CANCEL")   /* coordinator: stop that unit */                                        \
    X(P, DRAIN, "DRAIN")     /* coordinator: finish what you have, take no more */                    \
    X(P, REFUSE, "REFUSE")   /* coordinator: why a message was not taken */                          \
    X(P, ENROL, "ENROL")     /* who has a token: the key that a worker will have */                   \
    X(P, ENROLLED, "ENROLLED") /* coordinator: the key is in */
/* clang-format on */
MF_NAMES_DECLARE(mf_message, MF_MESSAGE_, MF_MESSAGE_MAP);

struct mf_wire_header {
    enum mf_message type;
    uint64_t sequence;
};

void mf_wire_encode(const struct mf_wire_header *h, uint8_t out[MF_WIRE_HEADER_SIZE]);
/* -EBADMSG: not ours, or of no type we know; -EPROTONOSUPPORT: ours, of another version (*ret_version is set,
 * also on success). */
int mf_wire_decode(const void *data, size_t len, struct mf_wire_header *ret, int *ret_version);
