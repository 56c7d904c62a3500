/* Tests the conversions of kernels/gpu/src/soft.h and mx_formats.h against the definitions of
 * kernels/core/small_float.h, for every code and every float at a rounding boundary. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/quant_mx.h"
#include "kernels/core/small_float.h"
#include "support/mf_check.h"

typedef uint32_t u32;
#define MF_DEVICE static inline
#include "kernels/gpu/src/mx_formats.h"
#include "kernels/gpu/src/soft.h"

static const int biases[] = {7, 8};

static struct mf_small_float definition_of(int bias)
{
    return bias == 8 ? MF_E4M3FNUZ : MF_E4M3FN;
}

/* Returns the value of an f16 by its definition. */
static float f16_value(uint32_t v)
{
    int exponent = (int)(v >> 10 & 31), fraction = (int)(v & 1023);
    float size = exponent == 31  ? (fraction ? NAN : INFINITY)
                 : exponent == 0 ? ldexpf((float)fraction, -24)
                                 : ldexpf((float)(fraction + 1024), exponent - 25);

    return v & 0x8000 ? -size : size;
}

static bool is_same(float a, float b)
{
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

/* Tests every code at every byte position, with neighbouring bits all set or all clear. */
MF_TEST(test_fp8_to_f16, .rows = MF_ARRAY_LEN(biases))
{
    const int bias = biases[_i];

    for (uint32_t code = 0; code < 256; code++) {
        for (int place = 0; place < 4; place++) {
            for (uint32_t beside = 0; beside < 3; beside++) {
                const uint32_t others = beside * 0x80808080u - (beside == 2);
                const uint32_t four = (others & ~(0xffu << 8 * place)) | code << 8 * place;
                const uint32_t two = mf_soft_fp8_spread(four, place / 2, bias);
                const float got = f16_value(place % 2 ? two >> 16 : two & 0xffff) * (float)(1 << (15 - bias));
                const float want = mf_fp8_value(definition_of(bias), (uint8_t)code);
                ck_assert_msg(is_same(got, want), "bias %d, code 0x%02x in 0x%08x: %g, expected %g", bias,
                              code, four, (double)got, (double)want);
                ck_assert_msg(want == 0 || isnan(want) || fabsf(want) >= 0x1p-14f,
                              "0x%02x is subnormal as f16", code);
            }
        }
    }
}

/* Tests floats around every midpoint between two codes, for every value of the upper 16 bits. */
MF_TEST(test_fp8_of_float, .rows = MF_ARRAY_LEN(biases))
{
    const int bias = biases[_i];

    for (uint64_t high = 0; high < 0x100000000u; high += 0x10000) {
        static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
        for (size_t i = 0; i < MF_ARRAY_LEN(lows); i++) {
            const union mf_soft v = {.u = (u32)high | lows[i]};
            const uint32_t got = mf_soft_fp8(v.f, bias), want = mf_small_code(definition_of(bias), v.f);
            ck_assert_msg(got == want, "bias %d, 0x%08x: 0x%02x, expected 0x%02x", bias, v.u, got, want);
        }
    }
}

MF_TEST(test_fp4_of_float)
{
    for (uint64_t high = 0; high < 0x100000000u; high += 0x10000) {
        static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
        for (size_t i = 0; i < MF_ARRAY_LEN(lows); i++) {
            const union mf_soft v = {.u = (u32)high | lows[i]};
            const uint32_t got = mf_fp4_of(v.f), want = mf_small_code(MF_E2M1, v.f);
            ck_assert_msg(got == want, "0x%08x: 0x%02x, expected 0x%02x", v.u, got, want);
        }
    }
}

/* Tests every bf16 that can be a group's largest value, infinity and NaN included. The factor is the inverse
 * of the scale. */
MF_TEST(test_mx_scale, .rows = 2)
{
    for (uint32_t high = 0; high < 0x8000; high++) {
        const union mf_soft amax = {.u = high << 16};
        const uint32_t got = mf_mx_scale_of(amax.u, _i);
        const uint32_t want = mf_mx_scale(_i ? MF_FORMAT_FP4 : MF_FORMAT_FP8FN, MF_MX_UP, amax.f);
        ck_assert_msg(got == want, "0x%08x: %u, expected %u", amax.u, got, want);
    }
    for (uint32_t code = 0; code < 0xff; code++)
        ck_assert(mf_mx_factor_of(code) * mf_e8m0_to_float((uint8_t)code) == 1.0f);
    ck_assert(isnan(mf_mx_factor_of(0xff)));
}

MF_TEST(test_bf16)
{
    for (uint64_t high = 0; high < 0x100000000u; high += 0x10000) {
        static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
        for (size_t i = 0; i < MF_ARRAY_LEN(lows); i++) {
            const union mf_soft v = {.u = (u32)high | lows[i]};
            const union mf_soft below = {.u = (u32)high}, above = {.u = (u32)high + 0x10000};
            const uint32_t got = mf_soft_bf16(v.f);
            bool up = lows[i] > 0x8000 || (lows[i] == 0x8000 && high & 0x10000);
            if (isnan(v.f))
                ck_assert_uint_eq(got, 0x7fff);
            else
                ck_assert_msg(got == (up ? above.u : below.u) >> 16, "0x%08x: 0x%04x", v.u, got);
        }
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
