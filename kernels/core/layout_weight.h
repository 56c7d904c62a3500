/* Converts the elements and scales of weights between layouts. */
#pragma once

#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"
#include "kernels/core/tensors.h"

/* Converts all parts of one expert's weight from tensor spec `from` to `to`, which may differ only in the
 * layout. Returns -EINVAL if they differ in anything else or if the shape has no such tensor spec. */
int mf_layout_convert_weight(const struct mf_shape *shape, const struct mf_tensor_spec *from,
                             const struct mf_tensor_spec *to, const struct mf_tensor_ref *expert,
                             const struct mf_tensor_ref *ret);
