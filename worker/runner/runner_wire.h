/* JSON lines over a stream socket pair, with file descriptors beside them: what a worker and its runner speak
 * (docs/protocol.md section 2). Both ends use it.
 *
 * A message is one line, an object with the member `op`, at most MF_CHANNEL_LINE_MAX bytes. Descriptors travel
 * as SCM_RIGHTS with the first byte of their message and are kept in order; a message that carries one takes
 * the oldest. No call here blocks, but those called _wait. One thread. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"

#define MF_CHANNEL_LINE_MAX (8u << 20)
#define MF_CHANNEL_OUT_MAX  (32u << 20) /* queued and not yet written */
#define MF_CHANNEL_FDS_MAX  128         /* on their way, in each direction */

#define MF_RUNNER_FD_ENV "MOEFARM_RUNNER_FD"

struct mf_channel {
    int fd;
    bool eof; /* the peer has closed its end */
    struct mf_buf in, out;
    size_t in_start;   /* first byte of `in` not yet given out */
    size_t in_scanned; /* no newline before this one */
    int in_fds[MF_CHANNEL_FDS_MAX], n_in_fds;
    struct {
        int fd;
        size_t at; /* goes with this byte of `out` */
    } out_fds[MF_CHANNEL_FDS_MAX];
    int n_out_fds;
    int64_t written_ms; /* when all of `out` last was */
};

/* Takes the descriptor. */
void mf_channel_init(struct mf_channel *c, int fd);
void mf_channel_release(struct mf_channel *c);

/* Queues a message and writes what the socket takes. fd, unless -1, goes with it and stays the caller's.
 * -EMSGSIZE: longer than a line may be; -ENOBUFS: the peer does not read; -EPIPE. */
int mf_channel_send(struct mf_channel *c, const cJSON *message, int fd);
/* 0: all is written; 1: the socket takes no more now. */
int mf_channel_flush(struct mf_channel *c);
static inline bool mf_channel_wants_write(const struct mf_channel *c)
{
    return c->out.len > 0;
}
/* Reads what is there and has room; sets eof. -EPROTO: descriptors were cut off. */
int mf_channel_fill(struct mf_channel *c);
/* 1: a message, which the caller owns; 0: none is complete; -EBADMSG: a line that is no message, now skipped;
 * -EMSGSIZE: a line without end; -EPROTO: the peer sends more descriptors than messages take. */
int mf_channel_next(struct mf_channel *c, cJSON **ret);
/* The oldest descriptor received, now the caller's; -1: none. */
int mf_channel_take_fd(struct mf_channel *c);

/* For a side that has nothing else to do. send_wait: until it is written. send_many: one of many, which may wait for those
 * behind it, and goes with the first send_wait at the latest. wait: until a message is there: 1;
 * 0 when the peer has closed; -ETIMEDOUT. timeout_ms < 0: for ever. */
int mf_channel_send_wait(struct mf_channel *c, const cJSON *message, int fd);
int mf_channel_send_many(struct mf_channel *c, const cJSON *message);
int mf_channel_wait(struct mf_channel *c, int64_t timeout_ms, cJSON **ret);

/* {"op": op}; NULL when out of memory. */
cJSON *mf_channel_message(const char *op);
/* The op of a message that mf_channel_next gave. */
const char *mf_channel_op(const cJSON *message);
