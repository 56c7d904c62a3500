/* Outputs between guard bands, poisoned before each run.
 *
 *   [band][part 0][band][part 1][band]      each part 64-byte aligned, each band at least MF_GUARD_BYTES
 *
 * A band is a fixed pattern; a byte that differs afterwards is a write outside the part. Poison is mf_poison() of the
 * part's format; only rows that a step has to write are poisoned again and looked at. */
#pragma once

#include "kernels/core/tensors.h"
#include "kernels/gpu/host/device_data.h"
#include "measure/session/region.h"

#define MF_GUARD_BYTES 4096

struct mf_guarded {
    struct mf_tensor_spec tensor_spec;
    struct mf_part parts[MF_PARTS_MAX];
    int n_parts;
    struct mf_tensor_ref ref, seen; /* the host's addresses, and those that launches get */
    struct mf_region region;
    size_t start[MF_PARTS_MAX], end[MF_PARTS_MAX];
    struct mf_device_data
        *maker;    /* of the owner: who fills the device's copy there; NULL: it is filled here and copied */
    bool poisoned; /* once at least, whole */
};

/* Bands drawn on the host; what lies between them is undefined, and so is the device's copy until it is poisoned or pushed.
 * -EINVAL: the shape has no such tensor spec; -ENOMEM. */
int mf_guarded_new(const struct mf_tensor_spec *a, const struct mf_shape *shape, struct mf_device *device,
                   struct mf_guarded *ret);
/* The same on the maker's device, for it to fill: the host has no pages but the bands' until it pulls all of it. */
int mf_guarded_new_there(const struct mf_tensor_spec *a, const struct mf_shape *shape,
                         struct mf_device_data *maker, struct mf_guarded *ret);
void mf_guarded_release(struct mf_guarded *g);
/* Poisons the rows that have to be written: source[p] >= 0, or all of them when source is NULL. Index tensor specs are
 * poisoned whole, and so is everything the first time and on devices that fill memory themselves. With zero, for what is added to, they
 * are zeroed instead. The device sees it at once; where it fills its memory itself, the host's parts hold what was pulled last. */
int mf_guarded_poison(struct mf_guarded *g, const int64_t *source, bool zero);
/* 1 and the sentence when a band is broken, which is then repaired; 0 when all are whole. */
int mf_guarded_check(struct mf_guarded *g, char *why, size_t cap);
/* The host's bands to the device, of what is filled there by other means. */
int mf_guarded_push_bands(struct mf_guarded *g);
/* Takes what the device has in the bands, and nothing else. */
int mf_guarded_pull_bands(struct mf_guarded *g);
