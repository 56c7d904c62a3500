/* What the host has to know of Hopper's own core (kernels/hip/hopper_core.inc.h): its LDS, its order of tiles, and its tensors as
 * bulk copies see them. Shared by tile, whose stages are launches, and layer. */
#pragma once

#include "kernels/family_hip_stage.h"

#define MF_HIP_HOPPER_STAGES  8 /* slices of a ring, at most */
#define MF_HIP_HOPPER_THREADS 384

/* Bytes of a slice of the ring; and of what lies beside the ring: out with so many columns of bf16 or of codes, and barriers. */
int mf_hip_hopper_slice(int block_m, int block_n, enum mf_hip_format format);
int mf_hip_hopper_out(int block_m, int columns, bool codes, bool turns);

/* true, with the reason, where rows of x lie too far apart for stage 1 to gather them. */
bool mf_hip_hopper_refuses_x(const struct mf_shape *shape, struct mf_refusal *ret);

/* Stage 2's rows of h. -ENOTSUP: the device makes no such maps. */
int mf_hip_map_h(struct mf_device *device, const struct mf_hip_stage *st, const struct mf_shape *shape,
                 void *h, struct mf_hip_map *ret);
