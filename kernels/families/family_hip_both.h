/* What the families share whose launches hold both stages of Hopper's core (kernels/gpu/src/hopper/hopper_both.h): layer, which sorts, too, and
 * pair, which does not. A step's name is the family's, then
 *
 *     fp8fn_128_silu_m32_n256_b[_w][_gu1|_p128][_zero]     block_m, weight rows of a tile; b, bt, bs, bts as tile has them;
 *                                                   _p128: of weights that lie as panel128; _zero: y is zeroed on the way */
#pragma once

#include "kernels/families/family_hip_hopper.h"

struct mf_hip_both_variant {
    int block_m, block_n;
    bool turns, swapped;
    bool zeroes; /* there is one that does so, too: of many tokens */
};
struct mf_hip_both;
/* What a family has of them, and what is its own. */
struct mf_hip_both_family {
    const char *name, *source, *function; /* static texts */
    const struct mf_hip_both_variant *variants;
    size_t n_variants;
    int64_t zero_from; /* tokens from which on y is zeroed on the way */
    /* Of LDS, what its launch needs beside the core, in bytes; NULL: nothing. */
    int (*lds)(const struct mf_shape *shape, int block_m);
    /* Does it know the shape, whatever the variant? */
    bool (*takes)(const struct mf_device_info *device, const struct mf_shape *shape,
                  enum mf_hip_format *ret_format, struct mf_refusal *ret);
    struct mf_step (*describe)(const struct mf_hip_both *b, const struct mf_shape *shape);
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

/* As mf_family.enumerate. */
int mf_hip_both_enumerate(const struct mf_hip_both_family *f, const struct mf_device_info *device,
                          const struct mf_shape *shape, struct mf_offer *offer);
/* The step of that name, and its code but for what the family defines itself; errors as mf_family.code. */
int mf_hip_both_find(const struct mf_hip_both_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, const char *name, struct mf_hip_both *ret,
                     struct mf_code *ret_code);
void mf_hip_both_name(const struct mf_hip_both *b, const struct mf_shape *shape, char buf[MF_STEP_NAME_MAX]);

struct mf_hip_stage mf_hip_both_stage(const struct mf_hip_both *b, const struct mf_shape *shape, int stage);
/* Of LDS that a block has. */
uint32_t mf_hip_both_lds(const struct mf_hip_both *b, const struct mf_device_info *device,
                         const struct mf_shape *shape);

/* h in a workspace: bytes of it, and of its scales. */
uint64_t mf_hip_both_h(const struct mf_hip_both *b, const struct mf_shape *shape, uint64_t *ret_scale);
