/* Predicts how many elements of a correct output count as mismatches.
 *
 * AITER's mismatch test has an absolute part (MF_TOLERANCE), so its result depends on the scale of the
 * output: a row with relative error 0.02 has almost no mismatches while its values are below 0.1, and more
 * than half of its elements mismatch while they are around 10. */
#pragma once

/* Returns the share of elements with |d| > MF_TOLERANCE + MF_TOLERANCE·|r| for independent, normally
 * distributed r with root mean square `rms` and d with root mean square `error`·rms. Returns 0 if either
 * argument is not positive. */
double mf_mismatch_share(double error, double rms);
