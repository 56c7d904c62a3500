/* A plain family for tests, correct in every op and slow, and the same with one fault planted in it by name. It is
 * written with the reference's own decoders, so that what it computes is not in doubt; and a device whose clock can
 * be made to lie.
 *
 *   sort.<B>  quant1  stage1.<B>  stage2.<B>  combine        "stage1.16-nan" is stage1.16 with the fault nan */
#pragma once

#include "kernels/core/family.h"
#include "measure/session/unit.h"

#define PLANTED_FAULTS(X)                                                                     \
    X(NONE, "")                                                                               \
    X(NAN, "nan")                 /* one element of one row */                                \
    X(DESTROYED, "destroyed")     /* one row is noise */                                      \
    X(OFF, "off")                 /* one row is off by planted_off of its norm */             \
    X(TAIL, "tail")               /* the last columns of one row are not written */           \
    X(ROWS, "rows")               /* the last row is not written */                           \
    X(PAST, "past")               /* three bytes past the end are */                          \
    X(BEFORE, "before")           /* a byte before the start is */                            \
    X(RACE, "race")               /* a row differs from run to run, by less than any limit */ \
    X(EXPERT, "expert")           /* one expert runs with its neighbour's weights */          \
    X(SWAPPED, "swapped")         /* gate and up */                                           \
    X(ALTERNATING, "alternating") /* rows of w1 taken as gate and up in turn */               \
    X(BIASED, "biased")           /* every row of one expert is off by 0.8 of its limit */    \
    X(BIAS_LATE, "bias_late")     /* b1 after the activation, b2 after the routing weight */  \
    X(BIAS_NEXT, "bias_next")     /* the next expert's */                                     \
    X(INPUT_PADDING, "padding")   /* padding rows of the input are read into the last row */  \
    X(ORDER, "order")             /* sort: two experts' blocks swapped */                     \
    X(WEIGHT, "weight")           /* sort: one routing weight of another token */             \
    X(COUNT, "count")             /* sort: num_valid off by one block */
enum planted_fault {
#define PLANTED_ENUM(NAME, text) PLANTED_##NAME,
    PLANTED_FAULTS(PLANTED_ENUM) PLANTED_N
};
extern const char *const planted_names[PLANTED_N];

extern const struct mf_family planted_family;
extern const struct mf_family_set planted_set;
/* The relative error that OFF plants. */
extern double planted_off;

/* The step of that name for the shape; fails the test when it is not offered. */
struct mf_step planted_step(const struct mf_shape *shape, const char *kind, int32_t block,
                            enum planted_fault fault);

enum planted_clock { CLOCK_HONEST, CLOCK_ZERO, CLOCK_NEGATIVE, CLOCK_TOO_FAST, CLOCK_TOLD };
/* A device of kind "cpu" without anything behind it. */
struct mf_device *planted_device(enum planted_clock clock);
void planted_device_set(struct mf_device *d, enum planted_clock clock);
/* All takes `factor` times as long, until the canary was run n times. */
void planted_device_slow(struct mf_device *d, double factor, int n);
/* From now on the next runs take us[0], us[1], … by its clock, and all after them us[n - 1]. */
#define PLANTED_TOLD_MAX 8
void planted_device_tell(struct mf_device *d, const double *us, int n);
/* The same: n runs of 50 ms, at most PLANTED_TOLD_MAX - 1, and all after them 10 ms. */
void planted_device_warming(struct mf_device *d, int n);

/* A sink that keeps every result. */
struct planted_sink {
    struct mf_sink sink;
    struct mf_unit_result results[64];
    size_t n_results, n_begun;
    int64_t limit_ms;
    struct mf_race_outcome outcome;
    int n_outcomes;
    double samples[64]; /* of the last result */
};
void planted_sink_init(struct planted_sink *s);

/* Formats that planted shapes come in. */
#define PLANTED_N_FORMATS 5
struct mf_shape planted_shape(int format, int64_t token);
