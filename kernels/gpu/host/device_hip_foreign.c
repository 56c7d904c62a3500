/* Work of foreign code on a GPU, such as a framework's in a runner: graphs that it has captured, and launches
 * that cannot be captured. */
#include "kernels/gpu/host/device_hip_private.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"

#define EAGER_TRIES               3 /* runs of a launch that cannot be captured, with growing delays */
#define EAGER_DELAY_MAX_NS        UINT64_C(100000000)
#define GRAPH_DEPTH_MAX           8   /* nesting of child graphs */
#define ERROR_CAPTURE_INVALIDATED 901 /* CUDA and HIP use the same number */

int mf_hip_queue_fill(struct mf_device *base, void *at, size_t bytes, uint32_t pattern)
{
    struct hip_device *d = mf_hip_of(base);
    return mf_hip_check(d,
                        mf_hip_fill(&d->c, at, pattern, bytes / sizeof(pattern), (hipStream_t)base->stream),
                        "filling memory");
}

int mf_hip_queue_copy(struct mf_device *base, void *to, const void *from, size_t bytes)
{
    struct hip_device *d = mf_hip_of(base);
    return mf_hip_check(d, mf_hip_copy_within(&d->c, to, from, bytes, (hipStream_t)base->stream), "copying");
}

int mf_hip_time_eager(struct mf_device *base, mf_launch_fn before, mf_launch_fn launch, void *context,
                      double *ret_us)
{
    struct hip_device *d = mf_hip_of(base);
    uint64_t delay_ns = MF_HIP_DELAY_NS, host_ns;
    int r = 0;
    for (int i = 0; i < EAGER_TRIES; i++) {
        r = before(context, 0);
        if (r == 0)
            r = mf_hip_sample(d, delay_ns, before, launch, context, &host_ns, ret_us);
        if (r < 0 || host_ns < delay_ns)
            break;
        delay_ns = MF_MIN(2 * host_ns, EAGER_DELAY_MAX_NS);
    }
    if (r < 0)
        (void)mf_hip_sync(base); /* ends the failed launch's captures */
    return r;
}

/* Returns the number of kernels in the graph and its child graphs, or -ENOMEM, or -ECANCELED if the runtime
 * refuses the graph. */
static int count_kernels(struct hip_device *d, hipGraph_t graph, int depth)
{
    size_t n = 0;
    int kernels = 0;
    if (depth > GRAPH_DEPTH_MAX || d->c.hipGraphGetNodes(graph, NULL, &n) != hipSuccess)
        return -ECANCELED;
    _cleanup_(mf_freep) hipGraphNode_t *nodes = calloc(n + 1, sizeof(*nodes));
    if (!nodes)
        return -ENOMEM;
    if (n > 0 && d->c.hipGraphGetNodes(graph, nodes, &n) != hipSuccess)
        return -ECANCELED;
    for (size_t i = 0; i < n && kernels >= 0; i++) {
        hipGraph_t child;
        if (mf_hip_is_kernel_node(&d->c, nodes[i])) {
            kernels++;
        } else if (mf_hip_child_of(&d->c, nodes[i], &child)) {
            int more = count_kernels(d, child, depth + 1);
            kernels = more < 0 ? more : kernels + more;
        }
    }
    return kernels;
}

/* Appends the graph to the device's own capture. The runtime copies it. */
static hipError_t add_child(struct hip_device *d, hipGraph_t child)
{
    const hipGraphNode_t *before = NULL;
    hipStreamCaptureStatus status;
    mf_hip_capture_id id;
    hipGraphNode_t node;
    hipGraph_t graph = NULL;
    size_t n = 0;
    hipError_t e = d->c.hipStreamGetCaptureInfo_v2(d->stream, &status, &id, &graph, &before, &n);
    if (e == hipSuccess && status != hipStreamCaptureStatusActive)
        e = (hipError_t)ERROR_CAPTURE_INVALIDATED;
    if (e == hipSuccess)
        e = d->c.hipGraphAddChildGraphNode(&node, graph, before, n, child);
    if (e == hipSuccess)
        e = d->c.hipStreamUpdateCaptureDependencies(d->stream, &node, 1, hipStreamSetCaptureDependencies);
    return e;
}

static hipError_t run_graph(struct hip_device *d, hipGraph_t graph)
{
    hipGraphExec_t exec = NULL;
    hipError_t e = mf_hip_instantiate(&d->c, &exec, graph);
    if (e == hipSuccess)
        e = d->c.hipGraphLaunch(exec, d->stream);
    if (e == hipSuccess)
        e = d->c.hipStreamSynchronize(d->stream);
    if (exec)
        (void)d->c.hipGraphExecDestroy(exec);
    return e;
}

/* Returns 0 if the graph has kernels, otherwise an error of launch_graph. */
static int check_graph(struct hip_device *d, hipGraph_t graph)
{
    char *why = d->base.open_error;
    int kernels = count_kernels(d, graph, 0);
    if (kernels == -ECANCELED)
        mf_format(why, sizeof(d->base.open_error),
                  "the runtime cannot read the captured graph, which must exist until `close`");
    if (kernels == 0)
        mf_format(why, sizeof(d->base.open_error),
                  "the captured graph has no kernels: the step launched none, or launched them on another "
                  "stream");
    return kernels == 0 ? -ENODATA : MF_MIN(kernels, 0);
}

int mf_hip_launch_graph(struct mf_device *base, void *graph)
{
    struct hip_device *d = mf_hip_of(base);
    int r = check_graph(d, (hipGraph_t)graph);
    if (r < 0)
        return r;
    hipError_t e = d->capturing ? add_child(d, (hipGraph_t)graph) : run_graph(d, (hipGraph_t)graph);
    if (mf_hip_check_failure(d, e, "launching a graph") == hipSuccess)
        return 0;
    mf_format(base->open_error, sizeof(base->open_error), "launching a graph: %s",
              mf_hip_error_text(&d->c, e));
    return e == hipErrorOutOfMemory ? -ENOMEM : -ECANCELED;
}
