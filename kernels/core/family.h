/* Interface of kernel families. A family knows one kind of kernel: when it is legal, its parameters, how to
 * build and launch it. Families are const tables in an explicit list (kernels/registry.c).
 *
 * enumerate() offers every legal step and gives a reason for each rejection: `rule` is a short name ("dtype",
 * "divisibility"), `reason` a sentence with the operands and the numbers. "Not supported" is not a reason.
 *
 * A step is rebuilt from its name alone (open), so production needs only the names in the table. */
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

#define MF_FAMILY_API 10
/* A shared object with a family exports this function: const struct mf_family *mf_family_entry(void)
 * (kernels/families/family_plugin.h, examples/family_plain.c). */
#define MF_FAMILY_ENTRY "mf_family_entry"

/* Callbacks for enumerate(). A negative return value stops the enumeration and is passed to the caller. */
struct mf_offer {
    int (*step)(struct mf_offer *o, const struct mf_step *step);
    int (*reject)(struct mf_offer *o, const char *family, const char *kernel, const char *rule,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));
};

/* A `reject` callback that discards rejections, for callers that need only the steps. */
int mf_offer_ignore_rejection(struct mf_offer *o, const char *family, const char *kernel, const char *rule,
                              const char *format, ...) __attribute__((format(printf, 5, 6)));

struct mf_kernel; /* a step that is ready to launch; each family defines its own */
struct mf_hip_steps;

/* Buffers in the order of the step's needs and gives. The workspace has step.workspace_bytes bytes, is
 * 64-byte aligned, and its contents are undefined. */
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
    /* Builds the step with that name. -EINVAL: the family has no such name; -ENOTSUP: not legal for the shape
     * or the device; -ENOMEM. The kernel copies the parts of its arguments that it keeps. */
    int (*open)(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                const char *name, struct mf_kernel **ret);
    /* Launches the kernel. No allocation, lock or system call. Inputs are read-only, with one exception: an
     * accumulation needs a zeroed tensor spec and gives the same spec without `zeroed`; both are one buffer,
     * with the same address in needs and gives. Returns 0 or a negative errno. */
    int (*launch)(struct mf_kernel *kernel, const struct mf_launch *launch);
    struct mf_kernel *(*close)(struct mf_kernel *kernel);
    /* Does the one-time work for these launch arguments before a timed launch. It may allocate and wait.
     * Optional: an unprepared launch does this work itself. Returns 0 or a negative errno, as launch. */
    int (*prepare)(struct mf_kernel *kernel, const struct mf_launch *launch);
    /* Sets the token count of the following launches: 1 to the count at open, with the workspace for the
     * count at open. No allocation, lock or system call. Optional: without it, a kernel serves only its own
     * count and is reopened for another. */
    void (*set_token_count)(struct mf_kernel *kernel, int64_t token);
    /* True if AITER runs kernels of this name. Optional; NULL: never. The result is stored in mf_step.aiter,
     * for exporters. */
    bool (*aiter_name)(const char *kernel);
    /* Returns the source of the step with that name, so that it can be compiled ahead of time on any machine.
     * NULL for families without run-time compilation. -EINVAL and -ENOTSUP as open. */
    int (*code)(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *shape,
                const char *name, struct mf_code *ret);
    /* True if the family supports expert parallelism: ids number the experts of all ranks, routes to remote
     * experts get no row and no block, and slots without a row are never read. Other families are not
     * enumerated for such shapes. */
    bool supports_ep;
    /* How mf_hip_open opens the steps of a GPU family (kernels/families/family_hip.h). Optional. */
    const struct mf_hip_steps *hip_steps;
};

/* Kernel revision of this build: a hash of the kernel sources, so that results of changed kernels are not
 * mixed. */
const char *mf_kernel_revision(void);

/* All families in the order of the registry. The array is static; *ret_n is its length. */
const struct mf_family *const *mf_families(size_t *ret_n);
/* Finds a family by device kind and name: families of different kinds share names ("two_stage").
 * Accepts old names of renamed families. device_kind NULL: the first match of any kind. NULL if there is
 * none. */
const struct mf_family *mf_family_find(const char *device_kind, const char *name);
/* True if the family replaces another one of its kind, or its steps do not combine with those of other
 * families. It is enumerated only if named. */
bool mf_family_on_request(const struct mf_family *f);

/* Families outside the registry, for example of a foreign runner or a test. They are searched first. */
struct mf_family_set {
    const struct mf_family *const *families;
    size_t n;
};
/* Returns NULL if neither `extra` (may be NULL) nor the registry has the family. */
static inline const struct mf_family *mf_family_set_find(const struct mf_family_set *extra,
                                                         const char *device_kind, const char *name)
{
    for (size_t i = 0; extra && i < extra->n; i++) {
        if (strcmp(extra->families[i]->name, name) == 0)
            return extra->families[i];
    }
    return mf_family_find(device_kind, name);
}

/* Enumerates a shape in one family. Sets mf_step.aiter. Rejects steps whose w1 layout contradicts the shape's
 * gate_up, and shapes with expert parallelism if the family does not support it. */
int mf_family_enumerate(const struct mf_family *f, const struct mf_device_info *device,
                        const struct mf_shape *shape, struct mf_offer *offer);
/* Enumerates a shape over the families of the device's kind. `only` is a comma-separated list of current or
 * old family names, or NULL for all families that are not on request. */
int mf_enumerate(const struct mf_device_info *device, const struct mf_shape *shape, const char *only,
                 struct mf_offer *offer);
