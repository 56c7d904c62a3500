/* The HTTP side of moefarmd on a store of the test's own: the HTTP thread, readers, and a writer that runs the writer's hops
 * against a farm of cardboard (weak mf_farm_*, so that the real one takes their place where it is linked in). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/farm/farm.h"
#include "server/http/http.h"

struct http_harness;

struct http_harness_options {
    bool fixture; /* fill the store by farm_fixture */
    bool second_model;
    bool no_writer;              /* nobody takes the writer's requests */
    struct mf_http_options http; /* zmq is filled in */
};

struct http_harness *http_harness_start(const struct http_harness_options *options);
void http_harness_stop(struct http_harness *h);
int http_harness_port(const struct http_harness *h);
/* Stores an event and publishes it. sql, may be NULL: run in the same transaction. The kind "burst" makes as many
 * events as the body says, with bodies {"i":1,…} of about 1 KiB. */
void http_harness_event(struct http_harness *h, int64_t batch, const char *kind, const char *body,
                        const char *sql);
/* What the cardboard farm was last asked for, as one line. Call when the answer has come. */
const char *http_harness_asked(const struct http_harness *h);
