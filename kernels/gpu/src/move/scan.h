/* Prefix sum over the MF_THREADS threads of a block. The number of warps in the block must not exceed the
 * number of lanes in a warp. */
#pragma once

#define WAVES (MF_THREADS / MF_WAVE)

/* Returns the exclusive prefix sum of v over the block. *ret_all is the total. */
MF_DEVICE i32 scan_block(i32 v, i32 *room, i32 *ret_all)
{
    i32 lane = threadIdx.x % MF_WAVE, wave = threadIdx.x / MF_WAVE, sum = v;
    for (int d = 1; d < MF_WAVE; d *= 2) {
        i32 below = mf_shuffle_up(sum, d);
        if (lane >= d)
            sum += below;
    }
    if (lane == MF_WAVE - 1)
        room[wave] = sum;
    __syncthreads();
    /* in every warp, each lane takes the sum of one warp; the lanes add up the sums of all warps and of the
     * lower warps */
    const i32 of_wave = lane < WAVES ? room[lane] : 0;
    i32 before = lane < wave ? of_wave : 0, total = of_wave;
    for (int d = 1; d < MF_WAVE; d *= 2) {
        before += mf_shuffle_xor(before, d);
        total += mf_shuffle_xor(total, d);
    }
    *ret_all = total;
    return before + sum - v;
}
