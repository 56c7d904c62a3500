/* Incremental parser for text/event-stream (WHATWG HTML, "server-sent events").
 *
 * Lines end with LF, CR LF or CR. Comments and fields other than event, id and data are ignored. An event
 * larger than MF_SSE_EVENT_MAX ends the stream with -EMSGSIZE. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"

#define MF_SSE_EVENT_MAX (1u << 20)
#define MF_SSE_NAME_MAX  64
#define MF_SSE_ID_MAX    64

/* Called for each event. A negative return value ends the stream and is passed to the caller. data is
 * NUL-terminated; data and kind are valid during the call only. */
typedef int (*mf_sse_fn)(void *context, const char *kind, const char *data);

struct mf_sse {
    mf_sse_fn event;
    void *context;
    char kind[MF_SSE_NAME_MAX]; /* name of the event that is being parsed; "" means "message" */
    char next_id[MF_SSE_ID_MAX];
    /* id of the last complete event; sent on reconnect, kept by mf_sse_restart */
    char last_id[MF_SSE_ID_MAX];
    struct mf_buf line, data;
    bool after_cr, has_data;
};

void mf_sse_init(struct mf_sse *s, mf_sse_fn event, void *context);
void mf_sse_release(struct mf_sse *s);
/* Discards a partly parsed event. Call it before a new connection. */
void mf_sse_restart(struct mf_sse *s);
/* Returns 0, -EMSGSIZE, -ENOMEM, or the return value of the callback. */
int mf_sse_feed(struct mf_sse *s, const char *bytes, size_t n);
