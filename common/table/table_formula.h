/* The columns tflops and bw, as AITER's tuner computes them (ROCm/aiter, gemm_moe_tune.py), so that numbers
 * in one table can be compared. They are labels, not physics:
 *
 *   - all E experts are counted, also when T·k tokens cannot reach so many, so few-token rows show bandwidths
 *     that no memory has;
 *   - a 4-bit float (fp4x2) counts as one byte a logical element, twice the truth; int4 as half a byte;
 *   - scales, the sort and the intermediate are not counted.
 *
 * What a layer really has to move is mf_layer_floor_bytes. */
#pragma once

#include "common/moe/shape.h"

/* TFLOP/s and GB/s rounded to two decimals; 0 and 0 when us is not a positive number. */
void mf_table_rates(const struct mf_shape *shape, double us, double *ret_tflops, double *ret_bw);
