#include "worker/agent/timeouts.h"

#include "common/base/cleanup.h"

/* A core's. Two of a busy host took 96 s for data with 2.5 TFLOP of the reference's, in double precision: this is a sixth of that, and
 * room for weights (drawn, quantised, laid out), of which no rate was measured. */
#define FLOPS_A_MS   2e6
#define WEIGHTS_A_MS 4e3
#define MOST_MS      (INT64_C(2) * 3600 * 1000)

int64_t mf_data_timeout_ms(const struct mf_shape *shape, long cores)
{
    /* Of one expert: w1 has gate and up, or one of them, and w2 is as large as one */
    double elements = (shape->use_g1u1 ? 3.0 : 2.0) * shape->inter_dim * shape->model_dim;
    double flops = 2 * elements * (double)shape->token * shape->topk;
    double ms = (flops / FLOPS_A_MS + elements * shape->expert / WEIGHTS_A_MS) / (double)MF_MAX(cores, 1);
    return ms < (double)MOST_MS ? (int64_t)ms : MOST_MS;
}
