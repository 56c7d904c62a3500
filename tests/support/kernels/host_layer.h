/* One layer's generated inputs in host memory, with its reference. */
#pragma once

#include "kernels/core/data.h"
#include "kernels/reference/reference.h"

struct host_layer {
    struct mf_layer_data data; /* weights in layout row; a bias is NULL if the shape has none */
    struct mf_reference ref;
};

/* Makes a layer with its inputs and its reference. routing: text of a routing profile. */
void host_layer_make(struct host_layer *l, const struct mf_shape *s, const char *routing, uint64_t seed);
void host_layer_release(struct host_layer *l);

/* Makes the inputs of a layer without the reference. */
void host_inputs_make(struct mf_layer_data *d, const struct mf_shape *s, const struct mf_routing *routing,
                      uint64_t seed);
void host_inputs_release(struct mf_layer_data *d);

/* Returns a zeroed tensor whose parts are aligned to 64 bytes. */
struct mf_tensor_ref host_tensor_new(const struct mf_tensor_spec *a, const struct mf_shape *s);
void host_tensor_free(const struct mf_tensor_ref *ref);
