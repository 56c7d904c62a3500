/* A fake libcuda.so.1 for tests. It provides only the functions that kernels/gpu/host/hip_calls_nvidia.h
 * lists. Device memory is host memory, launches do nothing, and every timed interval is one millisecond.
 * Environment variables:
 *
 *   FAKE_CUDA_DEVICES         number of devices (default: 1)
 *   FAKE_CUDA_UUID            last byte of the first device's UUID; each further device adds its ordinal
 *                             (default: 1)
 *   FAKE_CUDA_MAJOR           major compute capability (default: 9)
 *   FAKE_CUDA_REGISTERS       registers per thread of every kernel (default: 96)
 *   FAKE_CUDA_SPILLS          bytes of local memory per thread of every kernel (default: 0)
 *   FAKE_CUDA_CRASH           if not 0, cuInit aborts the process
 *   FAKE_CUDA_L2_PARTITIONS   not 0: mf_add_cycles (kernels/gpu/src/measure.hip), the only kernel with an
 *                             effect, simulates an L2 cache of two partitions
 *   FAKE_CUDA_BUSY            number of launches of mf_add_cycles that skip the last SM (default: 0) */
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu/host/cuda_api.h"
#include "kernels/gpu/src/args.h"
#include "support/kernels/fake_cuda.h"

#define CALL __attribute__((visibility("default"))) CUresult

#define REGISTERS_PER_SM 65536

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text ? atoi(text) : otherwise;
}

CALL cuInit(unsigned flags)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    (void)flags;
    if (visible && strcmp(visible, "-1") == 0)
        return CUDA_ERROR_NO_DEVICE;
    if (number("FAKE_CUDA_CRASH", 0))
        abort();
    return CUDA_SUCCESS;
}

CALL cuDeviceGetCount(int *ret)
{
    *ret = number("FAKE_CUDA_DEVICES", 1);
    return CUDA_SUCCESS;
}

CALL cuDeviceGet(CUdevice *ret, int ordinal)
{
    *ret = ordinal;
    return CUDA_SUCCESS;
}

CALL cuDeviceGetName(char *name, int len, CUdevice device)
{
    (void)device;
    strncpy(name, "Fake H200", (size_t)len);
    return CUDA_SUCCESS;
}

CALL cuDeviceGetUuid_v2(CUuuid *ret, CUdevice device)
{
    memset(ret, 0, sizeof(*ret));
    ret->bytes[0] = 0x6e;
    ret->bytes[15] = (char)(number("FAKE_CUDA_UUID", 1) + device);
    return CUDA_SUCCESS;
}

CALL cuDeviceTotalMem_v2(size_t *ret, CUdevice device)
{
    (void)device;
    *ret = (size_t)140 << 30;
    return CUDA_SUCCESS;
}

CALL cuDeviceGetAttribute(int *ret, CUdevice_attribute what, CUdevice device)
{
    const struct {
        CUdevice_attribute what;
        int value;
    } known[] = {
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20},
        {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
        {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, number("FAKE_CUDA_MAJOR", 9)},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 << 10},
    };

    (void)device;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].what == what) {
            *ret = known[i].value;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CALL cuDriverGetVersion(int *ret)
{
    *ret = 13000;
    return CUDA_SUCCESS;
}

CALL cuGetErrorString(CUresult error, const char **ret)
{
    *ret = error == CUDA_SUCCESS ? "no error" : "fake error";
    return CUDA_SUCCESS;
}

static int thing; /* object that all handles point to */
/* Objects that the handles of these functions point to: mf_add_cycles, mf_tile_hopper, mf_pair, mf_layer,
 * mf_one, mf_evict_code, mf_evict_fill and mf_evict_discard. */
static int add_cycles_fn, tile_fn, pair_fn, layer_fn, one_fn, evict_code_fn, evict_fill_fn, evict_discard_fn;

CALL cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice device)
{
    (void)device;
    *ret = (CUcontext)(void *)&thing;
    return CUDA_SUCCESS;
}

