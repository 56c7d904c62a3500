/* Prints the results of `moefarm compare`: a line per measured row and totals, or JSON. */
#pragma once

#include "cli/support/compare.h"

/* Totals over all rows. */
struct mf_compare_sum {
    size_t n[MF_PAIRED_N_]; /* by verdict */
    size_t n_unmeasured;    /* of the SAME rows: both sides name one pipeline */
    size_t n_wrong;
    size_t n_alone[MF_SIDES]; /* rows with a key that the other table lacks */
    size_t n_measured;
    double log_sum; /* sum of the logarithms of the median ratios, for the geometric mean */
};
void mf_compare_count(struct mf_compare_sum *sum, const struct mf_compared *c);

void mf_compare_print_header(const struct mf_compare_plan *plan, const char *device);
void mf_compare_print_row(const struct mf_compared *c);
/* is_aa: both tables are the same, so every FASTER or SLOWER is a false positive. */
void mf_compare_print_sum(const struct mf_compare_sum *sum, bool is_aa);

/* Both return NULL if out of memory. */
cJSON *mf_compare_row_json(const struct mf_compared *c);
cJSON *mf_compare_sum_json(const struct mf_compare_sum *sum, const struct mf_compare_plan *plan,
                           const char *device);
