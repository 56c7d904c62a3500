/* What compare prints: a line a row as it is measured, and what they come to; or all as JSON. */
#pragma once

#include "cli/support/compare.h"

/* What the rows come to. */
struct mf_compare_sum {
    size_t n[MF_PAIRED_N_]; /* by verdict */
    size_t n_unmeasured;    /* of those that are the same: one pipeline on both sides */
    size_t n_wrong;
    size_t n_alone[MF_SIDES]; /* rows whose key only that table has */
    size_t n_measured;
    double log_sum; /* of the changes' medians, for their geometric mean */
};
void mf_compare_count(struct mf_compare_sum *sum, const struct mf_compared *c);

void mf_compare_print_header(const struct mf_compare_plan *plan, const char *device);
void mf_compare_print_row(const struct mf_compared *c);
/* is_aa: every FASTER or SLOWER is false. */
void mf_compare_print_sum(const struct mf_compare_sum *sum, bool is_aa);

/* Both NULL when out of memory. */
cJSON *mf_compare_row_json(const struct mf_compared *c);
cJSON *mf_compare_sum_json(const struct mf_compare_sum *sum, const struct mf_compare_plan *plan,
                           const char *device);
