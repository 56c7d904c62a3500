/* Inspects output values in device memory. The output must be bf16 and have an fp32 reference. The rows are
 * then judged like rows inspected on the host (measure/verify/verify_judge.h). */
#pragma once

#include "measure/verify/verify_row.h"

/* True if the device can inspect this output. If the device cannot inspect the output, or has too little
 * memory, the output is copied to the host and inspected there. */
bool mf_verify_runs_on_device(const struct mf_verify_input *v);

/* Inspects each row on the device, as mf_verify_row_inspect does on the host. Returns -ENOMEM if the device
 * has too little memory, or -EIO. */
int mf_verify_rows_on_device(const struct mf_verify_input *v, struct mf_verify_row *rows);

/* Writes the relative distance of each row between two runs: < 0 for padding and for rows that are bitwise
 * equal. Returns -ENOMEM or -EIO on error. */
int mf_verify_distances_on_device(const struct mf_verify_input *first, const struct mf_guarded *second,
                                  double *distances);
