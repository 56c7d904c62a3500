/* What a GPU makes of a shape's data by itself, the same bits as kernels/data.h and kernels/reference.h make on the host: nothing
 * of the size of a weight is made there and copied. Built on what every device with code objects has (kernels/device.h); a device
 * without them, or a shape that the kernels do not know, has no maker, and the host makes all. One thread uses it. */
#pragma once

#include <stdint.h>

#include "kernels/device.h"
#include "kernels/reference.h"
#include "kernels/tensors.h"

struct mf_maker;

#define MF_MAKER_CODES 4

/* What a maker of the shape's data compiles, for whoever fills a cache: how many, 0 where the host has to make all. */
size_t mf_maker_codes(const struct mf_device_info *device, const struct mf_shape *shape,
                      struct mf_code ret[MF_MAKER_CODES]);

/* -ENOTSUP: the host has to: the device compiles nothing or has no memory of its own, its compiler refused, or the shape's formats
 * or widths are not known here. -ENOMEM. */
int mf_maker_new(struct mf_device *device, const struct mf_shape *shape, uint64_t seed,
                 struct mf_maker **ret);
struct mf_maker *mf_maker_free(struct mf_maker *m);

/* A weight in any layout, as the shape's format has it, into the device's memory; it is there when this returns. -EINVAL: it is not
 * the shape's; -ENOMEM, -EIO. */
int mf_maker_weight(struct mf_maker *m, const struct mf_artifact *a, const struct mf_tensor_ref *to);

/* mf_reference_make_in for data of the maker's shape and seed, whose weights nobody else has to have made. -ENOMEM: the device
 * has no room for it, or the host. */
int mf_maker_reference(struct mf_maker *m, const struct mf_layer_data *data, void *block,
                       struct mf_reference *out);

/* Memory of the device that is filled with four bytes over and over, at a multiple of 16. */
struct mf_maker_fill {
    void *at;
    size_t bytes;
    uint32_t pattern;
};
#define MF_MAKER_FILLS 8
/* At most MF_MAKER_FILLS of them; done when it returns. -EIO. */
int mf_maker_fill(struct mf_maker *m, const struct mf_maker_fill *fills, size_t n);
