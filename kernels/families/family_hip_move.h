/* Family move on GPUs: interface between family_hip_move.c (steps and names) and family_hip_move_run.c
 * (launches). */
#pragma once

#include "kernels/families/family_hip.h"

enum mf_hip_move_kind {
    MF_HIP_SORT,
    MF_HIP_SORT_ZERO,
    MF_HIP_SORT_QUANT1,
    MF_HIP_ALIGN,
    MF_HIP_ALIGN_MANY,
    MF_HIP_FROM_ALIGNED,
    MF_HIP_QUANT1,
    MF_HIP_QUANT2,
    MF_HIP_COMBINE,
    MF_HIP_COMBINE_WEIGHTED,
    MF_HIP_ZERO,
    MF_HIP_MOVE_N_,
};

/* The plan of a step. */
struct mf_hip_move_config {
    enum mf_hip_move_kind kind;
    int block_m; /* 0: the kind has no expert blocks */
};

#define MF_HIP_SORT_THREADS 1024
#define MF_HIP_MOVE_THREADS 256 /* threads per block of kinds that do not sort */

/* Returns the codec of the shape's activations. */
const struct mf_codec *mf_hip_move_codec(const struct mf_shape *s);
bool mf_hip_move_quantises(enum mf_hip_move_kind kind);
/* True for kinds that sort or align the routes. */
bool mf_hip_move_orders(enum mf_hip_move_kind kind);
/* True if a sorting kind also quantises x, which requires scales per group of a row. */
bool mf_hip_move_quantises_first(enum mf_hip_move_kind kind, const struct mf_shape *s);
/* True if some blocks sort while others zero y or quantise x. */
bool mf_hip_move_sorts_aside(enum mf_hip_move_kind kind);
/* Returns the number of blocks that sort. Blocks that synchronise with each other must all be resident. */
uint32_t mf_hip_sort_blocks(const struct mf_device_info *device, enum mf_hip_move_kind kind,
                            const struct mf_shape *s);
uint32_t mf_hip_sort_shared(const struct mf_device_info *device, const struct mf_shape *s);
/* Returns the number of resident quantising blocks per SM. */
int mf_hip_quant_blocks_sm(const struct mf_codec *c);
/* True if all rows share one scale. Blocks then synchronise between finding the maximum and quantising. */
bool mf_hip_move_is_shared(const struct mf_codec *c);
/* mf_family.launch */
int mf_hip_move_launch(struct mf_kernel *k, const struct mf_launch *l);
/* mf_hip_steps.set_token_count */
void mf_hip_move_set_token_count(struct mf_kernel *k);
