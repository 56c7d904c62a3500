/* Output buffers between guard bands, poisoned before each run.
 *
 *   [band][part 0][band][part 1][band]      each part 64-byte aligned, each band at least MF_GUARD_BYTES
 *
 * A guard band holds a fixed pattern. A changed byte in a band proves a write outside the parts. A part is
 * filled with the poison of its format (mf_poison). Before later runs, only the rows that a step must write
 * are poisoned again and checked. */
#pragma once

#include "kernels/core/tensors.h"
#include "kernels/gpu/host/device_data.h"
#include "measure/session/region.h"

#define MF_GUARD_BYTES 4096

struct mf_guarded {
    struct mf_tensor_spec tensor_spec;
    struct mf_part parts[MF_PARTS_MAX];
    int n_parts;
    struct mf_tensor_ref ref, launch_ref; /* ref: host addresses; launch_ref: addresses for launches */
    struct mf_region region;
    size_t start[MF_PARTS_MAX], end[MF_PARTS_MAX];
    struct mf_device_data
        *device_data; /* not owned; fills the device copy. NULL: the host fills the buffer and copies it */
    bool poisoned;    /* true: every row was poisoned at least once */
};

/* Allocates a buffer and writes the bands on the host. The contents of the parts are undefined. The device
 * copy is undefined until the buffer is poisoned or pushed. Returns -EINVAL if the shape has no such tensor
 * spec, or -ENOMEM. */
int mf_guarded_new(const struct mf_tensor_spec *a, const struct mf_shape *shape, struct mf_device *device,
                   struct mf_guarded *ret);
/* Allocates a buffer that device_data fills on its device. On the host, only the bands have pages until the
 * whole buffer is pulled. */
int mf_guarded_new_on_device(const struct mf_tensor_spec *a, const struct mf_shape *shape,
                             struct mf_device_data *device_data, struct mf_guarded *ret);
void mf_guarded_release(struct mf_guarded *g);
/* Poisons the rows that a step must write. These are the rows with source[p] >= 0, or all rows if source is
 * NULL. All rows are also poisoned in three cases: for index tensor specs, on the first use of the buffer,
 * and if device_data fills the buffer. If `zero` is true, clears the buffer instead; this is for outputs that
 * a step accumulates into. On return the device copy is up to date. If device_data fills the buffer, the
 * host's copy of the parts keeps the values of the last pull. */
int mf_guarded_poison(struct mf_guarded *g, const int64_t *source, bool zero);
/* Queues a fill of all parts with their poison, or with zeros, on the stream of the device's launches. The
 * device must have mf_device_ops.fill. */
int mf_guarded_queue_poison(const struct mf_guarded *g, struct mf_device *device, bool zero);
/* Returns 1 and a message if a band was overwritten, and repairs the bands. Returns 0 if all bands are
 * intact. */
int mf_guarded_check(struct mf_guarded *g, char *why, size_t cap);
/* Copies the host's bands to the device. */
int mf_guarded_push_bands(struct mf_guarded *g);
/* Copies only the bands from the device. */
int mf_guarded_pull_bands(struct mf_guarded *g);
