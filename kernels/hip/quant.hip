/* Rows of MF_COLS bf16 into e4m3 with their scales: scale = amax / 448 (MF_FNUZ: 240), 1 for a group of zeros; q = round(x / scale) by
 * true division, as kernels/quant.h defines it.
 *
 * MF_GROUP 128: a wave takes a group of 128 (the last of a row may be short). MF_GROUP 0: a block takes a row. */
#include "dialect.h"
#include "args.h"

#define WAVES (MF_THREADS / MF_WAVE)

MF_DEVICE float scale_of(float amax)
{
    float s = mf_divide(amax, MF_FP8_MAX);
    return s == 0.0f ? 1.0f : s;
}

#if MF_GROUP == 128
#    define EACH (128 / MF_WAVE)
extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_quant(const mf_hip_quant_args a)
{
    const i32 groups = MF_CEIL(MF_COLS, 128), lane = threadIdx.x % MF_WAVE;
    const i32 rows = a.num_valid ? MF_MIN(a.rows, a.num_valid[0]) : a.rows;
    for (i64 g = (i64)blockIdx.x * WAVES + threadIdx.x / MF_WAVE; g < (i64)rows * groups; g += (i64)gridDim.x * WAVES) {
        i64 row = g / groups;
        i32 col = (i32)(g % groups) * 128 + lane * EACH;
        const u16 *x = (const u16 *)a.x + row * MF_COLS + col;
        float v[EACH], amax = 0;
        MF_UNROLL
        for (int i = 0; i < EACH; i += 2) {
            u32 two = col + i < MF_COLS ? *(const u32 *)(x + i) : 0;
            v[i] = mf_bf16_low(two);
            v[i + 1] = mf_bf16_high(two);
            amax = fmaxf(amax, fmaxf(fabsf(v[i]), fabsf(v[i + 1])));
        }
        float s = scale_of(mf_wave_max(amax));
        MF_UNROLL
        for (int i = 0; i < EACH; i += 2) {
            if (col + i < MF_COLS)
                *(u16 *)((u8 *)a.q + row * MF_COLS + col + i) = (u16)mf_fp8_pair(mf_divide(v[i], s), mf_divide(v[i + 1], s));
        }
        if (lane == 0)
            a.scale[g] = s;
    }
}
#else
extern "C" __global__ void __launch_bounds__(MF_THREADS) mf_quant(const mf_hip_quant_args a)
{
    __shared__ float room[WAVES];
    const i32 rows = a.num_valid ? MF_MIN(a.rows, a.num_valid[0]) : a.rows;
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const u32 *x = (const u32 *)((const u16 *)a.x + row * MF_COLS);
        float amax = 0;
        for (i32 i = threadIdx.x; i < MF_COLS / 2; i += MF_THREADS)
            amax = fmaxf(amax, fmaxf(fabsf(mf_bf16_low(x[i])), fabsf(mf_bf16_high(x[i]))));
        amax = mf_wave_max(amax);
        if (threadIdx.x % MF_WAVE == 0)
            room[threadIdx.x / MF_WAVE] = amax;
        __syncthreads();
        for (int i = 0; i < WAVES; i++)
            amax = fmaxf(amax, room[i]);
        float s = scale_of(amax);
        for (i32 i = threadIdx.x; i < MF_COLS / 2; i += MF_THREADS)
            ((u16 *)((u8 *)a.q + row * MF_COLS))[i] =
                (u16)mf_fp8_pair(mf_divide(mf_bf16_low(x[i]), s), mf_divide(mf_bf16_high(x[i]), s));
        if (threadIdx.x == 0)
            a.scale[row] = s;
        __syncthreads();
    }
}
#endif
