/* Channel between a worker and its runner: JSON lines and file descriptors over a stream socket pair
 * (docs/protocol.md section 2). Both ends use it.
 *
 * A message is one line: an object with the member `op`, at most MF_CHANNEL_LINE_MAX bytes. A descriptor
 * travels as SCM_RIGHTS with the first byte of its message. Received descriptors are kept in order; a message
 * that carries one takes the oldest. Only the _wait and _many functions block. Single-threaded. */
#pragma once

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/moe/step.h"

#define MF_CHANNEL_LINE_MAX (8u << 20)
#define MF_CHANNEL_OUT_MAX  (32u << 20) /* queued but not written */
#define MF_CHANNEL_FDS_MAX  128         /* in transit, per direction */

#define MF_RUNNER_FD_ENV "MOEFARM_RUNNER_FD"

struct mf_channel {
    int fd;
    bool eof; /* the peer has closed its end */
    struct mf_buf in, out;
    size_t in_start;   /* first byte of `in` that no message has used */
    size_t in_scanned; /* there is no newline before this byte */
    int in_fds[MF_CHANNEL_FDS_MAX], n_in_fds;
    struct {
        int fd;
        size_t at; /* offset in `out` of the byte it is sent with */
    } out_fds[MF_CHANNEL_FDS_MAX];
    int n_out_fds;
    int64_t written_ms; /* last time all of `out` was written */
};

/* Takes ownership of the descriptor. */
void mf_channel_init(struct mf_channel *c, int fd);
void mf_channel_release(struct mf_channel *c);

/* Queues a message and writes as much as the socket accepts. fd is sent with it unless -1, and stays the
 * caller's. -EMSGSIZE: longer than a line; -ENOBUFS: the peer does not read; -EPIPE. */
int mf_channel_send(struct mf_channel *c, const cJSON *message, int fd);
/* 0: everything is written; 1: the socket accepts no more now. */
int mf_channel_flush(struct mf_channel *c);
static inline bool mf_channel_wants_write(const struct mf_channel *c)
{
    return c->out.len > 0;
}
/* Reads available data if there is room; sets eof. -EPROTO: descriptors were truncated. */
int mf_channel_fill(struct mf_channel *c);
/* 1: a message, the caller owns it; 0: no complete message; -EBADMSG: an invalid line, now skipped;
 * -EMSGSIZE: a line that is too long; -EPROTO: the peer sent more descriptors than its messages carry. */
int mf_channel_next(struct mf_channel *c, cJSON **ret);
/* Returns the oldest descriptor received, now the caller's; -1: none. */
int mf_channel_take_fd(struct mf_channel *c);

/* Blocking variants. send_wait: writes the message and everything queued. send_many: for many messages; may
 * queue the message until a later one or send_wait. wait: waits for a message; 1: *ret is the caller's, 0:
 * the peer has closed, -ETIMEDOUT. timeout_ms < 0: no limit. */
int mf_channel_send_wait(struct mf_channel *c, const cJSON *message, int fd);
int mf_channel_send_many(struct mf_channel *c, const cJSON *message);
int mf_channel_wait(struct mf_channel *c, int64_t timeout_ms, cJSON **ret);

/* {"op": op}; NULL when out of memory. */
cJSON *mf_channel_message(const char *op);
/* A step and a rejection of an enumeration; NULL when out of memory. */
cJSON *mf_channel_step_message(const struct mf_step *step);
cJSON *mf_channel_reject_message(const char *family, const char *kernel, const char *rule, const char *format,
                                 va_list args);
/* The op of a message returned by mf_channel_next. */
const char *mf_channel_op(const cJSON *message);