CALL cuCtxSetCurrent(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

CALL cuMemAlloc_v2(CUdeviceptr *ret, size_t bytes)
{
    void *p = malloc(bytes);

    *ret = (CUdeviceptr)(size_t)p;
    return p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CALL cuMemFree_v2(CUdeviceptr at)
{
    free((void *)(size_t)at);
    return CUDA_SUCCESS;
}

CALL cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    memcpy((void *)(size_t)to, (const void *)(size_t)from, bytes);
    return CUDA_SUCCESS;
}

/* Leaves large memory uninitialised, because it is never read and writing gigabytes takes time. */
CALL cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t n)
{
    if (n < (1u << 20))
        memset((void *)(size_t)at, value, n);
    return CUDA_SUCCESS;
}

CALL cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)stream;
    return cuMemcpy(to, from, bytes);
}

CALL cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t n, CUstream stream)
{
    (void)stream;
    for (size_t i = 0; i < n; i++)
        ((unsigned *)(size_t)at)[i] = value;
    return CUDA_SUCCESS;
}

CALL cuStreamCreate(CUstream *ret, unsigned flags)
{
    (void)flags;
    *ret = (CUstream)(void *)&thing;
    return CUDA_SUCCESS;
}

CALL cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

CALL cuCtxSynchronize(void)
{
    return CUDA_SUCCESS;
}

CALL cuStreamDestroy_v2(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

CALL cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    (void)stream, (void)mode;
    return CUDA_SUCCESS;
}

CALL cuStreamEndCapture(CUstream stream, CUgraph *ret)
{
    (void)stream;
    *ret = (CUgraph)(void *)&thing;
    return CUDA_SUCCESS;
}

/* Every graph consists of one kernel. */
CALL cuGraphGetNodes(CUgraph graph, CUgraphNode *ret, size_t *n)
{
    (void)graph;
    if (ret)
        ret[0] = (CUgraphNode)(void *)&thing;
    *n = 1;
    return CUDA_SUCCESS;
}

CALL cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *ret)
{
    (void)node;
    *ret = CU_GRAPH_NODE_TYPE_KERNEL;
    return CUDA_SUCCESS;
}

CALL cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *ret)
{
    (void)node, (void)ret;
    return CUDA_ERROR_INVALID_VALUE;
}

CALL cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *ret, cuuint64_t *id, CUgraph *graph,
                               const CUgraphNode **dependencies, size_t *n)
{
    (void)stream;
    *ret = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    *id = 1;
    *graph = (CUgraph)(void *)&thing;
    *dependencies = NULL;
    *n = 0;
    return CUDA_SUCCESS;
}

CALL cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies, size_t n, unsigned flags)
{
    (void)stream, (void)dependencies, (void)n, (void)flags;
    return CUDA_SUCCESS;
}

CALL cuGraphAddChildGraphNode(CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t n,
                              CUgraph child)
{
    (void)graph, (void)dependencies, (void)n, (void)child;
    *ret = (CUgraphNode)(void *)&thing;
    return CUDA_SUCCESS;
}

CALL cuGraphInstantiateWithFlags(CUgraphExec *ret, CUgraph graph, unsigned long long flags)
{
    (void)graph, (void)flags;
    *ret = (CUgraphExec)(void *)&thing;
    return CUDA_SUCCESS;
}

CALL cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
    (void)graph, (void)stream;
    return CUDA_SUCCESS;
}

CALL cuGraphExecDestroy(CUgraphExec graph)
{
    (void)graph;
    return CUDA_SUCCESS;
}

CALL cuGraphDestroy(CUgraph graph)
{
    (void)graph;
    return CUDA_SUCCESS;
}

CALL cuEventCreate(CUevent *ret, unsigned flags)
{
    (void)flags;
    *ret = (CUevent)(void *)&thing;
    return CUDA_SUCCESS;
}

CALL cuEventRecord(CUevent event, CUstream stream)
{
    (void)event, (void)stream;
    return CUDA_SUCCESS;
}

CALL cuEventSynchronize(CUevent event)
{
    (void)event;
    return CUDA_SUCCESS;
}

