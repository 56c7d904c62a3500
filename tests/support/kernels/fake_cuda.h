/* What the driver of cardboard (fake_cuda.c) remembers of a tensor that a map was made of, as cuTensorMapEncodeTiled was told. */
#pragma once

#include <stdint.h>

struct fake_cuda_tensor {
    unsigned rank;
    uint64_t length[5]; /* elements */
    uint64_t stride[4]; /* bytes, of all dimensions but the first */
    uint32_t box[5];
    unsigned ahead; /* bytes that the last cache brings at once */
};
