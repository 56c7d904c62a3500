/* The division of kernels/hip/quotient.h against true division, over every pair that quantising can bring together. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/cleanup.h"
#include "mf_check.h"

#define MF_DEVICE static inline
#include "kernels/hip/quotient.h"

#define SMALLEST 1e-25f   /* scale that is not divided truly: kernels/hip/quantise.h */
#define TO_ZERO  0x1p-12f /* what every 8-bit float rounds to zero */

static const float greatest[] = {448.0f, 240.0f};

static float of_bf16(uint32_t bits)
{
    uint32_t u = bits << 16;
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* Every significand of a group's largest, at exponents apart, by every bf16 that is no larger. */
START_TEST(test_all)
{
    for (uint32_t largest = 0x3f80; largest < 0x4000; largest++) {
        for (int e = -70; e <= 120; e += 19) {
            const float by = ldexpf(of_bf16(largest), e) / greatest[_i], inverse = 1.0f / by;

            if (by < SMALLEST)
                continue;
            for (uint32_t x = 0; of_bf16(x) <= ldexpf(of_bf16(largest), e); x++) {
                const float want = of_bf16(x) / by, got = mf_quotient_of(of_bf16(x), by, inverse);

                if (want < TO_ZERO ? !(got < TO_ZERO) : got != want)
                    ck_abort_msg("%a / %a: %a, expected %a", (double)of_bf16(x), (double)by, (double)got,
                                 (double)want);
            }
        }
    }
}
END_TEST

/* -x is x turned round, zeros too: their sign is a bit of the code. */
START_TEST(test_signs)
{
    for (uint32_t x = 0; x <= 0x4000; x++) {
        const float by = of_bf16(0x4000) / greatest[_i];
        const float plus = mf_quotient_of(of_bf16(x), by, 1.0f / by);
        const float minus = mf_quotient_of(-of_bf16(x), by, 1.0f / by);

        ck_assert(plus == -minus && !signbit(plus) && signbit(minus));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("quotient");
    TCase *tests = tcase_create("quotient");

    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_all, 0, MF_ARRAY_LEN(greatest));
    tcase_add_loop_test(tests, test_signs, 0, MF_ARRAY_LEN(greatest));
    suite_add_tcase(suite, tests);
    return mf_check_main(suite);
}
