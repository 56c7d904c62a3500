/* Channel between a worker and its runner: JSON lines and file descriptors over a stream socket pair
 * (docs/protocol.md section 2). Both ends use this module.
 *
 * A message is one line: an object with the member `op`, at most MF_CHANNEL_LINE_MAX bytes. A descriptor is
 * sent as SCM_RIGHTS with the first byte of its message. Received descriptors are queued in order. The reader
 * of a message that carries a descriptor takes the oldest from the queue. Only the _wait and _many functions
 * block. Not thread-safe. */
#pragma once

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"

#define MF_CHANNEL_LINE_MAX (8u << 20)
#define MF_CHANNEL_OUT_MAX  (32u << 20) /* maximum number of bytes queued but not written */
#define MF_CHANNEL_FDS_MAX  128         /* maximum number of descriptors in transit per direction */

#define MF_RUNNER_FD_ENV "MOEFARM_RUNNER_FD"

struct mf_channel {
    int fd;
    bool eof; /* true: the peer has closed its end */
    struct mf_buf in, out;
    size_t in_start;   /* offset of the first byte of `in` that has not been returned in a message */
    size_t in_scanned; /* `in` has no newline from in_start up to this offset */
    int in_fds[MF_CHANNEL_FDS_MAX], n_in_fds;
    struct {
        int fd;
        size_t at; /* offset in `out` of the byte that this descriptor accompanies */
    } out_fds[MF_CHANNEL_FDS_MAX];
    int n_out_fds;
    int64_t written_ms; /* time when `out` was last written completely */
};

/* Takes ownership of the descriptor. */
void mf_channel_init(struct mf_channel *c, int fd);
void mf_channel_release(struct mf_channel *c);

/* Queues a message and writes as much as the socket accepts. If fd is not -1, sends that descriptor with the
 * message; the caller still owns it. Returns -EMSGSIZE if the message is longer than a line, -ENOBUFS if the
 * peer does not read, or -EPIPE. */
int mf_channel_send(struct mf_channel *c, const cJSON *message, int fd);
/* Returns 0 if everything is written, 1 if the socket accepts no more now. */
int mf_channel_flush(struct mf_channel *c);
static inline bool mf_channel_wants_write(const struct mf_channel *c)
{
    return c->out.len > 0;
}
/* Reads available data if there is room. Sets `eof` if the peer has closed. Returns -EPROTO if descriptors
 * were truncated. */
int mf_channel_fill(struct mf_channel *c);
/* Returns 1 and a message, which the caller owns, or 0 if there is no complete message. Returns -EBADMSG
 * after skipping an invalid line, -EMSGSIZE if a line is too long, or -EPROTO if the peer sent more
 * descriptors than its messages carry. */
int mf_channel_next(struct mf_channel *c, cJSON **ret);
/* Returns the oldest received descriptor, which the caller then owns, or -1 if no descriptor is queued. */
int mf_channel_take_fd(struct mf_channel *c);

/* Blocking functions.
 *
 *   send_wait   writes the message and everything queued
 *   send_many   for many messages; may queue the message until a later send_many or send_wait
 *   wait        waits for a message. Returns 1 and a message, which the caller owns; 0 if the peer has
 *               closed; -ETIMEDOUT after timeout_ms (< 0: no limit) */
int mf_channel_send_wait(struct mf_channel *c, const cJSON *message, int fd);
int mf_channel_send_many(struct mf_channel *c, const cJSON *message);
int mf_channel_wait(struct mf_channel *c, int64_t timeout_ms, cJSON **ret);

/* Returns a new message {"op": op}, or NULL if out of memory. */
cJSON *mf_channel_message(const char *op);
/* Returns the op of a message from mf_channel_next. */
const char *mf_channel_op(const cJSON *message);
