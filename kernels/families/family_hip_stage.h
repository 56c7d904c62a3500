/* What the two stages of a grouped GEMM are to the planner, whatever core multiplies them: which ops a stage covers, what it
 * needs and gives and what that costs. Shared by the GPUs' families of them. */
#pragma once

#include "kernels/families/family_hip.h"
#include "kernels/gpu/src/args.h"

/* bf16 h, quantised h; z, weighted z; rows added up in y. */
enum mf_hip_out { MF_HIP_TO_H, MF_HIP_TO_HQ, MF_HIP_TO_Z, MF_HIP_TO_ZW, MF_HIP_TO_Y };

/* Of names of steps: "", "_q", "_z", "_zw", "_y". */
const char *mf_hip_out_word(enum mf_hip_out out);

struct mf_hip_stage {
    int stage;  /* 1, 2 */
    int halves; /* of a tile's weight rows that make a column: gate and up, else 1 */
    int block_m, block_n;
    enum mf_hip_out out;
    bool zeroes; /* stage 1 zeroes y for a stage 2 that adds into it */
    bool sliced; /* its weights lie as panel128 (kernels/core/layout.h) */
};

static inline int mf_hip_stage_halves(int stage, const struct mf_shape *shape)
{
    return stage == 1 && shape->use_g1u1 ? 2 : 1;
}
/* Columns of a tile. */
static inline int mf_hip_stage_columns(const struct mf_hip_stage *st)
{
    return st->block_n / st->halves;
}
/* Columns of the output, and the length of the product. */
static inline int mf_hip_stage_width(const struct mf_hip_stage *st, const struct mf_shape *shape)
{
    return st->stage == 1 ? shape->inter_dim : shape->model_dim;
}
static inline int mf_hip_stage_length(const struct mf_hip_stage *st, const struct mf_shape *shape)
{
    return st->stage == 1 ? shape->model_dim : shape->inter_dim;
}

/* Does the stage end in such a way for the shape at all? */
bool mf_hip_stage_exists(const struct mf_hip_stage *st, const struct mf_shape *shape);
/* Whether the rules of fusion let it cover what it does. */
bool mf_hip_stage_allowed(const struct mf_hip_stage *st, const struct mf_shape *shape,
                          struct mf_refusal *ret);
/* The step but for its name. */
struct mf_step mf_hip_stage_step(const struct mf_hip_stage *st, const char *family,
                                 const struct mf_shape *shape);
/* Of y that rows are added to in no order: mf_step.reorder_tolerance. */
double mf_hip_stage_reorder_tolerance(const struct mf_shape *shape);
/* What tile_parts.inc.h of kernels/hip wants to be defined. */
void mf_hip_stage_define(struct mf_code *c, const struct mf_hip_stage *st, const struct mf_shape *shape);
/* Its buffers as the kernels have them. */
struct mf_hip_tile_args mf_hip_stage_args(const struct mf_hip_stage *st, const struct mf_shape *shape,
                                          const struct mf_launch *l);
/* Bytes of a row of weights of four bits that one box has (kernels/gpu/src/hopper/mx_hopper.hip). */
#define MF_HIP_NARROW_BOX 64
/* The weights as hopper_core.inc.h brings them, elements of so many bits: by expert, then by groups of eight columns of the output;
 * gate and up side by side. Where they lie by sixteens, the groups of a sixteen, and the sixteens of all experts; where they are sliced,
 * the groups of a panel's slices, one slice behind the other, and the panels of all experts. Where a slice of a tile's begins follows
 * from the numbers beside the map (kernels/gpu/src/corner.h). 0, or as the device's bulk_map. */
int mf_hip_stage_map_weights(const struct mf_hip_stage *st, const struct mf_shape *s,
                             struct mf_device *device, int bits, void *w, struct mf_hip_weights *ret);
/* Tile columns that are made of every block before the next: what the last cache holds of y beside the rest, where rows are
 * added to it, so that it is read and written once; all, otherwise. */
int32_t mf_hip_stage_tile_columns(const struct mf_hip_stage *st, const struct mf_shape *s,
                                  const struct mf_device_info *device);
