/* Explains why a set of correct steps contains no legal pipeline. */
#pragma once

#include <stddef.h>

#include "common/moe/pipeline_search.h"

/* Writes the first reason that applies, as part of a sentence:
 *
 *   "no correct step covers gemm1+act"
 *   "no correct step writes h/bf16/none/sorted.16, which s2_x needs for gemm2"
 *   "no correct steps agree on block_m and on the weight layouts"
 *
 * The second names the first op, in the order of the layer, that no step can reach from the layer's inputs.
 * Returns 0 or -ENOMEM. */
int mf_pipeline_gap(const struct mf_path_problem *p, char *buf, size_t cap);
