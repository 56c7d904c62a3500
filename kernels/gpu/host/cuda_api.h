/* The part of the CUDA driver API that moefarm uses, so that moefarm builds without the CUDA Toolkit: types
 * and constants here, functions in cuda_functions.h. Written from NVIDIA's CUDA Driver API Reference Manual.
 * All of it is the driver's ABI, so it does not change. check_cuda_api compares it with the toolkit's cuda.h
 * where the toolkit is installed. */
#pragma once

#include <stdint.h>

typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;

typedef enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_NOT_FOUND = 500,
} CUresult;

typedef enum {
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13, /* kHz */
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36, /* kHz */
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,     /* bytes */
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97, /* bytes */
} CUdevice_attribute;

typedef enum {
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
} CUfunction_attribute;

enum {
    CU_EVENT_DEFAULT = 0,
    CU_STREAM_NON_BLOCKING = 1,
};

typedef enum {
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
} CUstreamCaptureMode;

typedef enum {
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
} CUstreamCaptureStatus;

enum {
    CU_STREAM_SET_CAPTURE_DEPENDENCIES = 1,
};

typedef enum {
    CU_GRAPH_NODE_TYPE_KERNEL = 0,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
} CUgraphNodeType;

typedef struct {
    char bytes[16];
} CUuuid;

/* ---- launches ---- */

#define CU_LAUNCH_PARAM_END            ((void *)0x00)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)0x01)
#define CU_LAUNCH_PARAM_BUFFER_SIZE    ((void *)0x02)

typedef enum {
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
} CUlaunchAttributeID;

typedef union {
    char pad[64];
    int programmaticStreamSerializationAllowed;
} CUlaunchAttributeValue;

typedef struct {
    CUlaunchAttributeID id;
    char pad[8 - sizeof(CUlaunchAttributeID)];
    CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes; /* dynamic shared memory per block */
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

/* ---- tensor maps ---- */

typedef struct {
    _Alignas(128) cuuint64_t opaque[16];
} CUtensorMap;

typedef enum {
    CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9,
} CUtensorMapDataType;

typedef enum {
    CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
} CUtensorMapInterleave;

typedef enum {
    CU_TENSOR_MAP_SWIZZLE_NONE = 0,
    CU_TENSOR_MAP_SWIZZLE_128B = 3,
} CUtensorMapSwizzle;

typedef enum {
    CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2,
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3,
} CUtensorMapL2promotion;

typedef enum {
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0,
} CUtensorMapFloatOOBfill;

#include "kernels/gpu/host/cuda_functions.h" /* uses the types above */
