/* A worker of cardboard: a DEALER that speaks the protocol of docs/protocol.md, section 1, and answers units by rules. What it
 * enumerates and measures is a function of names only, so that two runs that end alike give the same configs. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/secret.h"
#include "common/net/wire.h"

struct fake_worker {
    void *socket;
    char name[64], instance[64];
    uint64_t sequence;
    int64_t epoch;                                               /* of the last WELCOME */
    int n_variants;                                              /* steps of a stage and block_m; 4 */
    const char *class;                                           /* "gfx942/304" */
    const char *revision;                                        /* "r1" */
    const char *model;                                           /* "m" */
    double (*us)(const struct fake_worker *w, const char *name); /* what it "measures" of a step; fake_us */
    /* What a pipeline takes in a race over the sum of its steps; NULL: 1.01 for all. */
    double (*factor)(const struct fake_worker *w, const cJSON *unit, const cJSON *pipeline);
    bool no_groups;            /* it knows no groups of a race */
    const char *wrong, *crash; /* a step with which a pipeline is wrong, or kills the runner; NULL: none */
};

/* Connects to tcp://127.0.0.1:port; says nothing yet. 0 or -errno. */
int fake_worker_open(struct fake_worker *w, void *zmq, int port, const char *name);
/* The same with keys, its own and the coordinator's public one; routing_id NULL: any. */
struct fake_keys {
    struct mf_key_pair own;
    uint8_t coordinator[MF_KEY_SIZE];
    const char *routing_id;
};
int fake_worker_open_keys(struct fake_worker *w, void *zmq, int port, const char *name,
                          const struct fake_keys *keys);
void fake_worker_close(struct fake_worker *w);
int fake_worker_send(struct fake_worker *w, enum mf_message type, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* running: JSON array text of what it still works on. */
int fake_worker_hello(struct fake_worker *w, const char *running);
/* 1: a message; 0: none within the time. json is the caller's. */
int fake_worker_recv(struct fake_worker *w, int timeout_ms, enum mf_message *ret_type, cJSON **ret);
/* The next message of the type; others are passed over. NULL: none within the time. */
cJSON *fake_worker_await(struct fake_worker *w, enum mf_message type, int timeout_ms);
/* HELLO, and the WELCOME for it; 0 or -errno, -ETIMEDOUT where none comes within the time. */
int fake_worker_greet(struct fake_worker *w, const char *running, int timeout_ms);
/* READY for one unit. */
int fake_worker_ready(struct fake_worker *w);

/* Members "unit", "attempt" and "epoch" of a message about the unit, without braces. */
#define FAKE_UNIT_KEY_MAX 96
void fake_unit_key(const cJSON *unit, char key[FAKE_UNIT_KEY_MAX]);

/* Number of results that the unit asks for. */
int fake_unit_results(const cJSON *unit);
/* Sends result i of the unit, from 0; the last one ends it. */
int fake_worker_result(struct fake_worker *w, const cJSON *unit, int i);
/* All of them. */
int fake_worker_answer(struct fake_worker *w, const cJSON *unit);
/* Ends the unit with a status for the whole of it and no result. */
int fake_worker_fail(struct fake_worker *w, const cJSON *unit, const char *status, const char *reason);
/* Asks for units and answers them up to the first of the kind, which is the caller's. NULL: none comes within the time after the
 * one before. */
cJSON *fake_worker_work_until(struct fake_worker *w, const char *kind, int timeout_ms);
/* The time that it "measures" of a step, by its name. */
double fake_us(const char *name);
