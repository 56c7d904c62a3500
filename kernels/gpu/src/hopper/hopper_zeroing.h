/* Zeroing y beside what blocks of Hopper's core bring: memory has time for it while the matrix unit is busy.
 *
 *   zeros of ZEROS bytes lie in LDS, made before begin_ring */
#pragma once

#define ZEROS      4096 /* bytes that leave at once; family_hip_hopper.h's MF_HIP_HOPPER_ZEROS */
#define ZEROS_TURN 16   /* times that, of y, that a block takes at once */

MF_DEVICE void make_zeros(u8 *zeros)
{
    for (i32 i = threadIdx.x; i < ZEROS / 16; i += blockDim.x)
        ((mf_16b *)zeros)[i] = mf_16b{0, 0, 0, 0};
}
MF_DEVICE i32 pieces_of_y(const mf_hip_bulk_args &a, i32 cols)
{
    return (i32)MF_CEIL((i64)a.tile.token * cols * 2, (i64)ZEROS);
}
/* That it takes to zero y; 0 where it is zeroed already. */
MF_DEVICE u32 turns_of_y(const mf_hip_bulk_args &a, i32 cols)
{
    return a.y ? (u32)MF_CEIL(pieces_of_y(a, cols), ZEROS_TURN) : 0;
}

/* y is taken turn by turn by whoever brings, so that nobody waits for a block that has not begun. By one thread of those, with few registers.
 * Counts::take(): the next turn. Counts::done(): one more is in memory. */
template <int Cols, class Counts> struct zeroing {
    const mf_hip_bulk_args &a;
    const u8 *zeros;
    i32 at, left; /* pieces: the next one, -1: there is none, any more; of the turn */
    u32 next;     /* turn, asked for */

    explicit __device__ __forceinline__ zeroing(const mf_hip_bulk_args &args, const u8 *at_zeros)
        : a(args), zeros(at_zeros), at(a.y && threadIdx.x % GROUP == MF_WAVE ? 0 : -1), left(0), next(0)
    {
        if (at == 0)
            next = Counts::take();
    }
    /* With each slice. */
    __device__ __forceinline__ void operator()()
    {
        if (at < 0)
            return;
        if (left > 0) {
            const i64 first = (i64)at * ZEROS, bytes = (i64)a.tile.token * Cols * 2;
            mf_bulk_store((u8 *)a.y + first, zeros, (i32)MF_MIN((i64)ZEROS, bytes - first));
            at++;
            if (--left == 0)
                mf_bulk_commit();
            return;
        }
        if (at > 0) { /* a turn's last bytes left a slice ago */
            mf_bulk_wait();
            Counts::done();
        }
        at = (i32)next * ZEROS_TURN;
        left = MF_MIN(ZEROS_TURN, pieces_of_y(a, Cols) - at);
        if (left <= 0)
            at = -1;
        else
            next = Counts::take();
    }
    __device__ __forceinline__ void end()
    {
        while (at >= 0)
            (*this)();
    }
};
