/* Serves a layer by libfmoe: holds the layer's data on a device, and its reference output. The device is the
 * CPU, or the device named by MOEFARM_TEST_DEVICE. */
#pragma once

#include <stdbool.h>

#include "common/moe/shape.h"
#include "fmoe/fmoe.h"
#include "kernels/core/device.h"
#include "kernels/reference/reference.h"
#include "support/farm/serving_model.h"

/* Layers without scales, with scales per token, and with block scales and doweight_stage1. */
#define SERVING_TOKENS 40 /* maximum number of tokens of a call */
extern const char *const serving_layers[3];

/* Returns the name of the device, and in *ret a second handle to it for memory operations. */
const char *serving_device(struct mf_device **ret);

/* Writes the text to a temporary file, which is removed when the process exits. Returns the path of the file.
 */
const char *serving_file(const char *text);
/* Writes a table of these rows to a temporary file, which is removed when the process exits. Returns the path
 * of the file. */
struct served_row {
    int64_t token;
    const char *pipeline;
    double us;
};
const char *serving_table(const struct mf_device *device, const struct mf_shape *shape,
                          const struct served_row *rows, size_t n);
/* Returns pipeline number i for the shape, counting only pipelines that read w1 and w2 in row order. The
 * result is one of 8 static buffers, which are used in turn. */
const char *serving_pipeline(struct mf_device *device, const struct mf_shape *shape, int i);

/* A layer's tokens and weights on the device. There are shape.token tokens. */
struct serving {
    struct mf_device *device;
    struct mf_shape shape; /* shape.token is the maximum number of tokens of a call */
    void *x, *w[2][3], *b[2], *calib, *y, *workspace;
    int32_t *ids;
    float *weights;
    size_t workspace_bytes;
    struct mf_layer_data host;
    struct mf_reference reference; /* reference output for the routing in `ids` */
};
void serving_make(struct serving *s, struct mf_device *device, struct fmoe_layer *l,
                  const struct mf_shape *shape);
/* Generates a new routing in the same buffers, and updates the reference output. */
void serving_route(struct serving *s, uint64_t seed);
/* Copies the ids and weights of `host` to the device and updates the reference output. */
void serving_update(struct serving *s);
struct fmoe_call serving_call(const struct serving *s, int64_t tokens, void *stream);
/* True if the first `tokens` rows of y match the reference and the remaining rows are still poisoned. */
bool serving_matches(const struct serving *s, int64_t tokens);
void serving_poison(const struct serving *s);
void serving_release(struct serving *s);
