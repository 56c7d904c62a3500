/* Sums that are counted in units, and brought from one unit into another, in the words that C and C++ share.
 *
 *   MF_DIVIDE(a, b)  a / b, but for its last bits */
#pragma once

/* What turns sums in units of `now` into sums in units of `next`. largest is that of all units so far, of whatever sign. A unit that is
 * nothing, or next to nothing, beside it is raised to 2^-96 of it, or to 2^-120: sums of up to four products of 128 pairs of 8-bit
 * floats, which are below 2^29 of the largest, stay finite in it, and what it counts is none of their bits. */
MF_DEVICE float mf_units_ratio(float now, float *largest, float *next)
{
    *largest = fminf(fmaxf(*largest, fabsf(now)), 0x1p127f);
    const float least = fmaxf(*largest * 0x1p-96f, 0x1p-120f);
    if (fabsf(*next) < least)
        *next = least;
    return MF_DIVIDE(now, *next);
}
