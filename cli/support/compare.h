/* Two pipelines of one shape, run against each other on one device: same data, weights from memory, in rounds of one sample each
 * whose order is shuffled, judged by the ratio within each round (common/base/paired.h). */
#pragma once

#include "cli/support/bench_rows.h"
#include "common/base/paired.h"

struct mf_compare_plan {
    struct mf_paired_rule rule; /* the confidence is of the verdict, however often it was looked at */
    int64_t rounds,
        max_rounds; /* before the first look; twice as many before each next one, up to the most */
    double seconds; /* of a row: no more rounds are begun beyond them */
    uint64_t seed;  /* of the order within each round */
};

/* The sides, in this order everywhere. */
enum mf_side { MF_SIDE_OLD, MF_SIDE_NEW, MF_SIDES };

struct mf_compared {
    const struct mf_bench_row *row[MF_SIDES]; /* NULL: the key is not in that table */
    bool is_same;                             /* one pipeline on both sides: nothing was measured */
    bool wrong[MF_SIDES];                     /* or refused */
    char reason[MF_SIDES][MF_REASON_MAX];     /* of a wrong side */
    struct mf_paired paired;
    double us[MF_SIDES]; /* medians */
    int64_t rounds;      /* 0: nothing was measured */
};

/* Fills c, whose rows are both there. number: of the row, so that each is shuffled otherwise. Prints what went wrong and gives
 * the exit code, or 0; a wrong side is no such thing. */
int mf_compare_rows(struct mf_bench *b, const struct mf_compare_plan *plan, size_t number,
                    struct mf_compared *c);
