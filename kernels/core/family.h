/* A family: a supplier of steps that knows one kind of kernel: when it is legal, its parameters, how to build
 * and launch it. Families are const tables in an explicit list (kernels/core/registry.c); new ones go at its end.
 *
 * enumerate() offers every legal step and rejects the rest in words: rule is a short name ("dtype",
 * "divisibility"), reason a sentence with the operands and the numbers; "not supported" is no reason.
 *
 * A step is rebuilt from its name alone (open), so that production needs nothing but the table's names. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/moe/shape.h"
#include "common/moe/status.h"
#include "common/moe/step.h"
#include "kernels/core/device.h"
#include "kernels/core/tensors.h"

#define MF_FAMILY_API 9
/* What a shared object with a family exports: const struct mf_family *mf_family_entry(void) (kernels/families/family_plugin.h,
 * examples/family_plain.c). */
#define MF_FAMILY_ENTRY "mf_family_entry"

/* Where enumerate() puts what it finds. A negative return stops the enumeration and is passed up. */
struct mf_offer {
    int (*step)(struct mf_offer *o, const struct mf_step *step);
    int (*reject)(struct mf_offer *o, const char *family, const char *kernel, const char *rule,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));
};

/* reject of whoever asks only for the steps. */
int mf_offer_unheard(struct mf_offer *o, const char *family, const char *kernel, const char *rule,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));

struct mf_kernel; /* the family's own: a step that is ready to launch */

/* Buffers in the order of the step's needs and gives; workspace of step.workspace_bytes, 64-byte aligned,
 * contents undefined. */
struct mf_launch {
    const struct mf_tensor_ref *needs;
    const struct mf_tensor_ref *gives;
    void *workspace;
};

struct mf_family {
    int api; /* MF_FAMILY_API */
    const char *name;
    const char *device_kind; /* "cpu", "hip", "sim" */
    int (*enumerate)(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer);
    /* Builds the step of that name. -EINVAL: no name of ours; -ENOTSUP: not legal for the shape or the device;
     * -ENOMEM. The kernel keeps copies of what it needs. */
    int (*open)(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                const char *name, struct mf_kernel **ret);
    /* No allocation, lock or syscall. Inputs are not written to, with one exception: an tensor spec that is needed
     * zeroed and given without (an accumulation) is one buffer, the same address in needs and gives.
     * 0 or a negative errno. */
    int (*launch)(struct mf_kernel *kernel, const struct mf_launch *launch);
    struct mf_kernel *(*close)(struct mf_kernel *kernel);
    /* What a launch on such arguments needs once, before one that is timed: it may allocate and wait. Optional: a launch that was
     * not prepared does it itself. 0 or a negative errno, as launch. */
    int (*prepare)(struct mf_kernel *kernel, const struct mf_launch *launch);
    /* From here on launches are of so many tokens: 1 to those that it was opened for, with a workspace as for those. No
     * allocation, lock or syscall. Optional; NULL: a kernel serves its own count only, and is opened anew for another. */
    void (*set_token_count)(struct mf_kernel *kernel, int64_t token);
    /* Does AITER run kernels of this name? Optional; NULL: none. Enumeration asks, and the step carries the answer
     * (mf_step.aiter) to whoever exports. */
    bool (*aiter_name)(const char *kernel);
    /* Of families whose kernels are compiled when they are wanted: the source of the step of that name, so that it can
     * be compiled ahead, anywhere. NULL: none. -EINVAL, -ENOTSUP as open. */
    int (*code)(const struct mf_device_info *device, const struct mf_shape *shape, const char *name,
                struct mf_code *ret);
    /* Knows shapes that are a rank's share of the experts: ids count all ranks' experts, routes to others' get no row and no
     * block, and slots without a row are never read. Others are not asked about such shapes. */
    bool shares;
};

/* The kernel revision of this build: a hash of the kernel sources, so that a changed kernel is a new one. */
const char *mf_kernel_revision(void);

/* The families of a device kind, in the order of the registry; *ret_n of them. */
const struct mf_family *const *mf_families(size_t *ret_n);
/* By both: a GPU's tile is another than the CPU's. device_kind NULL: the first of any kind. NULL: none. */
const struct mf_family *mf_family_find(const char *device_kind, const char *name);
/* It stands in the place of another of its kind, or its steps fit none of the others', and is enumerated only where it is
 * named. */
bool mf_family_on_request(const struct mf_family *f);

/* Families beside the registry's: a foreign runner's, a test's. They are searched first. */
struct mf_family_set {
    const struct mf_family *const *families;
    size_t n;
};
/* NULL: no such family, neither in extra (may be NULL) nor in the registry. */
static inline const struct mf_family *mf_family_set_find(const struct mf_family_set *extra,
                                                         const char *device_kind, const char *name)
{
    for (size_t i = 0; extra && i < extra->n; i++) {
        if (strcmp(extra->families[i]->name, name) == 0)
            return extra->families[i];
    }
    return mf_family_find(device_kind, name);
}

/* Enumerates a shape in one family; steps that AITER runs by their name are marked, and those that want w1 otherwise than
 * the shape says that it lies are refused, as is a shape of a rank's share of the experts where the family knows none. */
int mf_family_enumerate(const struct mf_family *f, const struct mf_device_info *device,
                        const struct mf_shape *shape, struct mf_offer *offer);
/* Enumerates a shape over the families of the device's kind. `only` is NULL, for all that need not be named, or a
 * comma list of family names. */
int mf_enumerate(const struct mf_device_info *device, const struct mf_shape *shape, const char *only,
                 struct mf_offer *offer);
