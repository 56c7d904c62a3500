/* A simple test family that is correct in every op. Each step also has variants with one planted fault, which
 * the name of the step selects. The family decodes with the codecs of the reference, so its results are
 * reliable. Also declares a device whose clock the test controls.
 *
 *   sort.<B>  quant1  stage1.<B>  stage2.<B>  combine        "stage1.16-nan" is stage1.16 with the fault nan
 */
#pragma once

#include "kernels/core/family.h"
#include "measure/session/unit.h"

#define PLANTED_FAULTS(X)                                                                             \
    X(NONE, "")                                                                                       \
    X(NAN, "nan")                 /* an element of one row is NaN */                                  \
    X(DESTROYED, "destroyed")     /* one row is noise */                                              \
    X(OFF, "off")                 /* one row has the relative error planted_off */                    \
    X(TAIL, "tail")               /* the last columns of one row are not written */                   \
    X(ROWS, "rows")               /* the last row is not written */                                   \
    X(PAST, "past")               /* three bytes past the end are written */                          \
    X(BEFORE, "before")           /* the byte before the start is written */                          \
    X(RACE, "race")               /* one row differs between runs, but by less than any limit */      \
    X(EXPERT, "expert")           /* one expert runs with the weights of its neighbour */             \
    X(SWAPPED, "swapped")         /* gate and up are swapped */                                       \
    X(ALTERNATING, "alternating") /* rows of w1 are taken as gate, up, gate, up, … */               \
    X(BIASED, "biased")           /* every row of one expert has an error of 0.8 of its limit */      \
    X(BIAS_LATE, "bias_late")     /* b1 is added after the activation, b2 after the routing weight */ \
    X(BIAS_NEXT, "bias_next")     /* each expert uses the bias of the next expert */                  \
    X(INPUT_PADDING, "padding")   /* one output row is computed from a padding row of the input */    \
    X(ORDER, "order")             /* sort: the blocks of two experts are swapped */                   \
    X(WEIGHT, "weight")           /* sort: one routing weight differs */                              \
    X(COUNT, "count")             /* sort: num_valid is wrong by one block */
enum planted_fault {
#define PLANTED_ENUM(NAME, text) PLANTED_##NAME,
    PLANTED_FAULTS(PLANTED_ENUM) PLANTED_N
};
extern const char *const planted_names[PLANTED_N];

extern const struct mf_family planted_family;
extern const struct mf_family_set planted_set;
/* Relative error that the faults OFF and BIASED cause. */
extern double planted_off;

/* Returns the named step for the shape; fails the test if the family does not offer it. */
struct mf_step planted_step(const struct mf_shape *shape, const char *kind, int32_t block,
                            enum planted_fault fault);

enum planted_clock { CLOCK_HONEST, CLOCK_ZERO, CLOCK_NEGATIVE, CLOCK_TOO_FAST, CLOCK_SCRIPTED };
/* Opens a device of kind "cpu" without hardware. */
struct mf_device *planted_device(enum planted_clock clock);
void planted_device_set(struct mf_device *d, enum planted_clock clock);
/* Multiplies all times by `factor` until the canary has run n times. */
void planted_device_slow(struct mf_device *d, double factor, int n);
/* Sets the times of the next n runs to us[0], us[1], …; all later runs take us[n - 1]. */
#define PLANTED_TIMES_MAX 8
void planted_device_set_times(struct mf_device *d, const double *us, int n);
/* Makes the next n runs take 50 ms each, and all later runs 10 ms. n is at most PLANTED_TIMES_MAX - 1. */
void planted_device_warm_up(struct mf_device *d, int n);

/* A sink that records every result. */
struct planted_sink {
    struct mf_sink sink;
    struct mf_unit_result results[64];
    size_t n_results, n_begun;
    int64_t limit_ms;
    struct mf_race_outcome outcome;
    int n_outcomes;
    double samples[64]; /* samples of the last result */
};
void planted_sink_init(struct planted_sink *s);

/* Number of formats of planted shapes. */
#define PLANTED_N_FORMATS 5
struct mf_shape planted_shape(int format, int64_t token);
