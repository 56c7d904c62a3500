/* Generates a shape's data and references on a GPU, bitwise equal to the results of kernels/core/data.h and
 * kernels/reference/reference.h on the host, so that no weights are generated on the host and copied.
 *
 * This module uses only the device interface for code objects (kernels/core/device.h). If the device has no
 * code objects or the shape is unsupported, the host generates everything. Only one thread may use a given
 * object. */
#pragma once

#include <stdint.h>

#include "kernels/core/device.h"
#include "kernels/core/tensors.h"
#include "kernels/gpu/src/args.h"
#include "kernels/reference/reference.h"

struct mf_device_data;

#define MF_DEVICE_DATA_CODES 5

/* Lists the codes that mf_device_data_new compiles for the shape, for filling a code cache. Returns the
 * number of codes, or 0 if the shape is unsupported. */
size_t mf_device_data_codes(const struct mf_device_info *device, const struct mf_shape *shape,
                            struct mf_code ret[MF_DEVICE_DATA_CODES]);

/* Returns -ENOTSUP if the host must generate the data: if the device compiles nothing or has no memory of its
 * own, if compilation failed, or if the shape's formats or widths are unsupported. Returns -ENOMEM if out of
 * memory. */
int mf_device_data_new(struct mf_device *device, const struct mf_shape *shape, uint64_t seed,
                       struct mf_device_data **ret);
struct mf_device_data *mf_device_data_free(struct mf_device_data *m);
/* Returns the device that was passed to mf_device_data_new. */
struct mf_device *mf_device_data_device(const struct mf_device_data *m);

/* Writes a weight of the shape's format, in any layout, to device memory, and returns when the weight is
 * complete. Returns -EINVAL if the tensor spec is not a weight of the shape, -ENOMEM or -EIO. */
int mf_device_data_weight(struct mf_device_data *m, const struct mf_tensor_spec *a,
                          const struct mf_tensor_ref *to);

/* True if z of the references stays in device memory. False if z is too large to keep in addition to the
 * candidates' buffers; mf_device_data_reference then stores z in `block`. */
bool mf_device_data_keeps_z(const struct mf_device_data *m);
/* Does the same as mf_reference_make_in, for data of this shape and seed. The host need not have generated
 * the weights. Returns -ENOMEM if out of device or host memory. */
int mf_device_data_reference(struct mf_device_data *m, const struct mf_layer_data *data, void *block,
                             struct mf_reference *out);
/* Recomputes z of the reference and copies it to the host. Drops the device's cached copies of the reference.
 * Returns the errors of mf_device_data_reference. */
int mf_device_data_z(struct mf_device_data *m, const struct mf_layer_data *data, const struct mf_reference *r,
                     float *to);
/* Recomputes z and writes it to device memory `to`, as a plain z or zw in slot order, with every row valid.
 * Returns -ENOTSUP for another kind of tensor spec, -ENOMEM if there is no device memory for z, or -EIO. */
int mf_device_data_plain_z(struct mf_device_data *m, const struct mf_layer_data *data,
                           const struct mf_reference *r, const struct mf_tensor_spec *a, void *to);

/* Writes a tensor in sorted order. The inputs are the same tensor in the order of mf_gathered_from, and
 * sorted.<block>. Inputs and output are in device memory. Padding rows are filled with poison. Returns
 * -EINVAL if there is no such tensor, or -EIO. */
int mf_device_data_gather(struct mf_device_data *m, const struct mf_tensor_spec *a,
                          const struct mf_tensor_ref *sorted, const struct mf_tensor_ref *from,
                          const struct mf_tensor_ref *to);

/* Device memory to fill with a repeated 4-byte pattern. `at` is a multiple of 16. */
struct mf_device_data_fill {
    void *at;
    size_t bytes;
    uint32_t pattern;
};
#define MF_DEVICE_DATA_FILLS 8
/* Runs n fills, at most MF_DEVICE_DATA_FILLS, and returns when they are complete. Returns 0 or -EIO. */
int mf_device_data_fill(struct mf_device_data *m, const struct mf_device_data_fill *fills, size_t n);

/* bf16 rows written by steps, in device memory. */
struct mf_device_data_rows {
    const void *at; /* [rows, cols] */
    int64_t rows, cols;
    /* for each row, the index of the row of the reference to compare it with; -1: skip the row; NULL: the
     * same index */
    const int64_t *source;
    /* expected values [n_reference, cols], constant for the lifetime of the object; NULL: expect z if `data`
     * is set, otherwise zeros */
    const float *reference;
    /* inputs from which z is recomputed, together with r, if the device has dropped it; NULL: the expected
     * values are not z */
    const struct mf_layer_data *data;
    const struct mf_reference *r;
    const float *factors; /* [n_reference]: multipliers of the reference rows; NULL: 1 */
    int64_t n_reference;
    uint32_t poison; /* bits of an unwritten element; MF_DEVICE_DATA_NO_POISON: not checked */
};
#define MF_DEVICE_DATA_NO_POISON UINT32_MAX
/* Sets all fields except `at` and `source` for a tensor spec. Returns false if the tensor spec is not plain
 * bf16 or the reference does not contain it. */
bool mf_device_data_rows_of(const struct mf_layer_data *data, const struct mf_reference *r,
                            const struct mf_tensor_spec *a, struct mf_device_data_rows *ret);
/* Compares rows with the reference (mf_compare_reference in kernels/gpu/src/move/rows.hip). */
int mf_device_data_compare_reference(struct mf_device_data *m, const struct mf_device_data_rows *rows,
                                     struct mf_hip_row *ret);
/* Compares the rows of two runs (mf_compare_runs in kernels/gpu/src/move/rows.hip). `second` has the rows of
 * the second run. The fields from `reference` on are ignored, except `poison`. */
int mf_device_data_compare_runs(struct mf_device_data *m, const struct mf_device_data_rows *rows,
                                const void *second, struct mf_hip_row *ret);
/* Frees the cached copies of the reference and the scratch memory; both are created again on demand. Returns
 * true if there was anything to free. */
bool mf_device_data_drop_cache(struct mf_device_data *m);
