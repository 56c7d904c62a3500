#include "kernels/core/codec.h"

#include <errno.h>
#include <float.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/quant.h"
#include "kernels/core/quant_mx.h"
#include "kernels/core/small_float.h"

/* clang-format off */
#define FLOATS(word, FORMAT, max)                                                                            \
    {word "_tensor", MF_FORMAT_##FORMAT, MF_SCALE_PER_TENSOR,  8, 0,   0,   MF_SCALE_F32, 4, false, max},    \
    {word "_token",  MF_FORMAT_##FORMAT, MF_SCALE_PER_TOKEN,   8, 1,   0,   MF_SCALE_F32, 4, false, max},    \
    {word "_128",    MF_FORMAT_##FORMAT, MF_SCALE_PER_1X128,   8, 1,   128, MF_SCALE_F32, 4, false, max},    \
    {word "_128",    MF_FORMAT_##FORMAT, MF_SCALE_PER_128X128, 8, 128, 128, MF_SCALE_F32, 4, false, max}

static const struct mf_codec codecs[] = {
    {"bf16", MF_FORMAT_BF16, MF_SCALE_NONE, 16, 0, 0, MF_SCALE_F32, 0, false, 3.38953139e38f},
    FLOATS("fp8fn", FP8FN, 448),
    FLOATS("fp8fnuz", FP8FNUZ, 240),
    FLOATS("int8", INT8, 127),
    {"mxfp8",        MF_FORMAT_FP8FN, MF_SCALE_PER_1X32,  8, 1, 32, MF_SCALE_E8M0, 1, false, 448},
    {"mxfp4",        MF_FORMAT_FP4,   MF_SCALE_PER_1X32,  4, 1, 32, MF_SCALE_E8M0, 1, false, 6},
    {"nvfp4",        MF_FORMAT_FP4,   MF_SCALE_PER_1X16,  4, 1, 16, MF_SCALE_E4M3, 1, true,  6},
    {"int4_32",      MF_FORMAT_INT4,  MF_SCALE_PER_1X32,  4, 1, 32, MF_SCALE_BF16, 2, false, 7},
    {"int4_channel", MF_FORMAT_INT4,  MF_SCALE_PER_TOKEN, 4, 1, 0,  MF_SCALE_F32,  4, false, 7},
};

/* Valid combinations of q_type, activation dtype and weight dtype. */
static const struct {
    enum mf_qtype q_type;
    enum mf_dtype a, w;
    enum mf_scale a_scale, w_scale;
} pairs[] = {
#define ALIKE(Q, D, A, W) {MF_QTYPE_##Q, MF_DTYPE_##D, MF_DTYPE_##D, MF_SCALE_##A, MF_SCALE_##W}
    ALIKE(NO,         BF16,         NONE,       NONE),
    ALIKE(PER_TENSOR, FP8_E4M3FN,   PER_TENSOR, PER_TENSOR),
    ALIKE(PER_TENSOR, FP8_E4M3FNUZ, PER_TENSOR, PER_TENSOR),
    ALIKE(PER_TENSOR, INT8,         PER_TENSOR, PER_TENSOR),
    ALIKE(PER_TOKEN,  FP8_E4M3FN,   PER_TOKEN,  PER_TOKEN),
    ALIKE(PER_TOKEN,  FP8_E4M3FNUZ, PER_TOKEN,  PER_TOKEN),
    ALIKE(PER_TOKEN,  INT8,         PER_TOKEN,  PER_TOKEN),
    ALIKE(PER_1X128,  FP8_E4M3FN,   PER_1X128,  PER_128X128),
    ALIKE(PER_1X128,  FP8_E4M3FNUZ, PER_1X128,  PER_128X128),
    ALIKE(PER_1X128,  INT8,         PER_1X128,  PER_128X128),
    ALIKE(PER_1X32,   FP4X2,        PER_1X32,   PER_1X32),
    ALIKE(PER_1X32,   FP8_E4M3FN,   PER_1X32,   PER_1X32),
    ALIKE(PER_1X16,   FP4X2,        PER_1X16,   PER_1X16),
    {MF_QTYPE_PER_1X32,  MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_FP4X2, MF_SCALE_PER_1X32,  MF_SCALE_PER_1X32},
    {MF_QTYPE_PER_1X32,  MF_DTYPE_BF16,         MF_DTYPE_FP4X2, MF_SCALE_NONE,      MF_SCALE_PER_1X32},
    {MF_QTYPE_PER_1X16,  MF_DTYPE_BF16,         MF_DTYPE_FP4X2, MF_SCALE_NONE,      MF_SCALE_PER_1X16},
    {MF_QTYPE_PER_1X32,  MF_DTYPE_BF16,         MF_DTYPE_INT4,  MF_SCALE_NONE,      MF_SCALE_PER_1X32},
    {MF_QTYPE_PER_1X32,  MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_INT4,  MF_SCALE_PER_1X32,  MF_SCALE_PER_1X32},
    {MF_QTYPE_PER_TOKEN, MF_DTYPE_BF16,         MF_DTYPE_INT4,  MF_SCALE_NONE,      MF_SCALE_PER_TOKEN},
    {MF_QTYPE_PER_TOKEN, MF_DTYPE_FP8_E4M3FN,   MF_DTYPE_INT4,  MF_SCALE_PER_TOKEN, MF_SCALE_PER_TOKEN},
    {MF_QTYPE_PER_TOKEN, MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_INT4,  MF_SCALE_PER_TOKEN, MF_SCALE_PER_TOKEN},
};
/* clang-format on */

static const char *const expected[] = {
    [MF_QTYPE_NO] = "QuantType.No takes torch.bfloat16 activations and weights",
    [MF_QTYPE_PER_TENSOR] = "QuantType.per_Tensor takes float8_e4m3fn, float8_e4m3fnuz or int8, the same for "
                            "activations and weights",
    [MF_QTYPE_PER_TOKEN] = "QuantType.per_Token takes float8_e4m3fn, float8_e4m3fnuz or int8, the same for "
                           "activations and weights, or int4 weights with bfloat16 or float8 activations",
    [MF_QTYPE_PER_1X32] = "QuantType.per_1x32 takes float4_e2m1fn_x2 weights with bfloat16, float8_e4m3fn or "
                          "float4_e2m1fn_x2 activations, float8_e4m3fn activations and weights, or int4 "
                          "weights with bfloat16 or float8_e4m3fn activations",
    [MF_QTYPE_PER_1X128] = "QuantType.per_1x128 takes float8_e4m3fn, float8_e4m3fnuz or int8, the same for "
                           "activations and weights",
    [MF_QTYPE_PER_1X16] = "QuantType.per_1x16 takes float4_e2m1fn_x2 weights with float4_e2m1fn_x2 or "
                          "bfloat16 activations",
};

const struct mf_codec *mf_codec_find(enum mf_format format, enum mf_scale scale)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(codecs); i++) {
        if (codecs[i].format == format && codecs[i].scale == scale)
            return &codecs[i];
    }
    return NULL;
}

int mf_codecs_of_shape(const struct mf_shape *s, struct mf_codecs *ret, const char **ret_why)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(pairs); i++) {
        enum mf_format a, w;
        if (pairs[i].q_type != s->q_type || pairs[i].a != s->q_dtype_a || pairs[i].w != s->q_dtype_w ||
            mf_format_of_dtype(pairs[i].a, &a) < 0 || mf_format_of_dtype(pairs[i].w, &w) < 0)
            continue;
        ret->a = mf_codec_find(a, pairs[i].a_scale);
        ret->w = mf_codec_find(w, pairs[i].w_scale);
        return 0;
    }
    *ret_why = (size_t)s->q_type < MF_ARRAY_LEN(expected) ? expected[s->q_type] : "unknown q_type";
    return -EINVAL;
}

