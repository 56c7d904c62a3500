/* What a GPU makes of a shape's data by itself, the same bits as kernels/core/data.h and kernels/reference/reference.h make on the host: nothing
 * of the size of a weight is made there and copied. Built on what every device with code objects has (kernels/core/device.h); a device
 * without them, or a shape that the kernels do not know, has no maker, and the host makes all. One thread uses it. */
#pragma once

#include <stdint.h>

#include "kernels/core/device.h"
#include "kernels/core/tensors.h"
#include "kernels/gpu/src/args.h"
#include "kernels/reference/reference.h"

struct mf_device_data;

#define MF_MAKER_CODES 5

/* What a maker of the shape's data compiles, for whoever fills a cache: how many, 0 where the host has to make all. */
size_t mf_device_data_codes(const struct mf_device_info *device, const struct mf_shape *shape,
                            struct mf_code ret[MF_MAKER_CODES]);

/* -ENOTSUP: the host has to: the device compiles nothing or has no memory of its own, its compiler refused, or the shape's formats
 * or widths are not known here. -ENOMEM. */
int mf_device_data_new(struct mf_device *device, const struct mf_shape *shape, uint64_t seed,
                       struct mf_device_data **ret);
struct mf_device_data *mf_device_data_free(struct mf_device_data *m);
/* That it was made for. */
struct mf_device *mf_device_data_device(const struct mf_device_data *m);

/* A weight in any layout, as the shape's format has it, into the device's memory; it is there when this returns. -EINVAL: it is not
 * the shape's; -ENOMEM, -EIO. */
int mf_device_data_weight(struct mf_device_data *m, const struct mf_tensor_spec *a,
                          const struct mf_tensor_ref *to);

/* Does z of the references stay on the device? Where it is too large to be kept there beside steps the block has it. */
bool mf_device_data_keeps_z(const struct mf_device_data *m);
/* mf_reference_make_in for data of the maker's shape and seed, whose weights nobody else has to have made. -ENOMEM: the device has
 * no room for it, or the host. */
int mf_device_data_reference(struct mf_device_data *m, const struct mf_layer_data *data, void *block,
                             struct mf_reference *out);
/* That z for the host, made anew; what the device has kept of the reference is given up, and comes from the host's when it is
 * wanted next. As above. */
int mf_device_data_z(struct mf_device_data *m, const struct mf_layer_data *data, const struct mf_reference *r,
                     float *to);
/* A plain z or zw in slot order, every row of it somebody's, from a z that is made anew there: to is the device's. -ENOTSUP: it is
 * not of that kind; -ENOMEM: the device has no room for z; -EIO. */
int mf_device_data_plain_z(struct mf_device_data *m, const struct mf_layer_data *data,
                           const struct mf_reference *r, const struct mf_tensor_spec *a, void *to);

/* An tensor spec in sorted order, of the same in the order that mf_gathered_from says and of sorted.<block>, all of them the device's.
 * Rows that are nobody's are poison. -EINVAL: there is none; -EIO. */
int mf_device_data_gather(struct mf_device_data *m, const struct mf_tensor_spec *a,
                          const struct mf_tensor_ref *sorted, const struct mf_tensor_ref *from,
                          const struct mf_tensor_ref *to);

/* Memory of the device that is filled with four bytes over and over, at a multiple of 16. */
struct mf_device_data_fill {
    void *at;
    size_t bytes;
    uint32_t pattern;
};
#define MF_MAKER_FILLS 8
/* At most MF_MAKER_FILLS of them; done when it returns. -EIO. */
int mf_device_data_fill(struct mf_device_data *m, const struct mf_device_data_fill *fills, size_t n);

/* Rows of bf16 that steps wrote, in the device's memory. */
struct mf_device_data_rows {
    const void *at; /* [rows, cols] */
    int64_t rows, cols;
    const int64_t *source; /* row p is the reference's row source[p], -1: nobody's; NULL: row p */
    const float *
        reference; /* of what they should be: [n_reference, cols], the same as long as the maker lives; NULL: zeros, or z */
    const struct mf_layer_data
        *data; /* of z, with r: what it is made of, where the device does not have it any more */
    const struct mf_reference *r;
    const float *factors; /* that its rows are multiplied by, [n_reference]; NULL: 1 */
    int64_t n_reference;
    uint32_t poison; /* of an element that was not written; MF_MAKER_NO_POISON: none is looked for */
};
#define MF_MAKER_NO_POISON UINT32_MAX
/* Those of an tensor spec, all but at and source. False: it is not of plain bf16, or the reference has none of it. */
bool mf_device_data_rows_of(const struct mf_layer_data *data, const struct mf_reference *r,
                            const struct mf_tensor_spec *a, struct mf_device_data_rows *ret);
/* What became of each row that is somebody's, against the reference. -ENOMEM: the device has no room for the reference, of which it
 * keeps a copy, and the host looks at rows that it pulls; -EIO. */
int mf_device_data_look(struct mf_device_data *m, const struct mf_device_data_rows *rows,
                        struct mf_hip_row *ret);
/* The same of two runs (mf_apart of kernels/gpu/src/move/rows.hip); reference and what is behind it are not read. */
int mf_device_data_apart(struct mf_device_data *m, const struct mf_device_data_rows *rows, const void *second,
                         struct mf_hip_row *ret);
/* Its copies of the reference, and the room of its looks, are given back, and had anew when they are wanted next: whether there were any. */
bool mf_device_data_forget(struct mf_device_data *m);
