/* Correctly rounded division of a group of bf16 by its scale, without a true division per element. The code
 * is valid C and C++. */
#pragma once

union mf_inverse_bits {
    float f;
    unsigned u;
};

/* 1 / by as two floats: the inverse rounded down, and a non-negative remainder. The parameter `nearest` is
 * the inverse rounded to nearest. */
struct mf_inverse {
    float down, rest;
};
MF_DEVICE struct mf_inverse mf_inverse_of(float by, float nearest)
{
    union mf_inverse_bits down = {nearest};
    struct mf_inverse r;
    if (fmaf(-nearest, by, 1.0f) < 0)
        down.u--;
    r.down = down.f;
    r.rest = fmaf(-down.f, by, 1.0f) * down.f;
    return r;
}

/* Returns x / by. The quotient is correctly rounded in two cases, provided that nothing underflows: x is a
 * bf16 and `by` is 1/448, 1/240 or 1/127 of a bf16 that is no smaller than x; or `by` is an e4m3. The test
 * check_quotient checks all significands. Both products have the sign of x, so -0 keeps its sign. */
MF_DEVICE float mf_quotient_of(float x, float down, float rest)
{
    return fmaf(x, down, x * rest);
}
