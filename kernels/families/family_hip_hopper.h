/* What the host has to know of Hopper's own core (kernels/gpu/src/hopper/hopper_core.inc.h): its LDS, its order of tiles, and its tensors as
 * bulk copies see them. Shared by tile, whose stages are launches, and layer and pair, whose are not. */
#pragma once

#include "kernels/families/family_hip_stage.h"

#define MF_HIP_HOPPER_STAGES  8 /* slices of a ring, at most */
#define MF_HIP_HOPPER_THREADS 384
#define MF_HIP_HOPPER_ZEROS   4096 /* bytes of LDS, where y is zeroed on the way */

/* How the core's groups share tiles, and which way round they multiply (MF_TURNS, MF_SWAP). */
struct mf_hip_hopper {
    bool turns, swapped;
};

/* Bytes of a slice of the ring, of so many weight rows; and of what lies beside the ring: out, and barriers. */
int mf_hip_hopper_slice(int block_m, int block_n, enum mf_hip_format format);
int mf_hip_hopper_out(struct mf_hip_hopper core, const struct mf_hip_stage *st, const struct mf_shape *shape);
/* Slices of stage 2's product, of 8-bit elements; any more than a group holds the product of in registers are one more. */
int mf_hip_hopper_slices(const struct mf_shape *shape);
#define MF_HIP_HOPPER_SHORT 4 /* that it holds */

/* true, with the reason, where rows of x lie too far apart for stage 1 to gather them. */
bool mf_hip_hopper_refuses_x(const struct mf_shape *shape, struct mf_refusal *ret);

/* In which order a stage's tiles are made. columns: tile columns that are made of every block before the next. likely_blocks: of rows,
 * that stage 1 may count on before they are known; 0 where too few experts have any for a guess at whose they are. */
struct mf_hip_hopper_order {
    int32_t columns, likely_blocks;
};
/* paired: stage 2 takes blocks of h as they are there, one after the other. */
struct mf_hip_hopper_order mf_hip_hopper_order_of(const struct mf_hip_stage *st, const struct mf_shape *shape,
                                                  const struct mf_device_info *device, bool paired);
/* Its arguments but for maps. */
struct mf_hip_bulk_args mf_hip_hopper_args(const struct mf_hip_stage *st, const struct mf_shape *shape,
                                           const struct mf_device_info *device, const struct mf_launch *l,
                                           const struct mf_hip_hopper_order *order);
/* Maps of its weights and, of stage 2, of rows of h; 0 or as bulk_map. l: the stage's launch. */
int mf_hip_hopper_map(const struct mf_hip_stage *st, const struct mf_shape *shape, struct mf_device *device,
                      const struct mf_launch *l, struct mf_hip_bulk_args *ret);

/* Stage 2's rows of h. -ENOTSUP: the device makes no such maps. */
int mf_hip_map_h(struct mf_device *device, const struct mf_hip_stage *st, const struct mf_shape *shape,
                 void *h, struct mf_hip_map *ret);
