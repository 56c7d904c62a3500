/* Sums over the threads of a block, MF_THREADS of them. */
#pragma once

#define WAVES (MF_THREADS / MF_WAVE)

/* Sum of all lower threads' values within the block; *ret_all gets the whole. */
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
    i32 before = 0, all = 0;
    for (int i = 0; i < WAVES; i++) {
        before += i < wave ? room[i] : 0;
        all += room[i];
    }
    *ret_all = all;
    return before + sum - v;
}
