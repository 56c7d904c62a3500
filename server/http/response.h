/* The response to an HTTP request. */
#pragma once

#include <stdbool.h>

#include "common/base/buf.h"

struct mf_response {
    int status;               /* HTTP status; 0: not answered yet */
    bool stream;              /* the response is an open-ended text/event-stream */
    const char *content_type; /* static string */
    char etag[72];            /* with quotes; "" if none */
    char headers[4][2][160];  /* additional headers: name, value; an empty name ends the list */
    struct mf_buf body;
    int fd; /* >= 0: unlinked file with the body; `body` is then empty */
};
