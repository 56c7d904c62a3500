/* One row of what a step wrote: what is left of the poison, what is not finite, and how far it is from the reference. */
#pragma once

#include "measure/verify/verify.h"

#define MF_VERIFY_ROW_WORK \
    32 /* elements that going through one struct mf_verify_row is worth (mf_pool_threads_for) */

struct mf_verify_row {
    int64_t source;                   /* -1: padding */
    uint32_t unwritten, unwritten_at; /* elements that hold the poison, and the first */
    uint32_t unwritten_scales;
    uint32_t bad, bad_at; /* not finite */
    uint32_t mismatches;
    double difference, norm, size; /* squared: of the difference, the reference, the row itself */
    double error, limit;           /* of whoever judges the rows together */
};

/* Without a reference nothing can be right: fp8 of a shape that is not quantised, say. */
bool mf_verify_has_reference(const struct mf_verify_input *v);

/* What became of row p, which is row->source of what was asked for; all but error and limit. scratch: two rows of cols. */
void mf_verify_row_look(const struct mf_verify_input *v, int64_t p, int64_t cols, float *scratch,
                        struct mf_verify_row *row);

/* How far apart rows are whose squares of differences and of the one sum to these. */
double mf_verify_distance(double difference, double norm);
/* Row p of two runs: whether it is the same, bit for bit, and how far b's is from a's, relative to a's. scratch as above. */
bool mf_verify_row_same(const struct mf_guarded *a, const struct mf_guarded *b, int64_t p);
double mf_verify_row_distance(const struct mf_guarded *a, const struct mf_guarded *b, int64_t p, int64_t cols,
                              float *scratch);
