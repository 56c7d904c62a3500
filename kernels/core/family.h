/* Interface of kernel families. A family describes one kind of kernel: for which shapes and devices the
 * kernel is legal, its parameters, and how to build and launch it. Families are const structs, listed in
 * kernels/registry.c.
 *
 * enumerate() offers every legal step. For each rejected kernel it gives a short rule name ("dtype",
 * "divisibility") and a reason: a sentence with the operands and the numbers, never just "not supported".
 *
 * open() rebuilds a step from its name alone, so a tuned table has to contain only the step names. */
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

#define MF_FAMILY_API 13
/* A shared object that contains a family exports this function: const struct mf_family *mf_family_entry(void)
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

struct mf_kernel;               /* a step that is ready to launch; each family defines its own */
#define MF_KERNEL_COPY_MAX 1024 /* maximum size of a kernel's copy, in bytes */
struct mf_hip_steps;

/* Buffers of the step's inputs (`needs`) and outputs (`gives`), in the order in which mf_step lists them. The
 * workspace has step.workspace_bytes bytes, is 64-byte aligned, and has undefined contents. */
struct mf_launch {
    const struct mf_tensor_ref *needs;
    const struct mf_tensor_ref *gives;
    void *workspace;
    /* Types of the tensor topk. Only libfmoe sets them, which opens no family outside the registry. */
    struct mf_route_types routes;
};

struct mf_family {
    int api; /* always MF_FAMILY_API */
    const char *name;
    const char *device_kind; /* "cpu", "hip", "sim" */
    int (*enumerate)(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer);
    /* Builds the step called `name`. Returns -EINVAL if the family has no step of this name, -ENOTSUP if the
     * step is not legal for the shape or the device, or -ENOMEM. The kernel copies the parts of its arguments
     * that it keeps. */
    int (*open)(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                const char *name, struct mf_kernel **ret);
    /* Launches the kernel, without allocations, locks or system calls. The kernel never writes its inputs,
     * with one exception: a kernel that accumulates has a zeroed tensor spec as input and the same spec
     * without `zeroed` as output, and both are the same buffer. Returns 0 or a negative errno. */
    int (*launch)(struct mf_kernel *kernel, const struct mf_launch *launch);
    struct mf_kernel *(*close)(struct mf_kernel *kernel);
    /* Does the one-time work for these launch arguments, so that it is not part of a timed launch. May
     * allocate and wait. Optional, because a launch that was not prepared does this work itself. Returns 0 or
     * a negative errno, like `launch`. */
    int (*prepare)(struct mf_kernel *kernel, const struct mf_launch *launch);
    /* Sets the token count of the following launches, from 1 to the count at which the kernel was opened. The
     * workspace keeps the size for the count at open. The function makes no allocations, locks or system
     * calls. Optional. Without this function, a kernel serves only the count at open and must be opened again
     * for another count. */
    void (*set_token_count)(struct mf_kernel *kernel, int64_t token);
    /* Copies the kernel to `to`, which has MF_KERNEL_COPY_MAX bytes and is aligned for any type. The copy's
     * launches go to `stream`. set_token_count and launches of a copy change neither the kernel nor other
     * copies, so that several calls can use one kernel at once. The copy is valid until the kernel is closed,
     * and is not closed itself. Optional. Without this function, a kernel runs one call at a time, as on the
     * CPU. */
    struct mf_kernel *(*copy)(const struct mf_kernel *kernel, void *stream, void *to);
    /* Returns true if AITER runs kernels of this name. The pointer is NULL if AITER runs no kernel of the
     * family. The result is stored in mf_step.aiter, for exporters. */
    bool (*aiter_name)(const char *kernel);
    /* Returns the source of the step called `name`, so that it can be compiled ahead of time on any machine.
     * The pointer is NULL for families without run-time compilation. Returns -EINVAL and -ENOTSUP as `open`
     * does. */
    int (*code)(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *shape,
                const char *name, struct mf_code *ret);
    /* Compiles the steps with these names before they are measured, for families whose kernels `code` cannot
     * describe. Calls progress(context) after each step. Errors are not reported here, because `open` reports
     * them again. Optional. */
    int (*precompile)(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                      const char *const *names, size_t n, void (*progress)(void *context), void *context);
    /* True if the family supports expert parallelism: expert ids then number the experts of all ranks, routes
     * to remote experts get no row and no block, and slots without a row are never read. A family without
     * this support is not enumerated for shapes with expert parallelism. */
    bool supports_ep;
    /* Describes to mf_hip_open how to open the steps of a GPU family (kernels/families/family_hip.h).
     * Optional. */
    const struct mf_hip_steps *hip_steps;
    /* True for code of a framework: `prepare` runs the framework once and captures its launches for these
     * arguments in a graph, and `launch` replays the graph (mf_device_ops.launch_graph). Inputs must be valid
     * when `prepare` is called, but one of them may be NaN. Measurements then keep the addresses of inputs
     * and copy other values into them, so that a kernel captures once per output buffer. They also prepare a
     * verified run before they poison its output, because a launch that escapes from the capture to another
     * stream runs at once. */
    bool captures;
    /* Copies results that a framework returns in memory of its own to `gives`, after a timed run and outside
     * of the timed interval. Optional. Returns 0 or a negative errno. */
    int (*finish)(struct mf_kernel *kernel, const struct mf_launch *launch);
    /* Returns NULL if the launches of a prepared kernel can be captured. Otherwise returns the reason, which
     * is valid until `close`; `launch` then runs the framework, which queues its work on mf_device.stream,
     * and the kernel is timed eagerly (mf_device_ops.time_eager). Optional. */
    const char *(*eager)(const struct mf_kernel *kernel);
    /* Returns a step for the whole layer: the production operator of the family's framework, with the row of
     * its tuned table that names these steps. `open` opens the step until the next call. Returns -ENOENT if
     * the steps are not this framework's, -EINVAL if its tables cannot express them, or -ENOMEM. Optional. */
    int (*production)(const struct mf_family *f, const struct mf_device_info *device,
                      const struct mf_shape *shape, const struct mf_step *steps, size_t n,
                      struct mf_step *ret);
};

