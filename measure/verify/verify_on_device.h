/* Inspects output values in device memory: bf16 outputs with an fp32 reference. The rows are then judged as
 * those inspected on the host (measure/verify/verify_judge.h). */
#pragma once

#include "measure/verify/verify_row.h"

/* True if the device can inspect this output. Otherwise, or if the device has too little memory, the host
 * copies and inspects it. */
bool mf_verify_runs_on_device(const struct mf_verify_input *v);

/* Calls mf_verify_row_inspect for all rows, on the device. -ENOMEM: too little device memory; -EIO. */
int mf_verify_rows_on_device(const struct mf_verify_input *v, struct mf_verify_row *rows);

/* Relative distance of each row between two runs; < 0 for padding and bitwise equal rows. -ENOMEM, -EIO. */
int mf_verify_distances_on_device(const struct mf_verify_input *first, const struct mf_guarded *second,
                                  double *distances);