CALL cuEventElapsedTime(float *ret, CUevent from, CUevent to)
{
    (void)from, (void)to;
    *ret = 2.0f; /* with this time, measured ceilings are below published ones */
    return CUDA_SUCCESS;
}

CALL cuEventDestroy_v2(CUevent event)
{
    (void)event;
    return CUDA_SUCCESS;
}

/* Number of modules that were loaded. */
__attribute__((visibility("default"))) int fake_cuda_modules;

CALL cuModuleLoadData(CUmodule *ret, const void *image)
{
    (void)image;
    fake_cuda_modules++;
    *ret = (CUmodule)(void *)&thing;
    return CUDA_SUCCESS;
}

CALL cuModuleUnload(CUmodule module)
{
    (void)module;
    return CUDA_SUCCESS;
}

CALL cuModuleGetFunction(CUfunction *ret, CUmodule module, const char *name)
{
    (void)module;
    *ret = (CUfunction)(void *)(strcmp(name, "mf_add_cycles") == 0      ? &add_cycles_fn
                                : strcmp(name, "mf_tile_hopper") == 0   ? &tile_fn
                                : strcmp(name, "mf_pair") == 0          ? &pair_fn
                                : strcmp(name, "mf_layer") == 0         ? &layer_fn
                                : strcmp(name, "mf_one") == 0           ? &one_fn
                                : strcmp(name, "mf_evict_code") == 0    ? &evict_code_fn
                                : strcmp(name, "mf_evict_fill") == 0    ? &evict_fill_fn
                                : strcmp(name, "mf_evict_discard") == 0 ? &evict_discard_fn
                                                                        : &thing);
    return CUDA_SUCCESS;
}

CALL cuFuncGetAttribute(int *ret, CUfunction_attribute what, CUfunction f)
{
    (void)f;
    *ret = what == CU_FUNC_ATTRIBUTE_NUM_REGS           ? number("FAKE_CUDA_REGISTERS", 96)
           : what == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES ? number("FAKE_CUDA_SPILLS", 0)
                                                        : 0;
    return CUDA_SUCCESS;
}

CALL cuFuncSetAttribute(CUfunction f, CUfunction_attribute what, int value)
{
    (void)f, (void)what, (void)value;
    return CUDA_SUCCESS;
}

CALL cuOccupancyMaxActiveBlocksPerMultiprocessor(int *ret, CUfunction f, int block, size_t shared)
{
    int registers = number("FAKE_CUDA_REGISTERS", 96);

    (void)f, (void)shared;
    *ret = REGISTERS_PER_SM / (registers * block);
    return CUDA_SUCCESS;
}

/* Number of launches with programmatic stream serialization. */
__attribute__((visibility("default"))) int fake_cuda_serialized;
/* Arguments of the last launch of mf_tile_hopper, and of the last launch of mf_pair. */
__attribute__((visibility("default"))) struct mf_hip_bulk_args fake_cuda_bulk_args;
__attribute__((visibility("default"))) struct mf_hip_pair_args fake_cuda_pair_args;
/* Arguments of the last mf_evict_fill and of the last mf_evict_discard, which evict the L2 cache.
 * fake_cuda_discarded is set only if mf_evict_fill ran before. */
__attribute__((visibility("default"))) struct mf_hip_evict_args fake_cuda_filled, fake_cuda_discarded;
/* Arguments of the last 5-dimensional tensor map. */
__attribute__((visibility("default"))) struct fake_cuda_tensor fake_cuda_tensor;
/* Grid size of the last launch of mf_evict_code that followed a launch of mf_evict_discard. */
__attribute__((visibility("default"))) unsigned fake_cuda_code_blocks;

/* Writes the latency of each cache line as each SM measures it. Pairs of SMs belong to the two partitions in
 * turn; two of three lines are in the second partition. In the first FAKE_CUDA_BUSY launches the last SM
 * measures nothing. */
