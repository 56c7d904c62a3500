/* Exposes the register maps of matrix instructions. For each lane, stores the registers that NVIDIA's
 * ldmatrix loads from rows in memory, or the result of a product of bf16 (MF_FORMAT 4: int8) whose operand
 * registers are read from memory. */
#include "dialect.h"

struct register_args {
    /* load: four matrices of 8 rows of 8 elements; multiply: a and b, [lanes][MF_MMA_A + MF_MMA_B] */
    const u32 *in;
    u32 *out;      /* load: [lanes][4 registers of ldmatrix.x4, 2 of .x2]; multiply: float [lanes][4] */
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
    i32 sums[4] = {0, 0, 0, 0};
    mf_mma_s8(sums, a, b);
    for (int i = 0; i < 4; i++)
        d[i] = (float)sums[i];
#else
    mf_mma_bf16(d, a, b);
#endif
    for (int i = 0; i < 4; i++)
        ((float *)args.out)[threadIdx.x * 4 + i] = d[i];
}
