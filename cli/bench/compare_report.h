/* Prints the results of `moefarm compare`: a line per measured row and totals, or JSON. */
#pragma once

#include "cli/bench/compare.h"

/* Totals over all rows. */
struct mf_compare_sum {
    size_t n[MF_PAIRED_N_]; /* number of rows by verdict */
    /* number of SAME rows that were not measured, because both sides name the same pipeline */
    size_t n_unmeasured;
    size_t n_wrong;
    size_t n_alone[MF_SIDES]; /* number of rows whose key the other table lacks */
    size_t n_measured;
    double log_sum; /* sum of the logarithms of each row's median ratio, for the geometric mean */
};
void mf_compare_count(struct mf_compare_sum *sum, const struct mf_compared *c);

void mf_compare_print_header(const struct mf_compare_plan *plan, const char *device);
void mf_compare_print_row(const struct mf_compared *c);
/* is_aa: true if both tables are the same, so that every FASTER or SLOWER is a false positive. */
void mf_compare_print_sum(const struct mf_compare_sum *sum, bool is_aa);

/* Both functions return NULL if out of memory. */
cJSON *mf_compare_row_json(const struct mf_compared *c);
cJSON *mf_compare_sum_json(const struct mf_compare_sum *sum, const struct mf_compare_plan *plan,
                           const char *device);
