/* Timing of one step or pipeline, and what no time can be.
 *
 * Weights are read in rotation (measure/race/rotate.h). A sample is cold when its rotation was last read at least two last
 * caches of weights ago; only cold ones count where the rotations can pass four caches, else all do and the mode
 * is warm. */
#pragma once

#include "measure/session/session_data.h"

#define MF_MEASURE_SAMPLES 20

/* What is timed: launch(context, rotation) is one run. */
struct mf_measured {
    struct mf_session *session;
    struct mf_session_weight *weights[2]; /* that it reads; NULL: not */
    double bytes;                         /* of weights that one run reads: active experts only */
    int n_rotations;
    bool cold;   /* the rotations pass four caches */
    bool washes; /* the last cache is washed before each run, where the device can (kernels/core/device.h) */
    mf_launch_fn launch, prepare; /* prepare: in front of each run, and not timed; NULL: nothing */
    void *context;
    int rotation; /* of the run in progress, for launch */
};
/* Fills bytes, n_rotations and cold from session and weights. */
void mf_measured_init(struct mf_measured *m);

struct mf_samples {
    double all[MF_MEASURE_SAMPLES + 2];
    size_t n_all;
    double cold[MF_MEASURE_SAMPLES + 2];
    size_t n_cold;
};

/* One timed run in that rotation, cold where the cache was washed; the launch's own negative errno comes back. *ret_cold may be NULL. */
int mf_measure_run(struct mf_measured *m, int rotation, double *ret_us, bool *ret_cold);
/* The same, kept in samples. */
int mf_measure_sample(struct mf_measured *m, int rotation, struct mf_samples *samples);
/* The rotation to time next: not the one that is verified, where there are others. */
int mf_measure_next(struct mf_measured *m);
/* How many samples a step is worth whose first took that long: all of them where they fit room_us, which is to be spent
 * whatever they are worth (0: nothing is). */
int mf_measure_count(double first_us, double room_us);
/* Cold samples that are still missing where the mode is to be cold and some were not. */
int mf_measure_missing(const struct mf_measured *m, const struct mf_samples *s);
/* The samples that count, and their mode. */
const double *mf_measure_samples(const struct mf_measured *m, const struct mf_samples *s, size_t *ret_n,
                                 const char **ret_mode);

/* 1 and the sentence for a time that cannot be: zero or less, above the device's peak arithmetic by a twentieth, above
 * its bandwidth by a tenth where the weights came from memory. */
int mf_measure_implausible(const struct mf_measured *m, double us, double flops, char *why, size_t cap);
