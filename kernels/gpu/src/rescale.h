/* Rescaling of accumulators from one block scale to the next. The code is valid C and C++.
 *
 *   MF_DIVIDE(a, b)  a / b; its last bits may be inexact */
#pragma once

/* Returns the factor that converts sums scaled by `now` to sums scaled by *next. *largest is the largest
 * scale magnitude so far. If *next is negligible compared with *largest, *next is raised to 2^-96 times
 * *largest, but at least to 2^-120. Sums of up to four products of 128 pairs of 8-bit floats are below 2^29
 * times the largest scale. After the raise, the sums therefore stay finite, and products with the raised
 * scale are too small to change any bit of the sums. */
MF_DEVICE float mf_rescale_factor(float now, float *largest, float *next)
{
    *largest = fminf(fmaxf(*largest, fabsf(now)), 0x1p127f);
    const float least = fmaxf(*largest * 0x1p-96f, 0x1p-120f);
    if (fabsf(*next) < least)
        *next = least;
    return MF_DIVIDE(now, *next);
}
