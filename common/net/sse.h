/* Reads a text/event-stream (WHATWG HTML, "server-sent events") from pieces of any size.
 *
 * Lines end by LF, CR LF or CR. Fields other than event, id and data, and comments, are passed over. An event
 * larger than MF_SSE_EVENT_MAX ends the stream with -EMSGSIZE. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"

#define MF_SSE_EVENT_MAX (1u << 20)
#define MF_SSE_NAME_MAX  64
#define MF_SSE_ID_MAX    64

/* A negative return ends the stream and is passed up. data is NUL-terminated; it and kind live for the call only. */
typedef int (*mf_sse_fn)(void *context, const char *kind, const char *data);

struct mf_sse {
    mf_sse_fn event;
    void *context;
    char kind[MF_SSE_NAME_MAX]; /* of the event being read; "" means "message" */
    char next_id[MF_SSE_ID_MAX];
    char last_id
        [MF_SSE_ID_MAX]; /* of the last whole event: what a reconnection sends; survives mf_sse_restart */
    struct mf_buf line, data;
    bool after_cr, has_data;
};

void mf_sse_init(struct mf_sse *s, mf_sse_fn event, void *context);
void mf_sse_release(struct mf_sse *s);
/* Forgets a half-read event, for a new connection. */
void mf_sse_restart(struct mf_sse *s);
/* 0, -EMSGSIZE, -ENOMEM, or what the callback returned. */
int mf_sse_feed(struct mf_sse *s, const char *bytes, size_t n);
