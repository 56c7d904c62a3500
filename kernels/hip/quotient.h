/* Division of a group of bf16 by what scales them, in the words that C and C++ share. */
#pragma once

/* x / by from the inverse of by, itself to nearest: the product is put right by its remainder. For x a bf16 and `by` the 448th
 * or 240th part of one that is no smaller, that is the quotient to nearest, as long as nothing underflows (check_quotient goes
 * through all their significands). A remainder of -0 would lose the sign. */
MF_DEVICE float mf_quotient_of(float x, float by, float inverse)
{
    const float q = x * inverse;
    return copysignf(fmaf(fmaf(-q, by, x), inverse, q), x);
}
