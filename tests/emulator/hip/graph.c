/* Stream capture and graph replay. */
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "emulator/hip/runtime.h"

struct hipGraphExec {
    struct ihipGraph graph;
};

static struct {
    const struct ihipStream_t *stream; /* NULL: no capture is active */
    struct ihipGraph *graph;
    bool spoilt;
} capture;

struct ihipGraph *fake_capture(const struct ihipStream_t *s)
{
    return capture.stream == s ? capture.graph : NULL;
}

hipError_t fake_capture_forbids(void)
{
    if (!capture.stream)
        return hipSuccess;
    capture.spoilt = true;
    return hipErrorStreamCaptureUnsupported;
}

hipError_t fake_graph_add(struct ihipGraph *g, const struct fake_launch *l)
{
    struct fake_launch *more = reallocarray(g->launches, g->n + 1, sizeof(*more));
    if (!more)
        return hipErrorOutOfMemory;
    g->launches = more;
    if (fake_launch_copy(l, &g->launches[g->n]) < 0)
        return hipErrorOutOfMemory;
    g->n++;
    return hipSuccess;
}

static void release(struct ihipGraph *g)
{
    for (size_t i = 0; i < g->n; i++)
        free(g->launches[i].arguments);
    free(g->launches);
}

CALL hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode)
{
    FAKE_ENTER_UNCAPTURED();
    if (!stream)
        return hipErrorStreamCaptureUnsupported;
    if (mode != hipStreamCaptureModeThreadLocal)
        fake_misuse("only thread-local stream capture is emulated");
    capture.graph = calloc(1, sizeof(*capture.graph));
    if (!capture.graph)
        return hipErrorOutOfMemory;
    capture.stream = stream;
    capture.spoilt = false;
    return hipSuccess;
}

CALL hipStreamEndCapture(hipStream_t stream, hipGraph_t *ret)
{
    FAKE_ENTER();
    if (capture.stream != stream)
        return hipErrorIllegalState;
    struct ihipGraph *g = MF_TAKE(capture.graph);
    capture.stream = NULL;
    if (capture.spoilt) {
        release(g);
        free(g);
        *ret = NULL;
        return hipErrorStreamCaptureInvalidated;
    }
    *ret = g;
    return hipSuccess;
}

/* The nodes of a graph are its launches, and a child graph becomes launches of its parent. */
CALL hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t *nodes, size_t *n)
{
    FAKE_ENTER();
    for (size_t i = 0; nodes && i < graph->n; i++)
        nodes[i] = (hipGraphNode_t)(void *)&graph->launches[i];
    *n = graph->n;
    return hipSuccess;
}

CALL hipGraphKernelNodeGetParams(hipGraphNode_t node, hipKernelNodeParams *ret)
{
    FAKE_ENTER();
    (void)node;
    *ret = (hipKernelNodeParams){.kernelParams = NULL};
    return hipSuccess;
}

CALL hipGraphChildGraphNodeGetGraph(hipGraphNode_t node, hipGraph_t *ret)
{
    FAKE_ENTER();
    (void)node, (void)ret;
    return hipErrorInvalidValue;
}

CALL hipStreamGetCaptureInfo_v2(hipStream_t stream, hipStreamCaptureStatus *status, unsigned long long *id,
                                hipGraph_t *graph, const hipGraphNode_t **dependencies, size_t *n)
{
    FAKE_ENTER();
    *status = capture.stream != stream ? hipStreamCaptureStatusNone
              : capture.spoilt         ? hipStreamCaptureStatusInvalidated
                                       : hipStreamCaptureStatusActive;
    *id = 1;
    *graph = capture.graph;
    *dependencies = NULL;
    *n = 0;
    return hipSuccess;
}

CALL hipStreamUpdateCaptureDependencies(hipStream_t stream, hipGraphNode_t *dependencies, size_t n,
                                        unsigned flags)
{
    FAKE_ENTER();
    if (capture.stream != stream || n != 1 || !dependencies[0] || flags != hipStreamSetCaptureDependencies)
        fake_misuse("only the node of a new child graph becomes the stream's dependency");
    return hipSuccess;
}

CALL hipGraphAddChildGraphNode(hipGraphNode_t *ret, hipGraph_t graph, const hipGraphNode_t *dependencies,
                               size_t n, hipGraph_t child)
{
    hipError_t r = hipSuccess;
    FAKE_ENTER();
    (void)dependencies, (void)n;
    for (size_t i = 0; i < child->n && r == hipSuccess; i++)
        r = fake_graph_add(graph, &child->launches[i]);
    *ret = (hipGraphNode_t)(void *)graph;
    return r;
}

CALL hipGraphInstantiate(hipGraphExec_t *ret, hipGraph_t graph, hipGraphNode_t *error_node, char *log,
                         size_t log_bytes)
{
    FAKE_ENTER();
    (void)error_node, (void)log, (void)log_bytes;
    struct hipGraphExec *e = calloc(1, sizeof(*e));
    if (!e)
        return hipErrorOutOfMemory;
    for (size_t i = 0; i < graph->n; i++) {
        hipError_t r = fake_graph_add(&e->graph, &graph->launches[i]);
        if (r != hipSuccess) {
            release(&e->graph);
            free(e);
            return r;
        }
    }
    *ret = e;
    return hipSuccess;
}

CALL hipGraphLaunch(hipGraphExec_t exec, hipStream_t stream)
{
    hipError_t r = hipSuccess;
    FAKE_ENTER();
    for (size_t i = 0; i < exec->graph.n && r == hipSuccess; i++)
        r = fake_queue_launch(fake_stream(stream), &exec->graph.launches[i]);
    return r;
}

CALL hipGraphExecDestroy(hipGraphExec_t exec)
{
    FAKE_ENTER();
    release(&exec->graph);
    free(exec);
    return hipSuccess;
}

CALL hipGraphDestroy(hipGraph_t graph)
{
    FAKE_ENTER();
    release(graph);
    free(graph);
    return hipSuccess;
}
