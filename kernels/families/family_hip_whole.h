/* What the families share whose steps are the whole layer in one launch (one, layer), or all of it behind the sort (pair). */
#pragma once

#include "kernels/families/family_hip.h"

/* Whether the rules of fusion let one launch cover all of the shape's ops. tokens_max: 0, any. */
bool mf_hip_whole_allowed(const struct mf_shape *shape, int64_t tokens_max, struct mf_refusal *ret);

/* The step but for its name, its block_m and its workspace. sliced: w1 and w2 lie as panel128. Needs x, topk, w1, w2, then b1 and b2 of layers that have them. */
struct mf_step mf_hip_whole_step(const char *family, const struct mf_shape *shape, bool sliced);
/* b1 and b2 of a launch; NULL of layers without. */
const float *mf_hip_whole_bias(const struct mf_launch *l, const struct mf_shape *shape, enum mf_tensor b);

/* MF_FORMAT, MF_H, MF_I, MF_K, MF_HALVES1, MF_WEIGHT1, MF_BIAS1, MF_BIAS2, and what the activation and w1's layout want. */
void mf_hip_whole_define(struct mf_code *c, const struct mf_shape *shape, enum mf_hip_format format);
