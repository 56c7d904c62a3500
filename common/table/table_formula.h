/* Values of the columns tflops and bw by the formulas of AITER's tuner (ROCm/aiter, gemm_moe_tune.py), so
 * that all rows of a table are comparable. The values are not physical rates:
 *
 *   - All E experts are counted, even if T·k routes reach fewer. Rows with few tokens can show bandwidths
 *     above that of the memory.
 *   - A 4-bit float (fp4x2) counts as one byte per logical element, which is twice its real size. An int4
 *     counts as half a byte.
 *   - Scales, the sort and the intermediate tensor are not counted.
 *
 * mf_layer_min_bytes is the physical minimum. */
#pragma once

#include "common/moe/shape.h"

/* Computes TFLOP/s and GB/s, rounded to two decimals. Both are 0 if us is not a positive number. */
void mf_table_rates(const struct mf_shape *shape, double us, double *ret_tflops, double *ret_bw);
