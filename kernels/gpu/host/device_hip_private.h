/* Private data of a GPU device, and the functions that its two source files share: device_hip.c, and
 * device_hip_foreign.c for graphs and launches of foreign code. */
#pragma once

#if defined(MF_HIP_NVIDIA)
#    include "kernels/gpu/host/hip_calls_nvidia.h"
#else
#    include "kernels/gpu/host/hip_calls_amd.h"
#endif

#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/gpu/host/hip_open.h"

#define MF_HIP_DELAY_NS 60000 /* upper bound of the time to queue a graph on an idle host */

struct mf_module {
    hipModule_t module;
};

struct hip_device {
    struct mf_device base; /* must be first */
    struct mf_hip_calls c;
    int ordinal, max_shared;
    mf_hip_current current;
    bool has_programmatic_launch; /* the architecture supports mf_grid.programmatic_launch */
    bool guest;
    bool capturing; /* hip_time captures launches */
    atomic_bool failed;
    hipStream_t stream; /* stream of this module; NULL for a guest */
    hipEvent_t from, to;
    struct mf_compiler compiler;
    struct mf_module *own;
    hipFunction_t delay, empty, read, peak;
    hipFunction_t peak_fp8, add_cycles; /* Hopper only, otherwise NULL */
    /* evict_fill and evict_discard: NVIDIA only, otherwise NULL */
    hipFunction_t evict_code, evict_fill, evict_discard;
    void *canary_memory;
    void *evict_buffer; /* evict_bytes bytes, followed by space for a sum */
    uint64_t evict_bytes;
    uint64_t rest_until_ns; /* end of the idle time after the last sample */
};

static inline struct hip_device *mf_hip_of(struct mf_device *d)
{
    return (struct hip_device *)d;
}

/* Checks the result of a call that fails only on a failed device or because of a capture. Returns -ECANCELED
 * after a capture error, with the reason in open_error. After a failure of the device, exits the process, or
 * returns -EIO for a guest. */
int mf_hip_check(struct hip_device *d, hipError_t e, const char *what);
/* Checks the result of a call that may also fail for other reasons. */
hipError_t mf_hip_check_failure(struct hip_device *d, hipError_t e, const char *what);

/* Takes one sample: the time between two events around the work of launch(context, 0). In front of the first
 * event, the device waits delay_ns and then runs the work of before(context, 1), unless `before` is NULL.
 * *ret_host_ns is the time that the host needed to queue all of this. The device then rests. Returns 0, an
 * error of `before` or `launch`, or an error of mf_hip_check. */
int mf_hip_sample(struct hip_device *d, uint64_t delay_ns, mf_launch_fn before, mf_launch_fn launch,
                  void *context, uint64_t *ret_host_ns, double *ret_us);

/* Operations of struct mf_device_ops. */
int mf_hip_sync(struct mf_device *base);
int mf_hip_queue_fill(struct mf_device *base, void *at, size_t bytes, uint32_t pattern);
int mf_hip_queue_copy(struct mf_device *base, void *to, const void *from, size_t bytes);
int mf_hip_time_eager(struct mf_device *base, mf_launch_fn before, mf_launch_fn launch, void *context,
                      double *ret_us);
int mf_hip_launch_graph(struct mf_device *base, void *graph);
