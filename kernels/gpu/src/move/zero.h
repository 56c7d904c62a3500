/* Zeroes rows of MF_COLS 16-bit elements of y, to which a stage adds later. The work is split over `blocks`
 * blocks, and a call does the part of block `block`. */
#pragma once

MF_DEVICE void zero_rows(void *y, i32 rows, i32 block, i32 blocks)
{
    const i64 n = (i64)rows * (MF_COLS / 8);
    for (i64 at = (i64)block * MF_THREADS + threadIdx.x; at < n; at += (i64)blocks * MF_THREADS)
        ((mf_16b *)y)[at] = mf_16b{0, 0, 0, 0};
}
