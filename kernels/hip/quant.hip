/* Rows of MF_COLS bf16 into 8-bit floats with their scales (quantise.h).
 *
 * MF_GROUP 128: sixteen lanes take a group of 128 (the last of a row may be short). MF_GROUP 0: a block takes a row. */
#include "dialect.h"
#include "args.h"
#include "quantise.h"

#define WAVES (MF_THREADS / MF_WAVE)

#if MF_GROUP == 128
#    define EACH  8             /* elements of a lane: 16 bytes */
#    define LANES (128 / EACH)  /* of a group */
#    define TURNS 4             /* groups of a lane at once: loads in flight */

/* Eight elements at a time; a group's last may be short by multiples of sixteen. */
extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_quant(const mf_hip_quant_args a)
{
    mf_begin();
    const i32 groups = MF_CEIL(MF_COLS, 128), lane = threadIdx.x % LANES;
    const i32 rows = a.num_valid ? MF_MIN(a.rows, a.num_valid[0]) : a.rows;
    const i64 n = (i64)rows * groups, stride = (i64)gridDim.x * (MF_THREADS / LANES);
    /* all lanes of a wave take part in each turn */
    for (i64 first = (i64)blockIdx.x * (MF_THREADS / LANES) + threadIdx.x / LANES; first - threadIdx.x % MF_WAVE / LANES < n;
         first += TURNS * stride) {
        mf_16b v[TURNS];
        MF_UNROLL
        for (int t = 0; t < TURNS; t++) {
            const i64 g = first + t * stride, row = g / groups;
            const i32 col = (i32)(g % groups) * 128 + lane * EACH;
            v[t] = mf_16b{0, 0, 0, 0};
            if (g < n && col < MF_COLS)
                v[t] = mf_load_once((const u16 *)a.x + row * MF_COLS + col);
        }
        MF_UNROLL
        for (int t = 0; t < TURNS; t++) {
            const i64 g = first + t * stride, row = g / groups;
            const i32 col = (i32)(g % groups) * 128 + lane * EACH;
            const mf_divisor d = mf_divisor_of(mf_amax_of_16_lanes(mf_amax_8(v[t])));
            if (g < n && col < MF_COLS)
                *(mf_8b *)((u8 *)a.q + row * MF_COLS + col) = mf_quantise_8(v[t], d);
            if (g < n && lane == 0)
                a.scale[g] = d.by;
        }
    }
}
#else
extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_quant(const mf_hip_quant_args a)
{
    __shared__ float room[WAVES];
    mf_begin();
    const i32 rows = a.num_valid ? MF_MIN(a.rows, a.num_valid[0]) : a.rows;
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const u32 *x = (const u32 *)((const u16 *)a.x + row * MF_COLS);
        float amax = 0;
        for (i32 i = threadIdx.x; i < MF_COLS / 2; i += MF_THREADS)
            amax = fmaxf(amax, mf_amax_2(x[i]));
        amax = mf_wave_max(amax);
        if (threadIdx.x % MF_WAVE == 0)
            room[threadIdx.x / MF_WAVE] = amax;
        __syncthreads();
        for (int i = 0; i < WAVES; i++)
            amax = fmaxf(amax, room[i]);
        const mf_divisor d = mf_divisor_of(amax);
        for (i32 i = threadIdx.x; i < MF_COLS / 2; i += MF_THREADS)
            ((u16 *)((u8 *)a.q + row * MF_COLS))[i] = (u16)mf_quantise_2(x[i], d);
        if (threadIdx.x == 0)
            a.scale[row] = d.by;
        __syncthreads();
    }
}
#endif
