/* Conversions between number formats, in plain C. Kernels are tested against these definitions. Quantisation
 * of a matrix is in kernels/core/codec.h.
 *
 * Conversions to bf16 round to nearest even. fp8 e4m3fn: bias 7, max 448, NaN 0x7f/0xff. e4m3fnuz: bias 8,
 * max 240, NaN 0x80 only, no negative zero (OCP OFP8 1.0; ONNX float8 page). Conversions to fp8 saturate at
 * the maximum and keep NaN. All conversions are compiled without floating-point contraction or fast division.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"

static inline float mf_bf16_to_float(uint16_t v)
{
    union {
        uint32_t u;
        float f;
    } x = {.u = (uint32_t)v << 16};
    return x.f;
}
uint16_t mf_bf16_from_float(float v);

float mf_fp8_to_float(enum mf_format format, uint8_t v);
uint8_t mf_fp8_from_float(enum mf_format format, float v);
/* Converts a dtype to a tensor spec format. Returns -EINVAL for fp16, which no kernel supports. */
int mf_format_of_dtype(enum mf_dtype dtype, enum mf_format *ret);

/* Conversions of arrays, with the same bits as the conversions of single values. */
void mf_bf16_to_floats(const uint16_t *from, size_t n, float *to);
void mf_bf16_from_floats(const float *from, size_t n, uint16_t *to);
/* Sets to[i] to the value of from[i] times scale. */
void mf_fp8_to_floats(enum mf_format format, const uint8_t *from, size_t n, float scale, float *to);

/* Returns the poison of a format: a bit pattern of one element that no kernel writes. It is a signalling NaN
 * for f32 and bf16, NaN for fp8 (fn 0x7f, fnuz 0x80), and 0xa5a5a5a5 for an index. */
uint32_t mf_poison(enum mf_format format);
void mf_poison_fill(enum mf_format format, void *to, size_t n_elements);
/* Fills n elements with `poison`. Each element has element_bytes (1, 2 or 4) bytes. */
void mf_poison_fill_bytes(uint32_t poison, int element_bytes, void *to, size_t n);