/* Returns the kernel revision of this build, a hash of the kernel sources. Results with different kernel
 * revisions are never mixed. */
const char *mf_kernel_revision(void);

/* All families in the order of the registry. The array is static; *ret_n is its length. */
const struct mf_family *const *mf_families(size_t *ret_n);
/* Finds a family by device kind and by its current or an old name. The kind is required because families of
 * different kinds may have the same name ("two_stage"). If device_kind is NULL, returns the first family of
 * that name of any kind. Returns NULL if there is no such family. */
const struct mf_family *mf_family_find(const char *device_kind, const char *name);
/* Returns true if the family is enumerated only if the user names it. This applies to families that replace
 * another family of their kind, and to families with steps that do not combine with those of other families.
 */
bool mf_family_on_request(const struct mf_family *f);

/* Families outside the registry, for example of a Python module or a test. They are searched before the
 * registry. */
struct mf_family_set {
    const struct mf_family *const *families;
    size_t n;
};
/* Finds a family in `extra`, which may be NULL, then in the registry. Returns NULL if neither has the family.
 */
static inline const struct mf_family *mf_family_set_find(const struct mf_family_set *extra,
                                                         const char *device_kind, const char *name)
{
    for (size_t i = 0; extra && i < extra->n; i++) {
        if (strcmp(extra->families[i]->name, name) == 0)
            return extra->families[i];
    }
    return mf_family_find(device_kind, name);
}

/* Enumerates the steps of one family for a shape and sets mf_step.aiter. Rejects steps whose w1 layout
 * contradicts the shape's gate_up, and shapes with expert parallelism if the family does not support it. */
int mf_family_enumerate(const struct mf_family *f, const struct mf_device_info *device,
                        const struct mf_shape *shape, struct mf_offer *offer);
/* Enumerates the steps of all families of the device's kind for a shape. `only` is a comma-separated list of
 * current or old family names, or NULL for all families for which mf_family_on_request is false. */
int mf_enumerate(const struct mf_device_info *device, const struct mf_shape *shape, const char *only,
                 struct mf_offer *offer);
