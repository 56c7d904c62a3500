/* A fake worker: a DEALER socket that speaks the protocol of docs/protocol.md, section 1, and answers units
 * by fixed rules. Its enumerations and measurements depend only on names, so two runs give the same configs.
 */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/secret.h"
#include "common/net/wire.h"

/* sizes of the grid of candidates; one result has no room for more candidates */
#define FAKE_GRID_A 7
#define FAKE_GRID_B 9
#define FAKE_GRID_C 4

struct fake_worker {
    void *socket;
    char name[64], instance[64];
    uint64_t sequence;
    int64_t epoch; /* epoch of the last WELCOME */
    /* number of steps per stage and block_m (default: 4) */
    int n_variants;
    /* true: instead lists candidates for the whole layer, named grid_aA_bB_cC, with A from 0 to
     * FAKE_GRID_A - 1, and so on */
    bool grid;
    const char *class;    /* for example "gfx942/304" */
    const char *revision; /* for example "r1" */
    /* JSON object {family: revision} of HELLO; NULL: family "fake" at `revision` */
    const char *families;
    const char *refused_families; /* JSON array of HELLO; NULL: none */
    const char *model;            /* for example "m" */
    bool real;                    /* true: HELLO says that the device is not simulated */
    double gap_us;                /* launch gap in HELLO (default: 0.5) */
    /* in HELLO; 0: of a GPU, if `real`; otherwise those of a device that is a hundred times as fast */
    double peak_gflops, mem_read_gbs;
    double flops, bytes; /* of each step that it lists (default: 1e6 and 1e5) */
    /* simulated time of a step, in us; NULL: fake_us */
    double (*us)(const struct fake_worker *w, const char *name);
    /* Ratio of a pipeline's time in a race to the sum of its steps' times; NULL: 1.01 for all pipelines. */
    double (*factor)(const struct fake_worker *w, const cJSON *unit, const cJSON *pipeline);
    double mad;     /* spread of the winner's time in a race, in us; 0: 0.1 */
    bool no_groups; /* the worker does not support groups in a race */
    /* Patterns of step names with * and ?. A pipeline with a step `wrong` is wrong; a pipeline with a step
     * `crash` crashes the runner. NULL: none. */
    const char *wrong, *crash;
};

/* Connects to tcp://127.0.0.1:port and sends nothing yet. Returns 0 or -errno. */
int fake_worker_open(struct fake_worker *w, void *zmq, int port, const char *name);
/* Like fake_worker_open, but with CURVE keys: the worker's own key pair and the coordinator's public key.
 * routing_id NULL: ZeroMQ chooses the routing id. */
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
/* Sends HELLO. running: the units that the worker still runs, as a JSON array. */
int fake_worker_hello(struct fake_worker *w, const char *running);
/* Receives a message. Returns 1 on success or 0 on timeout. The caller owns *ret. */
int fake_worker_recv(struct fake_worker *w, int timeout_ms, enum mf_message *ret_type, cJSON **ret);
/* Returns the next message of the type and drops messages of other types. Returns NULL on timeout. */
cJSON *fake_worker_await(struct fake_worker *w, enum mf_message type, int timeout_ms);
/* Sends HELLO and waits for WELCOME. Returns 0, -errno, or -ETIMEDOUT. */
int fake_worker_greet(struct fake_worker *w, const char *running, int timeout_ms);
/* Sends READY with a credit of one unit. */
int fake_worker_ready(struct fake_worker *w);

/* Prints the members "unit", "attempt" and "epoch" that identify the unit in a message, without braces. */
#define FAKE_UNIT_KEY_MAX 96
void fake_unit_key(const cJSON *unit, char key[FAKE_UNIT_KEY_MAX]);

/* Returns the number of results that the unit requests. */
int fake_unit_results(const cJSON *unit);
/* Sends result number i of the unit; the first has number 0. The last result ends the unit. */
int fake_worker_result(struct fake_worker *w, const cJSON *unit, int i);
/* Sends all results of the unit. */
int fake_worker_answer(struct fake_worker *w, const cJSON *unit);
/* Ends the unit without results, with one status for the whole unit. */
int fake_worker_fail(struct fake_worker *w, const cJSON *unit, const char *status, const char *reason);
/* Requests units and answers them up to the first unit of the kind. Returns that unit, which the caller owns,
 * or NULL if no unit comes within timeout_ms of the previous unit. */
cJSON *fake_worker_work_until(struct fake_worker *w, const char *kind, int timeout_ms);
/* Returns the simulated time of a step in us, which is a hash of its name. */
double fake_us(const char *name);
