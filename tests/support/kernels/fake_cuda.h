/* The arguments of cuTensorMapEncodeTiled that the fake driver (fake_cuda.c) records. */
#pragma once

#include <stdint.h>

struct fake_cuda_tensor {
    unsigned rank;
    uint64_t length[5]; /* in elements */
    uint64_t stride[4]; /* in bytes, for all dimensions except the first */
    uint32_t box[5];
    unsigned ahead; /* L2 promotion size in bytes */
};