static void add_cycles(unsigned units, const struct mf_hip_add_cycles_args *a)
{
    static int busy;
    const unsigned idle = busy < number("FAKE_CUDA_BUSY", 0);

    busy += (int)idle;

    for (unsigned u = 0; u < units - idle; u++) {
        for (unsigned line = 0; line < a->n_lines; line++)
            a->cycles[u * a->n_lines + line] =
                (u / 2 % 2 == line * line % 3 % 2 ? 340 : 530) + (u + line) % 7;
    }
}

/* If it is not NULL, receives each launch of the functions below, in the launching thread. */
__attribute__((visibility("default"))) fake_cuda_launch_fn *fake_cuda_launched;

static void report_launch(CUstream stream, CUfunction f, const void *arguments)
{
    static const struct {
        const int *object;
        const char *function;
        size_t bytes;
    } reported[] = {{&tile_fn, "mf_tile_hopper", sizeof(struct mf_hip_bulk_args)},
                    {&pair_fn, "mf_pair", sizeof(struct mf_hip_pair_args)},
                    {&layer_fn, "mf_layer", sizeof(struct mf_hip_layer_args)},
                    {&one_fn, "mf_one", sizeof(struct mf_hip_one_args)}};

    for (size_t i = 0; i < sizeof(reported) / sizeof(reported[0]); i++) {
        if (f == (CUfunction)(uintptr_t)reported[i].object)
            fake_cuda_launched(stream, reported[i].function, arguments, reported[i].bytes);
    }
}

CALL cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    (void)extra;
    if (fake_cuda_launched) {
        report_launch(config->hStream, f, params[0]);
        return CUDA_SUCCESS;
    }
    if (f == (CUfunction)(void *)&add_cycles_fn && number("FAKE_CUDA_L2_PARTITIONS", 0))
        add_cycles(config->gridDimX, params[0]);
    if (f == (CUfunction)(void *)&tile_fn)
        memcpy(&fake_cuda_bulk_args, params[0], sizeof(fake_cuda_bulk_args));
    if (f == (CUfunction)(void *)&pair_fn)
        memcpy(&fake_cuda_pair_args, params[0], sizeof(fake_cuda_pair_args));
    if (f == (CUfunction)(void *)&evict_fill_fn)
        memcpy(&fake_cuda_filled, params[0], sizeof(fake_cuda_filled));
    if (f == (CUfunction)(void *)&evict_discard_fn && fake_cuda_filled.bytes > 0)
        memcpy(&fake_cuda_discarded, params[0], sizeof(fake_cuda_discarded));
    if (f == (CUfunction)(void *)&evict_code_fn && fake_cuda_discarded.bytes > 0)
        fake_cuda_code_blocks = config->gridDimX;
    for (unsigned i = 0; i < config->numAttrs; i++)
        fake_cuda_serialized +=
            config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
            config->attrs[i].value.programmaticStreamSerializationAllowed;
    return CUDA_SUCCESS;
}

CALL cuTensorMapEncodeTiled(CUtensorMap *ret, CUtensorMapDataType type, cuuint32_t rank, void *at,
                            const cuuint64_t *lengths, const cuuint64_t *strides, const cuuint32_t *box,
                            const cuuint32_t *each, CUtensorMapInterleave interleave,
                            CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                            CUtensorMapFloatOOBfill fill)
{
    (void)type, (void)at, (void)each, (void)interleave, (void)swizzle, (void)fill;
    /* launches of several threads may be reported */
    if (!fake_cuda_launched && rank == sizeof(fake_cuda_tensor.length) / sizeof(*fake_cuda_tensor.length)) {
        fake_cuda_tensor = (struct fake_cuda_tensor){
            .rank = rank, .ahead = promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_256B ? 256 : 128};
        memcpy(fake_cuda_tensor.length, lengths, rank * sizeof(*lengths));
        memcpy(fake_cuda_tensor.stride, strides, (rank - 1) * sizeof(*strides));
        memcpy(fake_cuda_tensor.box, box, rank * sizeof(*box));
    }
    *ret = (CUtensorMap){0};
    return CUDA_SUCCESS;
}
