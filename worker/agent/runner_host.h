/* The worker's side of one runner: process, socket, stderr and deadline.
 *
 *   start ─► messages … ─► died (reported once; then only free)
 *
 * The caller polls a pidfd to detect death. Messages that the runner wrote before it died are returned first.
 * A runner that is silent beyond its limit is killed, and its death is reported as a hang. The runner and all
 * of its processes end with the worker (worker/sandbox/supervisor.h). */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "worker/runner/runner_wire.h"
#include "worker/sandbox/supervisor.h"

#define MF_RUNNER_STDERR_MAX 4096
#define MF_RUNNER_POLLFDS    3

struct mf_runner_host;

/* argv[0] is the path; argv is NULL-terminated. */
int mf_runner_host_start(const char *const *argv, enum mf_isolation isolation, struct mf_runner_host **ret);
/* Kills the runner if it is alive, waits for the end of its processes and frees h. */
struct mf_runner_host *mf_runner_host_free(struct mf_runner_host *h);

/* Returns the process id of the runner's supervisor; 0 after its exit. */
pid_t mf_runner_host_pid(const struct mf_runner_host *h);
/* Fills MF_RUNNER_POLLFDS entries; unused entries have fd -1. */
void mf_runner_host_pollfds(const struct mf_runner_host *h, struct pollfd fds[MF_RUNNER_POLLFDS]);

/* Sets the maximum silence of the runner from now on. Every message restarts the time. 0: no limit. */
void mf_runner_host_limit(struct mf_runner_host *h, int64_t limit_ms);
/* Returns the time at which the runner is considered hung (mf_now_ms clock); INT64_MAX: never. */
int64_t mf_runner_host_deadline_ms(const struct mf_runner_host *h);

int mf_runner_host_send(struct mf_runner_host *h, const cJSON *message, int fd);
/* Kills all processes of the runner; mf_runner_host_next reports the death. */
void mf_runner_host_kill(struct mf_runner_host *h);

/* Reads available data and checks for exit. Call it after every poll, then call mf_runner_host_next until it
 * returns MF_RUNNER_NOTHING. */
void mf_runner_host_run_once(struct mf_runner_host *h);

enum mf_runner_event { MF_RUNNER_NOTHING, MF_RUNNER_MESSAGE, MF_RUNNER_DIED };
/* Returns the next event. On MF_RUNNER_MESSAGE, the caller owns *ret, and mf_runner_host_take_fd returns the
 * descriptor of the message. */
enum mf_runner_event mf_runner_host_next(struct mf_runner_host *h, cJSON **ret);
int mf_runner_host_take_fd(struct mf_runner_host *h);

/* True once the process has exited; valid after MF_RUNNER_DIED. A runner that announces a fatal signal
 * (`dying`) is reported dead at once, but the kernel then needs about 0.1 s per GiB to free the runner's
 * memory. mf_runner_host_free would block for that time. */
bool mf_runner_host_exited(const struct mf_runner_host *h);
bool mf_runner_host_hung(const struct mf_runner_host *h);
/* Writes "signal 11 (Segmentation fault)" or "exit code 3", and the last lines of stderr. */
void mf_runner_host_why(const struct mf_runner_host *h, char *buf, size_t cap);
/* Returns the time at which the death was detected (mf_now_ms clock). */
int64_t mf_runner_host_died_ms(const struct mf_runner_host *h);
