/* Tests rescaled accumulation (kernels/gpu/src/rescale.h, as used by hopper/hopper_short_k.inc.h) against
 * sums in double precision. */
#include <math.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

#define MF_DEVICE       static inline
#define MF_DIVIDE(a, b) ((a) / (b))
#include "kernels/gpu/src/rescale.h"

#define LARGE 16777216.0f /* a product of 128 pairs of e4m3 is at most 1.5 times this */

/* Unit (scale) of each K stage's product, and the product. */
static const struct {
    struct {
        float unit, product;
    } of[4];
} rows[] = {
    {{{1, 3}, {2, 5}, {0.5f, -7}, {4, 11}}},
    {{{1e-3f, LARGE}, {3e-7f, -LARGE}, {2e-2f, 1}, {5e-5f, 0x1p-18f}}},
    /* at most one unit is not zero, in different positions */
    {{{1, LARGE}, {0, 448}, {0, 448}, {0, 448}}},
    {{{0, 448}, {0, 448}, {1e-4f, LARGE}, {0, 448}}},
    {{{0, 448}, {0, 448}, {0, 448}, {0, 448}}},
    {{{0x1p-30f, LARGE}, {0, LARGE}, {0, -LARGE}, {0, LARGE}}},
    /* a zero product with unit 1, followed by small values */
    {{{1, 0}, {0x1p-40f, 448}, {0x1p-90f, 1}, {0x1p-60f, -3}}},
    {{{1, 0}, {1, 0}, {0x1p-70f, LARGE}, {0x1p-20f, 0}}},
    /* very different exponents, ascending and descending */
    {{{0x1p60f, LARGE}, {0x1p-60f, LARGE}, {0x1p60f, -1}, {0x1p-60f, 1}}},
    {{{0x1p-60f, LARGE}, {0x1p60f, 1}, {0x1p-60f, LARGE}, {0x1p20f, 2}}},
    {{{-2, LARGE}, {-0x1p-50f, 3}, {1, -4}, {-1e-3f, 448}}},
    /* small values with denormal last bits */
    {{{0x1p-100f, 448}, {0x1p-118f, LARGE}, {0x1p-110f, 1}, {0, 448}}},
    {{{NAN, 1}, {1, 1}, {0, 1}, {2, 1}}},
    {{{1, 1}, {0, 1}, {NAN, 0}, {0, 0}}},
    {{{1, 1}, {1, 1}, {1, 1}, {NAN, 1}}},
    {{{INFINITY, 1}, {1, 1}, {0, 1}, {2, 1}}},
    {{{1, 1}, {0, 0}, {2, 3}, {INFINITY, 1}}},
    {{{1, 1}, {INFINITY, -2}, {0, 1}, {2, 3}}},
};

MF_TEST(rescaled_sum, .rows = MF_ARRAY_LEN(rows))
{
    double want = 0, size = 0;
    float sum = rows[_i].of[0].product, now = rows[_i].of[0].unit, largest = now;

    for (int i = 0; i < 4; i++) {
        want += (double)rows[_i].of[i].unit * (double)rows[_i].of[i].product;
        size = fmax(size, fabs((double)rows[_i].of[i].unit * (double)rows[_i].of[i].product));
    }
    for (int i = 1; i < 4; i++) {
        float next = rows[_i].of[i].unit;
        sum *= mf_rescale_factor(now, &largest, &next);
        sum += rows[_i].of[i].product;
        now = next;
    }
    const double got = (double)(sum * now);
    if (isnan(want))
        ck_assert_double_nan(got);
    else if (isinf(want))
        ck_assert_double_eq(got, want);
    else
        ck_assert_msg(fabs(got - want) <= size * 1e-6 + 1e-28, "%g, expected %g", got, want);
}

int main(void)
{
    return mf_check_main(NULL);
}
