/* A blocking HTTP client over raw sockets, so that tests can also send what no client library would. */
#pragma once

#include <stddef.h>

struct http_reply {
    int status; /* 0: the connection ended without an answer */
    char *head; /* status line and headers */
    char *body; /* chunked coding undone; NUL behind it */
    size_t len;
};

/* A connection to 127.0.0.1; reads give up after 20 s. -1 when refused. */
int http_connect(int port);
void http_send(int fd, const char *data, size_t len);
void http_sends(int fd, const char *text);
/* Reads one answer. head_only: of a HEAD request. */
struct http_reply http_read(int fd, int head_only);
/* One request on a connection of its own. headers: "Name: value\r\n…" or "". body may be NULL. */
struct http_reply http_call(int port, const char *method, const char *path, const char *headers,
                            const char *body, size_t len);
struct http_reply http_get(int port, const char *path);
void http_reply_free(struct http_reply *r);
/* The value of a header, in a static buffer; "" when absent. */
const char *http_header(const struct http_reply *r, const char *name);

/* An answer whose body is read as it comes, in chunks or not: an event stream. */
struct http_stream;
/* Reads the head of the answer to what was sent on fd, and owns fd. */
struct http_stream *http_stream_open(int fd);
/* Its status and head, without a body; the stream's own. */
const struct http_reply *http_stream_head(const struct http_stream *s);
/* Reads on until the text is seen, whatever chunks it lies in; returns what came since the last call, for the caller to free.
 * Fails the test when it has not come after 40 s. */
char *http_stream_until(struct http_stream *s, const char *text);
/* Reads to the end; 0: the connection ended before the body did. */
int http_stream_end(struct http_stream *s);
/* At any time: nobody reads on. */
void http_stream_close(struct http_stream *s);
