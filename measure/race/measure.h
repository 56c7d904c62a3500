/* Times one step or pipeline, and rejects implausible times.
 *
 * Calls rotate over the weights (measure/race/rotate.h). A sample is cold if at least twice the L2 size of
 * other data was read since its rotation was last used, or if one call alone reads four times the L2 size. If
 * the weights of all rotations together exceed four times the L2 size, the mode is "cold" and only cold
 * samples are used. Otherwise the mode is "warm" and all samples are used. */
#pragma once

#include "measure/session/session_data.h"

#define MF_MEASURE_SAMPLES 20

/* Code to be timed: launch(context, index) makes one run. */
struct mf_measured {
    struct mf_session *session;
    struct mf_session_weight *weights[2]; /* weights that the code reads; NULL for unused entries */
    double bytes;                         /* weight bytes read by one run, from active experts only */
    int n_rotations;
    /* true: the weights of all rotations together exceed four times the L2 size */
    bool cold;
    /* true: evict the L2 and instruction caches before each run if the device can */
    bool evicts_caches;
    /* prepare and finish run untimed before and after each run; NULL: nothing to do */
    mf_launch_fn launch, prepare, finish;
    /* Returns why a prepared run cannot be captured (mf_family.eager); it is then timed eagerly. NULL, or a
     * result of NULL: it can be captured. */
    const char *(*eager)(void *context);
    mf_launch_fn poison; /* `before` of mf_device_ops.time_eager */
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

/* Prepares a run with the given rotation and waits until all work on the device is done. Call it before the
 * outputs of a verified run are poisoned: a framework runs its code to prepare, and work on another stream
 * would write the outputs without being timed. Returns the errors of `prepare`, or of mf_device_ops.sync. */
int mf_measure_prepare(struct mf_measured *m, int rotation);
/* Times one run with the given rotation. *ret_cold (may be NULL) tells whether the sample is cold. If launch
 * or prepare returns a negative errno, returns that errno. */
int mf_measure_run(struct mf_measured *m, int rotation, double *ret_us, bool *ret_cold);
/* Times one run like mf_measure_run, and stores the sample. */
int mf_measure_sample(struct mf_measured *m, int rotation, struct mf_samples *samples);
/* Returns the next rotation to time. Skips rotation 0, which verified runs use, if there are at least three
 * rotations. */
int mf_measure_next(struct mf_measured *m);
/* Returns the number of samples for a step whose first run took first_us. The number is MF_MEASURE_SAMPLES if
 * the step is short or if MF_MEASURE_SAMPLES runs fit in budget_us (0: no budget). Otherwise it is three to
 * five. */
int mf_measure_count(double first_us, double budget_us);
/* Returns how many more cold samples must be taken before mf_measure_samples can use the cold samples. */
int mf_measure_missing(const struct mf_measured *m, const struct mf_samples *s);
/* Returns the samples to be used: the cold samples in mode "cold", all samples in mode "warm". Also stores
 * the number of these samples and the mode. The mode is "eager" if the last run was timed eagerly. */
const double *mf_measure_samples(const struct mf_measured *m, const struct mf_samples *s, size_t *ret_n,
                                 const char **ret_mode);

/* Returns 1 and a message if the time is implausible: it is zero or less, or it implies more than 1.05 times
 * the device's peak FLOP/s, or it implies reading cold weights at more than 1.1 times the memory bandwidth.
 * Otherwise returns 0. */
int mf_measure_implausible(const struct mf_measured *m, double us, double flops, char *why, size_t cap);

/* Runs the fixed reference kernel (canary) once. Returns its time in microseconds, or NAN on failure. See
 * mf_session_canary. */
double mf_canary_us(struct mf_device *device);