/* ---- scales ---- */

float mf_codec_global(const struct mf_codec *c, float amax)
{
    if (!c->global)
        return 1;
    float g = 448.0f * 6.0f / amax;
    return amax > 0 && g < FLT_MAX ? g : amax > 0 ? FLT_MAX : 1;
}

static float f32_scale(const struct mf_codec *c, float amax)
{
    float s = amax / c->max;
    /* If amax is tiny, the division can underflow to 0, which is not a valid scale. */
    return mf_bits_of(s) == 0 ? 1 : s;
}

/* The scale is at least the smallest positive e4m3 value, because a calibrated factor that is too small would
 * otherwise make it 0. */
static uint8_t nvfp4_scale(float amax, float global)
{
    float s = global * amax / 6.0f;
    return mf_fp8_from_float(MF_FORMAT_FP8FN, s < 0x1p-9f ? 0x1p-9f : s);
}

void mf_codec_group_scale(const struct mf_codec *c, float amax, float global, void *scale)
{
    uint16_t half;
    float full;
    switch (c->scale_format) {
    case MF_SCALE_F32:
        full = f32_scale(c, amax);
        if (c->scale_bytes > 0)
            memcpy(scale, &full, sizeof(full));
        break;
    case MF_SCALE_BF16:
        /* The minimum 1e-6 is AITER's; it keeps the scale of a group of zeros above 0 (ROCm/aiter, a16wi4).
         */
        half = mf_bf16_from_float((amax < 1e-6f ? 1e-6f : amax) / c->max);
        memcpy(scale, &half, sizeof(half));
        break;
    case MF_SCALE_E8M0:
        *(uint8_t *)scale = mf_mx_scale(c->format, MF_MX_UP, amax);
        break;
    case MF_SCALE_E4M3:
        *(uint8_t *)scale = nvfp4_scale(amax, global);
        break;
    }
}

