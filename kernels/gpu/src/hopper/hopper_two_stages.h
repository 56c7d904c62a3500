/* Both stages of the Hopper mainloop (hopper_core.inc.h) for kernels that run them in one launch. Namespace
 * `up` is stage 1. Namespace `down` is stage 2, which adds its rows to y. They share a ring buffer, and stage
 * 2 reads h from global memory.
 *
 *   MF_H, MF_I, MF_K, MF_HALVES1, MF_WEIGHT1, MF_BIAS1, MF_BIAS2  as in one.hip
 *   MF_FORMAT (bf16, or 1x128 block scales), MF_STAGES, MF_BM, MF_BN, MF_PINGPONG, MF_SWAP  as in
 *       hopper_core.inc.h */
#pragma once

#define MF_TWO_STAGES 1
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
#include "hopper_tile_scheduler.inc.h"
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
#include "hopper_tile_scheduler.inc.h"
} // namespace down

/* Bytes of the `out` regions, for the stage that needs more of them. */
#define OUT_REGION_BYTES ((MF_PINGPONG ? CONSUMERS : 1) * MF_MAX((i32)up::out_bytes, (i32)down::out_bytes))
