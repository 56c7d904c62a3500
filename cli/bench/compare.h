/* Compares two pipelines of one shape on one device. Both use the same data, with weights read from HBM. Each
 * round takes one sample of each pipeline, in random order. The verdict is based on the ratio of the two
 * samples in each round (common/base/paired.h). */
#pragma once

#include "cli/bench/bench_rows.h"
#include "common/base/paired.h"

struct mf_compare_plan {
    struct mf_paired_rule rule; /* its confidence holds for the final verdict, after any number of looks */
    int64_t rounds,
        max_rounds; /* rounds before the first look; each further look doubles the rounds, up to max_rounds */
    double seconds; /* time limit per row; checked at each look */
    uint64_t seed;  /* seed of the order within each round */
};

/* The two tables that are compared. Arrays with one entry per table have this order. */
enum mf_side { MF_SIDE_OLD, MF_SIDE_NEW, MF_SIDES };

struct mf_compared {
    const struct mf_bench_row *row[MF_SIDES]; /* NULL if the side's table lacks the key */
    /* true: both sides name the same pipeline, which is not measured then */
    bool is_same;
    bool wrong[MF_SIDES];                 /* true: the result is wrong, or the pipeline was refused */
    char reason[MF_SIDES][MF_REASON_MAX]; /* reason why the side is wrong */
    struct mf_paired paired;
    double us[MF_SIDES]; /* median times */
    int64_t rounds;      /* number of rounds; 0 if not measured */
};

/* True if one of the sides is wrong. */
bool mf_compared_is_wrong(const struct mf_compared *c);

/* Measures c, whose rows must both be set. `number` is the row's index; it varies the random order. If a side
 * is wrong, stores the reason in c and returns 0. On other errors prints a message and returns the exit code.
 */
int mf_compare_rows(struct mf_bench *b, const struct mf_compare_plan *plan, size_t number,
                    struct mf_compared *c);
