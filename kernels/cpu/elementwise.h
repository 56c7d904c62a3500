/* Elementwise loops around the GEMMs, in C that the compiler vectorises for the instruction set of the
 * including file. Each ops_<isa>.c includes this file once. */
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/cpu/ops.h"

#define LANES 64 /* elements per loop body: several vectors of any width */

static inline float float_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline uint32_t bits_of_float(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline uint16_t round_bf16(float f)
{
    uint32_t u = bits_of_float(f), rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16, nan = u >> 16 | 0x40;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

static inline float bf16_value(uint16_t v)
{
    return float_of_bits((uint32_t)v << 16);
}

/* Returns e^x, accurate to 2 units in the last place for x in [-87, 88]. Saturates outside that range. The
 * polynomial is that of Cephes' expf. */
static inline float exp_fast(float x)
{
    float c = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float shifted = c * 1.44269504f + 12582912.0f; /* adding 1.5·2^23 rounds to an integer in the low bits */
    float n = shifted - 12582912.0f;
    float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    float power = float_of_bits((bits_of_float(shifted) + 127u) << 23);
    return x != x ? x : p * power;
}

static inline float sigmoid_fast(float x)
{
    return 1.0f / (1.0f + exp_fast(-x));
}

/* Returns 1 + erf(x / √2), by Abramowitz and Stegun 7.1.26. For negative x, the function computes the tail
 * directly, which avoids cancellation. */
static inline float one_plus_erf(float x)
{
    float a = fabsf(x) * 0.70710678f;
    float t = 1.0f / (1.0f + 0.3275911f * a);
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    float tail = p * t * exp_fast(-a * a);
    return x < 0.0f ? tail : 2.0f - tail;
}

/* Each comparison is false for NaN, so a NaN x is returned unchanged. */
static inline float at_most(float x, float limit)
{
    return x > limit ? limit : x;
}

static inline float within(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

static inline float act_gelu(float g, float u)
{
    return 0.5f * g * one_plus_erf(g) * u;
}

/* Returns tanh(x) as 1 - 2 / (e^2x + 1). For |x| of at least 0.125, the error is a few units in the last
 * place. */
static inline float tanh_fast(float x)
{
    float e = exp_fast(2.0f * (x < 0.0f ? -x : x)), t = 1.0f - 2.0f / (e + 1.0f), a = x < 0.0f ? -x : x;
    /* for smaller |x| the formula suffers from cancellation, so use the series */
    t = a < 0.125f ? a * (1.0f - a * a * (0.33333333f - a * a * 0.13333333f)) : t;
    return x != x ? x : x < 0.0f ? -t : t;
}

static inline float act_situv2(float g, float u)
{
    return 4.0f * tanh_fast(g * 0.25f) * sigmoid_fast(g) * 25.0f * tanh_fast(u * 0.04f);
}

static inline float act_gelu_tanh(float g, float u)
{
    return 0.5f * g * (1.0f + tanh_fast(0.79788456f * (g + 0.044715f * g * g * g))) * u;
}

#define ACTIVATE_LOOP(value)                            \
    do {                                                \
        for (size_t i = 0; i < n; i++) {                \
            float x = g[i] * weight, y = u[i] * weight; \
            h[i] = round_bf16(value);                   \
        }                                               \
        return;                                         \
    } while (0)

static void activate(const struct mf_shape *s, const float *restrict g, const float *restrict u, float weight,
                     size_t n, uint16_t *restrict h)
{
    float limit = s->act_limit > 0 ? s->act_limit : s->act_type == MF_ACT_SWIGLU ? 7.0f : INFINITY;
    float alpha = s->act_alpha > 0 ? s->act_alpha : 1.702f;
    switch (s->act_type) {
    case MF_ACT_SILU:
        if (s->act_limit > 0)
            ACTIVATE_LOOP(at_most(x, limit) * sigmoid_fast(at_most(x, limit)) * within(y, limit));
        ACTIVATE_LOOP(x * sigmoid_fast(x) * y);
    case MF_ACT_GELU:
        ACTIVATE_LOOP(act_gelu(x, y));
    case MF_ACT_SWIGLU:
        ACTIVATE_LOOP(at_most(x, limit) * sigmoid_fast(alpha * at_most(x, limit)) *
                      (within(y, limit) + 1.0f));
    case MF_ACT_SITUV2:
        ACTIVATE_LOOP(act_situv2(x, y));
    case MF_ACT_GELU_TANH:
        ACTIVATE_LOOP(act_gelu_tanh(x, y));
    case MF_ACT_SILU_STEP:
        ACTIVATE_LOOP(at_most(x * sigmoid_fast(x), limit) * within(y, limit));
    case MF_ACT_RELU2:
        ACTIVATE_LOOP((x > 0 ? x * x : 0) * y);
    case MF_ACT_NO:
    case MF_ACT_N_:
        break;
    }
    ACTIVATE_LOOP(x * y);
}

static void scale(float *restrict c, size_t n, float row, const float *restrict col)
{
    if (!col) {
        for (size_t i = 0; i < n; i++)
            c[i] *= row;
        return;
    }
    for (size_t i = 0; i < n; i++)
        c[i] *= row * col[i];
}

static void add(float *restrict sum, const float *restrict c, size_t n, float weight)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += weight * c[i];
}

static void to_bf16(const float *restrict from, size_t n, uint16_t *restrict to)
{
    for (size_t i = 0; i < n; i++)
        to[i] = round_bf16(from[i]);
}

static void combine(const uint16_t *restrict z, size_t ldz, int k, const float *weights, size_t n,
                    uint16_t *restrict y)
{
    for (size_t i = 0; i < n; i += LANES) {
        float sum[LANES] = {0};
        size_t m = n - i < LANES ? n - i : LANES;
        for (int j = 0; j < k; j++) {
            const uint16_t *row = z + (size_t)j * ldz + i;
            float w = weights ? weights[j] : 1.0f;
            if (m == LANES) {
                for (size_t l = 0; l < LANES; l++)
                    sum[l] += w * bf16_value(row[l]);
            } else {
                for (size_t l = 0; l < m; l++)
                    sum[l] += w * bf16_value(row[l]);
            }
        }
        to_bf16(sum, m, y + i);
    }
}

/* Converts an fp8 value to bf16 and multiplies it by 2^shift. For every e4m3 value the result is exact if its
 * exponent is in the range of bf16. `one` is the exponent field of 2^shift minus the format's bias. */
static inline uint16_t pack_code(uint8_t code, uint16_t one, bool nan)
{
    uint16_t magnitude = code & 0x7f, sign = (uint16_t)((code & 0x80) << 8);
    uint16_t normal = (uint16_t)((one << 7) + (magnitude << 4));
    /* A subnormal is 1 to 7 eighths of the smallest normal value. Its highest set bit becomes the implicit
     * one. */
    uint16_t up = magnitude < 2 ? 3 : magnitude < 4 ? 2 : 1;
    uint16_t subnormal = (uint16_t)(((one - up) << 7) + (magnitude << (4 + up)));

    subnormal = magnitude == 0 ? 0 : subnormal;
    return nan ? 0x7fff : (uint16_t)(sign | (magnitude < 8 ? subnormal : normal));
}

static inline void pack_fp8(enum mf_format format, int shift, const uint8_t *restrict from, size_t n,
                            uint16_t *restrict to)
{
    if (format == MF_FORMAT_FP8FNUZ) {
        for (size_t i = 0; i < n; i++)
            to[i] = pack_code(from[i], (uint16_t)(127 + shift - 8), from[i] == 0x80);
    } else {
        for (size_t i = 0; i < n; i++)
            to[i] = pack_code(from[i], (uint16_t)(127 + shift - 7), (from[i] & 0x7f) == 0x7f);
    }
}
