/* Sums over the threads of a block, MF_THREADS of them, in no more waves than a wave has lanes. */
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
    /* every wave adds up what all waves have, and those before it, a lane each */
    const i32 of_wave = lane < WAVES ? room[lane] : 0;
    i32 before = lane < wave ? of_wave : 0, all = of_wave;
    for (int d = 1; d < MF_WAVE; d *= 2) {
        before += mf_shuffle_xor(before, d);
        all += mf_shuffle_xor(all, d);
    }
    *ret_all = all;
    return before + sum - v;
}
