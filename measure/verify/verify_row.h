/* Inspects one output row: remaining poison, values that are not finite, distance to the reference. */
#pragma once

#include "measure/verify/verdict.h"

#define MF_VERIFY_ROW_WORK 32 /* cost of one struct mf_verify_row, in elements of mf_pool_threads_for */

struct mf_verify_row {
    int64_t source;                   /* -1: padding */
    uint32_t unwritten, unwritten_at; /* elements that still hold the poison; index of the first */
    uint32_t unwritten_scales;
    uint32_t bad, bad_at; /* elements that are not finite; index of the first */
    uint32_t mismatches;
    double difference, norm, size; /* sums of squares: of out - ref, of ref, of out */
    double error, limit;           /* filled by mf_verify_judge */
};

/* False if no reference exists for the output, for example fp8 of a shape without quantisation. */
bool mf_verify_has_reference(const struct mf_verify_input *v);

/* Inspects row p against row->source of the reference; fills all fields except error and limit. scratch: 2 *
 * cols values. */
void mf_verify_row_inspect(const struct mf_verify_input *v, int64_t p, int64_t cols, float *scratch,
                           struct mf_verify_row *row);

/* Relative distance of two rows, from the sum of squared differences and the squared norm of the first. */
double mf_verify_distance(double difference, double norm);
/* Compares row p of two runs: bitwise equality, and the distance of b relative to a. scratch as above. */
bool mf_verify_row_same(const struct mf_guarded *a, const struct mf_guarded *b, int64_t p);
double mf_verify_row_distance(const struct mf_guarded *a, const struct mf_guarded *b, int64_t p, int64_t cols,
                              float *scratch);
