/* How a worker comes to its key. It makes the pair itself; a token that a person was given lets it bring the public half in,
 * once. The secret half leaves its file for nobody.
 *
 *   NAME.key      mode 0600: lines "coordinator", "public", "secret", each with 64 hex digits
 *   NAME.key.new  the same while the enrolment is under way: whatever breaks it off, the next try takes the same pair, and the
 *                 coordinator takes the same pair with the same token again */
#pragma once

#include <stddef.h>

#include "worker/agent/agent_socket.h"

struct mf_enrol {
    void *zmq;
    const char *coordinator, *name, *folder; /* folder: of the worker's spool */
    const char
        *token_file; /* "", or an empty file, as a service has it: take the key that is there, or none */
};
/* 1: *ret are the worker's keys; 0: it has none and needs none, as far as it knows. -errno with the sentence in why. */
int mf_enrol(const struct mf_enrol *e, struct mf_link_keys *ret, char *why, size_t why_cap);
