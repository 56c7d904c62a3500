/* The HTTP side of moefarmd on a temporary store: the HTTP thread, readers, and a writer thread that runs
 * requests against a fake farm. The fake mf_farm_* functions are weak symbols: a test that links the real
 * farm overrides them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/farm/farm.h"
#include "server/http/http.h"

struct http_harness;

struct http_harness_options {
    bool fixture; /* fill the store with farm_fixture */
    bool second_model;
    bool no_writer;              /* requests to the writer stay unanswered */
    struct mf_http_options http; /* the harness fills in zmq */
};

struct http_harness *http_harness_start(const struct http_harness_options *options);
void http_harness_stop(struct http_harness *h);
int http_harness_port(const struct http_harness *h);
/* Stores an event and publishes it. sql (may be NULL) runs in the same transaction. The kind "burst"
 * publishes as many events as the number in body, with bodies {"i":1,…} of about 1 KiB. */
void http_harness_event(struct http_harness *h, int64_t batch, const char *kind, const char *body,
                        const char *sql);
/* The last request to the fake farm, as one line. Call it after the answer has arrived. */
const char *http_harness_last_request(const struct http_harness *h);
