/* Records of the fake driver (fake_cuda.c): launches and tensor maps. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Receives the arguments of a launch. */
typedef void fake_cuda_launch_fn(void *stream, const char *function, const void *arguments, size_t bytes);

/* Arguments of cuTensorMapEncodeTiled. */
struct fake_cuda_tensor {
    unsigned rank;
    uint64_t length[5]; /* in elements */
    uint64_t stride[4]; /* in bytes, for all dimensions except the first */
    uint32_t box[5];
    unsigned ahead; /* L2 promotion size in bytes */
};
