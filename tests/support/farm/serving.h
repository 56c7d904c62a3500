/* A layer served by libfmoe, with its data on a device and the reference output. The device is the CPU, or
 * the one named by MOEFARM_TEST_DEVICE. */
#pragma once

#include <stdbool.h>

#include "common/moe/shape.h"
#include "fmoe/fmoe.h"
#include "kernels/core/device.h"
#include "kernels/reference/reference.h"
#include "support/farm/serving_model.h"

/* Returns the device's name, and a second handle for memory operations. */
const char *serving_device(struct mf_device **ret);

/* Writes the text to a temporary file, which is removed when the process exits. */
const char *serving_file(const char *text);
/* Writes a table of these rows to such a file. */
struct served_row {
    int64_t token;
    const char *pipeline;
    double us;
};
const char *serving_table(const struct mf_device *device, const struct mf_shape *shape,
                          const struct served_row *rows, size_t n);
/* Returns the i-th pipeline for the shape among those that read w1 and w2 in row order. In a ring of 8 static
 * buffers. */
const char *serving_pipeline(struct mf_device *device, const struct mf_shape *shape, int i);

/* Tokens and weights on the device, for shape.token tokens. */
struct serving {
    struct mf_device *device;
    struct mf_shape shape; /* token is the maximum */
    void *x, *w[2][3], *b[2], *calib, *y, *workspace;
    int32_t *ids;
    float *weights;
    size_t workspace_bytes;
    struct mf_layer_data host;
    struct mf_reference reference; /* for the routing in ids */
};
void serving_make(struct serving *s, struct mf_device *device, struct fmoe_layer *l,
                  const struct mf_shape *shape);
/* Generates a new routing in the same buffers and updates the reference. */
void serving_route(struct serving *s, uint64_t seed);
struct fmoe_call serving_call(const struct serving *s, int64_t tokens, void *stream);
/* True if the first `tokens` rows of y match the reference and the others are still poisoned. */
bool serving_matches(const struct serving *s, int64_t tokens);
void serving_poison(const struct serving *s);
void serving_release(struct serving *s);
