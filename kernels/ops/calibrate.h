/* Calibration for NVFP4, which has global factors: computes the factors of x and h from warm-up batches. x is
 * multiplied by the first factor before it is quantised for gemm1, and h by the second factor before it is
 * quantised for gemm2. Checkpoints store the inverses of the factors (ModelOpt's input_scale). With too few
 * warm-up batches, later values may exceed the calibrated range, so that their scales saturate.
 *
 *     struct mf_calibration c = {0};
 *     for each warm-up batch: mf_calibration_add(&c, tokens, x_amax, h_amax, why, sizeof(why));
 *     mf_calibration_factors(&c, codec, margin, factors, why, sizeof(why));   contents of `calib` */
#pragma once

#include <stdint.h>

#include "kernels/core/codec.h"

struct mf_calibration {
    float x_amax, h_amax; /* largest magnitudes in all batches so far */
    int64_t batches, tokens;
};

/* Updates the magnitudes with those of a batch. Returns -EINVAL, with the reason in why, if one of them is
 * not finite; such a batch is ignored. */
int mf_calibration_add(struct mf_calibration *c, int64_t tokens, float x_amax, float h_amax, char *why,
                       size_t why_cap);
/* Computes the factors for magnitudes that are `margin` times the observed ones. With a margin of 1, larger
 * values saturate. Returns -ENODATA if no batch was added, or -EINVAL if margin is not positive. */
int mf_calibration_factors(const struct mf_calibration *c, const struct mf_codec *codec, float margin,
                           float ret[2], char *why, size_t why_cap);
