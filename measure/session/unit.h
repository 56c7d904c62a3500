/* Options and results of a work unit, and the interface through which a running unit reports
 * (docs/protocol.md, section 1). */
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
    int64_t time_cap_ms; /* time limit per step */
    int64_t warmup;      /* warm-up runs per candidate, not counted as samples; 0: none */
    bool exhaustive;     /* run all gates and samples; never drop a step by its time */
};
/* Reads `options` of a UNIT message. Missing members get the defaults of docs/api.md. Returns -EINVAL for a
 * bad member and its name in *ret_field. */
int mf_unit_options_parse(const cJSON *json, struct mf_unit_options *ret, const char **ret_field);

#define MF_SAMPLES_MAX 4096

/* Result of one step or pipeline. Times in microseconds; NAN if not measured. */
struct mf_unit_result {
    int64_t id; /* id of the step or pipeline */
    bool is_pipeline;
    enum mf_status status;
    char reason[MF_REASON_MAX];
    double us, mad; /* median and median absolute deviation of the samples */
    double err, row_err, row_limit;
    int verified;  /* number of verified runs: 0, 1 or 2; 2: all gates passed */
    double canary; /* canary time after this result, relative to the lowest canary time of the session */
    /* "cold": weights were read from memory; "warm"; "eager": the launches cannot be captured, and `reason`
     * tells why; "": not timed */
    const char *mode;
    const double *samples;
    size_t n_samples;
    const double *fresh; /* race only: rerun samples of a group's winner and its ties */
    size_t n_fresh;
    int dropped_at;               /* race only: round in which the pipeline was dropped; 0: never */
    struct mf_resource_usage use; /* only for steps */
    bool differs; /* not run, because the unit's description of a step differs from the runner's own */
};
/* Returns a result with status MF_STATUS_OK and without measurements. */
struct mf_unit_result mf_unit_result_unmeasured(int64_t id, bool is_pipeline);

struct mf_race_won {
    int64_t winner; /* id of the winner; 0: no winner */
    int64_t ties[64];
    size_t n_ties;
    double us, mad;               /* median and deviation of the winner's rerun samples */
    int tries;                    /* number of reruns; 1 if the first rerun was accepted; 0: no rerun */
    char unstable[MF_REASON_MAX]; /* why no rerun was accepted; "": the last rerun was accepted */
};

#define MF_RACE_GROUPS_MAX 4
struct mf_race_outcome {
    struct mf_race_won won; /* winner of the fastest group */
    struct mf_race_won groups[MF_RACE_GROUPS_MAX];
    size_t n_groups;
    int rounds, calls;
    int repeated;   /* rounds that were repeated because the canary was slow; not in `rounds` */
    int64_t active; /* number of experts with at least one route; 0: unknown */
};

/* Receives the reports of a running unit. Calls may block on the socket. A negative return value ends the
 * unit. */
struct mf_sink {
    /* Starts a step or pipeline. If no message follows for more than limit_ms, the step or pipeline counts as
     * hung. */
    int (*begin)(struct mf_sink *s, int64_t id, bool is_pipeline, int64_t limit_ms);
    int (*result)(struct mf_sink *s, const struct mf_unit_result *r);
    int (*race)(struct mf_sink *s, const struct mf_race_outcome *o);
    void (*phase)(struct mf_sink *s, enum mf_phase phase);
};

/* A store for memory that outlives a runner. The worker holds the sealed memory files. */
struct mf_memfd_store {
    /* Returns the file stored under the key, or -1 if the key is not found. The store keeps ownership. */
    int (*find)(struct mf_memfd_store *k, const char *key, uint64_t *ret_bytes);
    /* Stores a sealed file. Takes ownership of the descriptor. */
    int (*keep)(struct mf_memfd_store *k, const char *key, int fd, uint64_t bytes);
    void (*drop)(struct mf_memfd_store *k, const char *key);
};
