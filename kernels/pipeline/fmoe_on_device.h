/* Prepares a layer's data in the memory of a GPU: packs weights into a layout and remaps expert ids. The
 * calls queue one kernel per part in a stream, and neither allocate nor wait. */
#pragma once

#include "kernels/families/family_hip.h"

struct mf_on_device {
    struct mf_hip_function pack, remap;
};

/* Returns the code of the kernels, to be compiled ahead of time. */
struct mf_code mf_on_device_code(void);
/* Compiles and loads the kernels. Returns the errors of mf_hip_function_open. */
int mf_on_device_open(struct mf_device *device, struct mf_on_device *ret);
void mf_on_device_close(struct mf_on_device *d);

/* Converts a weight of all experts from layout `row` to the tensor spec `to`. */
int mf_on_device_pack(const struct mf_on_device *d, const struct mf_shape *shape,
                      const struct mf_tensor_spec *to, const struct mf_tensor_ref *from,
                      const struct mf_tensor_ref *ret, void *stream);

/* As mf_fmoe_remap_ids, for ids that are int64 if `wide` is true, also in `to`. The map is not checked; an
 * expert whose position is out of range is not local. */
struct mf_remap {
    const int32_t *expert_map;
    const void *ids;
    void *to;
    bool wide;
};
int mf_on_device_remap(const struct mf_on_device *d, const struct mf_shape *shape, const struct mf_remap *r,
                       void *stream);
/* The same on the CPU. */
void mf_remap_on_cpu(const struct mf_shape *shape, const struct mf_remap *r);
