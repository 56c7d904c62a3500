/* Inspects one output row: counts remaining poison and values that are not finite, and computes the distance
 * to the reference. */
#pragma once

#include "measure/verify/verdict.h"

/* cost of processing one struct mf_verify_row, expressed in elements, as for mf_pool_threads_for */
#define MF_VERIFY_ROW_WORK 32

struct mf_verify_row {
    int64_t source;                   /* source row; -1: padding */
    uint32_t unwritten, unwritten_at; /* elements that still hold the poison; index of the first */
    uint32_t unwritten_scales;
    uint32_t bad, bad_at; /* number of elements that are not finite; index of the first */
    uint32_t mismatches;
    double difference, norm, size; /* sums of squares: of out - ref, of ref, of out */
    double error, limit;           /* filled by mf_verify_judge */
};

/* False if the output has no reference, for example fp8 of a shape without quantisation. */
bool mf_verify_has_reference(const struct mf_verify_input *v);

/* Inspects row p against row row->source of the reference. Fills all fields except error and limit. scratch
 * has room for 2 * cols values. */
void mf_verify_row_inspect(const struct mf_verify_input *v, int64_t p, int64_t cols, float *scratch,
                           struct mf_verify_row *row);

/* Returns the relative distance of two rows, from the sum of squared differences and the sum of squares of
 * the first row. */
double mf_verify_distance(double difference, double norm);
/* mf_verify_row_same tells whether row p of two runs is bitwise equal. mf_verify_row_distance returns the
 * distance of b relative to a; its scratch has room for 2 * cols values. */
bool mf_verify_row_same(const struct mf_guarded *a, const struct mf_guarded *b, int64_t p);
double mf_verify_row_distance(const struct mf_guarded *a, const struct mf_guarded *b, int64_t p, int64_t cols,
                              float *scratch);