static float scale_value(const struct mf_codec *c, const void *scale)
{
    uint16_t half;
    float full = 1;
    switch (c->scale_format) {
    case MF_SCALE_F32:
        if (c->scale_bytes > 0)
            memcpy(&full, scale, sizeof(full));
        return full;
    case MF_SCALE_BF16:
        memcpy(&half, scale, sizeof(half));
        return mf_bf16_to_float(half);
    case MF_SCALE_E8M0:
        return mf_e8m0_value(*(const uint8_t *)scale);
    case MF_SCALE_E4M3:
        return mf_fp8_to_float(MF_FORMAT_FP8FN, *(const uint8_t *)scale);
    }
    return full;
}

/* ---- encoding: one group with one scale ---- */

/* Returns the bits of the largest magnitude. Compares the bits as integers, which have the same order as the
 * magnitudes, with NaN above all others. */
MF_VECTOR_BODY(static, uint32_t, amax_bits, (const float *x, size_t n), (x, n), {
    uint32_t top = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t a = mf_bits_of(x[i]) & 0x7fffffff;
        top = a > top ? a : top;
    }
    return top;
})

MF_VECTOR_BODY(static, void, int8_codes, (const float *x, size_t n, float scale, int8_t *q), (x, n, scale, q),
               {
                   for (size_t i = 0; i < n; i++)
                       q[i] = (int8_t)mf_int_code(x[i] / scale, 127);
               })

MF_VECTOR_BODY(static, void, int4_codes, (const float *x, size_t n, float scale, uint8_t *code),
               (x, n, scale, code), {
                   for (size_t i = 0; i < n; i++)
                       code[i] = (uint8_t)(mf_int_code(x[i] / scale, 7) & 15);
               })

MF_VECTOR_BODY(static, void, e2m1_codes, (const float *x, size_t n, float global, float scale, uint8_t *code),
               (x, n, global, scale, code), {
                   for (size_t i = 0; i < n; i++)
                       code[i] = mf_small_code(MF_E2M1, x[i] * global / scale);
               })

MF_VECTOR_BODY(static, void, fp8_codes,
               (enum mf_format format, const float *x, size_t n, float scale, uint8_t *q),
               (format, x, n, scale, q), {
                   if (format == MF_FORMAT_FP8FNUZ) {
                       for (size_t i = 0; i < n; i++)
                           q[i] = mf_small_code(MF_E4M3FNUZ, x[i] / scale);
                   } else {
                       for (size_t i = 0; i < n; i++)
                           q[i] = mf_small_code(MF_E4M3FN, x[i] / scale);
                   }
               })

#define CHUNK 256 /* four-bit elements that are packed into bytes at a time; must be even */

static void four_bit_group(const struct mf_codec *c, const float *x, size_t n, float global, float scale,
                           uint8_t *q)
{
    uint8_t codes[CHUNK + 1];
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t m = MF_MIN((size_t)CHUNK, n - at);
        if (c->format == MF_FORMAT_FP4)
            e2m1_codes(x + at, m, global, scale, codes);
        else
            int4_codes(x + at, m, scale, codes);
        codes[m] = 0;
        for (size_t i = 0; i < m; i += 2)
            q[(at + i) / 2] = (uint8_t)(codes[i] | codes[i + 1] << 4);
    }
}

static void encode_group(const struct mf_codec *c, const float *x, size_t n, const void *scale, float global,
                         uint8_t *q)
{
    float s = scale_value(c, scale);
    if (c->bits == 4)
        four_bit_group(c, x, n, c->global ? global : 1, s, q);
    else if (c->format == MF_FORMAT_INT8)
        int8_codes(x, n, s, (int8_t *)q);
    else if (c->format == MF_FORMAT_BF16)
        mf_bf16_from_floats(x, n, (uint16_t *)(void *)q);
    else
        fp8_codes(c->format, x, n, s, q);
}

void mf_codec_encode_row(const struct mf_codec *c, const float *x, size_t cols, const void *scale,
                         float global, void *q)
{
    size_t group = c->group_cols > 0 ? (size_t)c->group_cols : cols;
    for (size_t at = 0, g = 0; at < cols; at += group, g++)
        encode_group(c, x + at, MF_MIN(group, cols - at), (const uint8_t *)scale + g * (size_t)c->scale_bytes,
                     global, (uint8_t *)q + mf_codec_row_bytes(c, at));
}

