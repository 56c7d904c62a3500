/* A foreign runner as a kernel family: an external program that offers, loads and runs single steps over a
 * socket (docs/protocol.md section 2.2).
 *
 * The program is a child of this process and dies with it. Waiting for the program has no deadline: if the
 * program hangs, this runner sends no messages either, and the worker kills both. If the program dies, this
 * runner prints the reason to stderr and exits, so that the step in progress is reported as a crash. Buffers
 * are not copied, because the program maps the memory files of the session. Unlike in other families, a
 * launch consists of a message and its answer. */
#pragma once

#include <stddef.h>

#include "kernels/core/family.h"
#include "worker/sandbox/sandbox.h"

struct mf_foreign;

/* Starts the command (with sh) and waits for its hello. The kind of the sandbox's device becomes the kind of
 * the family. Returns 0, or a negative errno and the reason in why. */
int mf_foreign_start(const char *command, const struct mf_sandbox *sandbox, struct mf_foreign **ret,
                     char *why, size_t why_cap);
pid_t mf_foreign_pid(const struct mf_foreign *f);
/* Sends `stop`. Sends SIGKILL as soon as the program has closed its socket, or after one second. */
struct mf_foreign *mf_foreign_free(struct mf_foreign *f);
const struct mf_family *mf_foreign_family(const struct mf_foreign *f);
/* Returns the hash of the name and revision in the program's hello. */
uint64_t mf_foreign_hash(const struct mf_foreign *f);
