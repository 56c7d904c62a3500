/* The farm, owned by the writing thread: the store's only writing connection, the hub (messages from and to
 * workers) and the queue of requests that change state. One iteration of its loop is one transaction. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/notify.h"
#include "common/base/secret.h"
#include "common/moe/batch_options.h"
#include "common/moe/device_class.h"
#include "common/moe/shape.h"
#include "server/farm/farm_stats.h"

/* A known row that comes with a batch. */
struct mf_known_row {
    struct mf_device_class class;
    const struct mf_shape *shape; /* points into the submission's shapes */
    const char *pipeline;         /* "": the row names no pipeline */
    double us;
    int64_t line;
};

struct mf_submission {
    const char *name;            /* name of the batch for users */
    const char *idempotency_key; /* "" for none */
    const char *body_hash;       /* hash of body and options, hexadecimal */
    struct mf_batch_options options;
    const struct mf_shape *shapes;
    size_t n_shapes; /* number of valid shapes, without duplicates */
    /* sorted: shapes that were not submitted, but are AITER's keys of submitted shapes; also in `shapes` */
    const struct mf_shape *aiter_keys;
    size_t n_aiter_keys;
    const struct mf_known_row *known;
    size_t n_known;
    const cJSON *errors;          /* array of {line, at, code, message} for invalid rows; for the receipt */
    const cJSON *unknown_columns; /* array of the same form for ignored columns */
};

struct mf_farm;

/* The request handlers of the writing thread call these functions within the iteration's transaction.
 * Responses are sent after COMMIT. */
/* Stores a batch. *ret_receipt is the response's JSON, owned by the caller: {"batch", "shapes", "errors",
 * "unknown_columns", …}. Returns 1 and the original receipt if the idempotency key was used with the same
 * body, -EEXIST if it was used with another body. */
int mf_farm_submit(struct mf_farm *f, const struct mf_submission *s, cJSON **ret_receipt);
/* True if the submission is stored in slices, by mf_farm_submit_later: it is long, or its idempotency key is
 * that of such a submission. */
bool mf_farm_submits_later(const struct mf_farm *f, const struct mf_submission *s);
/* Stores a batch over several iterations. A batch is visible as `submitting` until it is complete; a restart
 * removes it. At the end calls finish with the result of mf_farm_submit, and then sends the response. s must
 * stay valid as long as the request. */
struct mf_request;
typedef int (*mf_submitted_fn)(struct mf_request *request, int r, cJSON *receipt);
int mf_farm_submit_later(struct mf_farm *f, struct mf_request *request, const struct mf_submission *s,
                         mf_submitted_fn finish);
/* Cancels a batch's unfinished tasks. Returns -ENOENT for an unknown batch, 1 if the batch had already ended.
 */
int mf_farm_cancel(struct mf_farm *f, int64_t batch);
/* Lets the worker finish its unit and gives it no further unit. Returns -ENOENT if the worker is not
 * connected. */
int mf_farm_drain(struct mf_farm *f, int64_t worker);
/* Ends the quarantine of a worker. Returns -ENOENT if the worker is not quarantined. */
int mf_farm_worker_revive(struct mf_farm *f, int64_t worker);
/* Lifts the quarantine of a kernel on a class. Returns -ENOENT if the kernel has no quarantine there. */
int mf_farm_revive(struct mf_farm *f, int64_t kernel, const struct mf_device_class *class);

/* Reads the counters since the start. */
void mf_farm_get_stats(const struct mf_farm *f, struct mf_farm_stats *ret);

/* ---- the event loop; called by main ---- */
struct mf_farm_options {
    const char *path;               /* path of the database file */
    const char *endpoint;           /* address of the hub, "tcp://127.0.0.1:7070" */
    const struct mf_key_pair *keys; /* keys of the hub, borrowed; NULL: any peer may act as a worker */
    const char *first_token;        /* file for the first admin token; NULL: creates no token */
    int64_t beat_ms;                /* heartbeat interval of workers; a lease lasts three intervals */
    int64_t attempts;               /* maximum leases of a unit; after these attempts the unit fails */
    double unit_s;                  /* expected duration of a probe unit */
    double race_s;                  /* planned duration of a race, by forecast */
    double lease_max_s;             /* longest lease of a unit; 0: derived from its forecast */
    double samples_days;            /* days to keep raw samples; 0: no limit */
    int64_t tune_misses_s; /* interval between batches made of missed shapes; 0: only list the misses */
};
#define MF_FARM_OPTIONS_INIT                                       \
    {                                                              \
        .beat_ms = 1000, .attempts = 8, .unit_s = 2, .race_s = 0.4 \
    }

/* Opens the store, binds the hub and the writer's sockets (server/farm/bus.h). On error, `why` has the
 * reason. */
int mf_farm_new(void *zmq, const struct mf_farm_options *options, struct mf_farm **ret, char *why,
                size_t why_cap);
struct mf_farm *mf_farm_free(struct mf_farm *f);
/* Returns the address that workers connect to. */
const char *mf_farm_endpoint(const struct mf_farm *f);
/* Runs iterations until stop_fd is readable, and pings the service manager's watchdog after each iteration.
 * Returns a negative value if the store failed. Even then, only durable changes have been acknowledged. */
int mf_farm_run(struct mf_farm *f, int stop_fd, struct mf_notify *notify);
