/* Output buffers between guard bands, poisoned before each run.
 *
 *   [band][part 0][band][part 1][band]      each part 64-byte aligned, each band at least MF_GUARD_BYTES
 *
 * A guard band holds a fixed pattern; a changed byte is a write outside the part. Poison is mf_poison() of
 * the part's format. Only rows that a step must write are poisoned again and checked. */
#pragma once

#include "kernels/core/tensors.h"
#include "kernels/gpu/host/device_data.h"
#include "measure/session/region.h"

#define MF_GUARD_BYTES 4096

struct mf_guarded {
    struct mf_tensor_spec tensor_spec;
    struct mf_part parts[MF_PARTS_MAX];
    int n_parts;
    struct mf_tensor_ref ref, launch_ref; /* host addresses; addresses passed to launches */
    struct mf_region region;
    size_t start[MF_PARTS_MAX], end[MF_PARTS_MAX];
    struct mf_device_data
        *device_data; /* not owned; fills the device copy. NULL: the host fills the buffer and copies it */
    bool poisoned;    /* every row was poisoned at least once */
};

/* Allocates a buffer and writes the bands on the host. The parts are undefined, and so is the device copy
 * until the buffer is poisoned or pushed. -EINVAL: the shape has no such tensor spec; -ENOMEM. */
int mf_guarded_new(const struct mf_tensor_spec *a, const struct mf_shape *shape, struct mf_device *device,
                   struct mf_guarded *ret);
/* Allocates a buffer that device_data fills on its device. The host has pages only for the bands until it
 * pulls the whole buffer. */
int mf_guarded_new_on_device(const struct mf_tensor_spec *a, const struct mf_shape *shape,
                             struct mf_device_data *device_data, struct mf_guarded *ret);
void mf_guarded_release(struct mf_guarded *g);
/* Poisons the rows that must be written: those with source[p] >= 0, or all rows if source is NULL. All rows
 * are poisoned for index tensor specs, on first use, and if device_data fills the buffer. `zero` clears the
 * buffer instead, for outputs that a step accumulates into. The device copy is current on return. If
 * device_data fills the buffer, the host parts keep what was pulled last. */
int mf_guarded_poison(struct mf_guarded *g, const int64_t *source, bool zero);
/* Returns 1 and a message in why if a band was overwritten, and repairs it; 0 if all bands are intact. */
int mf_guarded_check(struct mf_guarded *g, char *why, size_t cap);
/* Copies the host's bands to the device. */
int mf_guarded_push_bands(struct mf_guarded *g);
/* Copies only the bands from the device. */
int mf_guarded_pull_bands(struct mf_guarded *g);
