/* Times one step or pipeline, and rejects implausible times.
 *
 * Calls rotate over the weights (measure/race/rotate.h). A sample is cold if at least two L2 sizes of other
 * data were read since its rotation was last used, or if one call alone reads four L2 sizes. If all rotations
 * together exceed four L2 sizes, the mode is "cold" and only cold samples count; otherwise the mode is "warm"
 * and all samples count. */
#pragma once

#include "measure/session/session_data.h"

#define MF_MEASURE_SAMPLES 20

/* Code to be timed: launch(context, index) is one run. */
struct mf_measured {
    struct mf_session *session;
    struct mf_session_weight *weights[2]; /* weights read; NULL: none */
    double bytes;                         /* weight bytes read by one run (active experts only) */
    int n_rotations;
    bool cold;                    /* the rotations exceed four L2 sizes */
    bool evicts_caches;           /* evict the L2 and instruction caches before each run if the device can */
    mf_launch_fn launch, prepare; /* prepare: untimed, before each run; NULL: none */
    void *context;
    int rotation; /* rotation of the current run */
};
/* Fills bytes, n_rotations and cold from session and weights. */
void mf_measured_init(struct mf_measured *m);

struct mf_samples {
    double all[MF_MEASURE_SAMPLES + 2];
    size_t n_all;
    double cold[MF_MEASURE_SAMPLES + 2];
    size_t n_cold;
};

/* One timed run with that rotation. *ret_cold (may be NULL): the sample is cold. A negative errno of launch
 * or prepare is returned unchanged. */
int mf_measure_run(struct mf_measured *m, int rotation, double *ret_us, bool *ret_cold);
/* Like mf_measure_run, and stores the sample. */
int mf_measure_sample(struct mf_measured *m, int rotation, struct mf_samples *samples);
/* The next rotation to time. Skips rotation 0, which verified runs use, if there are at least three. */
int mf_measure_next(struct mf_measured *m);
/* Number of samples for a step whose first run took first_us: MF_MEASURE_SAMPLES if the step is short or all
 * fit in budget_us (0: no budget), otherwise three to five. */
int mf_measure_count(double first_us, double budget_us);
/* Number of cold samples still to take before mf_measure_samples can use the cold ones. */
int mf_measure_missing(const struct mf_measured *m, const struct mf_samples *s);
/* The samples that count, their number and the mode, "cold" or "warm". */
const double *mf_measure_samples(const struct mf_measured *m, const struct mf_samples *s, size_t *ret_n,
                                 const char **ret_mode);

/* Returns 1 and a message for an implausible time: zero or less, more than 1.05 times the device's peak
 * FLOP/s, or, for cold weights, more than 1.1 times its memory bandwidth. */
int mf_measure_implausible(const struct mf_measured *m, double us, double flops, char *why, size_t cap);

/* Runs the fixed reference kernel (canary) once. Microseconds; NAN on failure. See mf_session_canary. */
double mf_canary_us(struct mf_device *device);
