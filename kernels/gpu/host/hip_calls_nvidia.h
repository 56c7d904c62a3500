/* The HIP functions that kernels/gpu/host/device_hip.c calls, mapped to the equivalent CUDA driver API.
 * Debian's header for HIP on CUDA is not used, because it does not compile with CUDA 13 and needs the runtime
 * library. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/device.h"
#include "kernels/gpu/host/cuda_api.h"
#include "kernels/gpu/host/vendor_library.h"

#define MF_HIP_VENDOR  "nvidia"
#define MF_HIP_LIBRARY MF_CUDA_DRIVER
/* Multiply-adds per block and iteration of mf_peak in measure.hip, if WGMMA is not used: 8 warps x 16
 * products of 16x8x16. */
#define MF_HIP_PEAK_MACS (8 * 16 * 16 * 8 * 16)

typedef CUresult hipError_t;
typedef CUdevice hipDevice_t;
typedef CUmodule hipModule_t;
typedef CUfunction hipFunction_t;
typedef CUstream hipStream_t;
typedef CUevent hipEvent_t;
typedef CUgraph hipGraph_t;
typedef CUgraphExec hipGraphExec_t;
typedef CUgraphNode hipGraphNode_t;
typedef CUstreamCaptureStatus hipStreamCaptureStatus;
typedef cuuint64_t mf_hip_capture_id;

#define hipSuccess                                CUDA_SUCCESS
#define hipErrorOutOfMemory                       CUDA_ERROR_OUT_OF_MEMORY
#define hipErrorNotFound                          CUDA_ERROR_NOT_FOUND
#define hipStreamNonBlocking                      CU_STREAM_NON_BLOCKING
#define hipEventDefault                           CU_EVENT_DEFAULT
#define hipStreamCaptureModeThreadLocal           CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
#define hipStreamCaptureStatusActive              CU_STREAM_CAPTURE_STATUS_ACTIVE
#define hipStreamSetCaptureDependencies           CU_STREAM_SET_CAPTURE_DEPENDENCIES
#define hipDeviceAttributeMultiprocessorCount     CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
#define hipDeviceAttributeL2CacheSize             CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
#define hipDeviceAttributeClockRate               CU_DEVICE_ATTRIBUTE_CLOCK_RATE
#define hipDeviceAttributeMemoryClockRate         CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE
#define hipDeviceAttributeComputeCapabilityMajor  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
#define hipDeviceAttributeComputeCapabilityMinor  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
#define hipDeviceAttributeMaxSharedMemoryPerBlock CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
#define HIP_FUNC_ATTRIBUTE_NUM_REGS               CU_FUNC_ATTRIBUTE_NUM_REGS
#define HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES       CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
#define HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES      CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
#define HIP_LAUNCH_PARAM_BUFFER_POINTER           CU_LAUNCH_PARAM_BUFFER_POINTER
#define HIP_LAUNCH_PARAM_BUFFER_SIZE              CU_LAUNCH_PARAM_BUFFER_SIZE
#define HIP_LAUNCH_PARAM_END                      CU_LAUNCH_PARAM_END

/* HIP name, CUDA name; the parameters are the same. */
/* clang-format off */
#define MF_HIP_CALLS(X)                                                                                \
    X(hipInit, cuInit) X(hipGetDeviceCount, cuDeviceGetCount) X(hipDeviceGet, cuDeviceGet)             \
    X(hipDeviceGetName, cuDeviceGetName) X(hipDeviceGetAttribute, cuDeviceGetAttribute)                \
    X(hipDeviceTotalMem, cuDeviceTotalMem_v2) X(retain_context, cuDevicePrimaryCtxRetain)              \
    X(set_context, cuCtxSetCurrent) X(malloc_at, cuMemAlloc_v2) X(free_at, cuMemFree_v2)               \
    X(copy_at, cuMemcpy) X(set_at, cuMemsetD8_v2) X(hipStreamCreateWithFlags, cuStreamCreate)          \
    X(hipStreamSynchronize, cuStreamSynchronize) X(hipStreamDestroy, cuStreamDestroy_v2)               \
    X(hipEventCreateWithFlags, cuEventCreate) X(hipEventRecord, cuEventRecord)                         \
    X(hipEventElapsedTime, cuEventElapsedTime) X(hipEventSynchronize, cuEventSynchronize)              \
    X(hipEventDestroy, cuEventDestroy_v2) X(hipModuleLoadData, cuModuleLoadData)                       \
    X(hipModuleUnload, cuModuleUnload) X(hipModuleGetFunction, cuModuleGetFunction)                    \
    X(hipFuncGetAttribute, cuFuncGetAttribute) X(set_function_attribute, cuFuncSetAttribute)           \
    X(launch_with, cuLaunchKernelEx) X(hipStreamBeginCapture, cuStreamBeginCapture_v2)                 \
    X(hipStreamEndCapture, cuStreamEndCapture) X(instantiate, cuGraphInstantiateWithFlags)             \
    X(hipGraphLaunch, cuGraphLaunch) X(hipGraphExecDestroy, cuGraphExecDestroy)                        \
    X(hipGraphDestroy, cuGraphDestroy) X(hipDriverGetVersion, cuDriverGetVersion)                      \
    X(error_string, cuGetErrorString) X(uuid, cuDeviceGetUuid_v2)                                      \
    X(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor) \
    X(encode_tiled, cuTensorMapEncodeTiled) X(hipDeviceSynchronize, cuCtxSynchronize)                  \
    X(hipStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2) X(fill_at, cuMemsetD32Async)              \
    X(hipStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies)                           \
    X(copy_within, cuMemcpyDtoDAsync_v2)                                                               \
    X(hipGraphAddChildGraphNode, cuGraphAddChildGraphNode) X(hipGraphGetNodes, cuGraphGetNodes)        \
    X(node_type, cuGraphNodeGetType) X(hipGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph)
