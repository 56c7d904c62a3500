/* Enrolment: obtains the CURVE key of a worker.
 *
 * The worker creates a key pair and registers the public key with a one-time enrolment token. The secret key
 * never leaves its file.
 *
 *   NAME.key      mode 0600: lines "coordinator", "public", "secret", each with 64 hex digits
 *   NAME.key.new  same format, during enrolment. A retry after an interruption sends the same pair,
 *                 and the coordinator accepts the same pair and token again. */
#pragma once

#include <stddef.h>

#include "worker/agent/agent_socket.h"

struct mf_enrol {
    void *zmq;
    const char *coordinator, *name, *folder; /* folder: folder of the spool */
    /* "" or an empty file, as in a service installation: use the existing key, if there is one */
    const char *token_file;
};
/* Returns 1 if *ret has the keys; 0 if there is no key and no token, so that the worker connects without
 * keys; or -errno with the reason in why. */
int mf_enrol(const struct mf_enrol *e, struct mf_link_keys *ret, char *why, size_t why_cap);
