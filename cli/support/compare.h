/* Compares two pipelines of one shape on one device. Both use the same data, with weights read from HBM. Each
 * round takes one sample of each in random order; the ratio within each round decides (common/base/paired.h).
 */
#pragma once

#include "cli/support/bench_rows.h"
#include "common/base/paired.h"

struct mf_compare_plan {
    struct mf_paired_rule rule; /* its confidence holds for the verdict over all looks together */
    int64_t rounds,
        max_rounds; /* rounds before the first look, doubled for each next look up to max_rounds */
    double seconds; /* time limit per row: no round starts after it */
    uint64_t seed;  /* for the order within each round */
};

/* The sides, in this order everywhere. */
enum mf_side { MF_SIDE_OLD, MF_SIDE_NEW, MF_SIDES };

struct mf_compared {
    const struct mf_bench_row *row[MF_SIDES]; /* NULL if that table lacks the key */
    bool is_same;                             /* both sides name the same pipeline; not measured */
    bool wrong[MF_SIDES];                     /* wrong result, or the pipeline was refused */
    char reason[MF_SIDES][MF_REASON_MAX];     /* why that side is wrong */
    struct mf_paired paired;
    double us[MF_SIDES]; /* medians */
    int64_t rounds;      /* 0 if not measured */
};

/* Measures c; both of its rows must be set. number: the row's index, which varies the random order. Prints
 * its own error message and returns the exit code, or 0. A wrong side is reported in c, not as an error. */
int mf_compare_rows(struct mf_bench *b, const struct mf_compare_plan *plan, size_t number,
                    struct mf_compared *c);
