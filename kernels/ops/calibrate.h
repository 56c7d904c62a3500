/* Calibration: computes the two global factors of formats that have them (NVFP4) from warm-up batches. x is
 * multiplied by the first factor before it is quantised for gemm1, h by the second one for gemm2; checkpoints
 * store the inverses (ModelOpt's input_scale). With too few batches, later data may exceed the calibrated
 * range, and its scales saturate.
 *
 *     struct mf_calibration c = {0};
 *     for each warm-up batch: mf_calibrate(&c, &batch, why, sizeof(why));
 *     mf_calibration_factors(&c, codec, margin, factors, why, sizeof(why));      the tensor spec `calib` */
#pragma once

#include <stdint.h>

#include "kernels/core/codec.h"
#include "kernels/reference/reference.h"

struct mf_calibration {
    float x_amax, h_amax; /* largest magnitudes so far */
    int64_t batches, tokens;
};

/* Runs the reference on a batch and updates the magnitudes. -EINVAL with the reason in why: unsupported
 * formats, or x or h has a value that is not finite (the batch is ignored); -ENOMEM. */
int mf_calibrate(struct mf_calibration *c, const struct mf_layer_data *batch, char *why, size_t why_cap);
/* Computes the factors for magnitudes `margin` times the observed ones (1: no margin). -ENODATA: no batch was
 * added; -EINVAL: margin is not positive. */
int mf_calibration_factors(const struct mf_calibration *c, const struct mf_codec *codec, float margin,
                           float ret[2], char *why, size_t why_cap);
