#include "server/http/http_private.h"

#include "common/base/clock.h"
#include "server/api/api.h"
#include "server/http/problem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Target size of a chunk. The maximum size leaves room for one long event. */
#define CHUNK_BYTES     (64u << 10)
#define CHUNK_BYTES_MAX (4u << 20)

int mf_api_events(void *http, struct mf_request *r)
{
    struct mf_http *h = http;
    if (h->n_streams >= h->options.streams || h->stopping) {
        (void)mf_refuse(&r->response, 503, "%d event streams are open, the maximum: close one", h->n_streams);
        (void)mf_respond_header(&r->response, "Retry-After", "5");
        return 0;
    }
    r->response.status = 200;
    r->response.content_type = "text/event-stream";
    r->response.stream = true;
    return 0;
}

static void park(struct mf_exchange *x)
{
    x->stream->idle = true;
    MHD_suspend_connection(x->connection);
}

/* Moves events from the ring into the chunk, or asks a reader for events that the ring has dropped. */
static int stream_fill(struct mf_exchange *x)
{
    struct mf_stream *s = x->stream;
    mf_buf_clear(&s->chunk);
    s->at = 0;
    int r = mf_events_read(x->http->ring, s->batch, &s->cursor, &s->chunk, CHUNK_BYTES);
    if (r != -ESTALE)
        return r;
    struct mf_request *q = x->request;
    q->hop = 0;
    q->following = true;
    q->cursor = s->cursor;
    q->response.status = 0;
    mf_buf_clear(&q->response.body);
    return mf_exchange_send(x);
}

static ssize_t stream_read(void *exchange, uint64_t pos, char *buf, size_t max)
{
    struct mf_exchange *x = exchange;
    struct mf_stream *s = x->stream;
    (void)pos;
    if (x->http->stopping || s->broken)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (s->at == s->chunk.len) {
        int r = stream_fill(x);
        if (r < 0)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (x->state == MF_EXCHANGE_FORWARDED) {
            MHD_suspend_connection(x->connection);
            return 0;
        }
    }
    size_t n = MF_MIN(max, s->chunk.len - s->at);
    if (n == 0) {
        park(x);
        return 0;
    }
    memcpy(buf, s->chunk.data + s->at, n);
    s->at += n;
    s->sent_ms = mf_now_ms();
    return (ssize_t)n;
}

struct MHD_Response *mf_stream_open(struct mf_exchange *x)
{
    struct mf_request *r = x->request;
    struct mf_stream *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    mf_buf_init(&s->chunk, CHUNK_BYTES_MAX);
    s->batch = r->path_id[0];
    s->cursor = r->cursor;
    s->sent_ms = mf_now_ms();
    x->stream = s;
    x->http->n_streams++;
    /* The id line without data sets the client's last id, so that a client that reconnects before the first
     * event loses no event */
    mf_buf_addf(&s->chunk, ": moefarm events\nretry: 1000\n");
    mf_buf_addf(&s->chunk, "id: %lld\n\n", (long long)r->first_cursor);
    if (mf_buf_add(&s->chunk, r->response.body.data, r->response.body.len) < 0)
        return NULL;
    mf_buf_clear(&r->response.body);
    return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 32768, stream_read, x, NULL);
}

void mf_stream_free(struct mf_exchange *x)
{
    x->http->n_streams--;
    mf_buf_release(&x->stream->chunk);
    free(x->stream);
    x->stream = NULL;
}

void mf_stream_caught_up(struct mf_exchange *x)
{
    struct mf_stream *s = x->stream;
    struct mf_request *r = x->request;
    if (r->response.status == 0) {
        s->cursor = r->cursor;
        s->broken = mf_buf_add(&s->chunk, r->response.body.data, r->response.body.len) < 0;
        mf_buf_clear(&r->response.body);
    } else {
        /* The cursor has not moved, so continuing would repeat the failed read forever. */
        s->broken = true;
    }
    MHD_resume_connection(x->connection);
}

static void wake(struct mf_exchange *x)
{
    x->stream->idle = false;
    MHD_resume_connection(x->connection);
}

void mf_streams_check(struct mf_http *h)
{
    h->gate_ms = mf_now_ms();
    for (struct mf_exchange *x = h->exchanges; x; x = x->next) {
        if (!x->stream || x->stream->broken || mf_gate_token_valid(h->gate, x->token))
            continue;
        x->stream->broken = true;
        if (x->stream->idle)
            wake(x);
    }
}

void mf_streams_wake(struct mf_http *h, bool keepalive)
{
    int64_t now = mf_now_ms();
    for (struct mf_exchange *x = h->exchanges; x; x = x->next) {
        struct mf_stream *s = x->stream;
        if (!s || !s->idle)
            continue;
        if (stream_fill(x) < 0) {
            s->broken = true;
            wake(x);
            continue;
        }
        if (x->state == MF_EXCHANGE_FORWARDED) {
            s->idle = false;
            continue;
        }
        if (s->chunk.len == 0 && keepalive && now - s->sent_ms >= h->options.keepalive_ms)
            mf_buf_adds(&s->chunk, ": beat\n\n");
        if (s->chunk.len > 0)
            wake(x);
    }
}
