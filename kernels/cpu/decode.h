/* Dequantises weights to the bf16 input of the dot products, in C that the compiler vectorises for the
 * instruction set of the including file. Each ops_<isa>.c includes this file once, after elementwise.h.
 *
 * Scales of groups along K are folded into the values here. The product is exact in bf16 if the scale is a
 * power of two, or if the value is e2m1 and the scale e4m3. The product of an int4 value and its bf16 scale
 * is rounded to bf16, as in production kernels (ROCm/aiter, FlyDSL a16wi4). Scales per row, per 128 of K and
 * per tensor are not folded; the caller applies those scales to the sums. */
#pragma once

#include "kernels/cpu/elementwise.h"

#define ROWS 16 /* rows of an output panel */

static inline uint32_t bf16_bits(float f)
{
    uint32_t u = bits_of_float(f);
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

static inline float e2m1_of(uint32_t code)
{
    /* The shifts put the exponent and the mantissa into the float's fields. The float is then too small by a
     * factor of 2^126. One exact multiplication corrects this and normalises subnormals. */
    return float_of_bits((code & 7) << 22 | (code & 8) << 28) * 0x1p126f;
}

static inline float int4_of(uint32_t code)
{
    return (float)((int32_t)(code << 28) >> 28);
}

static inline float e4m3fn_of(uint32_t code)
{
    return float_of_bits((code & 0x7f) << 20 | (code & 0x80) << 24) * 0x1p120f;
}

static inline float e4m3fnuz_of(uint32_t code)
{
    return float_of_bits((code & 0x7f) << 20 | (code & 0x80) << 24) * 0x1p119f;
}

static inline float int8_of(uint32_t code)
{
    return (float)(int8_t)(uint8_t)code;
}

static float folded_scale(const struct mf_codec *c, const uint8_t *scale)
{
    uint16_t half;
    switch (c->scale_format) {
    case MF_SCALE_E8M0:
        return *scale == 0 ? 0x1p-127f : float_of_bits((uint32_t)*scale << 23);
    case MF_SCALE_E4M3:
        return e4m3fn_of(*scale);
    case MF_SCALE_BF16:
        memcpy(&half, scale, sizeof(half));
        return bf16_value(half);
    case MF_SCALE_F32:
        break;
    }
    return 1.0f;
}

#define GROUPS_MAX 64 /* maximum scale groups in a piece of K */

static void convert_scales(const struct mf_codec *c, const uint8_t *restrict from, size_t n,
                           float *restrict to)
{
    if (c->scale_format == MF_SCALE_E8M0) {
        for (size_t g = 0; g < n; g++)
            to[g] = float_of_bits(from[g] == 0 ? 0x00400000 : (uint32_t)from[g] << 23);
    } else if (c->scale_format == MF_SCALE_E4M3) {
        for (size_t g = 0; g < n; g++)
            to[g] = e4m3fn_of(from[g]);
    } else {
        for (size_t g = 0; g < n; g++)
            to[g] = float_of_bits((uint32_t)from[2 * g] << 16 | (uint32_t)from[2 * g + 1] << 24);
    }
}

/* Writes the scales of a piece's groups for 16 rows to s[group][16]. Every scale is 1 if the codec folds no
 * scales. */
static void piece_scales(const struct mf_decode *d, size_t n0, float s[GROUPS_MAX][ROWS])
{
    const struct mf_codec *c = d->codec;
    float row[GROUPS_MAX];
    size_t group = (size_t)c->group_cols, first = d->k0 / (group ? group : 1);
    size_t n = mf_codec_folds(c) ? (d->k_end + group - 1) / group - first : 1;

    for (size_t r = 0; r < ROWS; r++) {
        bool there = mf_codec_folds(c) && n0 + r < (size_t)d->n;
        if (there)
            convert_scales(
                c, (const uint8_t *)d->scale + (n0 + r) * d->ld_scale + first * (size_t)c->scale_bytes, n,
                row);
        for (size_t g = 0; g < n; g++)
            s[g][r] = there ? row[g] : 1.0f;
    }
}

/* Decodes four bytes of each of 16 rows of a panel: 8 four-bit or 4 eight-bit values per row. The output is
 * [K/2][16][2] bf16. If the including file has faster versions of these functions, it defines MF_OWN_QUADS.
 */
#ifndef MF_OWN_QUADS
#    define DECODE_4BIT(name, value)                                                                        \
        static inline void name(const uint32_t *restrict v, const float *restrict s, uint32_t *restrict to) \
        {                                                                                                   \
            for (int j = 0; j < 4; j++) {                                                                   \
                for (size_t r = 0; r < ROWS; r++) {                                                         \
                    uint32_t byte = v[r] >> (8 * j);                                                        \
                    to[(size_t)j * ROWS + r] =                                                              \
                        bf16_bits(value(byte & 15) * s[r]) | bf16_bits(value(byte >> 4 & 15) * s[r]) << 16; \
                }                                                                                           \
            }                                                                                               \
        }
#    define DECODE_8BIT(name, value)                                                                        \
        static inline void name(const uint32_t *restrict v, const float *restrict s, uint32_t *restrict to) \
        {                                                                                                   \
            for (int j = 0; j < 2; j++) {                                                                   \
                for (size_t r = 0; r < ROWS; r++) {                                                         \
                    uint32_t pair = v[r] >> (16 * j);                                                       \
                    to[(size_t)j * ROWS + r] = bf16_bits(value(pair & 255) * s[r]) |                        \
                                               bf16_bits(value(pair >> 8 & 255) * s[r]) << 16;              \
                }                                                                                           \
            }                                                                                               \
        }
DECODE_4BIT(quad_fp4, e2m1_of)
DECODE_4BIT(quad_int4, int4_of)
DECODE_8BIT(quad_fp8fn, e4m3fn_of)
DECODE_8BIT(quad_fp8fnuz, e4m3fnuz_of)
DECODE_8BIT(quad_int8, int8_of)
#endif

#define DECODE_GROUPS(quad)                                                          \
    for (size_t k = k0; k < k_end; k += per, from += d->panel, to += per / 2 * ROWS) \
    quad(from, s, to)

/* Decodes one scale group along K of 16 rows of a panel. */
static void decode_group(const struct mf_decode *d, const uint32_t *from, size_t k0, size_t k_end,
                         const float *s, uint32_t *to)
{
    size_t per = 32 / (size_t)d->codec->bits;
    switch (d->codec->format) {
    case MF_FORMAT_FP4:
        DECODE_GROUPS(quad_fp4);
        return;
    case MF_FORMAT_INT4:
        DECODE_GROUPS(quad_int4);
        return;
    case MF_FORMAT_FP8FN:
        DECODE_GROUPS(quad_fp8fn);
        return;
    case MF_FORMAT_FP8FNUZ:
        DECODE_GROUPS(quad_fp8fnuz);
        return;
    case MF_FORMAT_INT8:
        DECODE_GROUPS(quad_int8);
        return;
    case MF_FORMAT_INDEX:
    case MF_FORMAT_F32:
    case MF_FORMAT_BF16:
    case MF_FORMAT_FP16:
    case MF_FORMAT_N_:
        return;
    }
}

static inline float code_value(enum mf_format format, uint32_t code)
{
    switch (format) {
    case MF_FORMAT_FP4:
        return e2m1_of(code);
    case MF_FORMAT_INT4:
        return int4_of(code);
    case MF_FORMAT_FP8FNUZ:
        return e4m3fnuz_of(code);
    case MF_FORMAT_INT8:
        return int8_of(code);
    case MF_FORMAT_FP8FN:
    case MF_FORMAT_INDEX:
    case MF_FORMAT_F32:
    case MF_FORMAT_BF16:
    case MF_FORMAT_FP16:
    case MF_FORMAT_N_:
        break;
    }
    return e4m3fn_of(code);
}

static inline uint32_t code_at(const struct mf_codec *c, const uint8_t *row, size_t k)
{
    return c->bits == 8 ? row[k] : row[k / 2] >> (k % 2 * 4) & 15;
}

/* Decodes 16 rows of the `row` layout, value by value. This function is for unconverted checkpoints and is
 * not optimised. */
static void decode_rows(const struct mf_decode *d, size_t n0, size_t k0, size_t k_end, const float *s,
                        uint16_t *to)
{
    size_t row_bytes = mf_codec_row_bytes(d->codec, d->K);
    for (size_t r = 0; r < ROWS; r++) {
        const uint8_t *row = (const uint8_t *)d->w + (n0 + r) * row_bytes;
        for (size_t k = k0; k < k_end; k++) {
            bool there = n0 + r < (size_t)d->n && k < d->K;
            float v = there ? code_value(d->codec->format, code_at(d->codec, row, k)) * s[r] : 0.0f;
            to[((k - k0) / 2 * ROWS + r) * 2 + (k - k0) % 2] = (uint16_t)bf16_bits(v);
        }
    }
}

static void decode_weights(const struct mf_decode *d)
{
    size_t group = mf_codec_folds(d->codec) ? (size_t)d->codec->group_cols : d->k_end - d->k0;
    size_t k_end = d->k_end + d->k_end % 2, panel = (size_t)d->panel,
           row_bits = d->K * (size_t)d->codec->bits;
    for (size_t n0 = 0; n0 < (size_t)d->n; n0 += ROWS) {
        uint16_t *to = d->to + n0 * (k_end - d->k0);
        const uint8_t *w = (const uint8_t *)d->w + n0 / panel * panel * row_bits / 8 + n0 % panel * 4;
        float scales[GROUPS_MAX][ROWS];
        piece_scales(d, n0, scales);
        for (size_t k = d->k0; k < d->k_end; k += group) {
            size_t end = k + group < d->k_end ? k + group : d->k_end;
            const float *s = scales[(k - d->k0) / group];
            if (panel == 1)
                decode_rows(d, n0, k, end + end % 2, s, to + (k - d->k0) * ROWS);
            else
                decode_group(d, (const uint32_t *)(const void *)(w + k * (size_t)d->codec->bits / 8 * panel),
                             k, end, s, (uint32_t *)(void *)(to + (k - d->k0) * ROWS));
        }
    }
}

#define UNPACK_8(value)               \
    for (size_t k = k0; k < end; k++) \
    to[k] = (uint16_t)bf16_bits(value(q[k]) * s)
#define UNPACK_4(value)               \
    for (size_t k = k0; k < end; k++) \
    to[k] = (uint16_t)bf16_bits(value((uint32_t)q[k / 2] >> (k % 2 * 4)) * s)

static void unpack_row(const struct mf_codec *c, const void *from, const void *scale, size_t n, uint16_t *to)
{
    const uint8_t *q = from;
    size_t group = mf_codec_folds(c) ? (size_t)c->group_cols : n;
    if (c->format == MF_FORMAT_BF16)
        memcpy(to, from, n * 2);
    for (size_t k0 = 0; k0 < n && c->format != MF_FORMAT_BF16; k0 += group) {
        size_t end = k0 + group < n ? k0 + group : n;
        float s = mf_codec_folds(c)
                      ? folded_scale(c, (const uint8_t *)scale + k0 / group * (size_t)c->scale_bytes)
                      : 1.0f;
        if (c->format == MF_FORMAT_FP4)
            UNPACK_4(e2m1_of);
        else if (c->format == MF_FORMAT_INT8)
            UNPACK_8(int8_of);
        else if (c->format == MF_FORMAT_FP8FNUZ)
            UNPACK_8(e4m3fnuz_of);
        else
            UNPACK_8(e4m3fn_of);
    }
    if (n % 2 == 1)
        to[n] = 0;
}