/* clang-format on */

struct mf_hip_calls {
#define X(call, cuda) __typeof__(&(cuda)) call;
    MF_HIP_CALLS(X)
#undef X
};

/* ---- functions with different parameters ---- */

typedef CUcontext mf_hip_current;
/* Makes the primary context current. Other code of the process may use the same context. */
static inline hipError_t mf_hip_set_device(const struct mf_hip_calls *c, int ordinal, mf_hip_current *ret)
{
    CUdevice device;
    CUresult r = c->hipDeviceGet(&device, ordinal);
    if (r == CUDA_SUCCESS)
        r = c->retain_context(ret, device);
    return r == CUDA_SUCCESS ? c->set_context(*ret) : r;
}
/* Makes the device current in the calling thread. */
static inline hipError_t mf_hip_enter(const struct mf_hip_calls *c, mf_hip_current current)
{
    return c->set_context(current);
}
static inline hipError_t mf_hip_malloc(const struct mf_hip_calls *c, void **ret, size_t bytes)
{
    CUdeviceptr at = 0;
    CUresult r = c->malloc_at(&at, bytes);
    *ret = (void *)(uintptr_t)at;
    return r;
}
static inline hipError_t mf_hip_free(const struct mf_hip_calls *c, void *p)
{
    return c->free_at((CUdeviceptr)(uintptr_t)p);
}
static inline hipError_t mf_hip_copy(const struct mf_hip_calls *c, void *to, const void *from, size_t bytes)
{
    return c->copy_at((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes);
}
static inline hipError_t mf_hip_clear(const struct mf_hip_calls *c, void *p, size_t bytes)
{
    return c->set_at((CUdeviceptr)(uintptr_t)p, 0, bytes);
}
/* Queues a fill of n words. */
static inline hipError_t mf_hip_fill(const struct mf_hip_calls *c, void *at, uint32_t word, size_t n,
                                     hipStream_t stream)
{
    return c->fill_at((CUdeviceptr)(uintptr_t)at, word, n, stream);
}
/* Queues a copy within device memory. */
static inline hipError_t mf_hip_copy_within(const struct mf_hip_calls *c, void *to, const void *from,
                                            size_t bytes, hipStream_t stream)
{
    return c->copy_within((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, stream);
}
static inline bool mf_hip_is_kernel_node(const struct mf_hip_calls *c, hipGraphNode_t node)
{
    CUgraphNodeType type;
    return c->node_type(node, &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_KERNEL;
}
/* Returns true and the graph of a child graph node. */
static inline bool mf_hip_child_of(const struct mf_hip_calls *c, hipGraphNode_t node, hipGraph_t *ret)
{
    CUgraphNodeType type;
    return c->node_type(node, &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH &&
           c->hipGraphChildGraphNodeGetGraph(node, ret) == CUDA_SUCCESS;
}
static inline hipError_t mf_hip_instantiate(const struct mf_hip_calls *c, hipGraphExec_t *ret,
                                            hipGraph_t graph)
{
    return c->instantiate(ret, graph, 0);
}
/* With `programmatic`, the grid may start before the previous grid has ended, and the kernel itself waits for
 * that grid (CUDA C++ Programming Guide, programmatic dependent launch; compute capability 9.0 and later). */
static inline hipError_t mf_hip_launch_grid(const struct mf_hip_calls *c, hipFunction_t f,
                                            const struct mf_grid *grid, bool programmatic, hipStream_t stream,
                                            void **whole, void **packed)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value.programmaticStreamSerializationAllowed = 1};
    const CUlaunchConfig config = {
        .gridDimX = grid->x,
        .gridDimY = grid->y,
        .gridDimZ = grid->z,
        .blockDimX = grid->block,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = grid->shared,
        .hStream = stream,
        .attrs = &attribute,
        .numAttrs = programmatic,
    };
    return c->launch_with(&config, f, whole, packed);
}
static inline hipError_t mf_hip_allow_shared(const struct mf_hip_calls *c, hipFunction_t f, int bytes)
{
    return c->set_function_attribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
}
static inline hipError_t mf_hip_tensor_map(const struct mf_hip_calls *c, const struct mf_tma_tensor *t,
                                           void *ret)
{
    static const cuuint32_t each[5] = {1, 1, 1, 1, 1};
    CUtensorMap map;
    cuuint64_t length[5], stride[5];
    for (int i = 0; i < t->rank; i++) {
        length[i] = t->length[i];
        stride[i] = i + 1 < t->rank ? t->stride[i + 1] : 0;
    }
    /* L2 promotion is the number of bytes fetched when a box misses the L2 cache. With 256 B, bf16 rows are 1
     * to 2 % faster than with 128 B. Rows of bytes are slower with 256 B (DeepSeek at 4096 tokens, stage 1:
     * 337 us instead of 328 us), because the extra line is often fetched over the L2 fabric without being
     * used. bf16 rows are 3 % slower with 256 B if the next line belongs to the next row, because the box
     * fetches that row anyway (30B, 256 tokens: 297 us instead of 287 us). */
    const bool next_line_is_same_row = t->rank < 2 || t->stride[1] > 128;
    const CUtensorMapL2promotion promotion = (t->element_bytes > 1 || t->unswizzled) && next_line_is_same_row
                                                 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B
                                                 : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
    CUresult r = c->encode_tiled(
        &map, t->element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
        (cuuint32_t)t->rank, t->at, length, stride, t->box, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
        t->unswizzled ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B, promotion,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r == CUDA_SUCCESS)
        memcpy(ret, &map, sizeof(map));
    return r;
}
static inline const char *mf_hip_error_text(const struct mf_hip_calls *c, hipError_t error)
{
    const char *text = NULL;
    return c->error_string(error, &text) == CUDA_SUCCESS && text ? text : "unknown error";
}
/* Writes the architecture, for example "sm_90". */
static inline hipError_t mf_hip_arch(const struct mf_hip_calls *c, int ordinal, char *buf, size_t cap)
{
    int major = 0, minor = 0;
    CUdevice device;
    CUresult r = c->hipDeviceGet(&device, ordinal);
    if (r == CUDA_SUCCESS)
        r = c->hipDeviceGetAttribute(&major, hipDeviceAttributeComputeCapabilityMajor, device);
    if (r == CUDA_SUCCESS)
        r = c->hipDeviceGetAttribute(&minor, hipDeviceAttributeComputeCapabilityMinor, device);
    (void)snprintf(buf, cap, "sm_%d%d", major, minor);
    return r;
}
static inline uint64_t mf_hip_llc_bytes(const char *gfx, uint64_t l2)
{
    (void)gfx;
    return l2;
}
/* Writes the UUID of the GPU as shown by nvidia-smi ("GPU-6ee5…"), or the UUID of the MIG instance. */
static inline hipError_t mf_hip_identity(const struct mf_hip_calls *c, int ordinal, char *buf, size_t cap)
{
    CUdevice device;
    CUuuid id;
    CUresult r = c->hipDeviceGet(&device, ordinal);
    if (r == CUDA_SUCCESS)
        r = c->uuid(&id, device);
    int n = snprintf(buf, cap, "GPU-");
    for (size_t i = 0; r == CUDA_SUCCESS && i < sizeof(id.bytes) && (size_t)n + 4 < cap; i++)
        n += snprintf(buf + n, cap - (size_t)n, "%s%02x", i >= 4 && i <= 10 && i % 2 == 0 ? "-" : "",
                      (unsigned)(unsigned char)id.bytes[i]);
    return r;
}
/* Writes the version of the kernel driver and the CUDA version that it supports, for example "driver
 * 580.65.06, CUDA 13.0". */
static inline hipError_t mf_hip_driver(const struct mf_hip_calls *c, char *buf, size_t cap)
{
    int version = 0, major, minor;
    char line[256] = "", name[32] = "";
    FILE *f = fopen("/proc/driver/nvidia/version", "re");
    const char *at = f && fgets(line, sizeof(line), f) ? strstr(line, "Kernel Module") : NULL;
    if (f)
        (void)fclose(f);
    if (at && (at = strpbrk(at, "0123456789")) && strncmp(at, "86_64", 5) == 0)
        /* skips x86_64 in a line such as "Open Kernel Module for x86_64  580.65.06" */
        at = strpbrk(at + 5, "0123456789");
    (void)snprintf(name, sizeof(name), "%.*s", at ? (int)strcspn(at, " \t\n") : 0, at ? at : "");
    CUresult r = c->hipDriverGetVersion(&version);
    major = version / 1000;
    minor = version % 1000 / 10;
    (void)snprintf(buf, cap, "driver %s, CUDA %d.%d", name[0] ? name : "of unknown version", major, minor);
    return r;
}
