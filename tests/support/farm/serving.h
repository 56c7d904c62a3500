/* A layer served by libfmoe, with its data on a device and the reference of what has to come out. The device is the CPU, or the one
 * that MOEFARM_TEST_DEVICE names. */
#pragma once

#include <stdbool.h>

#include "common/moe/shape.h"
#include "fmoe/fmoe.h"
#include "kernels/core/device.h"
#include "kernels/reference/reference.h"
#include "support/farm/serving_model.h"

/* The device's name, and a second handle to it for its memory. */
const char *serving_device(struct mf_device **ret);

/* A file of that text, which is removed when the process ends. */
const char *serving_file(const char *text);
/* A table of these rows, in such a file. */
struct served_row {
    int64_t token;
    const char *pipeline;
    double us;
};
const char *serving_table(const struct mf_device *device, const struct mf_shape *shape,
                          const struct served_row *rows, size_t n);
/* A pipeline of this build for the shape: the i-th of those that want w1 and w2 in row. Lives for ever. */
const char *serving_pipeline(struct mf_device *device, const struct mf_shape *shape, int i);

/* Tokens and weights of max tokens, on the device. */
struct serving {
    struct mf_device *device;
    struct mf_shape shape; /* of the most tokens */
    void *x, *w[2][3], *b[2], *calib, *y, *workspace;
    int32_t *ids;
    float *weights;
    size_t workspace_bytes;
    struct mf_layer_data host;
    struct mf_reference reference; /* of the routing that ids hold */
};
void serving_make(struct serving *s, struct mf_device *device, struct fmoe_layer *l,
                  const struct mf_shape *shape);
/* Another routing, in the same buffers; the reference follows. */
void serving_route(struct serving *s, uint64_t seed);
struct fmoe_call serving_call(const struct serving *s, int64_t tokens, void *stream);
/* The first so many rows of y are the reference's, and the next is as it was poisoned. */
bool serving_right(const struct serving *s, int64_t tokens);
void serving_poison(const struct serving *s);
void serving_release(struct serving *s);
