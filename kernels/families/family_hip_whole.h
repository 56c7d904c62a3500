/* Helpers of the families one_stage, whole_layer_persistent and two_stage_single_launch. Their steps cover
 * the whole layer, or the whole layer after the sort. */
#pragma once

#include "kernels/families/family_hip.h"

/* True if the fusion rules let one launch cover all ops of the shape. tokens_max 0: unlimited. */
bool mf_hip_whole_allowed(const struct mf_shape *shape, int64_t tokens_max, struct mf_refusal *ret);

/* Returns the step without name, block_m and workspace. sliced: w1 and w2 are in layout panel128. Inputs
 * (`needs`): x, topk, w1, w2, then b1 and b2 if the layer has them. */
struct mf_step mf_hip_whole_step(const char *family, const struct mf_shape *shape, bool sliced);
/* Returns b1 or b2 of a launch, or NULL if the layer has no such bias. */
const float *mf_hip_whole_bias(const struct mf_launch *l, const struct mf_shape *shape, enum mf_tensor b);

/* Defines MF_FORMAT, MF_H, MF_I, MF_K, MF_HALVES1, MF_WEIGHT1, MF_BIAS1, MF_BIAS2, and the macros of the
 * activation and of w1's layout. */
void mf_hip_whole_define(struct mf_code *c, const struct mf_shape *shape, enum mf_hip_format format);
