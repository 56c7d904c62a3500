/* A kernel with every operation that needs ordering: LDS shared between and within waves, asynchronous copies
 * to the two stages of a ring buffer, a __shared__ variable, shuffles, and a grid barrier. a.mode breaks one
 * of these operations (faults.h). */
#include "dialect.h"
#include "faults.h"

__device__ u32 mf_barrier[2];

#define N FAULT_LANES

MF_DEVICE void ask(mf_copy_4 &way, u32 *place, const u32 *from, bool valid)
{
    mf_copy_start_4(way, place + threadIdx.x, from + threadIdx.x, valid);
    mf_copy_commit();
}
MF_DEVICE void land(const mf_copy_4 &way, u32 *place)
{
    mf_copy_finish_4(way, place + threadIdx.x);
}

/* Copies three tiles through the ring buffer. The third tile reuses the stage of the second tile. */
MF_DEVICE u32 stream(const fault_args &a, u32 *ring)
{
    const u32 t = threadIdx.x;
    mf_copy_4 first, second;
    ask(first, ring, a.in, true);
    ask(second, ring + N, a.mode == FAULT_COPY_BEYOND ? a.in + 1 : a.in, true);
    if (a.mode != FAULT_WAIT)
        mf_copy_wait<1>();
    land(first, ring);
    if (a.mode != FAULT_BARRIER)
        __syncthreads();
    u32 sum = ring[(t + 32) % N];
    if (a.mode != FAULT_SHALLOW_WAIT)
        mf_copy_wait<0>();
    land(second, ring + N);
    __syncthreads();
    sum += 3 * ring[N + (t + 1) % N];
    if (a.mode != FAULT_EARLY_COPY)
        __syncthreads();
    ask(first, ring + N, a.in, t % 2);
    mf_copy_wait<0>();
    land(first, ring + N);
    __syncthreads();
    return sum + 5 * ring[N + (t + 1) % N];
}

MF_DEVICE u32 exchange(const fault_args &a, u32 sum, u32 *room)
{
    __shared__ u32 own[N];
    const u32 t = threadIdx.x;
    room[t] = sum;
    if (a.mode != FAULT_WAVE_SYNC)
        mf_wave_sync();
    sum += room[t ^ 1];
    if (a.mode != FAULT_LAST_BARRIER)
        __syncthreads();
    room[(t + 64) % N] = sum;
    own[t] = sum;
    if (a.mode != FAULT_STATIC_BARRIER)
        __syncthreads();
    return sum + own[N - 1 - t] + room[t];
}

MF_DEVICE u32 wave_collective(const fault_args &a, u32 sum)
{
    if (a.mode == FAULT_STUCK && threadIdx.x == 7)
        __syncthreads();
    if (a.mode == FAULT_DIVERGED && threadIdx.x == 5)
        return sum + (u32)mf_match<2>(1);
    return sum + (u32)mf_shuffle_up((i32)sum, 3);
}

MF_DEVICE u32 stray(const fault_args &a, u32 *lds)
{
    const u32 t = threadIdx.x;
    if (a.mode == FAULT_LDS_BEYOND)
        lds[t + FAULT_LDS_WORDS - N + 1] = 1;
    if (a.mode == FAULT_INPUT && t == 9)
        ((u32 *)a.in)[t] = 1;
    if (a.mode == FAULT_WRITE_BEYOND && t == 9)
        a.out[FAULT_BLOCKS * N] = 1;
    if (a.mode == FAULT_READ_BEYOND)
        return a.in[t + 1];
    if (a.mode == FAULT_READ_BEFORE)
        return a.in[(i32)t - 1];
    if (a.mode == FAULT_UNALIGNED)
        return mf_load_once(a.in + t % 4).x;
    return a.mode == FAULT_UNWRITTEN ? lds[FAULT_LDS_WORDS - 1] : 0;
}

extern "C" __global__ void MF_BOUNDS(FAULT_LANES, 1) mf_faults(const fault_args a)
{
    extern __shared__ u32 lds[];
    u32 *out = a.out + blockIdx.x * N, generation;
    u32 sum = wave_collective(a, exchange(a, stream(a, lds), lds + 2 * N)) + stray(a, lds);

    out[threadIdx.x] = sum;
    if (a.mode != FAULT_NO_ARRIVAL || blockIdx.x == 0) {
        mf_grid_arrive(mf_barrier, &generation);
        mf_grid_wait(mf_barrier, generation);
    }
    /* the lines below read the values of the other block */
    sum += mf_load_shared_by_grid(a.out + (1 - blockIdx.x) * N + threadIdx.x / 4 * 4).x;
    mf_grid_arrive(mf_barrier, &generation);
    mf_grid_wait(mf_barrier, generation);
    out[threadIdx.x] = sum;
}

/* Runs in an incomplete wave. In every mode except FAULT_NONE, the lanes make a collective call there. */
extern "C" __global__ void mf_short_wave(const fault_args a)
{
    a.out[threadIdx.x] = a.mode == FAULT_NONE ? threadIdx.x + 1 : (u32)mf_shuffle_up((i32)threadIdx.x, 1);
}
