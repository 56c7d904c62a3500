/* The HIP functions that kernels/gpu/host/device_hip.c calls, with the types of AMD's headers. The runtime is
 * loaded when a device is opened, from one of three sonames. The functions below have the same ABI under all
 * three sonames, except hipGetDeviceProperties, which has two ABIs; both of its symbols are looked up. */
#pragma once

#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/device.h"
#include "kernels/gpu/host/vendor_library.h"

#define MF_HIP_VENDOR  "amd"
#define MF_HIP_LIBRARY MF_HIP_RUNTIME
/* Multiply-adds per block and iteration of mf_peak in measure.hip: 4 waves x 16 products of 16x16x32. */
#define MF_HIP_PEAK_MACS (4 * 16 * 16 * 16 * 32)

/* clang-format off */
#define MF_HIP_CALLS(X)                                                                                     \
    X(hipInit) X(hipGetDeviceCount) X(hipDeviceGet) X(hipDeviceGetName) X(hipDeviceGetAttribute)            \
    X(hipDeviceTotalMem) X(hipSetDevice) X(hipMalloc) X(hipFree) X(hipMemcpy) X(hipMemset)                  \
    X(hipStreamCreateWithFlags) X(hipStreamSynchronize) X(hipStreamDestroy) X(hipEventCreateWithFlags)      \
    X(hipEventRecord) X(hipEventElapsedTime) X(hipEventSynchronize) X(hipEventDestroy) X(hipModuleLoadData) \
    X(hipModuleUnload) X(hipModuleGetFunction) X(hipFuncGetAttribute) X(hipModuleLaunchKernel)              \
    X(hipStreamBeginCapture) X(hipStreamEndCapture) X(hipGraphInstantiate) X(hipGraphLaunch)                \
    X(hipGraphExecDestroy) X(hipGraphDestroy) X(hipGetErrorString) X(hipRuntimeGetVersion)                  \
    X(hipDeviceGetPCIBusId) X(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor) X(hipDeviceSynchronize)   \
    X(hipStreamGetCaptureInfo_v2) X(hipStreamUpdateCaptureDependencies) X(hipGraphAddChildGraphNode)        \
    X(hipGraphGetNodes) X(hipGraphKernelNodeGetParams) X(hipGraphChildGraphNodeGetGraph)                    \
    X(hipMemsetD32Async) X(hipMemcpyDtoDAsync)
/* clang-format on */

struct mf_hip_calls {
#define X(call) __typeof__(&(call)) call;
    MF_HIP_CALLS(X)
#undef X
    hipError_t (*properties)(void *, int);
};

/* ---- the interface shared with hip_calls_nvidia.h ---- */

