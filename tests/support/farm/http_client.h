/* A blocking HTTP client on raw sockets, which can also send malformed requests. */
#pragma once

#include <stddef.h>

struct http_reply {
    int status; /* 0 if the connection ended without an answer */
    char *head; /* status line and headers */
    char *body; /* decoded body; NUL-terminated */
    size_t len;
};

/* Connects to 127.0.0.1. Reads on the connection time out after 20 s. Returns -1 if the connection is
 * refused. */
int http_connect(int port);
void http_send(int fd, const char *data, size_t len);
void http_sends(int fd, const char *text);
/* Reads one answer. head_only: 1 if the request was HEAD. */
struct http_reply http_read(int fd, int head_only);
/* Sends one request on a connection of its own and returns the answer. headers: "Name: value\r\n…" or "".
 * body may be NULL. */
struct http_reply http_call(int port, const char *method, const char *path, const char *headers,
                            const char *body, size_t len);
struct http_reply http_get(int port, const char *path);
void http_reply_free(struct http_reply *r);
/* Returns the value of a header in a static buffer, or "" if the header is absent. */
const char *http_header(const struct http_reply *r, const char *name);

/* An answer that the test reads piece by piece, such as an event stream. It may be chunked. */
struct http_stream;
/* Reads the head of the answer on the connection fd, which the stream then owns. */
struct http_stream *http_stream_open(int fd);
/* Returns the status and the head, without a body; the stream owns them. */
const struct http_reply *http_stream_head(const struct http_stream *s);
/* Reads until the text arrives, even if chunk boundaries split it. Returns the data since the last call,
 * which the caller frees. Fails the test after 40 s. */
char *http_stream_until(struct http_stream *s, const char *text);
/* Reads to the end of the connection. Returns 0 if the connection ended before the body did. */
int http_stream_end(struct http_stream *s);
/* Closes the connection. The test may do this at any time. */
void http_stream_close(struct http_stream *s);
