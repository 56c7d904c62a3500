/* A maker's inside, and how it has the device work: a list of launches, run as one. Only maker*.c include this. */
#pragma once

#include "kernels/core/codec.h"
#include "kernels/families/family_hip.h"
#include "kernels/gpu/host/device_data.h"
#include "kernels/gpu/src/args.h"

#define MF_MAKER_THREADS 256 /* of every block */

enum mf_device_data_kernel {
    MF_MAKER_W, /* data of a weight's codec, and of x's */
    MF_MAKER_X,
    MF_MAKER_DOTS,
    MF_MAKER_SLOTS,
    MF_MAKER_DIFFERENCES,
    MF_MAKER_FILL,
    MF_MAKER_LOOK,
    MF_MAKER_APART,
    MF_MAKER_ROUND,
    MF_MAKER_GATHER,
    MF_MAKER_N_
};
/* X last: it may be that of W. */
enum mf_device_data_code {
    MF_MAKER_CODE_W,
    MF_MAKER_CODE_REFERENCE,
    MF_MAKER_CODE_FILL,
    MF_MAKER_CODE_ROWS,
    MF_MAKER_CODE_X
};

/* The device's copy of an array of the reference, or its z. */
struct mf_device_data_copy {
    const void *of; /* the host's; of z its maker */
    void *at;
    size_t bytes;
};

struct mf_device_data {
    struct mf_device *device;
    struct mf_shape shape;
    uint64_t seed;
    struct mf_codecs codecs;
    struct mf_hip_function functions[MF_MAKER_N_];
    struct mf_device_data_copy copies[8]; /* of more arrays than a reference has */
    size_t n_copies;
    uint8_t *room; /* of the calls of device_data_rows.c */
    size_t room_bytes;
};

struct mf_device_data_launch {
    const struct mf_hip_function *function;
    struct mf_grid grid;
    union {
        struct mf_hip_data_args data;
        struct mf_hip_dots_args dots;
        struct mf_hip_slots_args slots;
        struct mf_hip_difference_args difference;
        struct mf_hip_fill_args fill;
        struct mf_hip_rows_args rows;
        struct mf_hip_round_args round;
        struct mf_hip_gather_args gather;
    } args;
    size_t bytes; /* of args */
};

/* Matrices [rows, cols] of a tensor, as the kernel makes them. */
struct mf_device_data_matrices {
    enum mf_tensor tensor;
    const struct mf_codec *codec;
    int64_t n, rows, cols;
    const mf_i32 *numbers; /* the device's; NULL: the first n of the tensor */
    float *amax; /* the device's, mf_device_data_groups() floats, where mf_device_data_needs_amax() */
};

/* Blocks that take turns at so many pieces of work. */
struct mf_grid mf_device_data_grid(const struct mf_device_data *m, int64_t work);
int64_t mf_device_data_groups(const struct mf_device_data_matrices *x);
/* Whether what is made of a matrix depends on its largest magnitude. */
bool mf_device_data_needs_amax(const struct mf_codec *c);
/* Launches that make them, at most two: how many. args.data of the last is the caller's to complete. */
int mf_device_data_add_data(struct mf_device_data *m, const struct mf_device_data_matrices *x,
                            struct mf_device_data_launch *ret);
/* Bytes that the device may keep of the reference: a share of its memory, the rest is the steps'. */
uint64_t mf_device_data_most_kept(const struct mf_device_data *m);
/* Does it keep one more array of so many? */
bool mf_device_data_may_keep(const struct mf_device_data *m, size_t bytes);
/* What it keeps of that; NULL: nothing. */
const void *mf_device_data_kept(const struct mf_device_data *m, const void *of);
/* The device's z, made where it has none. -ENOMEM: there is no room to keep it. */
int mf_device_data_own_z(struct mf_device_data *m, const struct mf_layer_data *data,
                         const struct mf_reference *r, const void **ret);
/* All of them, one after the other; done when it returns. */
int mf_device_data_run(struct mf_device_data *m, const struct mf_device_data_launch *launches, size_t n);
