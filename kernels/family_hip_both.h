/* What the families share whose launches hold both stages of Hopper's core (kernels/hip/hopper_both.h): layer, which sorts, too, and
 * pair, which does not. A step's name is the family's, then
 *
 *     fp8fn_128_silu_m32_n256_b[_w][_gu1|_p128][_zero]     block_m, weight rows of a tile; b, bt, bs, bts as tile has them;
 *                                                   _p128: of weights that lie as panel128; _zero: y is zeroed on the way */
#pragma once

#include "kernels/family_hip_hopper.h"

struct mf_hip_both_variant {
    int block_m, block_n;
    bool turns, swapped;
    bool zeroes; /* there is one that does so, too: of many tokens */
};
/* What a family has of them, and what its launch needs of LDS beside the core. */
struct mf_hip_both_family {
    const char *name;
    const struct mf_hip_both_variant *variants;
    size_t n_variants;
    int (*lds)(const struct mf_shape *shape, int block_m); /* bytes; NULL: none */
};
struct mf_hip_both {
    const struct mf_hip_both_family *family;
    struct mf_hip_both_variant v;
    bool sliced; /* w1 and w2 lie as panel128 */
    bool zeroes; /* y on the way */
    enum mf_hip_format format;
};

/* Does the core know the shape, whatever the variant? */
bool mf_hip_both_takes(const char *family, const struct mf_device_info *device, const struct mf_shape *shape,
                       enum mf_hip_format *ret_format, struct mf_refusal *ret);

/* The i-th of a family's: all variants of weights as they are in checkpoints, then all of them in slices, then both of what zeroes y.
 * false: there are fewer. */
bool mf_hip_both_nth(const struct mf_hip_both_family *f, enum mf_hip_format format, size_t i,
                     struct mf_hip_both *ret);
void mf_hip_both_name(const struct mf_hip_both *b, const struct mf_shape *shape, char buf[MF_STEP_NAME_MAX]);
/* The one of that name. false: none has it, or it is not legal. */
bool mf_hip_both_find(const struct mf_hip_both_family *f, enum mf_hip_format format,
                      const struct mf_device_info *device, const struct mf_shape *shape, const char *name,
                      struct mf_hip_both *ret);
bool mf_hip_both_legal(const struct mf_hip_both *b, const struct mf_device_info *device,
                       const struct mf_shape *shape, struct mf_refusal *ret);

struct mf_hip_stage mf_hip_both_stage(const struct mf_hip_both *b, const struct mf_shape *shape, int stage);
/* What hopper_both.h wants to be defined. */
void mf_hip_both_define(struct mf_code *c, const struct mf_hip_both *b, const struct mf_device_info *device,
                        const struct mf_shape *shape);
/* Of LDS that a block has. */
uint32_t mf_hip_both_lds(const struct mf_hip_both *b, const struct mf_device_info *device,
                         const struct mf_shape *shape);

/* h in a workspace: bytes of it, and of its scales. */
uint64_t mf_hip_both_h(const struct mf_hip_both *b, const struct mf_shape *shape, uint64_t *ret_scale);
