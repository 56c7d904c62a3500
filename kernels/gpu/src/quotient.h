/* Division of a group of bf16 by what scales them, in the words that C and C++ share. */
#pragma once

union mf_inverse_bits {
    float f;
    unsigned u;
};

/* 1 / by as two floats: the inverse rounded down, and what that leaves over, which is not below 0. nearest: the inverse to
 * nearest. */
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

/* x / by. For x a bf16 and `by` the 448th, 240th or 127th part of one that is no smaller, and for any x and `by` an e4m3, that
 * is the quotient to nearest, as long as nothing underflows (check_quotient goes through all their significands). As both
 * products have the sign of x, -0 keeps its own. */
MF_DEVICE float mf_quotient_of(float x, float down, float rest)
{
    return fmaf(x, down, x * rest);
}
