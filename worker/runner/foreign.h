/* A foreign runner as a family: a program of any kind that offers, loads and runs single steps over a socket
 * (docs/protocol.md section 2.2).
 *
 * It is this process's child and dies with it. Nothing here waits with a deadline of its own: while it is silent so is
 * this runner, and the worker ends both; if it dies, this runner says why on stderr and exits, so that the step that had
 * begun becomes a crash. Buffers are never copied: it maps the memory files that the session's buffers lie in.
 * Unlike other families, a launch enters the kernel: it is a message and its answer. */
#pragma once

#include <stddef.h>

#include "kernels/core/family.h"

struct mf_foreign;

/* Starts the command (by sh) and waits for its hello. `device` is the device's name: its kind becomes the
 * family's. -errno with a sentence in why. */
int mf_foreign_start(const char *command, const char *device, struct mf_foreign **ret, char *why,
                     size_t why_cap);
/* Stops it: a message, and SIGKILL after it has closed its socket or a second has passed. */
struct mf_foreign *mf_foreign_free(struct mf_foreign *f);
const struct mf_family *mf_foreign_family(const struct mf_foreign *f);
/* Of the name and the revision that its hello says. */
uint64_t mf_foreign_hash(const struct mf_foreign *f);
