/* Helpers of the families that run both stages of the Hopper core in one launch
 * (kernels/gpu/src/hopper/hopper_two_stages.h): whole_layer_persistent, which also sorts, and
 * two_stage_single_launch, which does not. A step's name is `layer` or `pair`, followed by
 *
 *     fp8fn_128_silu_m32_n256_b[_w][_gu1|_p128][_zero]
 *
 *     m32    block_m                               n256   weight rows per tile
 *     b      core b, bt, bs or bts, as in family two_stage
 *     _p128  weights in layout panel128            _zero  the launch also zeroes y */
#pragma once

#include "kernels/families/family_hip_hopper.h"

struct mf_hip_both_variant {
    int block_m, block_n;
    bool turns, swapped;
    bool zeroes; /* true: the variant also exists in a form that zeroes y, for large token counts */
};
struct mf_hip_both;
/* A family: its variants and callbacks. */
struct mf_hip_both_family {
    const char *name, *word, *source, *function; /* static texts; word: first word of step names */
    const struct mf_hip_both_variant *variants;
    size_t n_variants;
    int64_t zero_from; /* minimum token count for which the launch may zero y */
    /* Bytes of shared memory in addition to the core's; NULL: 0. */
    int (*lds)(const struct mf_shape *shape, int block_m);
    /* True if the family supports the shape, independent of the variant. */
    bool (*takes)(const struct mf_device_info *device, const struct mf_shape *shape,
                  enum mf_hip_format *ret_format, struct mf_refusal *ret);
    struct mf_step (*describe)(const struct mf_hip_both *b, const struct mf_shape *shape);
};
struct mf_hip_both {
    const struct mf_hip_both_family *family;
    struct mf_hip_both_variant v;
    bool sliced; /* w1 and w2 are in layout panel128 */
    bool zeroes; /* the launch zeroes y */
    enum mf_hip_format format;
};

/* True if the core supports the shape, independent of the variant. */
bool mf_hip_both_takes(const char *family, const struct mf_device_info *device, const struct mf_shape *shape,
                       enum mf_hip_format *ret_format, struct mf_refusal *ret);

/* Implements mf_family.enumerate. */
int mf_hip_both_enumerate(const struct mf_hip_both_family *f, const struct mf_device_info *device,
                          const struct mf_shape *shape, struct mf_offer *offer);
/* Looks up a step by name. Returns the errors of mf_family.open. */
int mf_hip_both_find(const struct mf_hip_both_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, const char *name, struct mf_hip_both *ret);
/* Writes the source and the macro definitions of hopper_two_stages.h. */
void mf_hip_both_code(const struct mf_hip_both *b, const struct mf_device_info *device,
                      const struct mf_shape *shape, struct mf_code *ret);
void mf_hip_both_name(const struct mf_hip_both *b, const struct mf_shape *shape, char buf[MF_STEP_NAME_MAX]);

struct mf_hip_stage mf_hip_both_stage(const struct mf_hip_both *b, const struct mf_shape *shape, int stage);
/* Returns the bytes of shared memory per block. */
uint32_t mf_hip_both_lds(const struct mf_hip_both *b, const struct mf_device_info *device,
                         const struct mf_shape *shape);

/* Places n sections in a workspace. Returns the size of the workspace in bytes, including the padding that
 * aligns the start of the workspace. */
uint64_t mf_hip_both_lay_out(const uint64_t *bytes, int n, uint64_t *ret_offsets);
/* Returns the aligned start of the workspace. */
uint8_t *mf_hip_both_workspace(const struct mf_launch *l);
/* Returns the workspace bytes of h and stores the workspace bytes of the scales of h in *ret_scale. */
uint64_t mf_hip_both_h(const struct mf_hip_both *b, const struct mf_shape *shape, uint64_t *ret_scale);
