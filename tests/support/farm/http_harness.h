/* Runs the HTTP side of moefarmd on a temporary store: the HTTP thread, readers, and a writer thread that
 * passes requests to a fake farm. The fake mf_farm_* functions are weak symbols, so a test that links the
 * real farm overrides them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/farm/farm.h"
#include "server/http/http.h"

struct http_harness;

struct http_harness_options {
    bool fixture; /* fills the store with farm_fixture */
    bool second_model;
    bool configs;                /* adds farm_fixture_configs */
    bool no_writer;              /* leaves requests to the writer unanswered */
    struct mf_http_options http; /* member `zmq` is set by the harness */
};

struct http_harness *http_harness_start(const struct http_harness_options *options);
void http_harness_stop(struct http_harness *h);
int http_harness_port(const struct http_harness *h);
/* Stores an event and publishes it. sql runs in the same transaction; it may be NULL. With the kind "burst",
 * `body` is the number of events to store and publish; their bodies are {"i":1,…} and so on, of about 1 KiB.
 */
void http_harness_event(struct http_harness *h, int64_t batch, const char *kind, const char *body,
                        const char *sql);
/* Returns the last request to the fake farm as one line. Call it after the answer to that request has
 * arrived. */
const char *http_harness_last_request(const struct http_harness *h);
