/* The farm: what the writing thread does. It owns the store's only writing connection, the hub (what workers say and hear) and
 * the queue of requests that change something; one turn is one transaction. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/notify.h"
#include "common/base/paired.h"
#include "common/base/secret.h"
#include "common/moe/device_class.h"
#include "common/moe/layer.h"
#include "common/moe/pipeline_search.h"
#include "common/moe/routing.h"
#include "common/moe/shape.h"
#include "server/choose/search.h"

/* Options of a batch, from the API. Texts are checked by whoever fills it. */
#define MF_BATCH_NO_FUSE_MAX 8
#define MF_BATCH_REGRET_MAX  4

struct mf_batch_options {
    int priority;        /* 0 … 100, more is sooner; 50 */
    int topk;            /* finalists: the K cheapest pipelines; 8 */
    double err_ratio;    /* AITER's; 0.1 */
    int64_t time_cap_ms; /* per step; 10,000 */
    struct mf_routing routing;
    enum mf_search search;
    bool
        for_aiter; /* consumer=aiter: what is tuned of a row is the key that AITER's production computes of it */
    bool layout_free;                /* layout=free: no common weight layout for a layer model */
    char layout[MF_PATH_LAYOUT_MAX]; /* "w1=row w2=row": where the weights lie already; "": it is chosen */
    enum mf_promote promote;
    double min_effect; /* of a new row over the known one, where promote is improved; 0.03 */
    bool has_baseline; /* the known rows are those that came with it, not the farm's own */
    uint64_t seed;     /* of the data; 1 */
    double fuse_saves; /* least bytes of traffic that a step of several ops has to save; 0: any */
    int n_no_fuse;     /* ops that no step of the batch may cover together */
    mf_ops no_fuse[MF_BATCH_NO_FUSE_MAX];
    int warmup;         /* runs of a candidate whose times do not count; 0: all do, the first too */
    int iters;          /* samples of the winner's fresh re-measurement; 0: the farm's own choice */
    bool no_split_k;    /* steps that cut K are none of it */
    bool shape_grouped; /* one worker measures all of a task, while it is there */
    int n_regret;       /* profiles that the winner's regret is measured under; balanced and zipf:1.2 */
    struct mf_routing regret[MF_BATCH_REGRET_MAX];
    int n_classes; /* 0: every class that has a live worker at submission, or the first to come */
    struct mf_device_class classes[16];
};
#define MF_BATCH_OPTIONS_INIT                                                                     \
    {                                                                                             \
        .priority = 50, .topk = 8, .err_ratio = 0.1, .time_cap_ms = 10000,                        \
        .routing = {.kind = MF_ROUTING_UNIFORM}, .min_effect = MF_PAIRED_LEAST_EFFECT, .seed = 1, \
        .n_regret = 2, .regret = {                                                                \
            {.kind = MF_ROUTING_BALANCED},                                                        \
            {.kind = MF_ROUTING_ZIPF, .parameter = 1.2}                                           \
        }                                                                                         \
    }

/* A row of a batch's baseline. */
struct mf_known_row {
    struct mf_device_class class;
    const struct mf_shape *shape; /* one of the submission's */
    const char *pipeline;         /* "": it names none */
    double us;
    int64_t line;
};

struct mf_submission {
    const char *name;            /* of the batch, for people */
    const char *idempotency_key; /* "" for none */
    const char *body_hash;       /* hex, of body and options */
    struct mf_batch_options options;
    const struct mf_shape *shapes;
    size_t n_shapes; /* good rows, duplicates already removed */
    const struct mf_known_row *known;
    size_t n_known;
    const cJSON *errors; /* array of {line, at, code, message} for the bad rows; goes into the receipt */
    const cJSON *unknown_columns; /* the same of columns that are passed over */
};

struct mf_farm;

/* Called by the request handlers of the writing thread, within its turn's transaction. Answers go out after
 * COMMIT. */
/* Stores a batch; *ret_receipt is the answer's JSON, which the caller owns: {"batch", "shapes", "errors", "unknown_columns", …}.
 * 1: the key was used before with the same body, and this is the receipt given then. -EEXIST: the key was used with
 * another body. */
int mf_farm_submit(struct mf_farm *f, const struct mf_submission *s, cJSON **ret_receipt);
/* Cancels what is not done. -ENOENT; 1 when it had ended before. */
int mf_farm_cancel(struct mf_farm *f, int64_t batch);
/* The worker finishes its unit and takes no more. -ENOENT. */
int mf_farm_drain(struct mf_farm *f, int64_t worker);
/* Lifts a quarantine, of a kernel on a class. -ENOENT. */
int mf_farm_revive(struct mf_farm *f, int64_t kernel, const struct mf_device_class *class);

/* Counters of the writing thread since it started, for /metrics and /readyz. */
#define MF_TURN_BUCKETS 10
extern const double mf_turn_bucket_s[MF_TURN_BUCKETS]; /* upper bounds: 0.0005, 0.001, 0.002, 0.005 … 0.5 */
struct mf_farm_stats {
    bool ready;                             /* store open, hub bound */
    bool halted;                            /* the store takes nothing */
    uint64_t turns;                         /* transactions committed */
    uint64_t turn_buckets[MF_TURN_BUCKETS]; /* turns of at most that long, not cumulated */
    double turn_s;                          /* sum of their durations */
    uint64_t messages;                      /* taken from workers */
    uint64_t results;                       /* committed */
    uint64_t results_again;                 /* known already, acknowledged again */
    uint64_t results_late;                  /* kept as samples of a lease that had ended */
    uint64_t refused;                       /* messages answered by REFUSE */
    uint64_t turned_away;                   /* handshakes at the hub with a key that does not stand */
    uint64_t leases_expired;
    uint64_t events;
};
void mf_farm_get_stats(const struct mf_farm *f, struct mf_farm_stats *ret);

/* ---- the loop; called by main ---- */
struct mf_farm_options {
    const char *path;               /* of the database */
    const char *endpoint;           /* of the hub: "tcp://127.0.0.1:7070" */
    const struct mf_key_pair *keys; /* of the hub; outlives the farm. NULL: whoever reaches it is a worker */
    const char *first_token;        /* file for the first admin's token; NULL: none is made */
    int64_t beat_ms;                /* a lease is three beats */
    int64_t attempts;               /* leases of a unit before it is given up */
    double unit_s;                  /* a probe unit is cut to about that */
    double race_s;                  /* a race is planned to last about that, at the forecast times */
    double samples_days;            /* raw samples are kept so long; 0: for ever */
    int64_t
        tune_misses_s; /* what production missed is tuned, a batch each so many seconds; 0: it is listed */
};
#define MF_FARM_OPTIONS_INIT                                       \
    {                                                              \
        .beat_ms = 1000, .attempts = 8, .unit_s = 2, .race_s = 0.4 \
    }

/* Opens the store, binds the hub and the writer's ends of the bus (server/farm/bus.h). */
int mf_farm_new(void *zmq, const struct mf_farm_options *options, struct mf_farm **ret, char *why,
                size_t why_cap);
struct mf_farm *mf_farm_free(struct mf_farm *f);
/* The address that workers connect to. */
const char *mf_farm_endpoint(const struct mf_farm *f);
/* Turns until stop_fd is readable; notify hears of every one. Negative: the store failed, and what is not durable was not
 * acknowledged. */
int mf_farm_run(struct mf_farm *f, int stop_fd, struct mf_notify *notify);
