/* Description of one stage of a grouped GEMM on GPUs, independent of the core: covered ops, inputs, outputs,
 * costs. */
#pragma once

#include "kernels/families/family_hip.h"
#include "kernels/gpu/src/args.h"

/* Output of a stage: bf16 h, quantised h; z, weighted z, rows accumulated into y. */
enum mf_hip_out { MF_HIP_TO_H, MF_HIP_TO_HQ, MF_HIP_TO_Z, MF_HIP_TO_ZW, MF_HIP_TO_Y };

/* Returns the suffix of step names: "", "_q", "_z", "_zw", "_y". */
const char *mf_hip_out_word(enum mf_hip_out out);

struct mf_hip_stage {
    int stage;  /* 1, 2 */
    int halves; /* weight rows per output column: 2 for gate and up, else 1 */
    int block_m, block_n;
    enum mf_hip_out out;
    bool zeroes; /* stage 1 also zeroes y for a stage 2 that accumulates into it */
    bool sliced; /* weights are in layout panel128 (kernels/core/layout.h) */
};

static inline int mf_hip_stage_halves(int stage, const struct mf_shape *shape)
{
    return stage == 1 && shape->use_g1u1 ? 2 : 1;
}
/* Returns the output columns of a tile. */
static inline int mf_hip_stage_columns(const struct mf_hip_stage *st)
{
    return st->block_n / st->halves;
}
/* N and K of the GEMM: output columns and length of the dot product. */
static inline int mf_hip_stage_width(const struct mf_hip_stage *st, const struct mf_shape *shape)
{
    return st->stage == 1 ? shape->inter_dim : shape->model_dim;
}
static inline int mf_hip_stage_length(const struct mf_hip_stage *st, const struct mf_shape *shape)
{
    return st->stage == 1 ? shape->model_dim : shape->inter_dim;
}

/* True if the shape has a stage with this output. */
bool mf_hip_stage_exists(const struct mf_hip_stage *st, const struct mf_shape *shape);
/* True if the fusion rules allow the ops that the stage covers. */
bool mf_hip_stage_allowed(const struct mf_hip_stage *st, const struct mf_shape *shape,
                          struct mf_refusal *ret);
/* Returns the step without its name. */
struct mf_step mf_hip_stage_step(const struct mf_hip_stage *st, const char *family,
                                 const struct mf_shape *shape);
/* Returns mf_step.reorder_tolerance for a y into which rows are added in any order. */
double mf_hip_stage_reorder_tolerance(const struct mf_shape *shape);
/* Defines the macros of kernels/gpu/src/tile_parts.inc.h. */
void mf_hip_stage_define(struct mf_code *c, const struct mf_hip_stage *st, const struct mf_shape *shape);
/* Returns the kernel arguments of the stage. */
struct mf_hip_tile_args mf_hip_stage_args(const struct mf_hip_stage *st, const struct mf_shape *shape,
                                          const struct mf_launch *l);
/* Bytes per row in a TMA box of 4-bit weights (kernels/gpu/src/hopper/mx_hopper.hip). */
#define MF_HIP_NARROW_BOX 64
/* Builds the TMA tensor map of the weights for hopper_core.inc.h; `bits` is the element size. Dimensions,
 * innermost first: bytes along K, 8 output columns, gate and up, then two that depend on the layout:
 *     row layout            groups of 8 columns; experts
 *     gate and up by 16     groups of 8 columns within 16; the 16-column units of all experts
 *     panel128              groups of 8 rows of every slice of a panel; the panels of all experts
 * The kernel computes the start of a tile's slice from the other members of *ret
 * (kernels/gpu/src/tma_coord.h). Returns the errors of tensor_map. */
int mf_hip_stage_map_weights(const struct mf_hip_stage *st, const struct mf_shape *s,
                             struct mf_device *device, int bits, void *w, struct mf_hip_weights *ret);
/* Returns the number of tile columns that are processed for all row blocks before the next tile columns
 * begin. If rows accumulate into y, these columns of y may fill at most a third of the L2 cache, so that y is
 * read and written once. Otherwise returns all columns. */
int32_t mf_hip_stage_tile_columns(const struct mf_hip_stage *st, const struct mf_shape *s,
                                  const struct mf_device_info *device);
