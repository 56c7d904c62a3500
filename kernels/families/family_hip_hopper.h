/* Host side of the Hopper core (kernels/gpu/src/hopper/hopper_core.inc.h): shared memory, tile order and TMA
 * tensor maps. Used by two_stage, which launches each stage separately, and by whole_layer_persistent and
 * two_stage_single_launch, which launch both at once. */
#pragma once

#include "kernels/families/family_hip_stage.h"

#define MF_HIP_HOPPER_STAGES  8 /* maximum stages of the ring buffer */
#define MF_HIP_HOPPER_THREADS 384
#define MF_HIP_HOPPER_ZEROS   4096 /* bytes of shared memory for kernels that also zero y */

/* turns: true: the two consumer warpgroups process alternate tiles (MF_PINGPONG); false: they share each
 * tile. swapped: true: the rows of the product are tokens (MF_SWAP); false: the rows of the product are
 * weight rows. */
struct mf_hip_hopper {
    bool turns, swapped;
};

/* Returns the bytes of one stage of the ring buffer, which holds block_n weight rows. */
int mf_hip_hopper_stage_bytes(int block_m, int block_n, enum mf_hip_format format);
/* Returns the bytes outside the ring buffer: the output tile and the mbarriers. */
int mf_hip_hopper_out_bytes(struct mf_hip_hopper core, const struct mf_hip_stage *st,
                            const struct mf_shape *shape);
/* Returns the number of 128-byte slices of K in stage 2 with 8-bit elements, at most MF_HIP_HOPPER_SHORT + 1.
 */
int mf_hip_hopper_k_slices(const struct mf_shape *shape);
#define MF_HIP_HOPPER_SHORT 4 /* slices whose product a warpgroup can hold in registers */

/* True, with the reason, if x is too large for stage 1 to gather its rows by 32-bit offsets. */
bool mf_hip_hopper_refuses_x(const struct mf_shape *shape, struct mf_refusal *ret);

/* Tile order of a stage. columns: number of tile columns that are processed for all row blocks before the
 * next tile columns begin. likely_blocks: expected number of row blocks, which stage 1 uses until the actual
 * number is known; 0 if so few experts are active that the active experts cannot be predicted. */
struct mf_hip_hopper_order {
    int32_t columns, likely_blocks;
};
/* paired: true: stage 2 runs in the same launch as stage 1 and processes blocks of h as stage 1 completes
 * them. */
struct mf_hip_hopper_order mf_hip_hopper_order_of(const struct mf_hip_stage *st, const struct mf_shape *shape,
                                                  const struct mf_device_info *device, bool paired);
/* Returns the kernel arguments without the tensor maps. */
struct mf_hip_bulk_args mf_hip_hopper_args(const struct mf_hip_stage *st, const struct mf_shape *shape,
                                           const struct mf_device_info *device, const struct mf_launch *l,
                                           const struct mf_hip_hopper_order *order);
/* Fills in the tensor maps of the weights and, for stage 2, of h. l: the stage's launch. Returns the errors
 * of tensor_map. */
int mf_hip_hopper_map(const struct mf_hip_stage *st, const struct mf_shape *shape, struct mf_device *device,
                      const struct mf_launch *l, struct mf_hip_bulk_args *ret);

/* Creates the tensor map of h for stage 2. Returns -ENOTSUP if the device has no tensor maps. */
int mf_hip_map_h(struct mf_device *device, const struct mf_hip_stage *st, const struct mf_shape *shape,
                 void *h, struct mf_hip_map *ret);
