/* Host side of the Hopper core (kernels/gpu/src/hopper/hopper_core.inc.h): shared memory, tile order and TMA
 * tensor maps. Used by two_stage, which launches each stage separately, and by whole_layer_persistent and
 * two_stage_single_launch, which launch both at once. */
#pragma once

#include "kernels/families/family_hip_stage.h"

#define MF_HIP_HOPPER_STAGES  8 /* maximum stages of the ring buffer */
#define MF_HIP_HOPPER_THREADS 384
#define MF_HIP_HOPPER_ZEROS   4096 /* bytes of shared memory for kernels that also zero y */

/* turns: the two consumer warpgroups process alternate tiles (MF_PINGPONG) instead of sharing each tile.
 * swapped: the rows of the product are tokens (MF_SWAP) instead of weight rows. */
struct mf_hip_hopper {
    bool turns, swapped;
};

/* Bytes of one stage of the ring buffer; block_n: its weight rows. */
int mf_hip_hopper_stage_bytes(int block_m, int block_n, enum mf_hip_format format);
/* Bytes outside the ring buffer: the output tile and the mbarriers. */
int mf_hip_hopper_out_bytes(struct mf_hip_hopper core, const struct mf_hip_stage *st,
                            const struct mf_shape *shape);
/* Number of 128-byte slices of K in stage 2 with 8-bit elements, at most MF_HIP_HOPPER_SHORT + 1. */
int mf_hip_hopper_k_slices(const struct mf_shape *shape);
#define MF_HIP_HOPPER_SHORT 4 /* slices whose product a warpgroup can hold in registers */

/* True, with the reason, if x is too large for stage 1 to gather its rows by 32-bit offsets. */
bool mf_hip_hopper_refuses_x(const struct mf_shape *shape, struct mf_refusal *ret);

/* Tile order of a stage. columns: number of tile columns processed for every row block before the next
 * columns. likely_blocks: expected row blocks, which stage 1 uses before the actual number is known; 0 if
 * too few experts are active to predict which ones. */
struct mf_hip_hopper_order {
    int32_t columns, likely_blocks;
};
/* paired: stage 2 runs in the same launch and processes blocks of h as stage 1 completes them. */
struct mf_hip_hopper_order mf_hip_hopper_order_of(const struct mf_hip_stage *st, const struct mf_shape *shape,
                                                  const struct mf_device_info *device, bool paired);
/* Kernel arguments without the tensor maps. */
struct mf_hip_bulk_args mf_hip_hopper_args(const struct mf_hip_stage *st, const struct mf_shape *shape,
                                           const struct mf_device_info *device, const struct mf_launch *l,
                                           const struct mf_hip_hopper_order *order);
/* Fills in the tensor maps of the weights and, for stage 2, of h. Errors as tensor_map. l: the stage's
 * launch. */
int mf_hip_hopper_map(const struct mf_hip_stage *st, const struct mf_shape *shape, struct mf_device *device,
                      const struct mf_launch *l, struct mf_hip_bulk_args *ret);

/* Tensor map of h for stage 2. -ENOTSUP: the device has no tensor maps. */
int mf_hip_map_h(struct mf_device *device, const struct mf_hip_stage *st, const struct mf_shape *shape,
                 void *h, struct mf_hip_map *ret);
