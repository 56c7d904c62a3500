/* Tests the division of kernels/gpu/src/quotient.h against true division, for every pair of operands that
 * quantisation can produce. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

#define MF_DEVICE static inline
#include "kernels/gpu/src/quotient.h"

#define SMALLEST 1e-25f /* scales outside this range are rescaled first: kernels/gpu/src/quantise.h */
#define LARGEST  1e25f
#define TO_ZERO  0x1p-12f /* rounds to zero in every format */

static const float greatest[] = {448.0f, 240.0f, 127.0f};

static struct mf_inverse inverse_of(float by)
{
    return mf_inverse_of(by, 1.0f / by);
}

static float of_bf16(uint32_t bits)
{
    uint32_t u = bits << 16;
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* Tests every significand of a group's largest value, at spaced exponents, with every bf16 numerator up to
 * that largest value. */
MF_TEST(test_all, .rows = MF_ARRAY_LEN(greatest))
{
    for (uint32_t largest = 0x3f80; largest < 0x4000; largest++) {
        for (int e = -70; e <= 90; e += 16) {
            const float by = ldexpf(of_bf16(largest), e) / greatest[_i];
            const struct mf_inverse inverse = inverse_of(by);

            ck_assert(inverse.rest >= 0);
            if (by < SMALLEST || by > LARGEST)
                continue;
            for (uint32_t x = 0; of_bf16(x) <= ldexpf(of_bf16(largest), e); x++) {
                const float want = of_bf16(x) / by,
                            got = mf_quotient_of(of_bf16(x), inverse.down, inverse.rest);

                if (want < TO_ZERO ? !(got < TO_ZERO) : got != want)
                    ck_abort_msg("%a / %a: %a, expected %a", (double)of_bf16(x), (double)by, (double)got,
                                 (double)want);
            }
        }
    }
}

/* -x gives the negated quotient. This holds for zeros too, because the sign is a bit of the code. */
MF_TEST(test_signs, .rows = MF_ARRAY_LEN(greatest))
{
    for (uint32_t x = 0; x <= 0x4000; x++) {
        const struct mf_inverse inverse = inverse_of(of_bf16(0x4000) / greatest[_i]);
        const float plus = mf_quotient_of(of_bf16(x), inverse.down, inverse.rest);
        const float minus = mf_quotient_of(-of_bf16(x), inverse.down, inverse.rest);

        ck_assert(plus == -minus && !signbit(plus) && signbit(minus));
    }
}

/* In NVFP4 the numerator is a bf16 value times the global factor, which is an arbitrary float. The divisor
 * has the four significant bits of e4m3. */
MF_TEST(test_e4m3, .rows = 8)
{
    const float by = (float)(8 + _i) / 8;
    const struct mf_inverse inverse = inverse_of(by);

    for (uint32_t bits = 0x3f800000; bits < 0x40000000; bits++) {
        float x;

        memcpy(&x, &bits, sizeof(x));
        if (mf_quotient_of(x, inverse.down, inverse.rest) != x / by)
            ck_abort_msg("%a / %a", (double)x, (double)by);
    }
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
