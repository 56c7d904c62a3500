/* Calibration: the two global factors of formats that have them (NVFP4), drawn from warm-up batches before serving. x is
 * multiplied by the first before it is quantised for gemm1, h by the second for gemm2; checkpoints store the inverses
 * (ModelOpt's input_scale). A factor drawn from too little data makes scales overflow later, where they saturate.
 *
 *     struct mf_calibration c = {0};
 *     for each warm-up batch: mf_calibrate(&c, &batch, why, sizeof(why));
 *     mf_calibration_factors(&c, codec, factors, why, sizeof(why));      the tensor spec `calib` */
#pragma once

#include <stdint.h>

#include "kernels/core/codec.h"
#include "kernels/reference/reference.h"

struct mf_calibration {
    float x_amax, h_amax; /* largest magnitudes so far */
    int64_t batches, tokens;
};

/* Runs the layer on a batch by the reference and widens the magnitudes. -EINVAL with the sentence: the shape's formats make
 * no pair, or a value of x or h is not finite (nothing is taken from such a batch); -ENOMEM. */
int mf_calibrate(struct mf_calibration *c, const struct mf_layer_data *batch, char *why, size_t why_cap);
/* The factors, margin times below what the data needs (1: none). -ENODATA: no batch was seen. */
int mf_calibration_factors(const struct mf_calibration *c, const struct mf_codec *codec, float margin,
                           float ret[2], char *why, size_t why_cap);
