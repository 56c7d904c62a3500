/* Rescaling of accumulators from one block scale to the next. Valid as C and C++.
 *
 *   MF_DIVIDE(a, b)  a / b, up to its last bits */
#pragma once

/* Factor that converts sums scaled by `now` to sums scaled by *next. *largest: largest scale magnitude so
 * far. A next scale that is negligible beside *largest is raised to 2^-96 of it, or to 2^-120. Sums of up
 * to four products of 128 pairs of 8-bit floats, which are below 2^29 times the largest scale, then stay
 * finite, and the raised scale's own products change none of their bits. */
MF_DEVICE float mf_rescale_factor(float now, float *largest, float *next)
{
    *largest = fminf(fmaxf(*largest, fabsf(now)), 0x1p127f);
    const float least = fmaxf(*largest * 0x1p-96f, 0x1p-120f);
    if (fabsf(*next) < least)
        *next = least;
    return MF_DIVIDE(now, *next);
}
