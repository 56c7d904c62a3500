/* Decides which steps a probe stops early: a step that cannot be in the fastest pipeline needs no further
 * runs.
 *
 * Pure: no device, no clock. A step is compared with the best time so far of three groups of steps:
 *
 *   kind       same ops, and needs and gives of the same tensors and formats (any layout and block)
 *   interface  same ops and tensor specs: interchangeable in every pipeline
 *   layout     same kind and the same weight tensor specs
 *
 * The thresholds are the table `rules` in prune.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/step.h"

#define MF_PRUNE_BESTS_MAX 512
/* Spilled bytes per thread above which a kernel is not run: 256 threads fill the L1 cache of an SM or CU. */
#define MF_PRUNE_SPILL_MAX 1024

/* Hashes of a step's groups. */
struct mf_prune_keys {
    uint64_t kind, interface, layout;
};

/* Best times by group. Zero-initialise; groups beyond MF_PRUNE_BESTS_MAX are not remembered. */
struct mf_prune_bests {
    struct {
        uint64_t key;
        double us;
    } all[MF_PRUNE_BESTS_MAX];
    size_t n;
};

/* One step's competitors. Microseconds; 0: unknown. */
struct mf_prune {
    double kind_us, interface_us, layout_us;
    bool applies; /* the step may be stopped early */
};

/* What the first run is held against. */
struct mf_prune_limit {
    double us;          /* drop the step if both of its runs took longer; INFINITY: no limit */
    double rerun_us;    /* up to here a second run must confirm */
    double factor;      /* us / best_us */
    double best_us;     /* best time of the competitors */
    const char *rivals; /* competitors, for the message */
};

struct mf_prune_keys mf_prune_keys(const struct mf_step *step);
/* 0 if the group has no time yet. */
double mf_prune_best(const struct mf_prune_bests *bests, uint64_t key);
/* Records the time of a successful step for its three groups. */
void mf_prune_note(struct mf_prune_bests *bests, const struct mf_prune_keys *keys, double us);

/* caller_best_us: best time of the step's kind that the caller knows; 0 if none. An exhaustive search stops
 * no step early. Only steps with a GEMM are stopped: a sort for larger blocks does not compete with one for
 * smaller blocks, because a faster GEMM may need it; steps without a GEMM take little time. */
struct mf_prune mf_prune_start(const struct mf_prune_bests *bests, const struct mf_prune_keys *keys,
                               const struct mf_step *step, double caller_best_us, bool exhaustive);
struct mf_prune_limit mf_prune_limit(const struct mf_prune *p);
/* True if more than half of `count` planned samples exceed the limit for the step's layout: then the median
 * does too, whatever the remaining samples are. us: the samples so far. */
bool mf_prune_is_decided(const struct mf_prune *p, const double *us, size_t n, int count);
/* Time in ms without a message after which a step counts as hung, at most cap_ms. Derived from the best time
 * of its kind; cap_ms if that is unknown or the search is exhaustive. */
int64_t mf_prune_hang_ms(double best_us, bool exhaustive, int64_t cap_ms);
