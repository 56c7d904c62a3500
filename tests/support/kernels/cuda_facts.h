/* The constants, sizes and offsets of the CUDA driver API that moefarm depends on, as one header declares
 * them: cuda_api.h in check_cuda_api.c, the toolkit's cuda.h in cuda_toolkit.c. */
#pragma once

#include <stddef.h>

struct cuda_fact {
    const char *text;
    size_t value;
};

/* The facts of the toolkit, in the order of CUDA_FACTS; n = 0 if the toolkit is not installed. */
extern const struct cuda_fact cuda_toolkit_facts[];
extern const size_t n_cuda_toolkit_facts;

/* clang-format off */
#define CUDA_FACTS(X)                                                                                       \
    X(CUDA_SUCCESS) X(CUDA_ERROR_INVALID_VALUE) X(CUDA_ERROR_OUT_OF_MEMORY) X(CUDA_ERROR_NO_DEVICE)         \
    X(CUDA_ERROR_NOT_FOUND) X(CU_DEVICE_ATTRIBUTE_CLOCK_RATE) X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)   \
    X(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) X(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)                           \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)         \
    X(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) X(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)         \
    X(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES) X(CU_FUNC_ATTRIBUTE_NUM_REGS)                                     \
    X(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) X(CU_EVENT_DEFAULT) X(CU_STREAM_NON_BLOCKING)        \
    X(CU_STREAM_CAPTURE_STATUS_NONE) X(CU_STREAM_CAPTURE_STATUS_ACTIVE)                                     \
    X(CU_STREAM_SET_CAPTURE_DEPENDENCIES) X(CU_GRAPH_NODE_TYPE_KERNEL) X(CU_GRAPH_NODE_TYPE_GRAPH)          \
    X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) X((size_t)CU_LAUNCH_PARAM_END)                                   \
    X((size_t)CU_LAUNCH_PARAM_BUFFER_POINTER) X((size_t)CU_LAUNCH_PARAM_BUFFER_SIZE)                        \
    X(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) X(CU_TENSOR_MAP_DATA_TYPE_UINT8)               \
    X(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16) X(CU_TENSOR_MAP_INTERLEAVE_NONE) X(CU_TENSOR_MAP_SWIZZLE_NONE)      \
    X(CU_TENSOR_MAP_SWIZZLE_128B) X(CU_TENSOR_MAP_L2_PROMOTION_L2_128B)                                     \
    X(CU_TENSOR_MAP_L2_PROMOTION_L2_256B) X(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)                              \
    X(sizeof(CUresult)) X(sizeof(CUdevice)) X(sizeof(CUdeviceptr)) X(sizeof(CUuuid))                        \
    X(sizeof(CUdevice_attribute)) X(sizeof(CUstreamCaptureMode)) X(sizeof(CUtensorMapSwizzle))              \
    X(sizeof(CUlaunchAttributeValue)) X(sizeof(CUlaunchAttribute)) X(sizeof(CUlaunchConfig))                \
    X(sizeof(CUtensorMap)) X(_Alignof(CUtensorMap) % 64) X(offsetof(CUlaunchAttribute, id))                 \
    X(offsetof(CUlaunchAttribute, value)) X(offsetof(CUlaunchConfig, gridDimX))                             \
    X(offsetof(CUlaunchConfig, gridDimZ)) X(offsetof(CUlaunchConfig, blockDimX))                            \
    X(offsetof(CUlaunchConfig, blockDimZ)) X(offsetof(CUlaunchConfig, sharedMemBytes))                      \
    X(offsetof(CUlaunchConfig, hStream)) X(offsetof(CUlaunchConfig, attrs))                                 \
    X(offsetof(CUlaunchConfig, numAttrs))
/* clang-format on */
#define CUDA_FACT(expression) {#expression, (size_t)(expression)},
