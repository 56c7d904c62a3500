/* Hopper's core (hopper_core.inc.h) of both stages for sources that have them in one launch: up is stage 1, down is stage 2, whose rows are
 * added to y. They share a ring of slices, and h is memory that one leaves for the other.
 *
 *   MF_H, MF_I, MF_K    MF_HALVES1, MF_WEIGHT1, MF_BIAS1, MF_BIAS2   as one.hip has them
 *   MF_FORMAT (bf16, or scales of 1x128), MF_STAGES, MF_BM, MF_BN, MF_TURNS, MF_SWAP   as the core has them */
#pragma once

#define MF_BOTH 1
#include "activation.h"
#include "dialect_hopper.h"
#include "format.h"
#include "gate_up.h"
#include "hopper_ring.h"
#include "quantise.h"

#define MF_STAGE  1
#define MF_N      MF_I
#define MF_D      MF_H
#define MF_HALVES MF_HALVES1
#define MF_WEIGHT MF_WEIGHT1
#ifdef MF_BIAS1
#    define MF_BIAS
#endif
#if BY_BLOCK
#    define MF_QUANT
#endif
namespace up
{
#include "hopper_core.inc.h"
#include "hopper_taking.inc.h"
} // namespace up
#undef MF_STAGE
#undef MF_N
#undef MF_D
#undef MF_HALVES
#undef MF_WEIGHT
#undef MF_BIAS
#undef MF_QUANT

#define MF_STAGE  2
#define MF_N      MF_H
#define MF_D      MF_I
#define MF_HALVES 1
#define MF_WEIGHT (!MF_WEIGHT1)
#define MF_ADD
#ifdef MF_BIAS2
#    define MF_BIAS
#endif
namespace down
{
#include "hopper_core.inc.h"
#include "hopper_taking.inc.h"
} // namespace down

/* Bytes of what rows leave from, of the stage that has more. */
#define BOTH_OUTS ((MF_TURNS ? GROUPS : 1) * MF_MAX((i32)up::out_bytes, (i32)down::out_bytes))
