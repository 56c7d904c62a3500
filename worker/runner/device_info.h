/* The message `described`: what a device says of itself, on its way from a runner to the worker and, as
 * `known`, to the next runner. */
#pragma once

#include <cjson/cJSON.h>

#include "kernels/core/device.h"

/* Adds the members to an object. -ENOMEM. */
int mf_device_info_add(cJSON *object, const struct mf_device_info *info);
/* -EINVAL with the member in *ret_field. */
int mf_device_info_parse(const cJSON *object, struct mf_device_info *ret, const char **ret_field);
