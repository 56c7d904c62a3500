/* The worker's side of one runner: its process, socket, stderr and deadline.
 *
 *   start ─► messages … ─► died (once; then only free)
 *
 * Death is seen through a pidfd in the caller's poll. Everything the runner had written before it died is given
 * out first. A runner that stays silent beyond its limit is killed, and its death is a hang. Its runner child dies
 * with the worker (the child asks for that itself, with PR_SET_PDEATHSIG). */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "worker/runner/runner_wire.h"

#define MF_RUNNER_STDERR_MAX 4096
#define MF_RUNNER_POLLFDS    3

struct mf_runner_host;

/* argv[0] is the path; NULL ends. */
int mf_runner_host_start(const char *const *argv, struct mf_runner_host **ret);
/* Kills it if it lives, and reaps it. */
struct mf_runner_host *mf_runner_host_free(struct mf_runner_host *h);

pid_t mf_runner_host_pid(const struct mf_runner_host *h);
/* What to poll for, always MF_RUNNER_POLLFDS entries (fd -1: nothing). */
void mf_runner_host_pollfds(const struct mf_runner_host *h, struct pollfd fds[MF_RUNNER_POLLFDS]);

/* Silence for longer than this many ms from now is a hang; every message starts it again. 0: no limit. */
void mf_runner_host_limit(struct mf_runner_host *h, int64_t limit_ms);
/* When it would be one (mf_now_ms clock); INT64_MAX: never. */
int64_t mf_runner_host_deadline_ms(const struct mf_runner_host *h);

int mf_runner_host_send(struct mf_runner_host *h, const cJSON *message, int fd);
/* SIGKILL; the death is reported by next as any other. */
void mf_runner_host_kill(struct mf_runner_host *h);

/* Reads what there is and ends a runner that is late. After every poll, then next() until it says nothing. */
void mf_runner_host_turn(struct mf_runner_host *h);

enum mf_runner_event { MF_RUNNER_NOTHING, MF_RUNNER_MESSAGE, MF_RUNNER_DIED };
/* MESSAGE: *ret is the caller's; a descriptor that came with it is taken by mf_runner_host_take_fd. */
enum mf_runner_event mf_runner_host_next(struct mf_runner_host *h, cJSON **ret);
int mf_runner_host_take_fd(struct mf_runner_host *h);

/* After DIED. The process may still be there for a while: one that says that it dies of a signal (`dying`) is believed
 * before the kernel has taken its memory apart, which takes a tenth of a second for a GiB. free() would wait for it. */
bool mf_runner_host_gone(const struct mf_runner_host *h);
bool mf_runner_host_hung(const struct mf_runner_host *h);
/* "signal 11 (Segmentation fault)" or "exit code 3", with the last lines of its stderr. */
void mf_runner_host_why(const struct mf_runner_host *h, char *buf, size_t cap);
/* When turn() saw it (mf_now_ms clock). */
int64_t mf_runner_host_died_ms(const struct mf_runner_host *h);