typedef int mf_hip_current;
static inline hipError_t mf_hip_set_device(const struct mf_hip_calls *c, int ordinal, mf_hip_current *ret)
{
    *ret = ordinal;
    return c->hipSetDevice(ordinal);
}
/* Makes the device current in the calling thread. */
static inline hipError_t mf_hip_enter(const struct mf_hip_calls *c, mf_hip_current current)
{
    return c->hipSetDevice(current);
}
static inline hipError_t mf_hip_malloc(const struct mf_hip_calls *c, void **ret, size_t bytes)
{
    return c->hipMalloc(ret, bytes);
}
static inline hipError_t mf_hip_free(const struct mf_hip_calls *c, void *p)
{
    return c->hipFree(p);
}
static inline hipError_t mf_hip_copy(const struct mf_hip_calls *c, void *to, const void *from, size_t bytes)
{
    return c->hipMemcpy(to, from, bytes, hipMemcpyDefault);
}
static inline hipError_t mf_hip_clear(const struct mf_hip_calls *c, void *p, size_t bytes)
{
    return c->hipMemset(p, 0, bytes);
}
typedef unsigned long long mf_hip_capture_id;
/* Queues a fill of n words. */
static inline hipError_t mf_hip_fill(const struct mf_hip_calls *c, void *at, uint32_t word, size_t n,
                                     hipStream_t stream)
{
    return c->hipMemsetD32Async(at, (int)word, n, stream);
}
/* Queues a copy within device memory. */
static inline hipError_t mf_hip_copy_within(const struct mf_hip_calls *c, void *to, const void *from,
                                            size_t bytes, hipStream_t stream)
{
    return c->hipMemcpyDtoDAsync(to, (void *)(uintptr_t)from, bytes, stream);
}
/* Does not use the node's type, because releases of the runtime number the types differently. */
static inline bool mf_hip_is_kernel_node(const struct mf_hip_calls *c, hipGraphNode_t node)
{
    hipKernelNodeParams params;
    return c->hipGraphKernelNodeGetParams(node, &params) == hipSuccess;
}
/* Returns true and the graph of a child graph node. */
static inline bool mf_hip_child_of(const struct mf_hip_calls *c, hipGraphNode_t node, hipGraph_t *ret)
{
    return c->hipGraphChildGraphNodeGetGraph(node, ret) == hipSuccess;
}
static inline hipError_t mf_hip_instantiate(const struct mf_hip_calls *c, hipGraphExec_t *ret,
                                            hipGraph_t graph)
{
    return c->hipGraphInstantiate(ret, graph, NULL, NULL, 0);
}
/* Ignores `programmatic`, because on AMD the launches of a stream always begin in order. */
static inline hipError_t mf_hip_launch_grid(const struct mf_hip_calls *c, hipFunction_t f,
                                            const struct mf_grid *grid, bool programmatic, hipStream_t stream,
                                            void **whole, void **packed)
{
    (void)programmatic;
    return c->hipModuleLaunchKernel(f, grid->x, grid->y, grid->z, grid->block, 1, 1, grid->shared, stream,
                                    whole, packed);
}
/* Does nothing, because a block may use all of a compute unit's LDS. */
static inline hipError_t mf_hip_allow_shared(const struct mf_hip_calls *c, hipFunction_t f, int bytes)
{
    (void)c, (void)f, (void)bytes;
    return hipSuccess;
}
/* Returns an error, because AMD GPUs have no TMA. */
static inline hipError_t mf_hip_tensor_map(const struct mf_hip_calls *c, const struct mf_tma_tensor *t,
                                           void *ret)
{
    (void)c;
    (void)t;
    (void)ret;
    return hipErrorNotSupported;
}
static inline const char *mf_hip_error_text(const struct mf_hip_calls *c, hipError_t error)
{
    return c->hipGetErrorString(error);
}
/* Writes the architecture, for example "gfx942". The properties structure has two layouts. In both, the
 * architecture is the only text that begins with "gfx". */
static inline hipError_t mf_hip_arch(const struct mf_hip_calls *c, int ordinal, char *buf, size_t cap)
{
    char properties[8192] = {0};
    hipError_t r = c->properties(properties, ordinal);
    const char *at = r == hipSuccess ? memmem(properties, sizeof(properties) - 16, "gfx", 3) : NULL;
    (void)snprintf(buf, cap, "%.*s", at ? (int)strcspn(at, ":") : 0, at ? at : "");
    return r == hipSuccess && !at ? hipErrorNotFound : r;
}
/* Returns the size of the last-level cache. The runtime's L2 attribute is the L2 size of one die only. CDNA 3
 * and 4 have an Infinity Cache of 256 MiB in front of HBM that no HIP call reports ("AMD CDNA 3
 * Architecture"). */
static inline uint64_t mf_hip_llc_bytes(const char *gfx, uint64_t l2)
{
    return strcmp(gfx, "gfx942") == 0 || strcmp(gfx, "gfx950") == 0 ? UINT64_C(256) << 20 : l2;
}
/* Writes the PCI address, for example "0000:83:00.0". */
static inline hipError_t mf_hip_identity(const struct mf_hip_calls *c, int ordinal, char *buf, size_t cap)
{
    return c->hipDeviceGetPCIBusId(buf, (int)cap, ordinal);
}
/* Writes the versions of the kernel driver, if it has one, and of the runtime, for example "driver 6.3.6, HIP
 * 6.0.32831". */
static inline hipError_t mf_hip_driver(const struct mf_hip_calls *c, char *buf, size_t cap)
{
    int version = 0;
    char name[32] = "";
    FILE *f = fopen("/sys/module/amdgpu/version", "re");
    if (f && fgets(name, sizeof(name), f))
        name[strcspn(name, "\n")] = '\0';
    if (f)
        (void)fclose(f);
    hipError_t r = c->hipRuntimeGetVersion(&version);
    (void)snprintf(buf, cap, "driver %s, HIP %d.%d.%d", name[0] ? name : "in-tree", version / 10000000,
                   version / 100000 % 100, version % 100000);
    return r;
}
