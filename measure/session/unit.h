/* Options and results of a work unit, and the interface that reports them (docs/protocol.md, section 1). */
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
    X(P, WAIT, "wait")     /* idle */                          \
    X(P, LOAD, "load")     /* opening steps, mapping memory */ \
    X(P, DATA, "data")     /* creating data and references */  \
    X(P, VERIFY, "verify")                                     \
    X(P, TIMING, "timing")
/* clang-format on */
MF_NAMES_DECLARE(mf_phase, MF_PHASE_, MF_PHASE_MAP);

struct mf_unit_options {
    struct mf_routing routing;
    double err_ratio; /* maximum mismatch ratio, as in AITER */
    uint64_t seed;
    int64_t time_cap_ms; /* per step */
    int64_t warmup;      /* warm-up runs per candidate, not counted as samples; 0: none */
    bool exhaustive;     /* run all gates and samples; never drop a step by its time */
};
/* Reads `options` of a UNIT message; missing members get the defaults of docs/api.md. -EINVAL: *ret_field is
 * the bad member. */
int mf_unit_options_parse(const cJSON *json, struct mf_unit_options *ret, const char **ret_field);

#define MF_SAMPLES_MAX 4096

/* Result of one step or pipeline. Times in microseconds; NAN if not measured. */
struct mf_unit_result {
    int64_t id; /* step or pipeline */
    bool is_pipeline;
    enum mf_status status;
    char reason[MF_REASON_MAX];
    double us, mad; /* median and median absolute deviation of the samples */
    double err, row_err, row_limit;
    int verified;     /* verified runs: 0, 1, or 2 = all gates passed */
    double canary;    /* canary time after this result, relative to the lowest of the session */
    const char *mode; /* "cold": weights were read from memory; "warm"; "": not timed */
    const double *samples;
    size_t n_samples;
    const double *fresh; /* race: rerun samples of a group's winner and its ties */
    size_t n_fresh;
    int dropped_at;               /* race: round in which it was dropped; 0: never */
    struct mf_resource_usage use; /* steps only */
};

struct mf_race_won {
    int64_t winner; /* 0: no winner */
    int64_t ties[64];
    size_t n_ties;
    double us, mad; /* from the winner's rerun samples */
};

#define MF_RACE_GROUPS_MAX 4
struct mf_race_outcome {
    struct mf_race_won won; /* winner of the fastest group */
    struct mf_race_won groups[MF_RACE_GROUPS_MAX];
    size_t n_groups;
    int rounds, calls;
    int64_t active; /* experts with at least one route; 0: unknown */
};

/* Receives the reports of a running unit. Calls may block on the socket; a negative return value ends the
 * unit. */
struct mf_sink {
    /* Starts a step or pipeline: silence for more than limit_ms is a hang. */
    int (*begin)(struct mf_sink *s, int64_t id, bool is_pipeline, int64_t limit_ms);
    int (*result)(struct mf_sink *s, const struct mf_unit_result *r);
    int (*race)(struct mf_sink *s, const struct mf_race_outcome *o);
    void (*phase)(struct mf_sink *s, enum mf_phase phase);
};

/* Memory that outlives a runner: sealed memory files held by the worker. */
struct mf_memfd_store {
    /* Returns the file stored under the key, owned by the store; -1: not found. */
    int (*find)(struct mf_memfd_store *k, const char *key, uint64_t *ret_bytes);
    /* Stores a sealed file. Takes ownership of the descriptor. */
    int (*keep)(struct mf_memfd_store *k, const char *key, int fd, uint64_t bytes);
    void (*drop)(struct mf_memfd_store *k, const char *key);
};
