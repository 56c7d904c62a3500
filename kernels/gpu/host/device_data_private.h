/* Internals of mf_device_data: its state, and lists of launches that run as one sample. Included only by
 * device_data*.c. */
#pragma once

#include "kernels/core/codec.h"
#include "kernels/families/family_hip.h"
#include "kernels/gpu/host/device_data.h"
#include "kernels/gpu/src/args.h"

#define MF_DEVICE_DATA_THREADS 256 /* threads per block */

enum mf_device_data_kernel {
    MF_DEVICE_DATA_W, /* generates data with the codec of a weight; the next kernel uses the codec of x */
    MF_DEVICE_DATA_X,
    MF_DEVICE_DATA_DOTS,
    MF_DEVICE_DATA_SLOTS,
    MF_DEVICE_DATA_DIFFERENCES,
    MF_DEVICE_DATA_FILL,
    MF_DEVICE_DATA_COMPARE_REFERENCE,
    MF_DEVICE_DATA_COMPARE_RUNS,
    MF_DEVICE_DATA_ROUND,
    MF_DEVICE_DATA_GATHER,
    MF_DEVICE_DATA_N_
};
/* CODE_X is last, because x and the weights may use the same code. */
enum mf_device_data_code {
    MF_DEVICE_DATA_CODE_W,
    MF_DEVICE_DATA_CODE_REFERENCE,
    MF_DEVICE_DATA_CODE_FILL,
    MF_DEVICE_DATA_CODE_ROWS,
    MF_DEVICE_DATA_CODE_X
};

/* The device's copy of an array of the reference, or the z that the device computed. */
struct mf_device_data_copy {
    const void *of; /* key of the copy: the host array or, for z, the mf_device_data itself */
    void *at;
    size_t bytes;
};

struct mf_device_data {
    struct mf_device *device;
    struct mf_shape shape;
    uint64_t seed;
    struct mf_codecs codecs;
    struct mf_hip_function functions[MF_DEVICE_DATA_N_];
    struct mf_device_data_copy copies[8]; /* enough for all arrays of a reference */
    size_t n_copies;
    uint8_t *scratch; /* used by device_data_rows.c */
    size_t scratch_bytes;
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
    size_t bytes; /* size of the member of args that is used */
};

/* Matrices [rows, cols] of a tensor to generate. */
struct mf_device_data_matrices {
    enum mf_tensor tensor;
    const struct mf_codec *codec;
    int64_t n, rows, cols;
    /* in device memory: indices of the matrices; NULL: the first n matrices of the tensor */
    const mf_i32 *indices;
    float *amax; /* in device memory: mf_device_data_groups() floats; only if mf_device_data_needs_amax() */
};

/* Returns the grid for `work` pieces of work. The number of blocks is limited, and each block loops over
 * several pieces. */
struct mf_grid mf_device_data_grid(const struct mf_device_data *m, int64_t work);
int64_t mf_device_data_groups(const struct mf_device_data_matrices *x);
/* True if the encoding of a matrix depends on its largest magnitude. */
bool mf_device_data_needs_amax(const struct mf_codec *c);
/* Adds the launches that generate the matrices and returns the number of launches, 1 or 2. The caller
 * completes args.data of the last launch. */
int mf_device_data_add_data(struct mf_device_data *m, const struct mf_device_data_matrices *x,
                            struct mf_device_data_launch *ret);
/* Returns the maximum bytes of cached reference data, a fraction of device memory. The rest of the memory is
 * for steps. */
uint64_t mf_device_data_cache_limit(const struct mf_device_data *m);
/* True if another array of this size may be cached. */
bool mf_device_data_cache_fits(const struct mf_device_data *m, size_t bytes);
/* Returns the cached copy with this key, or NULL. */
const void *mf_device_data_cached(const struct mf_device_data *m, const void *of);
/* Returns the cached z and computes it if necessary. Returns -ENOMEM if z does not fit the cache or device
 * memory. */
int mf_device_data_cached_z(struct mf_device_data *m, const struct mf_layer_data *data,
                            const struct mf_reference *r, const void **ret);
/* Runs n launches one after the other and returns when they are complete. */
int mf_device_data_run(struct mf_device_data *m, const struct mf_device_data_launch *launches, size_t n);
