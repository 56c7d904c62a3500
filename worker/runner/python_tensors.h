/* Describes the buffers of a launch as tensors for a Python family. */
#pragma once

#include <cjson/cJSON.h>

#include "common/moe/step.h"
#include "kernels/core/family.h"

/* Adds {name, shape, dtype, pointer, writable} for each part of the step's inputs and outputs, and for its
 * workspace. A first part has the name of its tensor ("x", "w1"); further parts and the parts of indices have
 * a suffix ("w1_scale", "topk_ids"). dtype is a key of DTYPES in python/moefarm/tensor.py. Returns 0,
 * -ENOMEM, or -EINVAL if the shape has no such tensor. */
int mf_python_tensors_add(cJSON *array, const struct mf_step *step, const struct mf_shape *shape,
                          const struct mf_launch *launch);
