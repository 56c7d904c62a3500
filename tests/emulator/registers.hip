/* The registers of matrix instructions as they are, lane by lane: what NVIDIA's ldmatrix leaves of rows in memory, and what a
 * product of bf16 or, with MF_FORMAT 4, of int8 leaves of registers from memory. */
#include "dialect.h"

struct register_args {
    const u32 *in; /* load: four matrices of 8 rows of 8 elements; multiply: a and b, [lanes][MF_MMA_A + MF_MMA_B] */
    u32 *out;      /* load: [lanes][4 of four matrices, 2 of the first two]; multiply: float [lanes][4] */
    i32 multiply, unused;
};

#if MF_WAVE == 32
MF_DEVICE void load(const register_args &args)
{
    __shared__ __align__(16) u32 rows[4 * 8 * 4];
    const i32 lane = threadIdx.x;
    u32 four[4], two[2];

    for (i32 i = lane; i < 4 * 8 * 4; i += MF_WAVE)
        rows[i] = args.in[i];
    __syncthreads();
    mf_load_matrix_4(four, rows + lane * 4);
    mf_load_matrix_2(two, rows + lane % 16 * 4);
    for (int i = 0; i < 6; i++)
        args.out[lane * 6 + i] = i < 4 ? four[i] : two[i - 4];
}
#endif

extern "C" __global__ void MF_BOUNDS(MF_WAVE, 1) mf_registers(const register_args args)
{
    const u32 *in = args.in + threadIdx.x * (MF_MMA_A + MF_MMA_B);
#if MF_WAVE == 32
    if (!args.multiply) {
        load(args);
        return;
    }
#endif
    u32 a[MF_MMA_A], b[MF_MMA_B];
    float d[4] = {0, 0, 0, 0};
    for (int i = 0; i < MF_MMA_A + MF_MMA_B; i++)
        (i < MF_MMA_A ? a[i] : b[i - MF_MMA_A]) = in[i];
#if MF_FORMAT == 4
    i32 counts[4] = {0, 0, 0, 0};
    mf_mma_s8(counts, a, b);
    for (int i = 0; i < 4; i++)
        d[i] = (float)counts[i];
#else
    mf_mma_bf16(d, a, b);
#endif
    for (int i = 0; i < 4; i++)
        ((float *)args.out)[threadIdx.x * 4 + i] = d[i];
}
