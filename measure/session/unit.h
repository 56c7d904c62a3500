/* A unit as a runner sees it, and where its results go. docs/protocol.md section 1 has the messages. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/routing.h"
#include "common/moe/shape.h"
#include "common/moe/status.h"
#include "common/moe/step.h"
#include "kernels/core/device.h"

/* clang-format off */
#define MF_PHASE_MAP(X, P)                                     \
    X(P, WAIT, "wait")     /* nothing to do */                 \
    X(P, LOAD, "load")     /* opening steps, mapping memory */ \
    X(P, DATA, "data")     /* making data and references */    \
    X(P, VERIFY, "verify")                                     \
    X(P, TIMING, "timing")
/* clang-format on */
MF_NAMES_DECLARE(mf_phase, MF_PHASE_, MF_PHASE_MAP);

struct mf_unit_options {
    struct mf_routing routing;
    double err_ratio; /* AITER's mismatch ratio that is still accepted */
    uint64_t seed;
    int64_t time_cap_ms; /* per step */
    int64_t warmup;      /* runs of a candidate whose times do not count; 0: all do, the first too */
    bool exhaustive;     /* no step is dropped by time before it has every gate and sample */
};
/* Reads `options` of a UNIT; absent members keep the defaults of docs/api.md. -EINVAL with the member's name. */
int mf_unit_options_parse(const cJSON *json, struct mf_unit_options *ret, const char **ret_field);

#define MF_SAMPLES_MAX 4096

/* One result of a step or a pipeline. Times in microseconds; NAN for what was not measured. */
struct mf_unit_result {
    int64_t id; /* of the step or the pipeline */
    bool is_pipeline;
    enum mf_status status;
    char reason[MF_REASON_MAX];
    double us, mad; /* median and its deviation, over samples */
    double err, row_err, row_limit;
    int verified;     /* runs that passed: 0, 1, 2 = all gates */
    double canary;    /* canary's time over its least, behind this result */
    const char *mode; /* "cold": weights came from memory; "warm"; "" when nothing was timed */
    const double *samples;
    size_t n_samples;
    const double *fresh; /* race: re-measurement of a group's winner and its ties */
    size_t n_fresh;
    int dropped_at;           /* race: round; 0 for survivors */
    struct mf_device_use use; /* of a step */
};

struct mf_race_won {
    int64_t winner; /* 0: nobody */
    int64_t ties[64];
    size_t n_ties;
    double us, mad; /* of the winner's fresh samples */
};

#define MF_RACE_GROUPS_MAX 4
struct mf_race_outcome {
    struct mf_race_won won; /* of all groups, the one with the least time */
    struct mf_race_won groups[MF_RACE_GROUPS_MAX];
    size_t n_groups;
    int rounds, calls;
    int64_t active; /* experts that the routing asks for; 0: not known */
};

/* Where a running unit reports. Every call may block on the socket; a negative return ends the unit. */
struct mf_sink {
    /* Starts on a step or pipeline: silence for longer than limit_ms is a hang. */
    int (*begin)(struct mf_sink *s, int64_t id, bool is_pipeline, int64_t limit_ms);
    int (*result)(struct mf_sink *s, const struct mf_unit_result *r);
    int (*race)(struct mf_sink *s, const struct mf_race_outcome *o);
    void (*phase)(struct mf_sink *s, enum mf_phase phase);
};

/* Memory that outlives a runner: sealed memory files that the worker holds. */
struct mf_memfd_store {
    /* The file kept under the key, which the caller must not close; -1 when there is none. */
    int (*find)(struct mf_memfd_store *k, const char *key, uint64_t *ret_bytes);
    /* Hands a sealed file over to be kept; k takes the descriptor. */
    int (*keep)(struct mf_memfd_store *k, const char *key, int fd, uint64_t bytes);
    void (*drop)(struct mf_memfd_store *k, const char *key);
};
