/* Microscaling (OCP MX 1.0): the scale of a group is a power of two, one byte of e8m0. How it is drawn from the group's
 * largest magnitude differs by library; with max_power2 the largest power of two of the element format (fp4 2, e4m3fn 8,
 * e4m3fnuz 7), max its largest value and m its mantissa bits:
 *
 *   down   exponent(amax / 2^max_power2)                      OCP's text, torchao FLOOR; clips up to the next power
 *   up     exponent(amax / max), one more unless exact        RCEIL: NVIDIA, DeepSeek-V4, AITER's default; never clips
 *   even   amax rounded to m mantissa bits first, then down   Quark, torchao EVEN
 *   ceil   exponent(amax / 2^max_power2), one more unless exact
 *
 * A group of zeros has byte 0 (2^-127); an infinity or NaN in it makes 0xff, and the group NaN. */
#pragma once

#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/tensor_spec.h"

/* clang-format off */
#define MF_MX_ROUND_MAP(X, P) X(P, DOWN, "down") X(P, UP, "up") X(P, EVEN, "even") X(P, CEIL, "ceil")
/* clang-format on */
MF_NAMES_DECLARE(mf_mx_round, MF_MX_, MF_MX_ROUND_MAP);

/* format: fp4, fp8fn or fp8fnuz. */
uint8_t mf_mx_scale(enum mf_format format, enum mf_mx_round round, float amax);
float mf_e8m0_to_float(uint8_t code);
uint8_t mf_e2m1_from_float(float v);

/* Four e8m0 bytes in one word, the first lowest (DeepGEMM's packed UE8M0). */
static inline uint32_t mf_e8m0_pack(const uint8_t code[4])
{
    return (uint32_t)code[0] | (uint32_t)code[1] << 8 | (uint32_t)code[2] << 16 | (uint32_t)code[3] << 24;
}
