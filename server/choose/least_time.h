/* The least time in which a device can run a step or a pipeline. The farm compares it with the times that
 * workers report, so it depends on nothing that a worker says about its kernels: the work follows from the
 * shape, the routing and the covered ops. No correct kernel can beat any of the bounds. Pure functions. */
#pragma once

#include <stdbool.h>

#include "common/moe/layer.h"
#include "common/moe/routing.h"
#include "common/moe/status.h"
#include "server/choose/ceilings.h"

/* Lower bounds of the work of one step, or sums over the steps of a pipeline. */
struct mf_work {
    bool gemm;           /* has a GEMM */
    double flops;        /* of the GEMMs, for real routes without padding */
    double weight_bytes; /* weights without scales that the GEMMs read: each active expert once */
    double token_bytes;  /* hidden states that quant1 reads, and output that combine writes */
    enum mf_dtype activations;
};

/* Adds the work of a step that covers `ops`. */
void mf_work_add(struct mf_work *to, const struct mf_shape *shape, const struct mf_routing *routing,
                 mf_ops ops);

/* Returns the least time in us, at least MF_TIME_US_MIN, and the bound that it follows from as text. */
double mf_least_us(const struct mf_work *work, const struct mf_ceilings *ceilings, char why[MF_REASON_MAX]);
