/* Codecs: how a matrix of numbers is stored, as elements of one format under scales of one kind. Every pair that a
 * layer can be quantised in is a row of one table (kernels/core/codec.c); whoever makes, reads, sizes or packs a quantised
 * tensor asks the row, and no other place knows the pairs.
 *
 *   format            scale        group        scale's own format; value of code q
 *   bf16              none         -            -
 *   fp8fn/fp8fnuz     per_tensor   whole        f32 = amax / 448|240, 1 for amax 0; q·s
 *                     per_token    1 x row      f32
 *                     per_1x128    1 x 128      f32            (activations)
 *                     per_128x128  128 x 128    f32            (weights)
 *   int8              the same four             f32 = amax / 127
 *   fp8fn             per_1x32     1 x 32       e8m0           (MXFP8, OCP MX 1.0)
 *   fp4 (e2m1)        per_1x32     1 x 32       e8m0           (MXFP4)
 *   fp4               per_1x16     1 x 16       e4m3fn and one global f32 per matrix (NVFP4); q·s / global
 *   int4              per_1x32     1 x 32       bf16 = amax / 7 (ROCm/aiter, a16wi4)
 *   int4              per_token    1 x row      f32 = amax / 7
 *
 * q = round(x / scale), of NVFP4 round(x · global / scale), by true division, saturating (ROCm/aiter, pertoken_quant).
 * Compiled without contraction or fast division.
 *
 * Four-bit codes lie two to a byte, the even element in the low nibble; a row of an odd number of elements ends in
 * half a byte of zero. The last group of a row, and of rows, may be short. Scales are [scale_rows, scale_cols],
 * row-major, of scale_bytes each. A matrix is one expert's weight [N, K], or the activations [rows, cols]. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"

enum mf_scale_format { MF_SCALE_F32, MF_SCALE_BF16, MF_SCALE_E8M0, MF_SCALE_E4M3 };

struct mf_codec {
    const char
        *name; /* part of step names: "bf16", "fp8fn_token", "mxfp4", "nvfp4", "int4_32", "int8_tensor" */
    enum mf_format format;
    enum mf_scale scale;
    int bits; /* of an element: 16, 8, 4 */
    int group_rows,
        group_cols; /* elements under one scale; 0: all there are. No scale: 0, 0 and scale_bytes 0 */
    enum mf_scale_format scale_format;
    int scale_bytes; /* of one scale; 0: none */
    bool global;     /* one more f32 for the matrix, by which values were multiplied */
    float max;       /* largest code's value */
};

/* NULL: no such pair. */
const struct mf_codec *mf_codec_find(enum mf_format format, enum mf_scale scale);

/* How the plain pipeline of a shape stores activations (x as it enters gemm1, h as it enters gemm2) and weights.
 * -EINVAL when the shape's q_type, q_dtype_a and q_dtype_w make no pair that has a definition; *ret_why is then the
 * sentence's static middle ("per_1x32 takes …"). */
struct mf_codecs {
    const struct mf_codec *a, *w;
};
int mf_codecs_of_shape(const struct mf_shape *shape, struct mf_codecs *ret, const char **ret_why);

static inline size_t mf_codec_row_bytes(const struct mf_codec *c, size_t cols)
{
    return (cols * (size_t)c->bits + 7) / 8;
}
static inline size_t mf_codec_scale_rows(const struct mf_codec *c, size_t rows)
{
    return c->scale_bytes == 0  ? 0
           : c->group_rows == 0 ? 1
                                : (rows + (size_t)c->group_rows - 1) / (size_t)c->group_rows;
}
static inline size_t mf_codec_scale_cols(const struct mf_codec *c, size_t cols)
{
    return c->scale_bytes == 0  ? 0
           : c->group_cols == 0 ? 1
                                : (cols + (size_t)c->group_cols - 1) / (size_t)c->group_cols;
}

/* The global factor of a matrix of that largest magnitude: 448·6 / amax for NVFP4, finite, 1 for amax 0; 1 for codecs
 * without one. */
float mf_codec_global(const struct mf_codec *c, float amax);

/* Encodes a matrix of floats (row-major, cols apart). scale may be NULL for a codec without; global is ignored by a
 * codec without. A NaN stays NaN where the format has one; integer formats make it 0. */
void mf_codec_encode(const struct mf_codec *c, const float *x, size_t rows, size_t cols, float global,
                     void *q, void *scale);
/* One row under scales that are given (scale points to the row's first): for scales that more than the row shares. */
void mf_codec_encode_row(const struct mf_codec *c, const float *x, size_t cols, const void *scale,
                         float global, void *q);
/* The scale of one group of that largest magnitude, written to *scale in the scale's own format. */
void mf_codec_group_scale(const struct mf_codec *c, float amax, float global, void *scale);
/* Row `row` of a stored matrix, decoded. */
void mf_codec_decode_row(const struct mf_codec *c, const void *q, const void *scale, float global, size_t row,
                         size_t cols, float *out);