/* Computes the scales of the groups in rows [row0, row1). */
static void make_scales(const struct mf_codec *c, const float *x, size_t row0, size_t row1, size_t cols,
                        float global, uint8_t *scale)
{
    size_t group = c->group_cols > 0 ? (size_t)c->group_cols : cols;
    for (size_t at = 0; at < cols; at += group, scale += c->scale_bytes) {
        uint32_t top = 0;
        for (size_t r = row0; r < row1; r++) {
            uint32_t a = amax_bits(x + r * cols + at, MF_MIN(group, cols - at));
            top = MF_MAX(top, a);
        }
        mf_codec_group_scale(c, mf_float_of(top), global, scale);
    }
}

void mf_codec_encode(const struct mf_codec *c, const float *x, size_t rows, size_t cols, float global,
                     void *q, void *scale)
{
    size_t group = c->group_rows > 0 ? (size_t)c->group_rows : rows, row_bytes = mf_codec_row_bytes(c, cols);
    size_t scales = mf_codec_scale_cols(c, cols) * (size_t)c->scale_bytes;
    for (size_t row0 = 0; row0 < rows; row0 += group) {
        size_t row1 = MF_MIN(rows, row0 + group);
        uint8_t *at = (uint8_t *)scale + row0 / group * scales;
        if (c->scale_bytes > 0)
            make_scales(c, x, row0, row1, cols, global, at);
        for (size_t r = row0; r < row1; r++)
            mf_codec_encode_row(c, x + r * cols, cols, at, global, (uint8_t *)q + r * row_bytes);
    }
}

/* ---- decoding ---- */

MF_VECTOR_BODY(static, void, int8_values, (const int8_t *q, size_t n, float scale, float *out),
               (q, n, scale, out), {
                   for (size_t i = 0; i < n; i++)
                       out[i] = (float)q[i] * scale;
               })

/* Decodes pairs of packed elements, the low nibble first. n may be odd only at the end of a row. */
MF_VECTOR_BODY(static, void, e2m1_values, (const uint8_t *q, size_t n, float scale, float global, float *out),
               (q, n, scale, global, out), {
                   for (size_t i = 0; i + 1 < n; i += 2) {
                       out[i] = mf_e2m1_value(q[i / 2]) * scale / global;
                       out[i + 1] = mf_e2m1_value(q[i / 2] >> 4) * scale / global;
                   }
                   if (n % 2 == 1)
                       out[n - 1] = mf_e2m1_value(q[n / 2]) * scale / global;
               })

MF_VECTOR_BODY(static, void, int4_values, (const uint8_t *q, size_t n, float scale, float *out),
               (q, n, scale, out), {
                   for (size_t i = 0; i + 1 < n; i += 2) {
                       out[i] = (float)((int8_t)(uint8_t)(q[i / 2] << 4) >> 4) * scale;
                       out[i + 1] = (float)((int8_t)q[i / 2] >> 4) * scale;
                   }
                   if (n % 2 == 1)
                       out[n - 1] = (float)((int8_t)(uint8_t)(q[n / 2] << 4) >> 4) * scale;
               })

static void decode_group(const struct mf_codec *c, const uint8_t *q, size_t n, float scale, float global,
                         float *out)
{
    switch (c->format) {
    case MF_FORMAT_BF16:
        mf_bf16_to_floats((const uint16_t *)(const void *)q, n, out);
        break;
    case MF_FORMAT_INT8:
        int8_values((const int8_t *)q, n, scale, out);
        break;
    case MF_FORMAT_INT4:
        int4_values(q, n, scale, out);
        break;
    case MF_FORMAT_FP4:
        e2m1_values(q, n, scale, global, out);
        break;
    case MF_FORMAT_FP8FN:
    case MF_FORMAT_FP8FNUZ:
        mf_fp8_to_floats(c->format, q, n, scale, out);
        break;
    case MF_FORMAT_INDEX:
    case MF_FORMAT_F32:
    case MF_FORMAT_FP16:
    case MF_FORMAT_N_:
        break;
    }
}

void mf_codec_decode_row(const struct mf_codec *c, const void *q, const void *scale, float global, size_t row,
                         size_t cols, float *out)
{
    size_t group = c->group_cols > 0 ? (size_t)c->group_cols : cols;
    size_t scale_row = c->group_rows > 0 ? row / (size_t)c->group_rows : 0;
    const uint8_t *from = (const uint8_t *)q + row * mf_codec_row_bytes(c, cols);
    const uint8_t *at =
        (const uint8_t *)scale + scale_row * mf_codec_scale_cols(c, cols) * (size_t)c->scale_bytes;
    for (size_t i = 0; i < cols; i += group, at += c->scale_bytes)
        decode_group(c, from + mf_codec_row_bytes(c, i), MF_MIN(group, cols - i), scale_value(c, at),
                     c->global ? global : 1, out + i);
}
