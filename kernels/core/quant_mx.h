/* Microscaling (OCP MX 1.0): the scale of a group is a power of two, stored as one e8m0 byte. Libraries
 * derive it from the group's largest magnitude amax in different ways. For an element format, max is the
 * largest value, m the number of mantissa bits, and max_power2 the exponent of the largest power of two (fp4
 * 2, e4m3fn 8, e4m3fnuz 7):
 *
 *   down   exponent(amax / 2^max_power2)                   OCP specification, torchao FLOOR; may saturate
 *   up     exponent(amax / max), + 1 unless exact          RCEIL: NVIDIA, DeepSeek-V4, AITER; never saturates
 *   even   amax rounded to m mantissa bits, then `down`    Quark, torchao EVEN
 *   ceil   exponent(amax / 2^max_power2), + 1 unless exact
 *
 * "+ 1 unless exact" means that the exponent is rounded up unless the quotient is a power of two. The scale
 * byte of a group of zeros is 0 (2^-127). If a group contains an infinity or NaN, its scale byte is 0xff,
 * which makes all its elements NaN. */
#pragma once

#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/tensor_spec.h"

/* clang-format off */
#define MF_MX_ROUND_MAP(X, P) X(P, DOWN, "down") X(P, UP, "up") X(P, EVEN, "even") X(P, CEIL, "ceil")
/* clang-format on */
MF_NAMES_DECLARE(mf_mx_round, MF_MX_, MF_MX_ROUND_MAP);

/* Returns the scale of a group with largest magnitude amax. `format` is fp4, fp8fn or fp8fnuz. */
uint8_t mf_mx_scale(enum mf_format format, enum mf_mx_round round, float amax);
float mf_e8m0_to_float(uint8_t code);
uint8_t mf_e2m1_from_float(float v);

/* Packs four e8m0 bytes into a word, the first byte in the lowest bits (DeepGEMM's packed UE8M0). */
static inline uint32_t mf_e8m0_pack(const uint8_t code[4])
{
    return (uint32_t)code[0] | (uint32_t)code[1] << 8 | (uint32_t)code[2] << 16 | (uint32_t)code[3] << 24;
}
