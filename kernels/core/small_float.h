/* Encodes and decodes small floats and integers, one element at a time and without branches. Compilers can
 * therefore vectorise loops over these functions, with the same bits on every machine. Conversions round to
 * nearest even and saturate.
 *
 *   e4m3fn    bias 7, max 448, NaN 0x7f/0xff                (OCP OFP8 1.0)
 *   e4m3fnuz  bias 8, max 240, NaN 0x80 only, no -0         (ONNX, float8)
 *   e2m1      bias 1, max 6, no NaN, no infinity; -0 is code 8    (OCP MX 1.0)
 *   e8m0      2^(code - 127), NaN 0xff
 *   int       two's complement, symmetric range */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/vector.h"

MF_VECTOR_INLINE uint32_t mf_bits_of(float f)
{
    uint32_t u;
    __builtin_memcpy(&u, &f, 4);
    return u;
}

MF_VECTOR_INLINE float mf_float_of(uint32_t u)
{
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}

/* Parameters of a small float format. */
struct mf_small_float {
    int bias, mantissa_bits;
    uint32_t max_bits; /* largest value, as float bits */
    uint32_t sign;     /* sign bit of a code */
    uint32_t nan;      /* code of NaN; if the format has no NaN, the code of the largest value */
    bool nan_signed;   /* true: zero exists with both signs, and so does NaN if the format has NaN */
};

#define MF_E4M3FN   ((struct mf_small_float){7, 3, 0x43e00000 /* 448 */, 0x80, 0x7f, true})
#define MF_E4M3FNUZ ((struct mf_small_float){8, 3, 0x43700000 /* 240 */, 0x80, 0x80, false})
#define MF_E2M1     ((struct mf_small_float){1, 1, 0x40c00000 /* 6 */, 0x8, 0x7, true})

MF_VECTOR_INLINE uint8_t mf_small_code(struct mf_small_float t, float v)
{
    int shift = 23 - t.mantissa_bits;
    uint32_t u = mf_bits_of(v), sign = u >> 31 ? t.sign : 0, a = u & 0x7fffffff;
    uint32_t least_normal = (uint32_t)(127 - t.bias + 1) << 23;
    /* The spacing of floats near `magic` is the spacing of the subnormals of the small format. */
    uint32_t magic = (uint32_t)(127 + 24 - t.bias - t.mantissa_bits) << 23;
    uint32_t c = a < t.max_bits ? a : t.max_bits;
    uint32_t half = (1u << (shift - 1)) - 1;
    uint32_t normal =
        ((c + half + (c >> shift & 1)) >> shift) - ((uint32_t)(127 - t.bias) << t.mantissa_bits);
    uint32_t subnormal = mf_bits_of(mf_float_of(c) + mf_float_of(magic)) - magic;
    uint32_t code = c < least_normal ? subnormal : normal;
    uint32_t is_signed = t.nan_signed | (code != 0);
    code |= is_signed ? sign : 0;
    uint32_t nan = t.nan_signed ? t.nan | sign : t.nan;
    return (uint8_t)(a > 0x7f800000 ? nan : code);
}

/* Decodes one code of e4m3fn or e4m3fnuz, whose parameters are in t. */
MF_VECTOR_INLINE float mf_fp8_value(struct mf_small_float t, uint8_t v)
{
    uint32_t sign = (uint32_t)(v & 0x80) << 24, a = v & 0x7f;
    float step = mf_float_of((uint32_t)(127 - 2 - t.bias) << 23);
    uint32_t normal = (a << 20) + ((uint32_t)(127 - t.bias) << 23);
    uint32_t subnormal = mf_bits_of((float)(int32_t)a * step);
    uint32_t code = (a < 8 ? subnormal : normal) | sign;
    uint32_t is_nan = t.nan_signed ? a == 0x7f : v == 0x80;
    return mf_float_of(is_nan ? 0x7fc00000 | sign : code);
}

/* Each nibble of the constant is twice a magnitude of e2m1: 0 1 2 3 4 6 8 12. */
MF_VECTOR_INLINE float mf_e2m1_value(uint32_t code)
{
    int32_t twice = (int32_t)(0xc8643210u >> ((code & 7) * 4) & 15);
    uint32_t magnitude = mf_bits_of((float)twice * 0.5f);
    return mf_float_of(magnitude | (code & 8) << 28);
}

/* Rounds to an integer in [-max, max]. Returns 0 for NaN. */
MF_VECTOR_INLINE int32_t mf_int_code(float v, float max)
{
    float c = v > max ? max : v < -max ? -max : v == v ? v : 0.0f;
    /* Rounds to nearest even by adding and then subtracting 1.5 * 2^23. */
    return (int32_t)((c + 12582912.0f) - 12582912.0f);
}

MF_VECTOR_INLINE float mf_e8m0_value(uint8_t code)
{
    uint32_t normal = (uint32_t)code << 23;
    return mf_float_of(code == 0 ? 0x00400000 : code == 0xff ? 0x7fc00000 : normal);
}
