/* Zeroes y in the producer warpgroup while the tensor cores are busy and HBM has spare bandwidth.
 *
 * The kernel must write ZEROS bytes of zeros to shared memory before init_ring(). */
#pragma once

#define ZEROS       4096 /* bytes per bulk store; equals MF_HIP_HOPPER_ZEROS of family_hip_hopper.h */
#define ZERO_CHUNKS 16   /* chunks of ZEROS bytes that a block claims at once */

MF_DEVICE void make_zeros(u8 *zeros)
{
    for (i32 i = threadIdx.x; i < ZEROS / 16; i += blockDim.x)
        ((mf_16b *)zeros)[i] = mf_16b{0, 0, 0, 0};
}
MF_DEVICE i32 chunks_of_y(const mf_hip_bulk_args &a, i32 cols)
{
    return (i32)MF_CEIL((i64)a.tile.token * cols * 2, (i64)ZEROS);
}
/* Returns the number of batches that zero y, or 0 if y is already zero. */
MF_DEVICE u32 zero_batches_of_y(const mf_hip_bulk_args &a, i32 cols)
{
    return a.y ? (u32)MF_CEIL(chunks_of_y(a, cols), ZERO_CHUNKS) : 0;
}

/* Zeroes y in batches that producers claim dynamically, so that no block waits for a block that has not
 * started. Runs in one thread with few registers. Counts::claim() claims the next batch. Counts::done()
 * reports that a batch is in memory. */
template <int Cols, class Counts> struct y_zeroing {
    const mf_hip_bulk_args &a;
    const u8 *zeros;
    i32 at, left; /* at: next chunk, or -1 if there are no more; left: number of chunks left in the batch */
    u32 next;     /* index of the claimed batch */

    explicit __device__ __forceinline__ y_zeroing(const mf_hip_bulk_args &args, const u8 *at_zeros)
        : a(args), zeros(at_zeros), at(a.y && threadIdx.x % WARPGROUP == MF_WAVE ? 0 : -1), left(0), next(0)
    {
        if (at == 0)
            next = Counts::claim();
    }
    /* Runs once per K tile. */
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
        if (at > 0) { /* the last bytes of the batch were issued one K tile ago */
            mf_bulk_wait();
            Counts::done();
        }
        at = (i32)next * ZERO_CHUNKS;
        left = MF_MIN(ZERO_CHUNKS, chunks_of_y(a, Cols) - at);
        if (left <= 0)
            at = -1;
        else
            next = Counts::claim();
    }
    __device__ __forceinline__ void end()
    {
        while (at >= 0)
            (*this)();
    }
};
