/* Decides which steps a probe stops early: a step that cannot be in the fastest pipeline needs no further
 * runs.
 *
 * The decisions are pure functions: they use no device and no clock. A step is compared with the best time so
 * far of three groups of steps. A group has only steps that the same program (consumer) dispatches, because
 * each consumer has its own winner:
 *
 *   kind       same ops; inputs and outputs of the same tensors and formats (any layout and block)
 *   interface  same ops and tensor specs: interchangeable in every pipeline
 *   layout     same kind and the same weight tensor specs
 *
 * The thresholds are in the table `rules` in prune.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/step.h"

#define MF_PRUNE_BESTS_MAX 512
/* A kernel that spills more bytes per thread than this is not run. At this limit, the spilled bytes of 256
 * threads fill the L1 cache of an SM or CU. */
#define MF_PRUNE_SPILL_MAX 1024

/* Hashes of the groups to which a step belongs. */
struct mf_prune_keys {
    uint64_t kind, interface, layout;
};

/* Best times by group. Must be zero-initialised. Groups beyond MF_PRUNE_BESTS_MAX are ignored. */
struct mf_prune_bests {
    struct {
        uint64_t key;
        double us;
    } all[MF_PRUNE_BESTS_MAX];
    size_t n;
};

/* Best times of one step's competitors in microseconds; 0: unknown. */
struct mf_prune {
    double kind_us, interface_us, layout_us;
    bool applies; /* true: the step may be stopped early */
};

/* Time limit for the first run of a step, in microseconds. */
struct mf_prune_limit {
    double us; /* drop the step if its first run took longer; INFINITY: no limit */
    /* up to this time, a second run must also exceed the limit before the step is dropped */
    double rerun_us;
    double factor;      /* us / best_us */
    double best_us;     /* best time of the competitors */
    const char *rivals; /* text that names the competitors, for the message */
};

struct mf_prune_keys mf_prune_keys(const struct mf_step *step);
/* Returns 0 if the group has no time yet. */
double mf_prune_best(const struct mf_prune_bests *bests, uint64_t key);
/* Records the time of a successful step for its three groups. */
void mf_prune_note(struct mf_prune_bests *bests, const struct mf_prune_keys *keys, double us);

/* caller_best_us is the best time of our steps of the same kind that the caller knows, or 0. It does not
 * apply to foreign steps. An exhaustive search stops no step early. Otherwise only steps with a GEMM are
 * stopped, and no consumer's default step (mf_consumer_default). Steps without a GEMM take little time. Also,
 * a sort for large blocks does not compete with a sort for small blocks, because a faster GEMM may need the
 * large blocks. */
struct mf_prune mf_prune_start(const struct mf_prune_bests *bests, const struct mf_prune_keys *keys,
                               const struct mf_step *step, double caller_best_us, bool exhaustive);
struct mf_prune_limit mf_prune_limit(const struct mf_prune *p);
/* True if more than half of the `count` planned samples already exceed the limit of the step's layout. The
 * median then also exceeds the limit, whatever the remaining samples are. `us` has the n samples so far. */
bool mf_prune_is_decided(const struct mf_prune *p, const double *us, size_t n, int count);
/* Returns the silence limit of a step in ms, at most cap_ms. A step that sends no message for this time is
 * considered hung. The limit is derived from the best time of the step's kind. It is cap_ms if the best time
 * is unknown or the search is exhaustive. */
int64_t mf_prune_hang_ms(double best_us, bool exhaustive, int64_t cap_ms);
