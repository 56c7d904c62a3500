/* Rescaling of accumulators from one block scale to the next. The code is valid C and C++.
 *
 *   MF_DIVIDE(a, b)  a / b; its last bits may be inexact */
#pragma once

/* Returns the factor that converts sums scaled by `now` to sums scaled by *next. *largest is the largest
 * scale magnitude so far. If *next is negligible compared with *largest, it is raised to 2^-96 of *largest,
 * or to 2^-120 if that is larger. Sums of up to four products of 128 pairs of 8-bit floats are below 2^29
 * times the largest scale. With the raised scale they stay finite, and the products of the raised scale
 * change no bit of the sums. */
MF_DEVICE float mf_rescale_factor(float now, float *largest, float *next)
{
    *largest = fminf(fmaxf(*largest, fabsf(now)), 0x1p127f);
    const float least = fmaxf(*largest * 0x1p-96f, 0x1p-120f);
    if (fabsf(*next) < least)
        *next = least;
    return MF_DIVIDE(now, *next);
}
