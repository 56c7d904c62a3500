/* A codec defines how a matrix is stored: as elements of one format with scales of one kind. The table in
 * kernels/core/codec.c has every valid combination of format and scale. All code that creates, reads, sizes
 * or packs a quantised tensor uses this table.
 *
 *   format         scale        group      format of the scale; value of element q
 *   bf16           none         -          -
 *   fp8fn/fp8fnuz  per_tensor   whole      f32 = amax / 448|240, 1 for amax 0; q·s
 *                  per_token    1 x row    f32
 *                  per_1x128    1 x 128    f32            (activations)
 *                  per_128x128  128 x 128  f32            (weights)
 *   int8           the same four           f32 = amax / 127
 *   fp8fn          per_1x32     1 x 32     e8m0           (MXFP8, OCP MX 1.0)
 *   fp4 (e2m1)     per_1x32     1 x 32     e8m0           (MXFP4)
 *   fp4            per_1x16     1 x 16     e4m3fn, and one global f32 per matrix (NVFP4); q·s / global
 *   int4           per_1x32     1 x 32     bf16 = amax / 7 (ROCm/aiter, a16wi4)
 *   int4           per_token    1 x row    f32 = amax / 7
 *
 * An element is q = round(x / scale), or q = round(x · global / scale) for NVFP4. The division is not
 * replaced by a multiplication with the reciprocal, and the result saturates (ROCm/aiter, pertoken_quant).
 * The codecs are compiled without floating-point contraction or fast division.
 *
 * Two four-bit elements share a byte, the even element in the low nibble. A row with an odd number of
 * elements ends in a zero nibble. The last group of a row, and the last group of rows, may be short. Scales
 * are [scale_rows, scale_cols], row-major, scale_bytes each. A matrix is the weight [N, K] of one expert, or
 * the activations [rows, cols]. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"

enum mf_scale_format { MF_SCALE_F32, MF_SCALE_BF16, MF_SCALE_E8M0, MF_SCALE_E4M3 };

struct mf_codec {
    /* part of step names: "bf16", "fp8fn_token", "mxfp4", "nvfp4", "int4_32", "int8_tensor" */
    const char *name;
    enum mf_format format;
    enum mf_scale scale;
    int bits; /* bits per element: 16, 8, 4 */
    /* Number of rows and of columns that share a scale; 0: all rows or all columns. Without scales,
     * group_rows, group_cols and scale_bytes are 0. */
    int group_rows, group_cols;
    enum mf_scale_format scale_format;
    int scale_bytes; /* bytes per scale; 0: no scales */
    /* true: the matrix also has one f32 factor, by which values are multiplied before encoding */
    bool global;
    float max; /* largest finite value of an element */
};

/* Returns the codec for a format and a kind of scale, or NULL if there is no such codec. */
const struct mf_codec *mf_codec_find(enum mf_format format, enum mf_scale scale);

/* Codecs of the plain pipeline of a shape, for the weights and for the activations (x as gemm1 reads it, h as
 * gemm2 reads it). mf_codecs_of_shape returns -EINVAL if q_type, q_dtype_a and q_dtype_w are not a valid
 * combination. *ret_why is then static text, such as "QuantType.per_1x32 takes …". */
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

/* Returns the global factor of a matrix with largest magnitude `amax`: for NVFP4 448·6 / amax, limited to
 * finite values, or 1 if amax is 0. Returns 1 for codecs without a global factor. */
float mf_codec_global(const struct mf_codec *c, float amax);

/* Encodes a matrix of floats, row-major with a row stride of cols. `scale` may be NULL for a codec without
 * scales; codecs without a global factor ignore `global`. NaN is encoded as NaN if the format has NaN, and as
 * 0 in integer formats. */
void mf_codec_encode(const struct mf_codec *c, const float *x, size_t rows, size_t cols, float global,
                     void *q, void *scale);
/* Encodes one row with given scales, which other rows may share. `scale` points to the first scale of the
 * row. */
void mf_codec_encode_row(const struct mf_codec *c, const float *x, size_t cols, const void *scale,
                         float global, void *q);
/* Computes the scale of a group with largest magnitude `amax` and stores it to *scale in the codec's scale
 * format. */
void mf_codec_group_scale(const struct mf_codec *c, float amax, float global, void *scale);
/* Decodes row `row` of a stored matrix. */
void mf_codec_decode_row(const struct mf_codec *c, const void *q, const void *scale, float global, size_t row,
                         size_t cols, float *out);
