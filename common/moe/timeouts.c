#include "common/moe/timeouts.h"

#include "common/base/cleanup.h"

/* Rates of one core. Measured: two cores of a busy host took 96 s to create data with 2.5 TFLOP of
 * double-precision reference. FLOPS_PER_MS is one sixth of the measured rate per core. The rate for weights
 * (generating, quantising, packing) is an estimate. */
#define FLOPS_PER_MS   2e6
#define WEIGHTS_PER_MS 4e3
#define TIMEOUT_MAX_MS (INT64_C(2) * 3600 * 1000)

int64_t mf_data_timeout_ms(const struct mf_shape *shape, long cores)
{
    /* Elements of one expert. w1 has inter_dim x model_dim elements for up, and as many for gate if there is
     * a gate (use_g1u1). w2 has inter_dim x model_dim elements. */
    double elements = (shape->use_g1u1 ? 3.0 : 2.0) * shape->inter_dim * shape->model_dim;
    double flops = 2 * elements * (double)shape->token * shape->topk;
    double ms = (flops / FLOPS_PER_MS + elements * shape->expert / WEIGHTS_PER_MS) / (double)MF_MAX(cores, 1);
    return ms < (double)TIMEOUT_MAX_MS ? (int64_t)ms : TIMEOUT_MAX_MS;
}
