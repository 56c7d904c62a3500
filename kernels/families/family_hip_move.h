/* Family move's own on GPUs: a step as family_hip_move.c names it and family_hip_move_run.c runs it. */
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

struct mf_hip_move_config {
    enum mf_hip_move_kind kind;
    int block_m; /* 0: none */
};

#define MF_HIP_SORT_THREADS 1024
#define MF_HIP_MOVE_THREADS 256 /* of what does not sort */

/* Of the shape's activations. */
const struct mf_codec *mf_hip_move_codec(const struct mf_shape *s);
bool mf_hip_move_quantises(enum mf_hip_move_kind kind);
/* Does the kind go through ids? */
bool mf_hip_move_orders(enum mf_hip_move_kind kind);
/* Does a kind that sorts quantise x, too? Where groups of a row have their own scales. */
bool mf_hip_move_quantises_first(enum mf_hip_move_kind kind, const struct mf_shape *s);
/* Does the kind sort beside others that use the memory? */
bool mf_hip_move_sorts_aside(enum mf_hip_move_kind kind);
/* Blocks that sort; where they meet, and others beside them, the device holds all at once. */
uint32_t mf_hip_sort_blocks(const struct mf_device_info *device, enum mf_hip_move_kind kind,
                            const struct mf_shape *s);
uint32_t mf_hip_sort_shared(const struct mf_device_info *device, const struct mf_shape *s);
/* Blocks of a multiprocessor that quantise at once. */
int mf_hip_quant_blocks_sm(const struct mf_codec *c);
/* Does one scale stand for all rows? Then blocks meet between looking and quantising. */
bool mf_hip_move_is_shared(const struct mf_codec *c);
/* A combine that leaves out slots whose expert is not here. */
bool mf_hip_move_skips(enum mf_hip_move_kind kind, const struct mf_shape *s);
/* The step of that name and its source. -ENOTSUP: not for the shape; -EINVAL: no such step. */
int mf_hip_move_find(const struct mf_device_info *device, const struct mf_shape *shape, const char *name,
                     struct mf_hip_move_config *ret, struct mf_code *ret_code);

/* mf_family.open and .launch */
int mf_hip_move_open(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret);
int mf_hip_move_launch(struct mf_kernel *k, const struct mf_launch *l);
void mf_hip_move_retoken(struct mf_kernel *k, int64_t token);
