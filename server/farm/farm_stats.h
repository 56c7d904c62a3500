/* Counters of the writing thread since its start, for /metrics and /readyz. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define MF_ITERATION_BUCKETS 10
/* Upper bounds of the iteration buckets in seconds: 0.0005, 0.001, 0.002, 0.005 … 0.5. */
extern const double mf_iteration_bucket_s[MF_ITERATION_BUCKETS];
struct mf_farm_stats {
    bool ready;                                       /* store open, hub bound */
    bool read_only;                                   /* the database is not writable (read_only.c) */
    uint64_t iterations;                              /* transactions committed */
    uint64_t iteration_buckets[MF_ITERATION_BUCKETS]; /* iterations per duration bucket, not cumulative */
    double iteration_max_s;                           /* duration of the longest iteration */
    double iteration_s;                               /* sum of the durations of all iterations */
    uint64_t messages;                                /* messages received from workers */
    uint64_t results;                                 /* results committed */
    /* results that were stored already and are acknowledged again */
    uint64_t results_duplicate;
    /* results that were stored as samples only, because their lease had ended */
    uint64_t results_late;
    uint64_t refused;            /* messages answered by REFUSE */
    uint64_t undone;             /* refused messages that were undone (undo.c) */
    uint64_t handshakes_refused; /* worker handshakes with an unknown or revoked key */
    uint64_t leases_expired;
    uint64_t events;
};
